"""Every compiled function, the store that keeps them, the executor, and the one file of Numba policy."""
