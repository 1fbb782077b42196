"""The command line: `malt run` and the other commands.

Begin with `main.py`; each command has a file of its name.
"""
