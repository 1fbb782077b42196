"""The groups of a job one after the other, as ranks rejoin. Begin with `generations.py`."""
