"""Mistakes of programs with their vectors, which are told. Begin with `missed.py`."""
