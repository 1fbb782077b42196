"""`malt.save` and `malt.restore`.

Begin with `checkpoint.py`: how a checkpoint is made atomic, and found. `vector_files.py` is a
vector in a file, `safetensors.py` the file's format.

May import: `malt._job` and what that may.
"""
