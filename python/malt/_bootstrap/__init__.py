"""How the ranks of a job find one another.

Begin with `find_bootstrap.py`, which takes the one of the launcher that `launchers.py` sees.
"""
