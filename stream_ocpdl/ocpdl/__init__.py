"""The mathematics: NumPy and Numba. No clock, no logging, no files, no hidden randomness."""
