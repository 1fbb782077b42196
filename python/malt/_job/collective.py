"""Exchange of a metric or a setting between all ranks, in one line and without a vector."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from malt._core_import import AVG, SUM, Fold
from malt._errors import ConfigError, PeerError, describe_ranks
from malt._job import job as jobs
from malt._job.agreement import Report, Together

_MOST_BYTES = 1 << 20  # of a value in its encoded form


def allreduce(
    value: Any, fold: Fold | Callable[[list[Any]], Any] = AVG, *, timeout: float | None = None
) -> Any:
    """Combine all ranks' values into one: `malt.allreduce(loss)`. Collective.

    The result is exact, over all live ranks. Use it for an occasional number; for data exchanged in
    every round use a vector (`v.allreduce`).

    Args:
        value: a number, or a NumPy array of numbers (of the same shape and dtype on all ranks), of
            at most 1 MiB.
        fold: malt.AVG, malt.SUM, or a function that takes the list of values, ordered by rank, such
            as max.
        timeout: the most seconds to wait for other ranks; that of malt.init() if None.

    Returns:
        The same value on every rank. The mean of integers is a float.

    Raises:
        ConfigError: the ranks' values do not fit together, or this rank is rejoining and the others
            made this call long ago; raised on every rank.
        TimeoutError: the ranks that the error names did not come.
    """
    if fold is not AVG and fold is not SUM and (isinstance(fold, Fold) or not callable(fold)):
        raise ConfigError(
            f"fold is {fold!r}; malt.allreduce takes malt.AVG, malt.SUM, or a function of the list "
            "of values, such as max"
        )
    told = _tell_all("malt.allreduce", lambda: _of_number(value), timeout)
    values = [_restored(report["value"]) for _, report in sorted(told.items())]
    kinds: dict[str, list[int]] = {}
    for rank, each in zip(sorted(told), values, strict=True):
        kinds.setdefault(_kind(each), []).append(rank)
    if len(kinds) > 1:
        listed = "; ".join(f"{describe_ranks(ranks)}: {kind}" for kind, ranks in kinds.items())
        raise ConfigError(f"malt.allreduce of values that do not fit together: {listed}")
    if isinstance(fold, Fold):
        total = sum(values[1:], values[0])
        return total if fold is SUM else total / len(values)
    return fold(values)


def broadcast(value: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
    """Return the value that rank `root` gives: `settings = malt.broadcast(settings)`. Collective.

    Args:
        value: on `root`, None, a bool, a number, a text, bytes, a NumPy array of numbers, or lists,
            tuples and dicts of these, of at most 1 MiB; other ranks' values are ignored. Nothing is
            pickled: data from the network can create objects of these types only.
        root: the rank whose value is returned.
        timeout: the most seconds to wait for other ranks; that of malt.init() if None.

    Raises:
        ConfigError: `root` gives a value of another type, or this rank is rejoining and the others
            made this call long ago; raised on every rank.
        PeerError: `root` is dead or has left.
        TimeoutError: the ranks that the error names did not come.
    """
    size = jobs.current().size
    if not 0 <= root < size:
        raise ConfigError(f"root is {root}; the job has ranks from 0 to {size - 1}")
    is_root = jobs.current().rank == root
    told = _tell_all("malt.broadcast", lambda: _plain(value) if is_root else None, timeout)
    if root not in told:
        raise PeerError(f"malt.broadcast: rank {root}, whose value it is, has ended", [root])
    return value if is_root else _restored(told[root]["value"])


def _tell_all(call: str, plain: Callable[[], Any], timeout: float | None) -> dict[int, Report]:
    together = Together(call, timeout)

    def tell() -> tuple[None, Report]:
        report = {"value": plain()}
        if (length := len(json.dumps(report))) > _MOST_BYTES:
            raise ConfigError(
                f"a value of {length} bytes, as it is sent; at most {_MOST_BYTES} can be: use a "
                "vector (malt.vector)"
            )
        return None, report

    with jobs.current().turns.hold(call):
        return together.step("the value", tell)[1]


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {list(value.shape)}"
    return "a number"


def _of_number(value: Any) -> Any:
    if not isinstance(value, bool | int | float | np.number | np.bool_ | np.ndarray):
        value = np.asarray(value)  # a tensor, a list
    return _plain(value)


def _plain(value: Any) -> Any:
    """Encode a value as JSON types, tagged so that `_restored` gets the same type back."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.asarray(value)
        data = base64.b64encode(array.tobytes()).decode()
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: [array.dtype.str, list(array.shape), data]}
    raise ConfigError(
        f"{type(value).__name__!r} objects cannot be told to other ranks; numbers, texts, bytes, "
        "NumPy arrays of numbers, and lists, tuples and dicts of these can"
    )


def _restored(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_restored(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "tuple":
        return tuple(_restored(each) for each in content)
    if kind == "dict":
        return {_restored(key): _restored(each) for key, each in content}
    if kind == "bytes":
        return base64.b64decode(content)
    dtype, shape, data = content
    array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    return array if kind == "array" else array[()]
