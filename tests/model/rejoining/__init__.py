"""Whole jobs whose ranks come back, simulated: see `job`."""
