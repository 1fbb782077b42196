"""`malt.save` and `malt.restore`.

Begin with `checkpoint.py`: how a checkpoint is made atomic, and found. `vector_files.py` converts
vectors to and from the arrays of a file, and `safetensors.py` has the file's format.

May import: `malt._job` and what that may.
"""
