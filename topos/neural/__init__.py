"""Facades: layers, losses and optimizers, written on the public surface alone."""
