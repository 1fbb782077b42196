"""`malt.save` and `malt.restore`.

Begin with `checkpoint.py`: how a checkpoint is made atomic. `restoring.py` finds and reads it.
`vector_files.py` converts vectors to and from the arrays of a file, `spread.py` does so for tables,
of which each rank has a part, and `safetensors.py` has the file's format.
"""
