"""Tests of the CUDA backend: its kernels in the simulator, and as assembly."""
