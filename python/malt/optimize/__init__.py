"""Optimisation by other means than averages: consensus, and rounds on parts of a model."""

from malt._consensus.consensus import Consensus
from malt.optimize import schedule

__all__ = ["Consensus", "schedule"]
