"""The job of which this process is a rank: joining, vectors, and the ranks' collective calls.

Begin with `job.py`: `malt.init()` and the calls that follow it. `bootstrap.py` finds the other
ranks, `vectors.py` makes vectors, `rejoin.py` moves them to the next group when ranks rejoin, and
`agreement.py` has calls that succeed on every rank or fail on every rank.

May import: `malt._rendezvous` and what that may.
"""
