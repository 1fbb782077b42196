"""The process that forks a pool's ranks, and ends them when the pool's process ends.

It is a fresh interpreter of one thread, which has imported NumPy and MALT: so ranks can be forked
from it safely and at once, which cannot be said of the pool's own process.

No process outlives the pool, because

1. the nursery sees the end of the pool's process, however it came about, by a pidfd; it then kills
   each rank's process group, and ends;
2. the kernel kills a rank when the nursery, its parent, ends (PR_SET_PDEATHSIG);
3. a rank that ends has its process group killed by the nursery.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from malt import _system_limits as system_limits
from malt._launch import channel, forking, orphans
from malt._pool import starting

# A rank's descriptors at its start, in this order; then come the queues.
CONTROL, ARGUMENTS, RESULTS, OUTPUT, ERRORS, QUEUES = range(6)

# The pool's requests: (START, rank) with descriptors, or (SIGNAL, process, number).
START, SIGNAL = range(2)

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from malt._pool.local import nursery; "
    "nursery.main({at}, {pool})"
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def start(control: socket.socket, ranks: int) -> subprocess.Popen[bytes]:
    """Start the nursery, with `control` as its end of a socket pair."""
    environ = {name: value for name, value in os.environ.items() if name not in starting.LAUNCH}
    # In a rank malt.init() is alone, but for pool.run(). And ranks share the cores.
    environ["MALT_BOOTSTRAP"] = "none"
    threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    environ.update({name: threads for name in _THREADS if name not in environ})
    at = control.fileno()
    code = _PROGRAM.format(path=sys.path, at=at, pool=os.getpid())
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with system_limits.starting("the process that starts malt.Pool's ranks"):
        return subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            env=environ,
            pass_fds=[at],
        )


def main(control: int, pool: int) -> None:
    """Fork ranks as the pool, a process that has `control`'s other end, asks for them."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C is the pool's, which passes it on
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.pidfd_open(pool)
    if os.getppid() != pool:
        return
    nursery = _Nursery(socket.socket(fileno=control), parent)
    try:
        nursery.serve()
    finally:
        nursery.end()


class _Nursery:
    def __init__(self, control: socket.socket, parent: int) -> None:
        from malt._pool.local import worker

        self._worker = worker
        self._control = control
        self._parent = parent
        self._ranks: set[int] = set()  # process ids
        self._wakened, self._waker = os.pipe()
        for end in (self._wakened, self._waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker)

    def serve(self) -> None:
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._parent, self._wakened):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._parent in ready:
                return
            if self._wakened in ready:
                os.read(self._wakened, 4096)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    message, descriptors = channel.receive(self._control)
                except EOFError:
                    return
                self._obey(message, descriptors)

    def _obey(self, message: Sequence[int], descriptors: Sequence[int]) -> None:
        if message[0] == SIGNAL:
            _, process, number = message
            if process in self._ranks:  # not reaped, so the number is of no other process yet
                os.kill(process, number)
            return
        _, rank = message
        process = self._fork(rank, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._tell("started", rank, process)

    def end(self) -> None:
        for process in self._ranks:
            orphans.kill_group(process, signal.SIGKILL)
        for process in self._ranks:
            os.waitpid(process, 0)

    def _reap(self) -> None:
        for process in list(self._ranks):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                self._ranks.remove(process)
                orphans.kill_group(process, signal.SIGKILL)  # the rank's children
                self._tell("ended", process, os.waitstatus_to_exitcode(status))

    def _tell(self, *message: object) -> None:
        with contextlib.suppress(OSError):  # the pool is closing
            channel.send(self._control, channel.encode(message))

    def _fork(self, rank: int, descriptors: Sequence[int]) -> int:
        def become() -> int:
            os.setpgid(0, 0)
            self._become_rank(descriptors)
            self._worker.serve(rank, descriptors)
            return 0

        process = starting.fork(become)
        with contextlib.suppress(OSError):  # it has ended, or has done so itself
            os.setpgid(process, process)
        self._ranks.add(process)
        return process

    def _become_rank(self, descriptors: Sequence[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(descriptors[OUTPUT], 1)
        os.dup2(descriptors[ERRORS], 2)
        for descriptor in (self._parent, self._wakened, self._waker):
            os.close(descriptor)
        self._control.close()
        os.close(descriptors[OUTPUT])
        os.close(descriptors[ERRORS])
        forking.reseed()
