"""Which columns the rows of all ranks have, from what each rank has found in its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from malt._alike import brief, check_alike
from malt._data.files import File
from malt._data.reader import Reading
from malt._errors import ConfigError, describe_ranks
from malt._job.agreement import Report

_MOST_NAMED = 3  # files in a message
_ARGUMENTS = ("dtype", "features", "zero_based", "label", "on_bad", "header")


class Layout(NamedTuple):
    """The layout that the rows of all ranks share."""

    features: int
    zero_based: bool | None  # svmlight's indices; None for other formats


def request(files: Sequence[File], asked: Reading) -> Report:
    """Return the part of a report for agree_on() that must be the same on all ranks."""
    return {
        "the number of files": len(files),
        "the number of bytes": sum(file.size for file in files),
        "the list of files": brief(", ".join(file.name for file in files)),
        "arguments": {"format": files[0].format}
        | {name: brief(_plain(getattr(asked, name))) for name in _ARGUMENTS},
    }


def width(asked: Reading) -> Report:
    """Return the part of a report for agree_on() about the columns of files other than svmlight."""
    if asked.first is None:
        return {}
    _, features, columns, label = asked.first
    names = "" if columns is None else f" ({brief(', '.join(map(repr, columns)))})"
    about = "" if label is None else f" and the label {brief(repr(label))}"
    return {"width": features, "the number of columns": f"{features}{names}{about}"}


def _plain(value: object) -> str:
    """Return a value's text, in which texts have quotes, also if its type is NumPy's."""
    return repr(str(value)) if isinstance(value, str) else str(value)


def agree_on(
    reports: dict[int, Report], files: Sequence[File], asked: Reading, size: int
) -> Layout:
    """Compute the layout from all ranks' reports; the same reports give the same layout.

    Args:
        reports: by rank: request(), `rows`, and for svmlight text the `lowest` and `highest` index,
            else width().
        files: all of the data, for messages.
        asked: what the user asked for.
        size: of the job.

    Raises:
        ConfigError: a rank has no rows, or the ranks have other arguments or have read different
            data.
    """
    _check_same(reports, "the number of files", "the number of bytes", "the list of files")
    check_alike("malt.load_data", {rank: one["arguments"] for rank, one in reports.items()})
    empty = [rank for rank, report in reports.items() if report["rows"] == 0]
    total = sum(report["rows"] for report in reports.values())
    if empty:
        shown = ", ".join(file.name for file in files[:_MOST_NAMED])
        if len(files) > _MOST_NAMED:
            shown += f" and {len(files) - _MOST_NAMED} more files"
        if total == 0 and len(reports) == size:
            raise ConfigError(f"malt.load_data: there are no rows in {shown}")
        raise ConfigError(
            f"malt.load_data: there are no rows for {describe_ranks(empty)} of {size}; all "
            f"files together have {total} ({shown}). Start fewer ranks, or write more or longer "
            "files; or let each rank read all (shard=False) and share the rows with malt.shard()"
        )
    first = next(iter(reports.values()))
    if "width" in first:
        _check_same(reports, "the number of columns")
        return Layout(first["width"], None)
    zero_based, features = asked.zero_based, asked.features
    if zero_based == "auto":
        zero_based = min(report["lowest"] for report in reports.values()) == 0
    highest = max(report["highest"] for report in reports.values())
    needed = highest + (1 if zero_based else 0)
    if features is None:
        features = max(needed, 1)
    if needed > features:
        raise ConfigError(
            f"an index is {highest}, counted from {0 if zero_based else 1}; features is {features}"
            f": give features={needed} or more, or leave it out"
        )
    return Layout(features, bool(zero_based))


def _check_same(reports: dict[int, Report], *names: str) -> None:
    check_alike(
        "malt.load_data",
        {rank: {name: report[name] for name in names} for rank, report in reports.items()},
        "all ranks must see the same files (shard=False if each has its own)",
    )
