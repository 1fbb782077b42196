"""Many ranks from one ordinary Python process, or from a job: `malt.Pool`, and `fit(ranks=4)`.

Begin with `pool.py`, which has what users call. `planning.py` knows which rank does which chunk of
a sum, `tree.py` adds results up, `cutting.py` cuts data into chunks, `store.py` keeps them by the
hash of their content in `memory.py`, and `failures.py` brings exceptions of ranks to the caller.

`starting.py` starts ranks from a process. Those of `fit(ranks=4)` are forked by the process itself,
`forked.py`; those of a pool by a process of their own, `nursery.py`.

On one machine, `calls.py` makes calls on the ranks of `crew.py`, which do what `worker.py` says.
`packing.py` lays objects out in memory, and `functions.py` knows which functions the ranks have.

Over a job, `over_job.py` makes the calls on rank 0, and `serving.py` serves them on the others,
which keep `chunks.py`. `post.py` carries messages, and `naming.py` finds functions by name.

May import: `malt._engines` and what that may.
"""
