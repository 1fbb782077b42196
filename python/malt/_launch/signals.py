"""Passes signals to the launcher on to its ranks."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from malt._launch.rank_process import Rank

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# A terminal and a program between it and the launcher may both pass on one Ctrl-C.
_ONCE_MORE_SECONDS = 0.25


class Relay:
    """Handles the launcher's signals while it is entered as a context.

    Attributes:
        wakened: readable when a signal, SIGCHLD included, has come; for the main loop.
        received: the signals that were passed on, for the main loop to report and remove.
        interrupted: when a signal that ends programs was first passed on (`time.monotonic`), or
            None.
        ending_unheard: the last such signal that came when no rank was left to receive it, or 0.
    """

    def __init__(self, ranks: Sequence[Rank], *, share_terminal: bool) -> None:
        """`ranks` may still grow. With `share_terminal` its Ctrl-C reaches the ranks directly."""
        self._ranks = ranks
        self._share_terminal = share_terminal
        self._waker, self.wakened = socket.socketpair()
        for end in (self._waker, self.wakened):
            end.setblocking(False)
        self.received: list[int] = []
        self.interrupted: float | None = None
        self.ending_unheard = 0
        self._is_held = False
        self._early: list[int] = []
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Relay:
        handlers: dict[int, Callable[[int, object], None]] = {
            **dict.fromkeys(_PASSED_ON, self._pass_on),
            signal.SIGTSTP: self._pause,
            signal.SIGCHLD: lambda *_: None,
        }
        for number, handler in handlers.items():
            # A signal that is ignored (nohup) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._before[number] = signal.signal(number, handler)
        self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._waker.close()
        self.wakened.close()

    def hold(self) -> Callable[[], None]:
        """Hold signals back while ranks are started; return a function that a new child calls.

        In the child it undoes the hold.
        """
        self._is_held = True
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        handled = list(self._before)

        def release_child() -> None:
            for number in handled:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        return release_child

    def release(self) -> None:
        """Pass on the signals that were held back."""
        self._is_held = False
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        while self._early:
            self._pass_on(self._early.pop(0), None)

    def _pass_on(self, number: int, _frame: object) -> None:
        """Pass a signal on. A handler: the main loop may be blocked by its output's reader."""
        if self._is_held:  # another thread has received the signal
            self._early.append(number)
            return
        from_terminal = self._share_terminal and os.tcgetpgrp(0) == os.getpgrp()
        if from_terminal and number in (signal.SIGINT, signal.SIGQUIT):
            return
        now = time.monotonic()
        again = (
            number == signal.SIGINT
            and self.interrupted is not None
            and now - self.interrupted > _ONCE_MORE_SECONDS
        )
        running = [rank for rank in self._ranks if rank.ended is None]
        for rank in running:
            rank.signal(signal.SIGKILL if again else number)
            if number in _ENDING:
                rank.signal(signal.SIGCONT)  # a stopped process receives no other signal
        if number in _ENDING and self._ranks and not running:
            self.ending_unheard = number
        self.received.append(number)
        if number in _ENDING and self.interrupted is None:
            self.interrupted = now

    def _pause(self, _number: int, _frame: object) -> None:
        """Ctrl-Z: stop the ranks too, since they are in process groups of their own."""
        running = [rank for rank in self._ranks if rank.ended is None and rank.has_group]
        for rank in running:
            rank.signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in running:
            rank.signal(signal.SIGCONT)
