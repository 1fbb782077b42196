"""Steps that no exception out of a signal handler cuts in two.

Python runs the handlers of signals (Ctrl-C, alarms) between two instructions of the main thread,
and what one raises ends the step that was under way. In a step of this kind the handlers are put
off until its end. It has to be short, and may not wait.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# Those for which programs have handlers of their own.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGQUIT,
    signal.SIGCHLD,
)


class _Step:
    """One at a time: only the main thread runs handlers."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}  # those put off, by signal
        self._came: list[int] = []

    def __enter__(self) -> None:
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # of a handler that was not put off yet
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        raised: BaseException | None = None
        while self._handlers or self._came:
            try:
                if self._handlers:
                    number = next(iter(self._handlers))
                    signal.signal(number, self._handlers[number])
                    del self._handlers[number]
                else:
                    signal.raise_signal(self._came.pop())
            except BaseException as error:  # of a handler that is back; the others follow
                raised = error
        if raised is not None:
            raise raised

    def _note(self, number: int, _: FrameType | None) -> None:
        self._came.append(number)


def uninterrupted(step: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Make a function such a step. One inside another is a part of it."""

    @functools.wraps(step)
    def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        if _now._handlers or threading.current_thread() is not threading.main_thread():
            return step(*arguments, **named)
        with _now:
            return step(*arguments, **named)

    return call


_now = _Step()
