"""What ranks tell one another when they make a vector, and the mistakes that this shows.

Ranks match unnamed vectors by the order in which they make them, and malt.shard() relies on all
ranks giving the same data. Both go wrong without an error. The lowest rank warns of it.
"""

from __future__ import annotations

import json
import logging
import os
import weakref
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import Group
from malt._errors import ConfigError, describe_ranks
from malt._job.rebinding import outer_frame

log = logging.getLogger("malt")

_MOST_BYTES = 768  # of one exchange: Group::kMostExchanged
_MOST_VECTORS = 100  # that are remembered
_MOST_PARTS = 1000
_MOST_ELEMENTS = 4096  # of an array, that its digest is made of


class Site(NamedTuple):
    """Where the program makes a vector, and from what."""

    name: str | None  # as the program gave it
    place: str
    digest: int  # of the values; 0: not known
    is_on_gpu: bool


class Matching:
    """What this rank has told, and heard, so far."""

    def __init__(self) -> None:
        self._shared_out: dict[str, int] = {}  # by place: the digest of the data
        self._digests: list[tuple[str, dict[int, int]]] = []  # of unnamed vectors, by rank
        self._has_warned = False
        self._parts: dict[int, Any] = {}  # by id(): what malt.shard() has returned

    def note_shared_out(self, data: Any, rank: int) -> None:
        """Note data given to malt.shard(); they are compared when the next vector is made."""
        if not self._is_part(data):
            self._shared_out.setdefault(place(), digest_of_data(data))
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
        shards = dict(self._shared_out)
        self._shared_out.clear()
        mine = {"named": site.name is not None, "place": site.place, "digest": site.digest}
        mine |= {"gpu": site.is_on_gpu, "shards": shards}
        while len(text := json.dumps(mine).encode()) > _MOST_BYTES:
            shards.popitem()
        posts = group.exchange(f"segment '{name}', step 0", text, None)
        told = {rank: json.loads(post) for rank, post in enumerate(posts) if post is not None}
        _check_memory(name, told)
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

    def _warn_of_shards(self, told: Mapping[int, Mapping[str, int]]) -> None:
        first = min(told)
        for at, digest in told[first].items():
            others = [rank for rank, each in told.items() if each.get(at, digest) != digest]
            if others:
                log.warning(
                    "malt: malt.shard() at %s: %s gave other data than rank %d, so the parts "
                    "overlap and miss rows: make and shuffle the data with one seed on all ranks, "
                    "such as np.random.default_rng(0), and sort names of files",
                    *(at, _ranks(others), first),
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
    """Return a checksum of what all ranks should have alike in data given to malt.shard()."""
    kind = type(data).__name__
    shape = tuple(data.shape) if hasattr(data, "shape") else (len(data),)
    text = f"{kind} {shape}"
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufcUSM" and data.size:
        at = np.linspace(0, data.shape[0] - 1, 64).astype(np.int64) if data.ndim else ...
        return zlib.crc32(np.ascontiguousarray(data[at]).tobytes(), zlib.crc32(text.encode()))
    if isinstance(data, (list, tuple)) and data:
        some = [data[i] for i in range(0, len(data), max(1, len(data) // 64))]
        if all(isinstance(each, (int, float, str, bytes)) for each in some):
            text += repr(some)
    return zlib.crc32(text.encode())


def _mark_of(part: Any) -> Any:
    """Return what tells this object from others that later have its id()."""
    try:
        return weakref.ref(part)  # the same reference each time, as long as the object lives
    except TypeError:  # a list, a range
        if not len(part) or not hasattr(part, "__getitem__"):
            return None
        return len(part), id(part[0]), id(part[-1])


def _check_memory(name: str, told: Mapping[int, Mapping[str, Any]]) -> None:
    on_gpu = [rank for rank, each in told.items() if each["gpu"]]
    elsewhere = [rank for rank, each in told.items() if not each["gpu"]]
    if on_gpu and elsewhere:
        raise ConfigError(
            f"vector '{name}' is on a GPU on {_ranks(on_gpu)} and on the CPU on "
            f"{_ranks(elsewhere)}: give memory of one kind on all ranks (w.cuda(), or w.cpu(), "
            "before malt.vector(w))"
        )


def _cross(old: Mapping[int, int], new: Mapping[int, int]) -> bool:
    """Return whether a rank's old values are another's new ones, and the other way round."""
    first = min(new)
    return any(
        old.get(first) == new[rank] and old.get(rank) == new[first] and new[rank] != new[first]
        for rank in new
    )


def _ranks(ranks: Sequence[int]) -> str:
    most = 8
    return describe_ranks(ranks) if len(ranks) <= most else f"{len(ranks)} ranks"
