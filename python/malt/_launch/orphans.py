"""Leaves no process behind, however the launcher ends.

The kernel sends a rank SIGKILL when its launcher dies (PR_SET_PDEATHSIG). It does not do so for
processes that the rank itself started. So a small process, the guard, waits on a pipe for the
launcher's end, and then kills the process groups that are left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct

from malt._system_limits import starting

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# The guard ends with its launcher and not before, so it ignores these.
_ENDING = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)

GROUP = struct.Struct("=i")
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def adopt_orphans() -> None:
    """Become the parent, hence the reaper, of descendants whose own parents have ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """In a child, after fork: be killed when `parent` ends, even if it has ended just now."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def register(guard: int, group: int) -> None:
    """Have the guard at the other end of this pipe watch a process group; below 0: no longer.

    The group's first process calls this before it runs the program.
    """
    with contextlib.suppress(OSError):  # if somebody has killed the guard
        os.write(guard, GROUP.pack(group))


def kill_group(group: int, number: int) -> bool:
    """Signal a process group; False when no process is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Guard:
    """The process that outlives its launcher. Start it while the launcher has one thread.

    Attributes:
        process: its process id.
        pipe: by which the guard is told; see `register`.

    Raises:
        malt.ConfigError: the limit on processes is reached.
    """

    def __init__(self) -> None:
        read_end, self.pipe = os.pipe()
        with starting("the process that ends what ranks leave behind"):
            self.process = os.fork()
        if self.process == 0:
            try:
                _watch(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        os.set_blocking(self.pipe, False)

    def add(self, group: int) -> None:
        """Watch a process group. The group's first process calls this, before exec."""
        register(self.pipe, group)

    def remove(self, group: int) -> None:
        """Stop watching a process group that has ended: its number may soon be another's."""
        register(self.pipe, -group)

    def close(self) -> None:
        """End the guard; it first kills the groups that have not been removed."""
        os.close(self.pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def _watch(pipe: int) -> None:
    os.setsid()
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    name = ctypes.create_string_buffer(b"malt-guard")
    _prctl(_PR_SET_NAME, ctypes.addressof(name), 0, 0, 0)
    pipe = os.dup2(pipe, 3)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    for group in _groups_left(pipe):
        kill_group(group, signal.SIGKILL)


def _groups_left(pipe: int) -> set[int]:
    groups: set[int] = set()
    while message := os.read(pipe, GROUP.size):
        (number,) = GROUP.unpack(message)
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    return groups
