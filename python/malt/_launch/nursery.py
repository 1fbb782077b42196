"""The launcher's side of a process that forks ranks after it has imported what all of them import.

The nursery is a Python with the command line of the ranks, which has stopped at the last step
before the program (`hook/sitecustomize.py`). There it imports what the program imports at its
beginning (`program_imports.py`) and forks a rank when the launcher asks for one (`forking.py`). In
a rank Python goes on, and runs the program as it always does: `__main__`, tracebacks and the end
are Python's own doing.

1. A rank is the launcher's child, as one that was executed is. The nursery forks twice, the process
   in the middle ends at once, and the launcher, a subreaper, adopts the rank. A rank that another
   process has adopted ends before it has answered.
2. A rank has a process group, which the guard knows, and dies with the launcher
   (PR_SET_PDEATHSIG), before it answers. It answers before it runs the program.
3. A rank is started exactly once. The launcher executes it only after the answer's pipe has ended
   without an answer: then no process has its other end, hence none can still become this rank.
4. No process outlives the launcher. The kernel kills the nursery with the launcher and the process
   in the middle with the nursery. A rank that is not yet killed with the launcher finds another
   parent, and ends. What an import has started is in the nursery's process group, which the guard
   knows.
5. A nursery that ends, or that is stopped, costs time only: ranks are then executed. One that is
   stopped is killed after a time limit, so that 3 holds.
6. A rank's environment differs from the nursery's in the variables that the launcher sets for each
   rank. They are set before the program begins, and after the imports.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from malt._launch import channel, forking, orphans
from malt._launch.orphans import Guard

_HOOK = str(Path(__file__).absolute().parent / "hook")
_READY_SECONDS = 120.0  # imports from a cold network file system take long
_ANSWER_SECONDS = 30.0


class Forked:
    """A rank's process that the nursery has forked, with what the launcher needs of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for its end; return its exit code, below 0: its signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class Nursery:
    """Forks ranks for the launcher, as long as it can.

    Attributes:
        is_ready: it can fork a rank, as far as is known.
        pid: its process, or 0 when it has ended.
        said: the packages that it shares among ranks, or why it shares none.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], guard: Guard) -> None:
        """Start it, and wait until it has imported what the program imports.

        Args:
            command: Python's, as of each rank.
            environ: of the ranks, without what differs from rank to rank.
            guard: the launcher's.
        """
        self.is_ready = False
        self.said = "this Python takes no sitecustomize from PYTHONPATH"
        self._guard = guard
        self.pid = 0
        self._control, control = channel.pair()
        with control:
            paths = [_HOOK, *filter(None, [environ.get("PYTHONPATH")])]
            environ = {**environ, "PYTHONPATH": os.pathsep.join(paths), "MALT_NURSERY": ""}
            try:
                if _is_hook_reached(environ):
                    self._process = self._start(command, environ, control)
                    self.pid = self._process.pid
            except OSError as error:
                self.said = f"the process that forks them cannot be started: {error.strerror}"
        if self.pid:
            self._await_ready()
        if not self.is_ready:
            self.close()

    def fork(
        self, environ: Mapping[str, str], standard: Sequence[int], others: Sequence[int]
    ) -> Forked | None:
        """Fork a rank; return None if that is not possible.

        Args:
            environ: its variables besides the nursery's.
            standard: its standard input, output and error.
            others: the memory that it records in, if it does.
        """
        if not self.is_ready:
            return None
        answer, its_answer = os.pipe()
        try:
            descriptors = [its_answer, self._guard.pipe, *standard, *others]
            try:
                channel.send(self._control, channel.encode((dict(environ),)), descriptors)
            except OSError:
                self.close()
                return None
            finally:
                os.close(its_answer)
            if not _is_readable(answer, _ANSWER_SECONDS):
                orphans.kill_group(self.pid, signal.SIGKILL)
            said = os.read(answer, forking.ANSWERED.size)
        finally:
            os.close(answer)
        return Forked(*forking.ANSWERED.unpack(said)) if said else None

    def close(self) -> None:
        """End it; its ranks go on."""
        self.is_ready = False
        self._control.close()
        if self.pid:
            orphans.kill_group(self.pid, signal.SIGKILL)
            self._process.wait()
            self._guard.remove(self.pid)
            self.pid = 0

    def has_ended(self, code: int) -> None:
        """Note that the launcher has reaped it."""
        self._process.returncode = code
        self.close()

    def _start(
        self, command: Sequence[str], environ: Mapping[str, str], control: socket.socket
    ) -> subprocess.Popen[bytes]:
        launcher = os.getpid()

        def prepare() -> None:  # in the child, between fork and exec
            os.setpgrp()  # a terminal's Ctrl-C is the launcher's, which passes it on
            orphans.die_with(launcher)
            self._guard.add(os.getpid())

        pipes = [os.pipe() for _ in range(2)]  # as ranks have them: Python looks at the kind
        kept = [control.fileno(), *(read_end for read_end, _ in pipes)]
        given = f"{control.fileno()},{launcher},{kept[1]},{kept[2]}"
        try:
            for read_end, _ in pipes:
                with contextlib.suppress(OSError):  # the user has the most that is allowed
                    fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, forking.PIPE_BYTES)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if os.isatty(0) else None,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                env={**environ, "MALT_NURSERY": given},
                pass_fds=kept,
                preexec_fn=prepare,
            )
        finally:
            for ends in pipes:
                for end in ends:
                    os.close(end)

    def _await_ready(self) -> None:
        self.said = "the process that was to import for the ranks has ended"
        if not _is_readable(self._control.fileno(), _READY_SECONDS):
            self.said = f"its imports take longer than {_READY_SECONDS:g} s"
            return
        with contextlib.suppress(EOFError):
            (self.is_ready, self.said), _ = channel.receive(self._control)


def _is_hook_reached(environ: Mapping[str, str]) -> bool:
    """Return whether Python runs the hook, which ends it: else it would run the program."""
    nowhere = subprocess.DEVNULL
    code = [sys.executable, "-c", "raise SystemExit(1)"]
    done = subprocess.run(code, env=environ, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    return done.returncode == 0


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
