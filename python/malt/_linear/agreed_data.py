"""The data and settings on which the ranks of a job must agree before they train one model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from malt._alike import check_alike
from malt._core_import import checksum
from malt._errors import ConfigError
from malt._job import joining
from malt._job.agreement import Report, Together

Taken = TypeVar("Taken")

_MOST_SHOWN = 400  # characters of labels in a report, which must be short


class Same(NamedTuple):
    """Arrays that all ranks must give alike."""

    name: str
    digest: str
    remedy: str  # the way out if they differ


def digest(*arrays: npt.NDArray[Any] | None) -> str:
    """Return a digest of arrays of known types and lengths, to compare ranks; of None: "none"."""
    return " ".join(
        "none" if array is None else f"{checksum(np.ascontiguousarray(array)):016x}"
        for array in arrays
    )


class Here(NamedTuple):
    """A description of the data and settings that this rank was given."""

    rows: int
    features: int
    dtype: str
    labels: npt.NDArray[Any] | None  # sorted; None for a regression
    settings: dict[str, str]  # of the training
    same: tuple[Same, ...] = ()


class All(NamedTuple):
    """The data that all ranks together train on."""

    rows: int
    labels: npt.NDArray[Any] | None


def agree(call: str, take: Callable[[], tuple[Taken, Here]]) -> tuple[Taken, All]:
    """Check this rank's data, and that they fit to the other ranks' data. Collective.

    Raises:
        Exception: the exception of `take`, if this process is alone.
        ConfigError: on every rank: `take` failed on a rank, which the message names, or numbers of
            features, dtypes, settings, labels or the arrays of `same` differ.
    """
    if joining.company() is None:
        taken, here = take()
        return taken, All(here.rows, here.labels)
    mine: list[Here] = []

    def act() -> tuple[Taken, Report]:
        taken, here = take()
        mine.append(here)
        return taken, {
            "rows": here.rows,
            "features": {"the number of X's features": here.features},
            "dtype": {"the dtype of X": here.dtype},
            "settings": here.settings,
            **{one.name: {f"the digest of {one.name}": one.digest} for one in here.same},
            **_described(here.labels),
        }

    taken, reports = Together(call, None).step("checking what each rank was given", act)
    for key, way_out in (
        ("features", "load X with the same features= on all ranks"),
        ("dtype", "convert X with .astype()"),
        ("settings", "give all ranks the same"),
        *((one.name, one.remedy) for one in mine[0].same),
    ):
        check_alike(call, {rank: report[key] for rank, report in reports.items()}, way_out)
    rows = sum(report["rows"] for report in reports.values())
    return taken, All(rows, _common_labels(call, reports, mine[0].labels))


def _described(labels: npt.NDArray[Any] | None) -> Report:
    """Return a digest of the labels, to compare ranks, and the labels if they are short enough."""
    if labels is None:
        return {}
    listed = labels.tolist()
    text = str(listed)
    return {
        "digest": hashlib.sha256(text.encode()).hexdigest()[:32],
        "count": len(listed),
        "labels": listed if len(text) <= _MOST_SHOWN else None,
    }


def _common_labels(
    call: str, reports: dict[int, Report], here: npt.NDArray[Any] | None
) -> npt.NDArray[Any] | None:
    """Return the labels of the rank that has most; they must include those of the others."""
    if here is None or len({report["digest"] for report in reports.values()}) == 1:
        return here
    most = max(reports, key=lambda rank: reports[rank]["count"])
    labels = reports[most]["labels"]
    for rank, report in reports.items():
        if report["digest"] == reports[most]["digest"]:
            continue
        theirs = report["labels"]
        if labels is None or theirs is None:
            raise ConfigError(
                f"{call}: rank {rank} has {report['count']} labels and rank {most} others, "
                f"{reports[most]['count']}, too many to compare: give every rank rows of all "
                "labels, or the same classes= to partial_fit()"
            )
        if not set(theirs) <= set(labels):
            raise ConfigError(
                f"{call}: rank {rank} has the labels {theirs}, rank {most} has {labels}: no rank "
                "has all; give one rank rows of all labels, or all ranks the same classes= where "
                "they call partial_fit()"
            )
    return np.array(labels, dtype=None if here.dtype.kind in "OU" else here.dtype)
