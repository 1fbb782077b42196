"""A pool on one machine. Begin with `calls.py`."""
