"""Exchange of a metric or a setting between all ranks, in one line and without a vector."""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from malt._alike import check_alike
from malt._arguments import seconds, unmasked, whole
from malt._core_import import AVG, MEDIAN, SUM, Fold
from malt._errors import ConfigError, DamagedError, Error, PeerError, describe_ranks
from malt._job import job as jobs
from malt._job.agreement import Report, Together
from malt._messages import values
from malt._pieces import Sent
from malt._vector_types import AnyVector

_MOST_BYTES = 2 << 20  # of a value in its encoded form, which has 16 bytes for each 9 of an array
_CALL = "malt.allreduce"
_BARRIER = "malt.barrier"


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _goes_on(
    call: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Have a call go on with the last one of its name, if an exception ended that on this rank.

    Others may have ended it: this rank would be a call behind them, and mix up two calls' values.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def go_on(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            job = jobs.current()
            sent: Sent | None = None
            is_inside = False
            try:
                with job.turns.hold(call):
                    sent = job.sent.by_call.setdefault(call, Sent())
                    is_inside = sent.is_folded
                    if is_inside:
                        raise ConfigError(
                            f"{call} inside the function that {call} folds with; call it when "
                            f"{call} has returned"
                        )
                    sent.is_here = False
                    result = function(*arguments, **named)
                    del job.sent.by_call[call]
            except BaseException as error:  # wherever it came: a handler may run after any call
                if sent is not None and not is_inside:
                    sent.is_folded = False
                    is_of_all = isinstance(error, (ConfigError, DamagedError, PeerError))
                    is_over = sent.is_over or (is_of_all and sent.is_here)
                    job.sent.by_call[call] = Sent() if is_over else sent
                raise
            return result

        return go_on

    return decorate


@_goes_on(_BARRIER)
def barrier(timeout: float | None = None) -> None:
    """Return when every live rank has called it.

    On a rejoining rank it returns at once until the first scatter, gather or allreduce, because the
    other ranks have made this call before. If Ctrl-C or a time limit ends the call, repeat it.

    Raises:
        TimeoutError: the ranks that the error names did not come within `timeout` seconds (init()'s
            if None).
    """
    job = jobs.current()
    if job.is_rejoining:
        seconds(timeout)
    else:
        together = Together(_BARRIER, timeout)
        sent = job.sent.by_call[_BARRIER]
        sent.is_here = True
        together.step("all are here", lambda: (None, {}), sent=sent, failures=Error)


@_goes_on(_CALL)
def allreduce(
    value: Any, fold: Fold | Callable[[list[Any]], Any] = AVG, *, timeout: float | None = None
) -> Any:
    """Return the mean of all ranks' values, or another fold of them: `malt.allreduce(loss)`.

    Collective. The result is exact, over all live ranks, and rounded once. Use it for an occasional
    number; for data exchanged in every round use a vector (`v.allreduce`).

    Args:
        value: a number, or an array of numbers (of the same shape and dtype on all ranks), of at
            most 1 MiB. Lists and CPU tensors become NumPy arrays. A truth value counts as 0 or 1.
        fold: malt.AVG, SUM, MEDIAN, TRIMMED_MEAN(f), or a function that takes the list of values,
            ordered by rank, such as max.
        timeout: the most seconds to wait for other ranks; that of malt.init() if None.

    Returns:
        The same value on every rank: of single numbers, also NumPy's, a Python number, else a NumPy
        array. A mean of floats has their dtype, that of integers and truth values is a float64; so
        has a median, which of an even number of values is the mean of the two in the middle.
        A sum has the dtype of numpy.sum: of integers of fewer than 64 bits and of truth values
        int64 or uint64; but of float16 it is a float32.

    If Ctrl-C or a time limit ends the call, repeat it. Others may have ended it; so it goes on with
    what it had sent.

    Raises:
        ConfigError: the ranks' values do not fit together or are no numbers, their folds differ, a
            sum is beyond its dtype, or this rank is rejoining and the others made this call long
            ago; raised on every rank.
        TimeoutError: the ranks that the error names did not come.
    """
    told = _tell_all(_CALL, lambda: _numbers(value), lambda: {"fold": _name_of(fold)}, timeout)
    ranks_of: dict[str, list[int]] = {}
    for rank, each in told.items():
        ranks_of.setdefault(_kind(each), []).append(rank)
    if len(ranks_of) > 1:
        listed = "; ".join(f"{describe_ranks(ranks)}: {kind}" for kind, ranks in ranks_of.items())
        raise ConfigError(f"{_CALL} of values that do not fit together: {listed}")
    given = list(told.values())
    if not isinstance(fold, Fold):
        sent = jobs.current().sent.by_call[_CALL]
        sent.is_folded = True
        try:
            result = fold(given)
        except Exception:  # the function's, which ends the call on this rank
            sent.is_over = True
            raise
        sent.is_folded = False
        return result
    cut = (len(given) - 1) // 2 if fold is MEDIAN else int(fold.fraction * len(given))
    kind = SUM if fold is SUM else AVG
    if isinstance(given[0], np.ndarray) and given[0].ndim:
        return _fold_arrays(_without_ends(given, cut), kind)
    numbers = [each.item() if hasattr(each, "item") else each for each in given]
    return _fold_numbers(_without_ends(numbers, cut), kind)


@_goes_on("malt.broadcast")
def broadcast(value: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
    """Return the value that rank `root` gives: `settings = malt.broadcast(settings)`. Collective.

    Args:
        value: on `root`, None, a bool, a number, a text, bytes, a NumPy array of numbers or texts,
            a CPU tensor, a CSR matrix, or lists, tuples and dicts of these, of at most 1 MiB; other
            ranks' values are ignored. Nothing is pickled: data from the network can create objects
            of these types only. Subclasses of them are refused.
        root: the rank whose value is returned.
        timeout: the most seconds to wait for other ranks; that of malt.init() if None.

    Returns:
        A copy of it on every rank, of the same types on all.

    If Ctrl-C or a time limit ends the call, repeat it, as malt.allreduce.

    Raises:
        ConfigError: `root` gives a value of another type, the ranks' roots differ, or this rank is
            rejoining and the others made this call long ago; raised on every rank.
        PeerError: `root` is dead or has left.
        TimeoutError: the ranks that the error names did not come.
    """
    job = jobs.current()
    root = whole("root", root, 0, job.size - 1, f": the job has {job.size} ranks")
    own = (lambda: _sendable(value)) if job.rank == root else lambda: None
    told = _tell_all("malt.broadcast", own, lambda: {"root": str(root)}, timeout)
    if root not in told:
        raise PeerError(
            f"malt.broadcast: rank {root}, whose value it is, has ended or was evicted", [root]
        )
    return told[root]


def _tell_all(
    call: str,
    give: Callable[[], Any],
    settings: Callable[[], dict[str, str]],
    timeout: float | None,
) -> dict[int, Any]:
    """Return each rank's value, in the order of the ranks, whose `settings` are alike.

    A call that goes on with the last one has the value that was sent then, and its settings.
    """
    together = Together(call, timeout)
    sent = jobs.current().sent.by_call[call]

    def tell() -> tuple[None, Report]:
        head, *buffers = values.pack(give(), "the value")
        parts = [base64.b64encode(part).decode() for part in (head, *buffers)]
        report = {"parts": parts, **(given := settings())}
        if (length := len(json.dumps(report))) > _MOST_BYTES:
            raise ConfigError(
                f"a value of {length} bytes, as it is sent; at most {_MOST_BYTES} can be: use a "
                "vector (malt.vector), or a file that all ranks read"
            )
        sent.settings = given
        return None, report

    if sent.post is not None and sent.settings and (given := settings()) != sent.settings:
        raise ConfigError(
            f"{call} goes on with the call that timed out or was interrupted, whose "
            + " and ".join(f"{name} was {value}" for name, value in sent.settings.items())
            + f"; here it is {', '.join(given.values())}; repeat that call first"
        )
    own = tell if sent.post is None else lambda: (None, {})
    sent.is_here = True
    told = dict(sorted(together.step("the value", own, sent=sent, failures=Error)[1].items()))
    all_values = {rank: _unpacked(report["parts"]) for rank, report in told.items()}
    check_alike(
        call,
        {rank: {name: report[name] for name in sent.settings} for rank, report in told.items()},
    )
    return all_values


def _unpacked(parts: list[str]) -> Any:
    # Arrays are views of the parts, and the caller may write to them.
    try:
        whole_parts = [memoryview(bytearray(base64.b64decode(part))) for part in parts]
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a value of another rank is damaged: {error}") from error
    return values.unpack(whole_parts)


def _name_of(fold: Any) -> str:
    """Return the name by which ranks compare their folds.

    Raises:
        ConfigError: it is no fold that malt.allreduce() takes.
    """
    if fold is AVG or fold is SUM or fold is MEDIAN:
        return f"malt.{fold!r}"
    if isinstance(fold, Fold) and repr(fold) == "TRIMMED_MEAN":
        return f"malt.TRIMMED_MEAN({fold.fraction})"
    if isinstance(fold, Fold) or not callable(fold):
        raise ConfigError(
            f"fold is {fold!r}; malt.allreduce takes malt.AVG, malt.SUM, malt.MEDIAN, "
            "malt.TRIMMED_MEAN(f), or a function of the list of values, such as max"
        )
    return str(getattr(fold, "__qualname__", "a function"))


def _sendable(value: Any) -> Any:
    """Return the value.

    Raises:
        ConfigError: it is a vector.
    """
    if isinstance(value, AnyVector):
        raise ConfigError(
            "the value is a vector, whose elements do not travel so: give its values, "
            "malt.broadcast(v.array), or exchange it, v.scatter() and v.gather(malt.REPLACE)"
        )
    return value


# Numbers


def _numbers(value: Any) -> Any:
    """Return a number or a NumPy array of numbers.

    Raises:
        ConfigError: it is no such thing.
    """
    if type(value) in (bool, int, float, complex):
        return value
    if isinstance(value, AnyVector):
        raise ConfigError("the value is a vector: call v.allreduce(malt.AVG), its own method")
    if isinstance(value, Mapping):
        raise ConfigError(
            f"the value is a {type(value).__name__}: give one number or array a call, {{name: "
            "malt.allreduce(each) for name, each in value.items()}, or make a vector "
            "(malt.vector(list(value.values()))) of arrays that are exchanged in each round"
        )
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    unmasked(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # of lists of unlike rows, of tensors
        raise ConfigError(
            f"{name} is no number or array of numbers that NumPy can read: {error}; a tensor's is "
            "value.detach().cpu().float().numpy()"
        ) from error
    if array.dtype.kind not in "biufc":
        raise ConfigError(
            f"{name} of dtype {array.dtype} is no number or array of numbers; give float(value), "
            "or an array's value.astype(float)"
        )
    return array


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {value.dtype} {list(value.shape)}"
    return "a number"


def _without_ends(given: list[Any], cut: int) -> list[Any]:
    """Return what is left of each element's values without the `cut` lowest and highest."""
    if cut == 0:
        return given
    is_array = isinstance(given[0], np.ndarray)
    if any(np.iscomplexobj(each) for each in given):
        raise ConfigError(f"{_CALL}: complex values have no order: take malt.AVG or malt.SUM")
    ordered = np.sort(given, axis=0) if is_array else sorted(given, key=lambda x: (x != x, x))
    return list(ordered[cut : len(given) - cut])


def _fold_numbers(numbers: list[Any], fold: Fold) -> Any:
    try:
        total = sum(numbers)
        if _is_finite(total) or not all(map(_is_finite, numbers)):
            return total if fold is SUM else total / len(numbers)
        if fold is AVG:
            return sum(each / len(numbers) for each in numbers)
    except OverflowError:  # of integers, where they become floats
        pass
    largest = repr(max(numbers, key=abs))
    raise _beyond(f"{largest[:30]} and others", "float64", "give smaller numbers, or logarithms")


def _is_finite(number: Any) -> bool:
    return isinstance(number, int) or math.isfinite(abs(number))


def _fold_arrays(arrays: list[npt.NDArray[Any]], fold: Fold) -> npt.NDArray[Any]:
    dtype = arrays[0].dtype
    wide = values.dtype_of_sum(dtype)
    if dtype.kind in "biu":
        exact = np.sum([array.astype(object) for array in arrays], axis=0)
        if fold is AVG:
            return np.asarray(exact / len(arrays), np.float64)
        limits = np.iinfo(wide)
        beyond = (exact < limits.min) | (exact > limits.max)
        if beyond.any():
            raise _beyond(_first(arrays, beyond), wide.name, "give value.astype(float)")
        return np.asarray(exact, wide)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(arrays, axis=0, dtype=np.result_type(dtype, np.longdouble))
        if fold is AVG:
            return np.asarray(total / len(arrays), dtype)
        result = np.asarray(total, wide)
    beyond = np.isfinite(total) & ~np.isfinite(result)
    if beyond.any():
        addends = _first(arrays, beyond)
        raise _beyond(addends, wide.name, "give a wider dtype, smaller values, or take malt.AVG")
    return result


def _first(arrays: list[npt.NDArray[Any]], where: npt.NDArray[np.bool_]) -> str:
    listed = [str(array[where][0]) for array in arrays[:3]]
    return ", ".join(listed) + (", ..." if len(arrays) > 3 else "")


def _beyond(addends: Any, dtype: str, way_out: str) -> ConfigError:
    return ConfigError(f"{_CALL}: the sum of {addends} is beyond {dtype}: {way_out}")
