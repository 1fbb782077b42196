"""The types of what MALT's functions take and return, for annotations."""

from malt._checkpoint.restoring import Restored
from malt._core_import import Codec, Fold, Gathered, Route, Stats, Update
from malt._vectors.frontier import Frontier

__all__ = ["Codec", "Fold", "Frontier", "Gathered", "Restored", "Route", "Stats", "Update"]
