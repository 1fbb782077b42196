"""The facts that ranks exchange when they make a vector, and the mistakes that these show.

Ranks match unnamed vectors by the order in which they make them, and malt.shard() relies on all
ranks giving the same data. Both go wrong without an error. The lowest rank warns of it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._alike import check_alike
from malt._core_import import Group
from malt._errors import DamagedError, describe_ranks
from malt._mistakes.rebinding import outer_frame
from malt._pieces import MOST_BYTES

log = logging.getLogger("malt")

_MOST_VECTORS = 100  # that are remembered
_MOST_PARTS = 1000
_MOST_ELEMENTS = 4096  # of an array, that its digest is made of
_MOST_CALLS = 32  # of malt.shard() on one line, of which the data are compared
_MOST_ROWS = 64  # of data that are shared out,
_MOST_INSIDE = 16  # elements of each row, where it is a list,
_MOST_DEPTH = 4  # and lists inside one another, of which the digest is made
_DIGITS = 6  # of the digest of one call
_PLAIN = (bool, int, float, complex, type(None), range)
_ARRAYS_OF_SPARSE = ("indptr", "indices", "row", "col", "offsets", "data")


class Site(NamedTuple):
    """A vector's place in the program, and its values."""

    name: str | None  # as the program gave it
    place: str
    digest: int  # of the values; 0: not known
    is_on_gpu: bool


class _Calls(NamedTuple):
    """The calls of malt.shard() on one line of the program.

    Attributes:
        number: how many there were.
        digests: of the data given to each of the first calls, as hexadecimal digits.
    """

    number: int = 0
    digests: tuple[str, ...] = ()


class Matching:
    """Facts that this rank has told and heard."""

    def __init__(self) -> None:
        self._shared_out: dict[str, _Calls] = {}  # by place
        self._digests: list[tuple[str, dict[int, int]]] = []  # of unnamed vectors, by rank
        self._has_warned = False
        self._parts: dict[int, Any] = {}  # by id(): what malt.shard() has returned

    def note_shared_out(self, data: Any, rank: int) -> None:
        """Note data given to malt.shard(); they are compared when the next vector is made."""
        if not self._is_part(data):
            at = place()
            number, digests = self._shared_out.get(at, _Calls())
            if number < _MOST_CALLS:
                digests += (f"{digest_of_data(data):08x}"[-_DIGITS:],)
            self._shared_out[at] = _Calls(number + 1, digests)
        elif rank == 0:
            log.warning(
                "malt: malt.shard() at %s is given this rank's part of data already, so each rank "
                "gets a part of its part: call it once, on the whole data (malt.load_data() has "
                "shared them out)",
                place(),
            )

    def note_part(self, part: Any) -> None:
        """Note what this rank has got of data that were shared out."""
        if len(self._parts) < _MOST_PARTS:
            self._parts[id(part)] = _mark_of(part)

    def _is_part(self, data: Any) -> bool:
        noted, mark = self._parts.get(id(data)), _mark_of(data)
        return noted is not None and (noted is mark if callable(mark) else noted == mark)

    def compare(self, group: Group, name: str, site: Site) -> None:
        """Tell the other ranks of a vector that all now make. Collective.

        Raises:
            ConfigError: the vector is on a GPU on some ranks and on the CPU on others; on all.
        """
        shards = {
            at: f"{number}:{''.join(digests)}" for at, (number, digests) in self._shared_out.items()
        }
        self._shared_out.clear()
        mine = {"named": site.name is not None, "place": site.place, "digest": site.digest}
        mine |= {"gpu": site.is_on_gpu, "shards": shards}
        while len(text := json.dumps(mine).encode()) > MOST_BYTES:
            shards.popitem()
        posts = group.exchange(f"vector '{name}', step 0", text, None)
        told = {
            rank: _read(name, rank, post) for rank, post in enumerate(posts) if post is not None
        }
        check_alike(
            f"vector '{name}'",
            {
                rank: {"its memory": "on a GPU" if each["gpu"] else "on the CPU"}
                for rank, each in told.items()
            },
            "give memory of one kind on all ranks (w.cuda(), or w.cpu(), before malt.vector(w))",
        )
        if group.rank == min(told):
            self._warn_of_shards({rank: each["shards"] for rank, each in told.items()})
            if not self._has_warned and not any(each["named"] for each in told.values()):
                self._warn_of_order(name, told)

    def _warn_of_order(self, name: str, told: Mapping[int, Mapping[str, Any]]) -> None:
        digests = {rank: each["digest"] for rank, each in told.items()}
        places: dict[str, list[int]] = {}
        for rank, each in told.items():
            places.setdefault(each["place"], []).append(rank)
        found = ""
        if len(places) > 1:
            listed = ", and ".join(f"{at} on {_ranks(ranks)}" for at, ranks in places.items())
            found = f"vector '{name}' is made at {listed}"
        elif crossed := next((old for old in self._digests if _cross(old[1], digests)), None):
            found = (
                f"vectors '{crossed[0]}' and '{name}' have one another's values on some ranks when "
                "they are made"
            )
        if found:
            self._has_warned = True
            log.warning(
                "malt: %s: ranks match unnamed vectors by their order; if these are not the same "
                "vector, make them in one order on all ranks, and in any case give each a name: "
                "malt.vector(w, name='w')",
                found,
            )
        if all(digests.values()):
            self._digests.append((name, digests))
            del self._digests[:-_MOST_VECTORS]

    def _warn_of_shards(self, told: Mapping[int, Mapping[str, str]]) -> None:
        first = min(told)
        for at, calls in told[first].items():
            # Ranks that have made unequally many calls on a line may have meant other data.
            count = calls.partition(":")[0]
            same = {
                rank: each[at]
                for rank, each in told.items()
                if at in each and each[at].partition(":")[0] == count
            }
            others = [rank for rank, theirs in same.items() if theirs != calls]
            if others:
                log.warning(
                    "malt: malt.shard() at %s%s: %s gave other data than rank %d, so the parts "
                    "overlap and miss rows: make and shuffle the data with one seed on all ranks, "
                    "such as np.random.default_rng(0), and sort names of files; or it is a part "
                    "that malt.shard() has made already, which each rank has another of",
                    *(at, _which_call(calls, same[others[0]]), _ranks(others), first),
                )


def place() -> str:
    """Return the line of the program that calls MALT, as "train.py:12"."""
    frame = outer_frame()
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)[-40:]}:{frame.f_lineno}"


def digest_of(arrays: Sequence[npt.NDArray[Any]]) -> int:
    """Return a checksum of some elements of these arrays of numbers, above 0."""
    crc = 0
    for array in arrays:
        flat = array.reshape(-1)
        some = np.ascontiguousarray(flat[:: max(1, flat.size // _MOST_ELEMENTS)])
        crc = zlib.crc32(some.tobytes(), zlib.crc32(repr(array.shape).encode(), crc))
    return crc or 1


def digest_of_data(data: Any) -> int:
    """Return a checksum of what all ranks should have alike in data given to malt.shard().

    It is of the type, the shape and, where they can be had at little cost, some elements.
    """
    crc = 0
    try:
        for some in _samples(data, _MOST_ROWS, _MOST_DEPTH):
            crc = zlib.crc32(some, crc)
    except Exception:  # of another library's class; a missing warning is no reason for an error
        return zlib.crc32(type(data).__name__.encode())
    return crc


def _samples(data: Any, most: int, depth: int) -> Iterator[bytes]:
    """Generate the type, the shape and some of the elements, lists down to this depth."""
    if hasattr(data, "shape"):
        shape = tuple(data.shape)
    else:
        shape = (len(data),) if hasattr(data, "__len__") else ()
    yield f"{type(data).__name__} {shape}".encode()
    if isinstance(data, np.ndarray):
        if data.dtype.kind in "biufcmMUS" and data.size:
            rows = data[_some(data.shape[0], most)] if data.ndim else data
            yield np.ascontiguousarray(rows).tobytes()
            return
        has_objects = data.dtype == object and data.ndim
        inside: Sequence[Any] = _rows_of(data, most) if has_objects else []
    elif type(data) in _PLAIN or isinstance(data, (np.generic, PurePath)):
        yield repr(data).encode()
        return
    elif isinstance(data, (str, bytes)):
        yield repr(data[:1000]).encode(errors="replace")
        return
    else:
        inside = _inside(data, most)
    if depth > 0:
        for each in inside:
            yield from _samples(each, _MOST_INSIDE, depth - 1)


def _inside(data: Any, most: int) -> Sequence[Any]:
    """Return arrays or elements of which `data` are made; none if they are not known."""
    if type(data) in (list, tuple):
        return _rows_of(data, most)
    if type(data) is dict:
        return list(islice(data.items(), most))
    package = type(data).__module__.partition(".")[0]
    if package == "pandas" and hasattr(data, "iloc"):
        return [data.iloc[_some(len(data), most)].to_numpy()]
    if package == "scipy":
        arrays = [getattr(data, name, None) for name in _ARRAYS_OF_SPARSE]
        return [array for array in arrays if isinstance(array, np.ndarray)]
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    if isinstance(data, torch.Tensor):
        return _bytes_of_tensor(torch, data, most)
    datasets = torch.utils.data
    if isinstance(data, datasets.TensorDataset):
        return list(data.tensors)
    if isinstance(data, datasets.Subset):
        return [data.indices, data.dataset]
    if isinstance(data, datasets.ConcatDataset):
        return list(data.datasets)
    return []


def _bytes_of_tensor(torch: Any, tensor: Any, most: int) -> list[npt.NDArray[Any]]:
    is_readable = tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not is_readable or tensor.is_complex() or not tensor.numel():
        return []
    rows = tensor.detach()
    if rows.ndim:
        rows = rows[torch.from_numpy(_some(len(rows), most))]
    return [rows.reshape(-1).contiguous().view(torch.uint8).numpy()]


def _rows_of(data: Any, most: int) -> list[Any]:
    return [data[i] for i in _some(len(data), most).tolist()]


def _some(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most so many positions of `count`, spread evenly."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.int64)


def _mark_of(part: Any) -> Any:
    """Return what tells this object from others that later have its id()."""
    try:
        return weakref.ref(part)  # the same reference each time, as long as the object lives
    except TypeError:  # a list, a range
        if not len(part) or not hasattr(part, "__getitem__"):
            return None
        return len(part), id(part[0]), id(part[-1])


def _read(name: str, rank: int, post: bytes) -> dict[str, Any]:
    """Read what a rank tells of its vector."""
    try:
        told = json.loads(post)
    except (ValueError, RecursionError):
        told = None
    fields = {"named": bool, "place": str, "digest": int, "gpu": bool, "shards": dict}
    is_sound = isinstance(told, dict) and all(
        type(told.get(field)) is kind for field, kind in fields.items()
    )
    if not is_sound or not all(isinstance(calls, str) for calls in told["shards"].values()):
        raise DamagedError(f"vector '{name}': what rank {rank} tells of its own is damaged")
    return told  # type: ignore[no-any-return]


def _cross(old: Mapping[int, int], new: Mapping[int, int]) -> bool:
    """Return whether a rank's old values are another's new ones, and the other way round."""
    first = min(new)
    return any(
        old.get(first) == new[rank] and old.get(rank) == new[first] and new[rank] != new[first]
        for rank in new
    )


def _which_call(calls: str, others: str) -> str:
    """Return which call of a line it is, if there are several, in which two ranks differ."""
    count = calls.partition(":")[0]
    if count == "1":
        return ""
    pairs = enumerate(zip(calls, others, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), len(count) + 1)
    return f" (call {(at - len(count) - 1) // _DIGITS + 1} of {count} on this line)"


def _ranks(ranks: Sequence[int]) -> str:
    most = 8
    return describe_ranks(ranks) if len(ranks) <= most else f"{len(ranks)} ranks"
