"""The job of which this process is a rank: joining, and calls that all ranks make together.

Begin with `joining.py`: `malt.init()`, for which `_bootstrap` finds the other ranks. `job.py` has
the job that this process is in, `_rejoining` its groups one after the other, and `agreement.py`
calls that succeed on every rank or fail on every rank.
"""
