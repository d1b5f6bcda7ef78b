"""Readings of a spec that compute: programs, runs."""
