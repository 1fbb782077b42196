"""malt.shard divides the data among the ranks."""

from __future__ import annotations

import array
import logging
import sys
import time
from collections import UserList
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from malt._alike import check_alike
from malt._arguments import whole
from malt._core_import import Group
from malt._data import ledger
from malt._data.bar import Bar, check_bar
from malt._errors import ConfigError, TimeoutError, describe_ranks  # noqa: A004
from malt._job import job as jobs
from malt._job.agreement import Report, Together, resumed
from malt._vectors.vectors import own_rows

log = logging.getLogger("malt")

Data = TypeVar("Data")

_SLICED = ("csr", "csc", "lil")  # SciPy's formats with slices of rows
_SEQUENCES = (list, tuple, range, str, bytes, bytearray, memoryview, array.array, UserList)

_ANY = 2**62  # staleness, in iterations


@overload
def shard(data: Data, *, even: bool = False) -> Data: ...


@overload
def shard(
    data: Any,
    *more: Any,
    chunk: int,
    shuffle: int | None = None,
    lockstep: bool = False,
    bar: bool = False,
) -> Shard: ...


def shard(
    data: Any,
    *more: Any,
    chunk: int | None = None,
    shuffle: int | None = None,
    lockstep: bool = False,
    even: bool = False,
    bar: bool = False,
) -> Any:
    """Return this rank's part of `data`: every size-th element from the rank-th on.

    The parts stay the same when ranks die. With `chunk`, the call returns a Shard: a loop over it
    is one pass over the data, which the live ranks share out among them. Then the call is
    collective, and all ranks must give the same data and options.

    Args:
        data: an array, data frame or sparse matrix (rows are elements; a NumPy array gives a view,
            a COO, BSR, DIA or DOK matrix a CSR matrix), a list, tuple or range, another collection
            with a length and elements by position, which gives a sequence of its elements (in
            chunks, a list), or (without `chunk`) a PyTorch dataset, which gives a Subset, or any
            iterable, which gives an iterator.
        more: with `chunk`, others of the same length.
        chunk: the number of elements that the loop gets at a time. If a rank dies while it trains
            on a chunk, another rank trains on that chunk again.
        shuffle: a seed, for another order of all elements in each pass. The loop then gets copies.
        lockstep: the loops of all ranks take equally many turns. This is needed where a turn waits
            for other ranks' turns (gather with staleness, allreduce). A rank for which there is
            nothing to do gets a chunk of no elements (beware of means: they are NaN).
        even: without `chunk`: every rank gets equally many elements, and so equally many batches.
            This is needed where exchanges wait for one another. The remaining elements at the end,
            fewer than there are ranks, are not used.
        bar: with `chunk`: rank 0 shows on standard error how far all ranks have come in the pass,
            as far as it knew at its last turn. On a terminal that is a bar, by tqdm. Elsewhere, as
            under `malt run` with several ranks, it is a line every 10 s and at the end of the pass.

    Raises:
        ConfigError: on every rank: an argument is wrong on one, or the ranks disagree.
        TimeoutError: the ranks that the error names did not come.
    """
    if chunk is not None:
        if even:
            raise ConfigError("with chunk=, lockstep=True has all ranks take equally many turns")
        if jobs.size() > 1:
            for each in (data, *more):
                jobs.current().matching.note_shared_out(each, jobs.rank())
        return Shard((data, *more), chunk, shuffle, lockstep, bar)
    if more or shuffle is not None or lockstep or bar:
        raise ConfigError(
            "several arrays, shuffle=, lockstep= and bar= need chunk=, the elements that a loop "
            "gets at a time; without it, call malt.shard(data) for each array"
        )
    _refuse_unordered(data)
    rank, size = jobs.rank(), jobs.size()
    datasets = getattr(sys.modules.get("torch"), "utils", None)  # does not import PyTorch itself
    if datasets and isinstance(data, datasets.data.DataLoader):
        raise ConfigError(
            "a DataLoader cannot be shared out: its shuffles would differ from rank to rank; share "
            "out its dataset, DataLoader(malt.shard(dataset), batch_size=..., shuffle=True)"
        )
    if not hasattr(data, "__len__") and not hasattr(data, "shape"):
        if not isinstance(data, Iterable):
            raise ConfigError(
                f"{type(data).__name__} cannot be shared out: give an array, a sequence or an "
                "iterable"
            )
        if even:
            raise ConfigError(f"even=True takes data with a length; {type(data).__name__} has none")
        return islice(data, rank, None, size)
    count = _length(data)
    every = range(rank, count // size * size if even else count, size)
    job = jobs.joined() if size > 1 else None
    if job is not None:
        job.matching.note_shared_out(data, rank)
    if datasets and isinstance(data, datasets.data.Dataset):
        part = datasets.data.Subset(data, every)
    elif hasattr(data, "__getitem__") and not _is_sliced(data):
        part = _Elements(data, every)
    else:
        part = _part(data, slice(every.start, every.stop, size))
    if job is not None:
        job.matching.note_part(part)
    return part


class _Elements(Sequence[Any]):
    """The elements of a data set at some positions; each is fetched when it is asked for."""

    def __init__(self, data: Any, at: range) -> None:
        self._data, self._at = data, at

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, i: Any) -> Any:
        at = self._at[i]
        return _Elements(self._data, at) if isinstance(at, range) else self._data[at]


def _refuse_unordered(data: Any) -> None:
    """Raise ConfigError for collections without elements that all ranks count alike."""
    if isinstance(data, Mapping) and not hasattr(data, "tocsr"):  # as a DOK matrix
        raise ConfigError(
            f"a {type(data).__name__} cannot be shared out; share out each of its values: "
            "{name: malt.shard(values) for name, values in data.items()}"
        )
    if isinstance(data, AbstractSet):
        raise ConfigError(
            f"a {type(data).__name__} cannot be shared out: its order differs from rank to rank; "
            "share out malt.shard(sorted(data))"
        )


class Shard:
    """Data in chunks; in each pass one rank trains on each chunk. Made by malt.shard(chunk=).

    ``for part in shard`` is one pass: the loop gets this rank's chunks one after the other, until
    the chunks of all ranks are finished. With several arrays each turn gets a tuple. A chunk is
    finished when the loop asks for the next one; scatter what was learnt from it before. The chunks
    that a rank has not finished when it dies go to the other ranks. A rank that has finished its
    chunks waits at the end of the pass for the other ranks. After a `break` the next loop continues
    the same pass, with the chunk at which the loop stopped.

    A loop raises TimeoutError, naming the ranks whose chunks are unfinished, when no rank has taken
    a turn for as long as the job's timeout.

    Attributes:
        repeated: (pass, chunk) of each chunk that this rank has got although another rank had begun
            it and died, left or was evicted before it finished the chunk. Passes count from 1;
            chunk c has the elements from c * chunk on (with shuffle, in the order of that pass).
    """

    @resumed
    def __init__(
        self, data: tuple[Any, ...], chunk: int, shuffle: int | None, lockstep: bool, bar: bool
    ) -> None:
        agreed = _agree(data, chunk, shuffle, lockstep, bar)
        self.repeated: list[tuple[int, int]] = []
        self._data = tuple(map(_by_rows, data))
        self._elements: int = agreed["elements"]
        self._chunk: int = agreed["chunk"]
        self._shuffle: int | None = agreed["shuffle"]
        self._job = job = jobs.current()
        rank, size = job.rank, job.size
        self._shows_bar = bar and rank == 0
        self._bar: Bar | None = None  # of the pass in progress
        chunks = -(-self._elements // self._chunk)
        is_rejoining = job.makes_due()
        self._ledger = ledger.Ledger(
            rank, size, chunks, lockstep, job.restarts, is_rejoining=is_rejoining
        )
        self._own = self._ledger.words[rank]
        options = ", ".join(f"{name} {value}" for name, value in agreed.items())
        # One slot more than the readers can hold: a slot is always free, so every row is sent.
        self._rows = own_rows(
            self._ledger.words, f"shard-{job.vectors + 1}", max(size, 2), f"malt.shard: {options}"
        )
        job.follow(self)
        if is_rejoining:
            self._rows.scatter()

    @property
    def passes(self) -> int:
        """How many passes this rank has ended, including those before it was started again."""
        if self._ledger.is_rejoining:
            self._catch_up()
        return self._ledger.passes

    def __iter__(self) -> Iterator[Any]:
        if self._ledger.is_rejoining:
            self._catch_up()
        self._ledger.enter()
        order = None
        if self._shuffle is not None:
            order = ledger.permutation(self._elements, self._shuffle, self._ledger.pass_)
        if self._shows_bar:
            self._bar = Bar(self._ledger.pass_, self._ledger.chunks)
        try:
            while (turn := self._next_turn()) != "over":
                at = slice(0, 0)
                if turn != "idle":
                    at = slice(turn * self._chunk, (turn + 1) * self._chunk)
                which = at if order is None else order[at]
                parts = tuple(_part(data, which) for data in self._data)
                yield parts if len(parts) > 1 else parts[0]
                if turn != "idle":
                    self._ledger.finish(turn)
        finally:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def _next_turn(self) -> int | Literal["idle", "over"]:
        """Take a turn as soon as there is one; tell the other ranks before it starts."""
        self._ledger.end_turn()  # first, so that a rank that rejoins meanwhile begins after it
        told = b""
        while True:
            living = self._rows.gather_rows()
            turn = self._ledger.take_turn(living)
            if self._bar is not None and (turn == "over" or self._bar.is_due()):
                self._bar.show(*self._ledger.progress())
            # After a death other ranks may wait for any row of this rank, so it must arrive soon.
            # As long as all live, they wait only for the end of a last chunk.
            may_lag = self._ledger.all_have_lived(living) and (turn != "over" or told)
            if turn != "wait":
                tell = self._rows.scatter_row if may_lag else self._rows.scatter
                tell()
                break
            if (row := self._own.tobytes()) != told:
                self._rows.scatter()
                told = row
            if not self._rows.await_update(len(living), self._job.settings.timeout):
                raise self._too_late(living)
        if isinstance(turn, int) and self._ledger.was_begun(turn):
            self._report(turn)
        return turn

    def _catch_up(self) -> None:
        """Rejoin: wait for the rows that the other ranks sent when they let this rank in.

        Raises:
            TimeoutError: no row has come from the ranks that the error names.
        """
        late = time.monotonic() + self._job.settings.timeout
        while missing := self._ledger.unheard(living := self._rows.gather_rows()):
            left = max(late - time.monotonic(), 0.0)
            if not self._rows.await_update(len(living), left):
                raise TimeoutError(
                    f"{describe_ranks(missing)} did not tell which chunks are finished within "
                    f"{self._job.settings.timeout:g} s",
                    missing,
                )
        self._ledger.catch_up(living)

    def leave_group(self) -> None:
        """Read the last rows of ranks that do not join the next group; a call of `Follower`."""
        self._rows.gather_rows(staleness=_ANY)  # a gather with a staleness stays in the old group

    def enter_group(self, group: Group) -> None:
        """Tell rejoining ranks which ranks this pass goes on without; a call of `Follower`."""
        self._ledger.note_gone(group.alive())
        self._rows.scatter()

    def _report(self, chunk: int) -> None:
        log.warning(
            "rank %d repeats chunk %d in pass %d: a rank that died or left had begun it",
            *(self._job.rank, chunk, self._ledger.pass_),
        )
        if (self._ledger.pass_, chunk) not in self.repeated:  # after a break the chunk comes again
            self.repeated.append((self._ledger.pass_, chunk))

    def _too_late(self, living: Sequence[int]) -> TimeoutError:
        left, ranks = self._ledger.awaited(living)
        return TimeoutError(
            f"rank {self._job.rank} waits at the end of pass {self._ledger.pass_} for "
            f"{describe_ranks(ranks)}: {left} of {self._ledger.chunks} chunks are unfinished, and "
            f"no rank has taken a turn for {self._job.settings.timeout:g} s; if a turn takes as "
            "long, give smaller chunks or a longer malt.init(timeout=); if turns wait for one "
            "another (gather with staleness, allreduce), give lockstep=True",
            ranks,
        )


def _agree(
    data: tuple[Any, ...], chunk: int, shuffle: int | None, lockstep: bool, bar: bool
) -> Report:
    """Check the arguments on all ranks. Collective."""

    def check() -> tuple[None, Report]:
        for name, value, least in (("chunk", chunk, 1), ("shuffle", shuffle, 0)):
            if value is not None:
                whole(name, value, least, 2**63 - 1)
        if bar and jobs.rank() == 0:
            check_bar()
        lengths = [_length(one) for one in data]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"the arrays have {', '.join(map(str, lengths))} elements; they need equally many"
            )
        seed = None if shuffle is None else int(shuffle)
        return None, {
            "elements": lengths[0],
            "chunk": int(chunk),
            "shuffle": seed,
            "lockstep": bool(lockstep),
        }

    job = jobs.current()
    if job.makes_due():
        return check()[1]  # the other ranks compare it as the description of a vector
    _, reports = Together("malt.shard", None).step("comparing the data", check)
    check_alike("malt.shard", reports, "give all ranks the same data and options")
    return reports[job.rank]


def _length(data: Any) -> int:
    """Return how many elements there are.

    Raises:
        ConfigError: `data` has no length, or its elements cannot be had by their positions.
    """
    _refuse_unordered(data)
    if getattr(data, "shape", None) == ():
        raise ConfigError(f"a {type(data).__name__} without dimensions cannot be shared out")
    try:
        count = int(data.shape[0]) if hasattr(data, "shape") else len(data)  # CSR has no len()
    except Exception as error:  # a container may raise anything for an operation it lacks
        raise ConfigError(
            f"cannot share out a {type(data).__name__} ({error}): it needs a length, as an array "
            "or a list has; give numpy.asarray() or list() of it"
        ) from error
    _part(data, slice(0, 0))
    return count


def _by_rows(data: Any) -> Any:
    """Return a sparse matrix as one with slices of rows, and other things as they are."""
    return data.tocsr() if hasattr(data, "tocsr") and data.format not in _SLICED else data


def _is_sliced(data: Any) -> bool:
    """Return whether slices are as a list's: those of a map-style data set may be anything."""
    return hasattr(data, "shape") or isinstance(data, _SEQUENCES)


def _part(data: Any, which: slice | npt.NDArray[np.int64]) -> Any:
    """Return these elements: of what can be sliced a part of its kind, of other things a list.

    Raises:
        ConfigError: they cannot be had.
    """
    data = _by_rows(data)
    rows = getattr(data, "iloc", data)  # pandas slices rows by position through .iloc
    try:
        if hasattr(data, "shape") or (isinstance(which, slice) and _is_sliced(data)):
            return rows[which]
        elements = data if hasattr(data, "__getitem__") else list(data)
        at = range(*which.indices(len(data))) if isinstance(which, slice) else which.tolist()
        return [elements[i] for i in at]
    except Exception as error:  # a container may raise anything for an operation it lacks
        raise ConfigError(
            f"cannot share out a {type(data).__name__} ({error}): it needs a length, and slices or "
            "elements by position, as an array, a list or a CSR matrix has; give numpy.asarray() "
            "or list() of it"
        ) from error
