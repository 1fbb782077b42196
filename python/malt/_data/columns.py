"""Which columns the rows of all ranks have, from what each rank has found in its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from malt._data.files import File
from malt._data.reader import Reading
from malt._errors import ConfigError, describe_ranks
from malt._job.agreement import Report


class Layout(NamedTuple):
    """The layout that the rows of all ranks share."""

    features: int
    zero_based: bool | None  # svmlight's indices; None for other formats


def stored(files: Sequence[File]) -> Report:
    """Return the part of a report for agree_on() that must be the same on all ranks."""
    return {"files": len(files), "bytes": sum(file.size for file in files)}


def agree_on(reports: dict[int, Report], asked: Reading, features: int | None, size: int) -> Layout:
    """Compute the layout from all ranks' reports; the same reports give the same layout.

    Args:
        reports: by rank: stored(), `rows`, and for svmlight text the `lowest` and `highest` index,
            else the number of `columns`.
        asked: for `zero_based`.
        features: the number of columns that the user asked for, or None.
        size: of the job.

    Raises:
        ConfigError: a rank has no rows, or the ranks have read different data.
    """
    for name in ("files", "bytes"):
        _check_same(name, reports)
    empty = [rank for rank, report in reports.items() if report["rows"] == 0]
    if empty:
        total = sum(report["rows"] for report in reports.values())
        raise ConfigError(
            f"malt.load_data: there are no rows for {describe_ranks(empty)} of {size}; all "
            f"files together have {total}. Start fewer ranks, or write more or longer files; "
            "or let each rank read all (shard=False) and share the rows with malt.shard()"
        )
    first = next(iter(reports.values()))
    if "columns" in first:
        _check_same("columns", reports)
        return Layout(first["columns"], None)
    zero_based = asked.zero_based
    if zero_based == "auto":
        zero_based = min(report["lowest"] for report in reports.values()) == 0
    highest = max(report["highest"] for report in reports.values())
    needed = highest + (1 if zero_based else 0)
    if features is None:
        features = max(needed, 1)
    if needed > features:
        raise ConfigError(
            f"an index is {highest}, counted from {0 if zero_based else 1}; features is {features}"
        )
    return Layout(features, bool(zero_based))


def _check_same(name: str, reports: dict[int, Report]) -> None:
    values = {rank: report[name] for rank, report in reports.items()}
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
        raise ConfigError(
            f"malt.load_data: the data has {name}: {listed}; all ranks must see the same files "
            "(shard=False if each has its own)"
        )
