"""Many ranks from one ordinary Python process, or from a job: `malt.Pool`, and `fit(ranks=4)`.

Begin with `pool.py`, which has what users call. `planning.py` knows which rank does which chunk of
a sum, `tree.py` adds results up, `cutting.py` cuts data into chunks, `store.py` keeps them by the
hash of their content in `memory.py`, and `failures.py` brings exceptions of ranks to the caller.

`starting.py` starts ranks from a process. Those of `fit(ranks=4)` are forked by the process itself,
`forked.py`; those of a pool by a process of their own, `local/nursery.py`.

On one machine, `local/calls.py` makes calls on the ranks of `local/crew.py`, which do what
`local/worker.py` says. Over a job, `over_job/calls.py` makes them on rank 0, and
`over_job/serving.py` serves them on the others; `over_job/messenger.py` carries messages, and
`over_job/naming.py` finds functions by name.
"""
