"""The process that collects what ranks of this host record; a launcher or a rank starts it."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from malt._system_limits import starting

# The first byte of what the launcher sends: the memory of a rank, whose descriptor comes with it;
# all ranks of the job have ended, and the node whose launcher keeps the books follows; a message of
# another host's collector, after the node.
MEMORY, ENDED, MESSAGE = b"r", b"e", b"v"
# From the collector: stop the ranks of all hosts; it needs nothing more of the other hosts; a
# message for another host's collector.
STOP, FINISHED = b"s", b"f"
NODE_HEAD = struct.Struct("!cI")  # the first byte, the node
_MAX_BYTES = 1 << 16
_SAY_SECONDS = 1.0  # how long the launcher waits for a process that is stopped

# The outputs of a launcher's collector that have the ranks of all hosts, as bits.
DASHBOARD, REPORT, TRACE = 1, 2, 4


class Hosts(NamedTuple):
    """This host's place among those of the job."""

    node: int = 0
    nnodes: int = 1
    watched: int = 0  # things shown by any host, as bits


class Collecting:
    """One such process (malt._watching.collect). It gets the memory of each rank by add()."""

    def __init__(
        self,
        trace: str,
        metrics: socket.socket | None = None,
        report: str = "",
        program: Sequence[str] = (),
        dashboard: socket.socket | None = None,
        elastic: range = range(0),
        otel: bool = False,
        hosts: Hosts | None = None,
    ) -> None:
        """Start it.

        Args:
            trace: the file that it writes at the end; "" for none.
            metrics: listens; counters are served there.
            report: the page that it writes at the end; "" for none.
            program: what the ranks run, for the page.
            dashboard: listens; the dashboard is served there.
            elastic: how many ranks the dashboard can have run; empty: it cannot change that.
            otel: the counters are sent by OpenTelemetry.
            hosts: whose ranks are shown too; None: of no other host.
        """
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The ranks may begin before that process does.
        now = str(time.monotonic_ns())
        command = [sys.executable, "-m", "malt._watching.collect", str(other.fileno()), now]
        passed = [other.fileno()]
        if trace:
            command += ["--trace", trace]
        if report:
            command += ["--report", report, "--command", shlex.join(program)]
        if metrics is not None:
            command += ["--metrics", str(metrics.fileno())]
            passed.append(metrics.fileno())
        if dashboard is not None:
            command += ["--dashboard", str(dashboard.fileno())]
            passed.append(dashboard.fileno())
        if elastic:
            command += ["--elastic", f"{elastic[0]}:{elastic[-1]}"]
        if otel:
            command.append("--otel")
        if hosts is not None:
            command += ["--hosts", *map(str, hosts)]
        # It joins no job, and serves strangers: it does without the key.
        environ = {name: value for name, value in os.environ.items() if name != "MALT_JOB_KEY"}
        with other, starting("the process that collects what ranks record"):
            # In a session of its own: what ends the ranks must not end what they have recorded.
            self._process = subprocess.Popen(
                command,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
            )

    def add(self, descriptor: int) -> None:
        """Send the memory of a process that is about to record, or does already."""
        with contextlib.suppress(OSError):  # it has ended, and has said why, or does not listen
            self._socket.settimeout(_SAY_SECONDS)
            socket.send_fds(self._socket, [MEMORY], [descriptor])

    def deliver(self, node: int, message: bytes) -> None:
        """Pass on a message of another host's collector; it is dropped if the way is not free.

        Empty: that host is gone.
        """
        self._say(NODE_HEAD.pack(MESSAGE, node) + message, 0.0)

    def end(self, serving: int) -> None:
        """Say that all ranks of the job have ended, while the other hosts can still be asked."""
        self._say(NODE_HEAD.pack(ENDED, serving), _SAY_SECONDS)

    def _say(self, frame: bytes, seconds: float) -> None:
        with contextlib.suppress(OSError):  # it has ended, or does not listen
            self._socket.settimeout(seconds)
            self._socket.send(frame)

    def fileno(self) -> int:
        """Return a descriptor that is readable when hear() has something to return."""
        return self._socket.fileno()

    def hear(self) -> bytes:
        """Return what it says next; or b"" if the process has ended."""
        try:
            return self._socket.recv(_MAX_BYTES)
        except OSError:
            return b""

    def close(self, seconds: float) -> None:
        """Let it finish, and wait for so long at most.

        It finishes when all ranks but the process that started it have ended.
        """
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on by itself
            self._process.wait(seconds)
