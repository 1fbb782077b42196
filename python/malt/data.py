"""The ranks' parts of data: what `malt.load_data` and `malt.shard` return, and how to divide it."""

from malt._data.chunks import Chunks, Data
from malt._data.shard import Shard
from malt._partition import Partition, Traffic, partition

__all__ = ["Chunks", "Data", "Partition", "Shard", "Traffic", "partition"]
