"""A pool over a job. Begin with `calls.py` for rank 0, and with `serving.py` for the others."""
