"""A thread that takes in a rank's messages while the rank computes.

1. A thread that uses the messenger holds `lock`: between two `with` blocks of listening() there is
   only the rank's own thread, which then needs no lock.
2. An error of attend() in the inbox's thread comes out of listening() or check() in the rank's own
   one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from malt._system_limits import starting

_PERIOD = 0.01  # seconds


class Inbox:
    """The thread. It sleeps unless the rank is inside listening().

    Attributes:
        lock: for one thread at a time; a thread that has it may take it again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._attend: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._has_work = threading.Event()
        self._has_ended = False
        with starting("malt.Pool's thread"):
            threading.Thread(target=self._run, name="malt pool", daemon=True).start()

    @contextlib.contextmanager
    def listening(self, attend: Callable[[], object]) -> Iterator[None]:
        """Have attend() called now and then, with the lock."""
        self.check()
        try:
            self._attend = attend
            self._has_work.set()
            yield
        finally:
            self.rest()
        self.check()

    def rest(self) -> None:
        """Have the thread sleep again."""
        self._attend = None
        self._has_work.clear()
        with self.lock:  # until it has done what it is about
            pass

    def forget(self) -> None:
        """Have the thread sleep, and drop its error: the call before may have been given up."""
        self.rest()
        self._error = None

    def check(self) -> None:
        """Raise what attend() has raised in the inbox's thread.

        The caller has the lock, or is outside listening().
        """
        if (error := self._error) is not None:
            self._error = None
            raise error

    def close(self) -> None:
        self._has_ended = True
        self._has_work.set()

    def _run(self) -> None:
        while True:
            self._has_work.wait()
            if self._has_ended:
                return
            time.sleep(_PERIOD)
            self._listen()

    def _listen(self) -> None:
        # A call of its own: while it waits, the thread must not keep what attend() refers to.
        with self.lock:
            attend = self._attend
            if attend is None or self._error is not None:
                return
            try:
                attend()
            except Exception as error:
                self._error = error
