"""Starts the processes of ranks: by a nursery that shares their imports, or each by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from malt._launch.nursery import Forked, Nursery
from malt._launch.options import Options
from malt._launch.orphans import Guard

_Process = subprocess.Popen[bytes] | Forked


class Starter:
    """Starts processes that all run one command.

    Attributes:
        said: how ranks are started, for the user who asks, or "".
    """

    def __init__(
        self, command: Sequence[str], options: Options, guard: Guard, is_interactive: bool
    ) -> None:
        self._command = list(command)
        self._environ = {**os.environ, **options.environ}
        self._nursery: Nursery | None = None
        self.said = ""
        cores = len(os.sched_getaffinity(0))
        preload = options.ranks > cores if options.preload is None else options.preload
        is_one = options.most == options.nnodes == 1
        # A descriptor of the launcher may be where a closed standard stream was.
        has_all = None not in (sys.stdin, sys.stdout, sys.stderr)
        if preload and has_all and not is_one and not is_interactive and _is_script(command):
            self._nursery = Nursery(self._command, self._environ, guard)
            said = self._nursery.said
            self.said = f"ranks share the import of {said}"
            if not self._nursery.is_ready:
                self.said = f"each rank imports by itself: {said}"

    def start(
        self,
        environ: Mapping[str, str],
        takes_input: bool,
        piped: bool,
        prepare: Callable[[], None],
    ) -> tuple[_Process, list[int]]:
        """Start a rank; return its process, and the pipes of its output and errors.

        Args:
            environ: its own variables.
            takes_input: it reads the launcher's standard input.
            piped: its output goes to pipes, and not to where the launcher's goes.
            prepare: is called in the new process, if it is executed.
        """
        memory = [int(environ[name]) for name in ("MALT_RECORD_FD",) if name in environ]
        with contextlib.ExitStack() as stack:
            pipes = [os.pipe() for _ in range(2 if piped else 0)]
            for _, write_end in pipes:
                stack.callback(os.close, write_end)
            outputs = [write_end for _, write_end in pipes] or [1, 2]
            source = 0
            if not takes_input:
                source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, source)
            process: _Process | None = None
            try:
                if self._nursery is not None and piped:
                    process = self._nursery.fork(environ, [source, *outputs], memory)
                if process is None:
                    process = subprocess.Popen(
                        self._command,
                        stdin=None if takes_input else source,
                        stdout=outputs[0] if piped else None,
                        stderr=outputs[1] if piped else None,
                        env={**self._environ, **environ},
                        pass_fds=memory,
                        # Safe: the only other thread, the server's, holds no lock that this needs.
                        preexec_fn=prepare,
                    )
            except BaseException:
                for read_end, _ in pipes:
                    os.close(read_end)
                raise
        return process, [read_end for read_end, _ in pipes]

    def reaped(self, process: int, status: int) -> None:
        """Note the end of a process that is no rank."""
        if self._nursery is not None and process == self._nursery.pid and not os.WIFSTOPPED(status):
            self._nursery.has_ended(os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """Have later ranks executed."""
        if self._nursery is not None:
            self._nursery.close()


def _is_script(command: Sequence[str]) -> bool:
    return (
        command[0] == sys.executable
        and command[1:2] != []
        and (command[1] == "-m" or command[1].endswith((".py", ".pyw")))
    )
