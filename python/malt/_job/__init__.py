"""The job of which this process is a rank: joining, vectors, and the ranks' collective calls.

Begin with `joining.py`: `malt.init()`, for which `bootstrap.py` finds the other ranks. `job.py` has
the job that this process is in, `vectors.py` makes vectors, `generations.py` moves them to the next
group when ranks rejoin, and `agreement.py` has calls that succeed on every rank or fail on every
rank.

May import: `malt._rendezvous` and what that may.
"""
