"""Vectors, and what a loop does with them. Begin with `vectors.py`."""
