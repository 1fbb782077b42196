"""Sharing rows out among ranks: `malt.shard`, and examples read from files.

Begin with `shard.py` (rows in memory, and the ledger of their chunks) or `load.py`
(`malt.load_data`). `files.py` finds files, `parts.py` cuts them, and each format has a reader.
"""
