"""Checks of the arguments of malt.optimize.Consensus, with the same outcome on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._alike import check_alike
from malt._arguments import number, whole
from malt._core_import import SUM
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job.agreement import Report, Together
from malt._vectors.arrays import as_array
from malt._vectors.vectors import vector

Array = npt.NDArray[Any]
Prox = Callable[[Array, float], npt.ArrayLike]

_DELAY = 10  # rounds; of a quorum without a max_delay
_PIECE = 1 << 20  # ids that are counted at a time
_MOST = sys.float_info.max


class Options(NamedTuple):
    """The arguments; those that are numbers are the same on all ranks."""

    rho: float
    quorum: float | None
    max_delay: int | None  # None: synchronous
    adapt: bool
    rtol: float
    atol: float
    prox: Prox | None


class Rows(NamedTuple):
    """Which rows of this rank's x are shared, and their places among the shared rows of all."""

    own: npt.NDArray[np.intp]
    places: npt.NDArray[np.intp]
    total: int  # of all ranks
    has_ids: bool  # else all rows of all ranks are the same ones


def checked(
    rho: Any,
    quorum: Any,
    max_delay: Any,
    adapt: Any,
    rtol: Any,
    atol: Any,
    prox: Any,
) -> Options:
    """Return the arguments.

    Raises:
        ConfigError: one is out of range.
    """
    number("rho", rho, 0, above=True, most=_MOST)
    is_number = isinstance(quorum, Real) and not isinstance(quorum, bool)
    if quorum is not None and not (is_number and 0 < quorum <= 1):
        raise ConfigError(
            f"quorum is {quorum!r}; it is a share of the other ranks, above 0 and at most 1, or "
            "None"
        )
    if max_delay is not None:
        max_delay = whole("max_delay", max_delay, 0)
    number("rtol", rtol, 0, most=_MOST)
    number("atol", atol, 0, most=_MOST)
    if prox is not None and not callable(prox):
        raise ConfigError(f"prox is {prox!r}; it must be a function of a vector and a step")
    if quorum is not None and max_delay is None:
        max_delay = _DELAY
    return Options(
        float(rho),
        None if quorum is None else float(quorum),
        max_delay,
        bool(adapt),
        float(rtol),
        float(atol),
        prox,
    )


def as_floats(x: Any) -> Array:
    """Return the array over the memory of x.

    Raises:
        ConfigError: it has no memory of floats that can be shared, or is empty.
    """
    if not isinstance(x, np.ndarray) and not hasattr(x, "__dlpack__"):
        raise ConfigError(
            f"x is {x!r:.50}; it must be one array: of NumPy, or of another library with DLPack on "
            "the CPU"
        )
    array = as_array(x)
    if array.dtype.kind != "f":
        raise ConfigError(f"x has the dtype {array.dtype}; it must be float32 or float64")
    if array.ndim == 0 or array.size == 0:
        raise ConfigError(f"x has the shape {array.shape}; it must have at least one element")
    return array


def agree(x: Any, ids: Any, check: Callable[[], Options]) -> tuple[Array, Options, Rows]:
    """Compare the arguments of all ranks. Collective.

    Raises:
        ConfigError: on every rank: one's are wrong, or they differ.
    """
    together = Together("malt.optimize.Consensus", None)

    def look() -> tuple[tuple[Array, Options, Array | None], Report]:
        array, options = as_floats(x), check()
        if ids is not None and options.prox is not None:
            raise ConfigError(
                "prox and ids are both given; a prox needs all of the vector, and no rank has all "
                "rows: add the regulariser to the function that each rank minimises"
            )
        names = None if ids is None else _checked_ids(ids, len(array))
        shape = list(array.shape if names is None else array.shape[1:])
        alike = {
            "the dtype of x": str(array.dtype),
            "the shape of x (of its rows, if there are ids)": shape,
            "whether there are ids": names is not None,
            "whether there is a prox": options.prox is not None,
            **{key: value for key, value in options._asdict().items() if key != "prox"},
        }
        largest = -1 if names is None else int(names.max())
        return (array, options, names), {"alike": alike, "largest": largest}

    (array, options, names), told = together.step("the arguments", look)
    check_alike(together.call, {rank: report["alike"] for rank, report in told.items()})
    if names is None:
        every = np.arange(len(array))
        return array, options, Rows(every, every, len(array), False)
    rows = _shared_rows(names, max(report["largest"] for report in told.values()))
    if rows.total == 0 and len(told) > 1:
        raise ConfigError(
            "malt.optimize.Consensus: no id is held by two ranks, so there is nothing to agree on: "
            "ids are the numbers of rows in the whole problem, not in this rank's part"
        )
    return array, options, rows


def _checked_ids(ids: Any, rows: int) -> Array:
    names = np.asarray(ids)
    if names.shape != (rows,) or names.dtype.kind not in "iu":
        raise ConfigError(
            f"ids are {names.dtype} of the shape {names.shape}; they must be whole numbers, one "
            f"for each of the {rows} rows of x"
        )
    if names.min() < 0 or names.max() >= 2**31:
        wrong = names.min() if names.min() < 0 else names.max()
        raise ConfigError(f"an id is {wrong}; ids are from 0 to {2**31 - 1}")
    kinds, counts = np.unique(names, return_counts=True)
    if counts.max() > 1:
        raise ConfigError(f"id {kinds[counts.argmax()]} is given twice; a rank has one row of it")
    return names.astype(np.int64)


def _shared_rows(names: Array, largest: int) -> Rows:
    """Find the ids that two ranks or more hold. Collective."""
    holders = np.zeros(min(largest + 1, _PIECE), np.int32)
    found = [np.empty(0, np.intp)]
    if jobs.current().size > 1:
        counting = vector(holders)
        for begin in range(0, largest + 1, _PIECE):
            holders[:] = 0
            holders[names[(names >= begin) & (names < begin + _PIECE)] - begin] = 1
            counting.allreduce(SUM)
            found.append(begin + np.flatnonzero(holders > 1))
        counting.close()
    shared = np.concatenate(found)
    own = np.flatnonzero(np.isin(names, shared))
    return Rows(own, np.searchsorted(shared, names[own]), len(shared), True)
