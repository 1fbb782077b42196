"""The parts that all formats' readers share: the request, the returned rows, and bad lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._data.files import extra
from malt._errors import ConfigError

_MOST_NAMED = 10  # the most bad lines that are described


class Rows(NamedTuple):
    """Consecutive rows: `x` an array or a CSR matrix, `y` None if they have no labels."""

    x: Any
    y: npt.NDArray[np.float64] | None

    def cut(self, begin: int, end: int) -> Rows:
        return Rows(self.x[begin:end], None if self.y is None else self.y[begin:end])


@dataclass
class Reading:
    """The arguments of malt.load_data() that concern readers, and the lines they have left out."""

    dtype: str  # "float32" or "float64"
    features: int | None
    zero_based: bool | str | None  # None for formats without indices
    label: str | int | None
    on_bad: str
    chunk_rows: int | None
    threads: int
    bad: int = 0
    bad_lines: list[str] = field(default_factory=list)

    def leave_out(self, where: str) -> None:
        """Note a bad line, or refuse it.

        Raises:
            ConfigError: bad lines must not be left out.
        """
        if self.on_bad == "raise":
            raise ConfigError(f"{where}; on_bad='count' skips such lines")
        self.bad += 1
        if len(self.bad_lines) < _MOST_NAMED:
            self.bad_lines.append(where)

    def only_finite(self, rows: Rows, where: str, number_of: Callable[[int], int]) -> Rows:
        """Leave out rows with NaN or infinite values; number_of(row) is its number in `where`."""
        values = rows.x.data if hasattr(rows.x, "indptr") else rows.x
        if np.isfinite(values).all() and (rows.y is None or np.isfinite(rows.y).all()):
            return rows
        if hasattr(rows.x, "indptr"):
            good = np.ones(rows.x.shape[0], dtype=bool)
            good[np.repeat(np.arange(len(good)), np.diff(rows.x.indptr))[~np.isfinite(values)]] = 0
        else:
            good = np.isfinite(values).all(axis=1)
        if rows.y is not None:
            good &= np.isfinite(rows.y)
        for row in np.flatnonzero(~good).tolist():
            self.leave_out(
                f"{where}, row {number_of(row)} (from 0): a value is missing, NaN or infinite"
            )
        return Rows(rows.x[good], None if rows.y is None else rows.y[good])

    def rounded(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert to `dtype`; a value too large for it becomes infinite, and so its row bad."""
        with np.errstate(over="ignore"):
            return values.astype(self.dtype, copy=False)

    def check_width(self, name: str, width: int) -> None:
        """Check that all files have as many columns as the first one.

        Raises:
            ConfigError: this file has another number.
        """
        if self.features is None:
            self.features = width
        if self.features != width:
            raise ConfigError(
                f"{name} has {width} features; {self.features} are asked for, or are in the files "
                "before"
            )


def csr(values: Any, columns: Any, starts: Any, features: int) -> Any:
    """Make a SciPy matrix of these arrays; in each row the columns must be sorted."""
    matrix = extra("scipy.sparse", "a sparse matrix").csr_matrix(
        (values, columns, starts), shape=(len(starts) - 1, features)
    )
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def joined(pieces: list[Rows]) -> Rows:
    """Join all rows of at least one piece."""
    if len(pieces) == 1:
        return pieces[0]
    ys = [piece.y for piece in pieces if piece.y is not None]
    xs = [piece.x for piece in pieces]
    if hasattr(xs[0], "indptr"):
        x = extra("scipy.sparse", "a sparse matrix").vstack(xs, format="csr")
        x.has_sorted_indices = x.has_canonical_format = True
    else:
        x = np.concatenate(xs)
    return Rows(x, np.concatenate(ys) if ys else None)


def rechunked(pieces: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Yield the same rows, `rows` at a time; the last piece may have fewer."""
    waiting: list[Rows] = []
    missing = rows
    for piece in pieces:
        at, count = 0, piece.x.shape[0]
        while count - at >= missing:
            waiting.append(piece.cut(at, at + missing))
            at += missing
            yield joined(waiting)
            waiting, missing = [], rows
        if at < count:
            waiting.append(piece.cut(at, count))
            missing -= count - at
    if waiting:
        yield joined(waiting)
