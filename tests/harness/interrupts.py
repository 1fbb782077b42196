"""Interrupts at a chosen moment of a call: for tests of what a call leaves when one ends it.

Python looks for signals where a function begins, after each call, and where a loop jumps back. Each
of these places in the package and in contextlib, or in other files that are named, is a moment. So
an interrupt at a moment is one that Ctrl-C could have been. Steps that put handlers off
(malt/_uninterrupted.py) do so here.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import jobs

import malt

_TRACED = (os.path.dirname(malt.__file__) + os.sep, contextlib.__file__)
_SIGNAL = signal.SIGUSR1
_MOST_ERRORS = 8  # of one call on one rank
_SHORT = 0.1  # seconds, in which rank 0 ends a call that needs no other rank any more


class AlarmError(Exception):
    """An exception of a handler, as one of a time limit: no BaseException alone."""


class Moments:
    """Counts the moments of a call, and interrupts it at one of them.

    Attributes:
        count: how many moments there were.
        where: the file, function and line of the moment of the interrupt; "": it was not reached.
    """

    def __init__(
        self,
        at: int,
        within: Sequence[str] = ("",),
        traced: tuple[str, ...] = _TRACED,
        raised: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        """`within`: how the names begin of those of the `traced` files whose moments count."""
        self.count = 0
        self.where = ""
        self._at = at
        self._within = tuple(within)
        self._traced = traced
        self._raised = raised

    def run(self, call: Callable[[], Any]) -> Any:
        """Make the call. Raises `raised` where it is interrupted."""
        handler = signal.signal(_SIGNAL, self._interrupt)
        tracing = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(tracing)
            signal.signal(_SIGNAL, handler)

    def _interrupt(self, *_: object) -> None:
        raise self._raised

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._traced):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        before: int | None = None  # the instruction that was executed last, in this frame

        def look(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal before
            if event == "opcode":
                if _is_moment(frame.f_code, before, frame.f_lasti):
                    self._pass(frame)
                before = frame.f_lasti
            elif event == "exception":
                before = frame.f_lasti - 1  # what raised it looks for no signal
            return look

        return look

    def _pass(self, frame: FrameType) -> None:
        name = os.path.basename(frame.f_code.co_filename)
        self.count += name.startswith(self._within)
        if self.count == self._at and not self.where:
            self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
            signal.raise_signal(_SIGNAL)


def interrupts(call: Callable[[], Any], within: Sequence[str] = ("",)) -> Iterator[str]:
    """Make the call again and again, each time with an interrupt at the next moment.

    Yields where each interrupt was, once it has ended the call. Ends when the call has ended
    before its interrupt; it has then been made once without one.
    """
    at = 1
    while True:
        moments = Moments(at, within)
        try:
            moments.run(call)
        except KeyboardInterrupt:
            assert moments.where
        if not moments.where:
            return
        yield moments.where
        at += 1


def interrupts_of_rank_0(
    name: str,
    call: Callable[[], Any],
    within: Sequence[str] = ("",),
    step: int = 1,
    raised: type[BaseException] = KeyboardInterrupt,
) -> Iterator[tuple[str, list[BaseException], Any]]:
    """Make a collective call again and again, with an interrupt of rank 0 at every `step`th moment.

    All ranks make it again until all have made it; after an error, and where another rank needs it.
    Yields where the interrupt was (on rank 0), the errors that this rank has got, and the result.
    """
    is_first = os.environ["MALT_RANK"] == "0"
    for at in itertools.count(1, step):
        key = f"{name} {at}"
        jobs.meet(f"{key} begins")
        moments = Moments(at, within, raised=raised)
        errors, made = [], None
        has_made = had_made = False
        while not has_made or not _is_enough(f"{key} ends"):
            assert len(errors) < _MOST_ERRORS, errors
            try:
                made = moments.run(call) if is_first and not moments.where else call()
                has_made = had_made = True
            except (KeyboardInterrupt, AlarmError, malt.Error) as error:
                errors.append(error.with_traceback(None))
                # This rank had made it, and rank 0 was only slow to say that it had made it too.
                has_made = had_made and jobs.flag_is_up(f"{key} ends")
            if is_first and has_made:
                jobs.raise_flag(f"{key} ends")
                if not moments.where:
                    jobs.raise_flag(f"{name} is over")
        jobs.meet(f"{key} ended")
        yield moments.where, errors, made
        made = None
        if jobs.flag_is_up(f"{name} is over"):
            return


def _is_enough(flag: str) -> bool:
    """Return whether rank 0 has made the call too. If it has not, it may need the others again."""
    end = time.monotonic() + _SHORT
    while not jobs.flag_is_up(flag):
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


def _is_moment(code: CodeType, before: int | None, now: int) -> bool:
    """Return whether Python looks for signals between these two instructions."""
    if before is None:
        return now == 0 and sys.version_info < (3, 11)
    name = _names(code).get(before, "")
    return name.startswith(("CALL", "RESUME")) or (name.startswith("JUMP") and now < before)
