"""Sums that all ranks change at once: `malt.ps.Shared`. Begin at shared.py.

deltas.py: the changes of an array as bytes. streams.py: which changes each rank has, and its rules.
"""
