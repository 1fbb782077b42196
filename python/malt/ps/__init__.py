"""A parameter server without special machines: a table whose rows are spread over the ranks."""

from __future__ import annotations

from malt._shared.shared import Shared
from malt.ps._rules import FTRL, SGD, AdaGrad, Add, Assign, Momentum, Rule
from malt.ps._stats import TableStats
from malt.ps._table import Table

__all__ = [
    "FTRL",
    "SGD",
    "AdaGrad",
    "Add",
    "Assign",
    "Momentum",
    "Rule",
    "Shared",
    "Table",
    "TableStats",
]
