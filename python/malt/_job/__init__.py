"""The job that this process is a rank of: joining, vectors, and what ranks do together.

Begin with `job.py`: `malt.init()` and what follows from it. `bootstrap.py` finds the other ranks,
`vectors.py` makes vectors, `rejoin.py` takes them to the next group when ranks come back, and
`agreement.py` has calls that succeed on every rank or fail on every rank.

May import: `malt._rendezvous` and what that may.
"""
