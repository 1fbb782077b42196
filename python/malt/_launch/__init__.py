"""Starting ranks and staying with them to the end, for `malt run`.

Begin with `launcher.py`, which decides what happens when ranks end and other nodes report; its
`options.py` says what it is told. `host_ranks.py` has the processes of this host's ranks,
`rank_process.py` is one of them, `output.py` shows what they write, `signals.py` passes on the
launcher's signals, and `orphans.py` ends what is left when the launcher is killed.
`descriptors.py` has the limit on open files, and `scale.py` listens to `malt scale`.
"""
