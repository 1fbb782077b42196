"""The whole run of one process of a rank, in memory of a fixed size.

The run is cut into equal columns. When it gets longer than they reach, each two become one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._watching.trace import ALLREDUCE, DEATH, EPOCH, FOLD, GATHER, SCATTER, WAIT

Events = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

COLUMNS = 1024
_FIRST_WIDTH = 1 << 20  # nanoseconds
MOST_MARKS = 100
# The kinds of time, in the order of the rows of `Columns.spent`. No instant is in two of them.
SPENT = (SCATTER, GATHER, ALLREDUCE, FOLD, WAIT)
_CALLS = (SCATTER, GATHER, ALLREDUCE)
_ROW_OF = np.full(256, -1)
_ROW_OF[list(SPENT)] = np.arange(len(SPENT))


class Columns(NamedTuple):
    """Sums by column of the run; column c covers the nanoseconds from origin + c * width on."""

    width: int
    spent: Floats  # by kind (SPENT) and column: nanoseconds
    sent: Floats  # bytes
    staleness: Floats  # the largest, in iterations; -1: nothing was folded

    def halved(self) -> Columns:
        """Return them with each two columns as one, and as many empty ones behind."""
        half = self.sent.size // 2
        spent, sent, staleness = (np.zeros_like(values) for values in self[1:])
        spent[:, :half] = self.spent.reshape(len(SPENT), half, 2).sum(axis=2)
        sent[:half] = self.sent.reshape(half, 2).sum(axis=1)
        staleness[:] = -1
        staleness[:half] = self.staleness.reshape(half, 2).max(axis=1)
        return Columns(2 * self.width, spent, sent, staleness)

    def moved(self, by: int) -> Columns:
        """Return them with all that happened so many nanoseconds later, or earlier below 0.

        Nothing is lost behind; what would come before the first column is counted there.
        """
        used = np.flatnonzero(self.spent.any(axis=0) | (self.sent > 0) | (self.staleness >= 0))
        if len(used) and (int(used[-1]) + 1) * self.width + by > COLUMNS * self.width:
            return self.halved().moved(by)
        edges = self.width * np.arange(COLUMNS + 1, dtype=np.float64)

        def move(values: Floats) -> Floats:
            until = np.interp(edges - by, edges, np.concatenate([[0.0], values.cumsum()]))
            until[0] = 0.0
            return np.diff(until)

        staleness = np.full(COLUMNS, -1.0)
        for column in used.tolist():
            begin = column + by // self.width
            for at in range(max(begin, 0), max(begin + (by % self.width > 0), 0) + 1):
                staleness[at] = max(staleness[at], self.staleness[column])
        spent = np.array([move(values) for values in self.spent])
        return Columns(self.width, spent, move(self.sent), staleness)


class Timeline:
    """One process; times are nanoseconds of its host's clock.

    Attributes:
        origin: the time at which the columns begin.
        columns: where its time went.
        began: when it began to record.
        ended: the end of its last call, or `began`.
        events: how many there were.
        marks: the first deaths and epochs of which it learnt.
        dropped_marks: how many more there were.
    """

    def __init__(self, rank: int, origin: int, began: int) -> None:
        self.rank = rank
        self.began = self.ended = began
        self.events = 0
        self.marks: list[dict[str, int]] = []
        self.dropped_marks = 0
        self.origin = origin
        zeros = np.zeros(COLUMNS)
        self.columns = Columns(
            _FIRST_WIDTH, np.zeros((len(SPENT), COLUMNS)), zeros, np.full(COLUMNS, -1.0)
        )
        self._open: Events | None = None  # waits and folds whose call has not ended

    def add(self, events: Events) -> None:
        """Take the events that were read since the last time, in that order."""
        if len(events) == 0:
            return
        self.events += len(events)
        for row in events[np.isin(events["kind"], (DEATH, EPOCH))]:
            self._mark(row)
        events = events[_ROW_OF[events["kind"] & 255] >= 0]
        if self._open is not None:
            events = np.concatenate([self._open, events])
        # Events within a call are written before the call itself.
        ends = np.flatnonzero(np.isin(events["kind"], _CALLS))
        closed = ends[-1] + 1 if len(ends) else 0
        self._open = events[closed:].copy()
        if len(self._open) > COLUMNS:  # waits that no call contains: of barriers, for one
            self.close()
        self._spend(events[:closed], ends)

    def close(self) -> None:
        """Count the waits that no call contains."""
        if self._open is not None:
            self._spend(self._open, np.flatnonzero(np.empty(0)))
            self._open = None

    def _mark(self, row: Any) -> None:
        if len(self.marks) == MOST_MARKS:
            self.dropped_marks += 1
            return
        names = ("began", "kind", "rank", "iteration", "count")
        self.marks.append({name: int(row[name]) for name in names})

    def _spend(self, events: Events, ends: npt.NDArray[np.int64]) -> None:
        """Add events, of which those at `ends` are calls that contain what is before them."""
        if len(events) == 0:
            return
        began = events["began"] - self.origin
        ended = began + events["lasted"]
        self.ended = max(self.ended, int(ended.max()) + self.origin)
        while ended.max() >= self.columns.width * COLUMNS:
            self.columns = self.columns.halved()
        width, spent, sent, staleness = self.columns
        kinds = _ROW_OF[events["kind"]]
        for row in range(len(SPENT)):
            of_kind = kinds == row
            spent[row] += _spread(began[of_kind], ended[of_kind], width)
        # A wait or a fold is not counted as time of the call that contains it.
        inner = np.flatnonzero(np.isin(events["kind"], (FOLD, WAIT)))
        call = np.searchsorted(ends, inner)
        inner, call = inner[call < len(ends)], ends[call[call < len(ends)]]
        contained = began[call] <= began[inner]
        inner, call = inner[contained], call[contained]
        for row in range(len(_CALLS)):
            within = inner[kinds[call] == row]
            spent[row] -= _spread(began[within], ended[within], width)
        column = np.clip(ended // width, 0, COLUMNS - 1)
        sends = np.isin(events["kind"], (SCATTER, ALLREDUCE))
        sent += np.bincount(column[sends], events["bytes"][sends], COLUMNS)
        folds = events["kind"] == FOLD
        np.maximum.at(staleness, column[folds], events["staleness"][folds])


def _spread(began: Events, ended: Events, width: int) -> Floats:
    """Return by column how many nanoseconds of it these spans cover, one upon another."""
    first, last = (np.clip(times // width, 0, COLUMNS - 1) for times in (began, ended))
    begun, over = (np.bincount(column + 1, minlength=COLUMNS + 1) for column in (first, last))
    # As if each covered its first column whole, and its last one not at all.
    whole: Floats = (begun - over)[:COLUMNS].cumsum() * float(width)
    return (
        whole
        + np.bincount(first, (first + 1) * width - began, COLUMNS)
        - np.bincount(last, (last + 1) * width - ended, COLUMNS)
    )
