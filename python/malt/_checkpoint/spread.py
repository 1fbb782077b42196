"""Rows that are spread over the ranks, such as a table of malt.ps: each rank saves its part.

The rows of a table `t` lie in the ranks' files in parts, one for each range of rows. `t/16/values`
has the values of rows 16 and following; `t/16/n` is what the update rule keeps for them. With a
partition the rows lie in the order of their places, and `t/16/keys` has the keys of places 16 and
following, -1 for padding. A part is read and written as a whole, so no rank needs memory for more
than one besides the table.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from malt._checkpoint.layout import file_name
from malt._checkpoint.safetensors import Array, Later, SafetensorsFile, are_sizes
from malt._errors import ConfigError, DamagedError, PeerError, describe_ranks
from malt._job.agreement import Report, Together


class Range(NamedTuple):
    """Rows that one rank saves and restores."""

    number: int
    first: int
    end: int  # one past the last row


class SpreadRows(abc.ABC):
    """This rank's access to rows that are spread over the ranks.

    The waits end with a TimeoutError when all of them together have taken the limit that
    Spread._spread() was given, and the time that a slow disk takes for the rows.

    Attributes:
        facts: what a checkpoint must agree with, as JSON: rows, width, dtype, update, partition.
        places: how many rows are saved: those of the table and, with a partition, padding.
        has_keys: the rows are in the order of a partition, and their keys are saved.
        states: the names of the arrays that the update rule keeps, besides the values.
        is_exact: the saved rows have the pushes of all clocks below the lowest one, and no others.
    """

    facts: Mapping[str, Any]
    places: int
    has_keys: bool
    states: Sequence[str]
    is_exact: bool

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays of a range."""
        return ("values", *self.states)

    @property
    def size(self) -> int:
        """The bytes of all rows."""
        return int(self.places * self.row_size * len(self.arrays))

    @property
    def row_size(self) -> int:
        return int((self.facts["width"] or 1) * self.dtype.itemsize)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.facts["dtype"])
        return dtype

    def shape_of(self, rows: int) -> tuple[int, ...]:
        width = self.facts["width"]
        return (rows,) if width is None else (rows, width)

    @property
    @abc.abstractmethod
    def clock(self) -> int:
        """This rank's clock."""

    @property
    @abc.abstractmethod
    def edition(self) -> int:
        """Changes when rows go to other ranks than before."""

    @abc.abstractmethod
    def await_pushes(self) -> None:
        """Wait until this rank's pushes are acknowledged."""

    @abc.abstractmethod
    def drop_pushes(self) -> None:
        """Wait for them too, but drop their errors, and the pushes that are held back."""

    @abc.abstractmethod
    def await_clocks(self, clocks: Mapping[int, int]) -> None:
        """Wait until this rank's rows have what the live ranks pushed before these clocks."""

    @abc.abstractmethod
    def ranges(self, live: Sequence[int]) -> list[Range]:
        """Return the ranges that this rank saves and restores if these ranks are live."""

    @abc.abstractmethod
    def keys_of(self, part: Range) -> Array:
        """Return the keys of a range's rows as int64, -1 for padding, if it has keys."""

    @abc.abstractmethod
    def read(self, part: Range, array: int) -> Array:
        """Return an array of a range; `array` is its index in `arrays`."""

    @abc.abstractmethod
    def write(self, part: Range, array: int, first: int, rows: Array) -> None:
        """Put rows of a range, from row `first` on, into one of its arrays."""

    @abc.abstractmethod
    def end_write(self, part: Range) -> None:
        """Wait until all copies of a range that has been written are as it is."""

    @abc.abstractmethod
    def continue_from(self, clocks: Mapping[int, int], others: int) -> None:
        """Set the clocks of the ranks; `others` is that of ranks that are not there."""


class Spread(abc.ABC):
    """Something that has such rows."""

    @abc.abstractmethod
    def _spread(self, limit: float | None) -> SpreadRows:
        """Return the access to them; `limit`: seconds for all waits, the job's if None."""


Tables = Mapping[str, SpreadRows]


def tables_in(vectors: Mapping[str, Any], limit: float | None) -> dict[str, SpreadRows]:
    spread = {name: each for name, each in vectors.items() if isinstance(each, Spread)}
    return {name: each._spread(limit) for name, each in spread.items()}


def clocks_of(tables: Tables) -> Report:
    """Return what a rank tells the others of its tables before they are saved or restored."""
    return {name: rows.clock for name, rows in tables.items()}


def check_alike(names: Mapping[int, Iterable[str]]) -> None:
    """Raise a ConfigError if ranks name different tables; `names`: those of each live rank."""
    ranks_of: dict[tuple[str, ...], list[int]] = {}
    for rank, named in names.items():
        ranks_of.setdefault(tuple(sorted(named)), []).append(rank)
    if len(ranks_of) > 1:
        listed = "; ".join(
            f"{describe_ranks(ranks)}: {', '.join(map(repr, named)) or 'none'}"
            for named, ranks in ranks_of.items()
        )
        raise ConfigError(
            f"the ranks name different tables ({listed}); name the same ones on all ranks, and "
            "none that a rank has left"
        )


def editions_of(tables: Tables) -> Report:
    return {name: rows.edition for name, rows in tables.items()}


def are_of_one_edition(reports: Mapping[int, Report]) -> bool:
    editions = [report["editions"] for report in reports.values()]
    return all(each == editions[0] for each in editions)


# ---- Saving --------------------------------------------------------------------------------------
def arrays_of(tables: Tables, clocks: Mapping[int, Report]) -> dict[str, Later]:
    """Return this rank's part of the rows, by the arrays' names in its file.

    Args:
        tables: by name.
        clocks: by live rank what clocks_of() returned there.
    """
    arrays: dict[str, Later] = {}
    for name, rows in tables.items():
        rows.await_clocks({rank: each[name] for rank, each in clocks.items()})
        for part in rows.ranges(sorted(clocks)):
            count = part.end - part.first
            if rows.has_keys:
                keys = Later(np.dtype(np.int64), (count,), partial(rows.keys_of, part))
                arrays[f"{name}/{part.first}/keys"] = keys
            for index, array in enumerate(rows.arrays):
                make = partial(rows.read, part, index)
                arrays[f"{name}/{part.first}/{array}"] = Later(
                    rows.dtype, rows.shape_of(count), make
                )
    return arrays


def note_of(tables: Tables, clocks: Mapping[int, Report]) -> Report:
    """Return what the checkpoint notes of the tables."""
    ranks = sorted(clocks)
    return {
        name: {
            "facts": dict(rows.facts),
            "ranks": ranks,
            "clocks": [clocks[rank][name] for rank in ranks],
        }
        for name, rows in tables.items()
    }


# ---- Restoring -----------------------------------------------------------------------------------
class _Saved(NamedTuple):
    """Rows in a file."""

    first: int
    end: int
    file: SafetensorsFile


class SavedRows:
    """The rows of a table in a checkpoint. Making it reads and checks what this rank restores.

    Args:
        name: the table's.
        rows: the table into which they are to go.
        note: what note_of() returned for it, as read from a checkpoint.
        origin: the checkpoint, for messages.
        ranks: the live ones, sorted.

    Raises:
        ConfigError: the table differs from the one that was saved.
        DamagedError: rows are missing or damaged.
    """

    def __init__(
        self,
        name: str,
        rows: SpreadRows,
        note: Any,
        origin: Path,
        ranks: Sequence[int],
    ) -> None:
        self._name = name
        self._rows = rows
        self._origin = origin
        self._ranks = ranks
        if not isinstance(note, dict) or not isinstance(note.get("facts"), dict):
            raise DamagedError(f"{origin} is damaged: the note of table {name!r} lacks its facts")
        savers, clocks = note.get("ranks"), note.get("clocks")
        if not (savers and are_sizes(savers) and are_sizes(clocks) and len(savers) == len(clocks)):
            raise DamagedError(f"{origin} is damaged: the note of table {name!r} lacks ranks")
        self._clocks = clocks
        self._check_facts(note["facts"])
        self._files = [SafetensorsFile(origin / file_name(rank)) for rank in savers]
        self._saved = self._find()
        for _ in self._overlaps(rows.ranges(self._ranks)):
            pass

    def _check_facts(self, facts: Mapping[str, Any]) -> None:
        values, keys = f"{self._name}/0/values", ""
        if facts.get("partition") is not None:
            keys = f", to the keys in {self._name}/0/keys"
        for key, value in self._rows.facts.items():
            saved = facts.get(key)
            if saved != value:
                raise ConfigError(
                    f"{self._origin}: table {self._name!r} was saved with {key}={saved}, and the "
                    f"one it is for has {key}={value}; make it as it was saved, or read the values "
                    f"({values} and so on) with malt.restore(path) and push them with "
                    f"malt.ps.Assign(){keys}"
                )

    def _find(self) -> list[_Saved]:
        """Return the saved ranges in order."""
        pattern = re.compile(re.escape(self._name) + r"/(0|[1-9][0-9]{0,17})/values")
        found = []
        for file in self._files:
            for name in file:
                if match := pattern.fullmatch(name):
                    first = int(match[1])
                    count = file.shape_of(name)[:1]
                    for array in self._rows.arrays:
                        self._check_array(file, f"{self._name}/{match[1]}/{array}", *count)
                    found.append(_Saved(first, first + count[0], file))
        found.sort(key=lambda saved: saved.first)
        end = 0
        for saved in found:
            if saved.first != end or saved.end == end:
                break
            end = saved.end
        if end != self._rows.places or (found and found[-1].end != end):
            raise DamagedError(
                f"{self._origin} is damaged: of table {self._name!r} it lacks row {end} of "
                f"{self._rows.places}, or has it twice"
            )
        return found

    def _check_array(self, file: SafetensorsFile, name: str, count: int = -1) -> None:
        expected = self._rows.shape_of(count)
        if name not in file or file.shape_of(name) != expected:
            raise DamagedError(f"{file.path} is damaged: {name!r} is missing or not {expected}")
        if file.dtype_of(name) != self._rows.dtype:
            raise DamagedError(f"{file.path} is damaged: {name!r} is not {self._rows.dtype}")

    def _overlaps(self, parts: Sequence[Range]) -> Iterator[tuple[Range, int, int, Array]]:
        """Yield for each array of the ranges: range, index of the array, first row, rows.

        The saved ranges may be larger or smaller than these. One array at a time is in memory.
        """
        for saved in self._saved:
            mine = [part for part in parts if part.first < saved.end and saved.first < part.end]
            for index, array in enumerate(self._rows.arrays if mine else ()):
                values = saved.file[f"{self._name}/{saved.first}/{array}"]
                for part in mine:
                    first, end = max(part.first, saved.first), min(part.end, saved.end)
                    yield part, index, first, values[first - saved.first : end - saved.first]

    def load(self, clocks: Mapping[int, int]) -> None:
        """Put this rank's ranges into the table; `clocks` are those of the live ranks now."""
        self._rows.await_clocks(clocks)
        parts = self._rows.ranges(self._ranks)
        for part, index, first, values in self._overlaps(parts):
            self._rows.write(part, index, first, values)
        for part in parts:
            self._rows.end_write(part)

    def go_on(self) -> None:
        """Set the clocks: each rank's own, if as many ranks saved, unless all are at the lowest."""
        clocks = dict.fromkeys(self._ranks, min(self._clocks))
        if len(self._clocks) == len(self._ranks) and not self._rows.is_exact:
            clocks = dict(zip(self._ranks, self._clocks, strict=True))
        self._rows.continue_from(clocks, min(self._clocks))


def open_saved(
    tables: Tables, notes: Any, origin: Path, ranks: Sequence[int]
) -> dict[str, SavedRows]:
    """Return the saved rows of tables by name; `notes`: those of a checkpoint, by name.

    Raises:
        ConfigError: as SavedRows, or the checkpoint has no such table.
        DamagedError: as SavedRows.
    """
    made = {}
    if not isinstance(notes, dict):
        raise DamagedError(f"{origin} is damaged: what it notes of tables is no object")
    for name, rows in tables.items():
        if name not in notes:
            listed = ", ".join(map(repr, notes)) or "none"
            raise ConfigError(f"{origin} has no table {name!r}; it has {listed}: name it so")
        made[name] = SavedRows(name, rows, notes[name], origin, ranks)
    return made


def restore(
    call: Together,
    tables: Tables,
    saved: Mapping[str, SavedRows],
    ranks: Sequence[int],
) -> None:
    """Put saved rows into tables. Collective.

    Args:
        call: malt.restore().
        tables: by name.
        saved: by name.
        ranks: the sorted ones for which `saved` was made, each of which loads its part.

    Raises:
        ConfigError: it failed on a rank.
        PeerError: one of the ranks has died since `saved` was made, or the ranks moved to another
            group.
    """

    def settle() -> tuple[None, Report]:
        for rows in tables.values():
            rows.drop_pushes()
        return None, clocks_of(tables)

    def load() -> tuple[None, Report]:
        for name, each in saved.items():
            each.load({rank: clocks[name] for rank, clocks in reports.items()})
        return None, {"editions": editions_of(tables)}

    def go_on() -> tuple[None, Report]:
        is_whole = sorted(loaded) == [*ranks] and are_of_one_edition(loaded)
        for each in saved.values() if is_whole else ():
            each.go_on()
        return None, {"is_whole": is_whole}

    _, reports = call.step("settle", settle)
    _, loaded = call.step("load", load)
    _, ends = call.step("go on", go_on)
    if sorted(ends) != [*ranks] or not all(each["is_whole"] for each in ends.values()):
        dead = sorted(set(ranks) - set(ends))
        why = f"{describe_ranks(dead)} died" if dead else "ranks died, joined or left"
        raise PeerError(
            f"{call.call}: {why} while {', '.join(map(repr, tables))} were restored; the rows are "
            "partly those of before: call it again",
            dead,
        )
