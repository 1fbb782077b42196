"""An exception on a rank, as it comes out of the pool's call."""

from __future__ import annotations

import builtins
import contextlib
import pickle
import traceback
from collections.abc import Sequence
from typing import Any

import cloudpickle

from malt._errors import ConfigError, DamagedError, Error, PeerError, TimeoutError  # noqa: A004

_OWN_MODULES = ("malt._pool", "malt._engines")
_OWN_KINDS = {f"malt.{kind.__name__}": kind for kind in (ConfigError, PeerError, TimeoutError)}


class RankTraceback(Exception):  # noqa: N818 - it is no error, but says where one was
    """The traceback of an exception on a rank, as its cause here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def describe(error: BaseException) -> tuple[str, str, str]:
    """Return an exception's kind, its text, and its traceback from the user's function on."""
    text = "".join(traceback.format_exception(type(error), error, _own_part(error)))
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return kind, _text_of(error), text


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # of its own __str__()
        return f"(it has no text: its __str__() raises {type(failure).__name__})"


def caused_on(rank: int, error: BaseException, text: str) -> BaseException:
    """Return the exception, with the rank's traceback as its cause."""
    error.__cause__ = RankTraceback(f"on rank {rank}:\n{text}")
    return error


def describe_with_pickle(error: BaseException) -> tuple[bytes | None, str, str, str]:
    """Return an exception's pickle, or None if it has none that can be loaded, and describe().

    Only for processes of which one has forked the other: a pickle runs code when it is loaded.
    """
    data = None
    if isinstance(error, Exception):
        try:
            data = cloudpickle.dumps(error)
            pickle.loads(data)
        except Exception:  # pickle calls its constructor, which may want other arguments
            data = None
    return data, *describe(error)


def from_pickle(rank: int, described: tuple[bytes | None, str, str, str]) -> BaseException:
    """Return the exception of describe_with_pickle(), or a malt.Error if it cannot be loaded."""
    data, kind, text, trace = described
    error: BaseException | None = None
    if data is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(data)
    if error is None:
        error = Error(f"rank {rank}: {kind}: {text}")
        error.was_stopped = kind == "KeyboardInterrupt"  # type: ignore[attr-defined]
    return caused_on(rank, error, trace)


def on_rank(rank: int, described: Sequence[object]) -> BaseException:
    """Return the exception that a rank of a job has described.

    It has its own class if that is one of Python's or of MALT's that takes a text alone, and
    malt.Error otherwise: no code of the sender's choice runs.
    """
    if len(described) != 3 or not all(isinstance(each, str) for each in described):
        raise DamagedError(f"an answer of rank {rank} is damaged")
    kind, text, trace = map(str, described)
    known = getattr(builtins, kind, None)
    error: BaseException = Error(f"rank {rank}: {kind}: {text}")
    if own := _OWN_KINDS.get(kind):
        error = own(f"rank {rank}: {text}")
    elif isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(TypeError):  # it wants other arguments
            error = known(text)
    return caused_on(rank, error, trace)


def _own_part(error: BaseException) -> Any:
    """Return the traceback from the user's function on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        if not frames.tb_frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
            break
        frames = frames.tb_next
    return frames
