"""Starting ranks and staying with them to the end, for `malt run` and for `fit(ranks=4)`.

Begin with `launcher.py`. `rank_process.py` is one rank as the launcher sees it, `output.py` shows
what ranks write, `signals.py` passes on the launcher's signals, and `orphans.py` ends what is left
when the launcher is killed. `forked.py` starts ranks from a process that has the data already.

May import: `malt._job` and what that may.
"""
