"""The parts that all formats' readers share: the request, the returned rows, and bad lines."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._data.files import extra
from malt._errors import ConfigError

Place = Callable[[int, int | None], tuple[str, object]]

_MOST_NAMED = 10  # the most bad lines that are described


class Rows(NamedTuple):
    """Consecutive rows: `x` an array or a CSR matrix, `y` None if they have no labels."""

    x: Any
    y: npt.NDArray[np.float64] | None

    def cut(self, begin: int, end: int) -> Rows:
        return Rows(self.x[begin:end], None if self.y is None else self.y[begin:end])


class Contents(NamedTuple):
    """The columns of a file.

    Attributes:
        file: its name, for messages.
        width: how many features it has.
        columns: their names; None if the file has none.
        label: the name of the column or array of labels; None if there is none.
    """

    file: str
    width: int
    columns: tuple[str, ...] | None
    label: str | None

    def check_same(self, first: Contents) -> None:
        """Check that this file has the same columns, in the same order, as the file `first`.

        Raises:
            ConfigError: they differ; the message names both files and the first column.
        """
        mine, theirs = self.columns, first.columns
        if mine == theirs and self.width != first.width:
            raise ConfigError(
                f"{self.file} has {self.width} features, and {first.file} has {first.width}; all "
                "files must have the same number"
            )
        if mine != theirs:
            pairs = enumerate(zip_longest(mine or (), theirs or ()))
            i = next(i for i, (one, other) in pairs if one != other)
            what, shown = f"feature {i} (from 0)", [_named(mine, i), _named(theirs, i)]
        elif self.label != first.label:
            labels = ((label,) if label is not None else () for label in (self.label, first.label))
            what, shown = "the label", [_named(label, 0) for label in labels]
        else:
            return
        way_out = "select or reorder the columns, so that all files have the same in one order"
        if mine is None and theirs is None:
            way_out = "save labels in all files or in none"
        elif mine is None or theirs is None:
            way_out = "write all files with a header, or all without"
        raise ConfigError(
            f"{self.file}: {what} is {shown[0]}, and in {first.file} it is {shown[1]}; {way_out}"
        )


def _named(names: tuple[str, ...] | None, i: int) -> str:
    if names is None:
        return "without a name"
    return repr(names[i]) if i < len(names) else "missing"


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
    header: bool | None = None  # of CSV
    bad: int = 0
    bad_lines: list[str] = field(default_factory=list)
    first: Contents | None = None  # of the first file; all other files must have the same

    def leave_out(self, where: str | Callable[[], str]) -> None:
        """Note a bad line, or refuse it; `where` says, if it is to be shown, what is bad.

        Raises:
            ConfigError: bad lines must not be left out.
        """
        is_shown = self.on_bad == "raise" or len(self.bad_lines) < _MOST_NAMED
        said = "" if not is_shown else where if isinstance(where, str) else where()
        if self.on_bad == "raise":
            raise ConfigError(f"{said}; on_bad='count' skips such lines")
        self.bad += 1
        if is_shown:
            self.bad_lines.append(said)

    def only_finite(self, rows: Rows, place: Place) -> Rows:
        """Leave out rows with NaN or infinite values.

        `place` says of a row, and of its feature or its label (None), where that is, and the value
        as the file has it.
        """
        values = rows.x.data if hasattr(rows.x, "indptr") else rows.x
        if np.isfinite(values).all() and (rows.y is None or np.isfinite(rows.y).all()):
            return rows
        bad: dict[int, int | None] = {}  # by row: its first bad feature, or the label
        if rows.y is not None:
            bad |= dict.fromkeys(np.flatnonzero(~np.isfinite(rows.y)).tolist())
        if hasattr(rows.x, "indptr"):
            at = np.flatnonzero(~np.isfinite(values))
            where = np.searchsorted(rows.x.indptr, at, side="right") - 1
            features = rows.x.indices[at]
        else:
            where, features = np.nonzero(~np.isfinite(values))
        bad |= dict(zip(where[::-1].tolist(), features[::-1].tolist(), strict=True))
        for row in sorted(bad):
            self.leave_out(partial(self._not_finite, place, row, bad[row]))
        good = np.ones(rows.x.shape[0], dtype=bool)
        good[list(bad)] = False
        return Rows(rows.x[good], None if rows.y is None else rows.y[good])

    def _not_finite(self, place: Place, row: int, feature: int | None) -> str:
        where, value = place(row, feature)
        with contextlib.suppress(TypeError, ValueError):
            if math.isfinite(float(value)):  # type: ignore[arg-type]
                way_out = "; dtype='float64' may hold it" if self.dtype == "float32" else ""
                return f"{where}: {value!s} is beyond {self.dtype}{way_out}"
        return f"{where}: {value!r}: the value is missing, NaN or infinite"

    def rounded(self, values: Any) -> Any:
        """Convert to `dtype`; a value too large for it becomes infinite, and so its row bad."""
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(self.dtype, copy=False)

    def check_contents(self, found: Contents) -> None:
        """Check that all files have the same columns as the first one.

        Raises:
            ConfigError: this file has others or none, or not as many as the user asked for.
        """
        if found.width < 1:
            raise ConfigError(f"{found.file} has no features: give it columns besides the label")
        if self.first is None:
            self.first = found
        found.check_same(self.first)
        if self.features not in (None, found.width):
            raise ConfigError(
                f"{found.file} has {found.width} features; {self.features} are asked for"
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
