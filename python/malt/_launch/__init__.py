"""Starting ranks and staying with them to the end: behind `malt run`, and behind `fit(ranks=4)`.

Begin with `launcher.py`. `rank_process.py` is one rank as it sees it, `output.py` what ranks write,
`signals.py` what the launcher is sent, `orphans.py` what is left when it is killed. `forked.py`
starts ranks out of a process that has the data already.

May import: `malt._job` and what that may.
"""
