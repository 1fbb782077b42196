"""The process that reads what ranks record: malt run --trace, --report, --metrics, --dashboard.

The launcher sends it the memory of each rank as the rank starts, so that it has what a rank
recorded also when that is killed a moment later. It ends, and writes its files, when the launcher
has closed the connection or is gone, and no other process still records. Under mpirun or srun the
lowest rank of each host is the launcher in this sense.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from malt._core_import import Recording
from malt._errors import ConfigError
from malt._launch import scale
from malt._recording import collecting
from malt._recording.collecting import DASHBOARD, REPORT, STOP, TRACE, Hosts
from malt._system_limits import reason
from malt._watching import (
    dashboard,
    endings,
    http_server,
    metrics,
    opentelemetry,
    other_hosts,
    run_report,
    trace,
)
from malt._watching.board import Board, Sent, points_for_json, unsent
from malt._watching.endings import say
from malt._watching.exchange import Exchange
from malt._watching.series import MOST_POINTS
from malt._watching.sources import Source, state_of
from malt._watching.timeline import Timeline

# Shorter than a rank takes to fill its ring (malt._recording.recorder_memory).
_POLL_SECONDS = 0.02
_MAX_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class _Watched:
    """One process of a rank, and what is kept of what it recorded."""

    def __init__(self, recording: Recording, keeps: int, origin: int | None) -> None:
        self.source = Source(recording)
        self.kept = trace.Kept(self.source, keeps) if keeps else None
        self.timeline = None
        if origin is not None:
            self.timeline = Timeline(recording.rank, origin, recording.began)

    def read(self) -> None:
        """Read what is new."""
        self.source.read_reports()
        if self.kept is None:
            return
        events = self.source.recording.read()
        self.kept.add(events)
        if self.timeline is not None:
            self.timeline.add(events)

    @property
    def has_lost_events(self) -> bool:
        """Whether some of its events are not in what is kept."""
        return self.source.recording.missed > 0 or (self.kept is not None and self.kept.dropped > 0)

    def for_report(self) -> run_report.Process:
        assert self.kept is not None
        assert self.timeline is not None
        recording = self.source.recording
        self.timeline.close()
        return run_report.Process(
            self.timeline,
            self.kept.events,
            recording.missed,
            recording.totals(),
            recording.peers(),
            self.source.series,
        )


class Collector:
    """Records of all processes of this host's ranks so far.

    Args:
        origin: the time at which a report begins; no rank has begun before it.
        is_traced: a trace is to be written, here or on another host.
        is_reported: a report is to be written.
        has_dashboard: samples are kept for it.
        nnodes: how many hosts the job has.

    Attributes:
        exchange: with the other hosts; None: there are none, or nothing of all hosts is shown.
        origin: as given.
    """

    def __init__(
        self,
        origin: int,
        is_traced: bool,
        is_reported: bool,
        has_dashboard: bool,
        nnodes: int = 1,
    ) -> None:
        self.exchange: Exchange | None = None
        self._is_traced, self._is_reported, self._nnodes = is_traced, is_reported, nnodes
        self.origin = origin
        self._board = Board() if has_dashboard else None
        self._waiting: list[int] = []  # memory in which no rank has begun
        self._watched: list[_Watched] = []
        self._lock = threading.RLock()
        self._sent: dict[int, Sent] = {}  # by node: what its dashboard has of this host

    def add(self, descriptor: int) -> None:
        self._waiting.append(descriptor)

    def poll(self) -> None:
        """Read what is new."""
        with self._lock:
            self._waiting = [one for one in self._waiting if not self._has_begun(one)]
            for one in self._watched:
                one.read()
            if self._board is not None:
                self._board.sample([one.source for one in self._watched])
            if self.exchange is not None:
                self.exchange.advance()

    def hear(self, node: int, message: bytes) -> None:
        """Handle a message of another host's collector."""
        with self._lock, contextlib.suppress(struct.error):
            assert self.exchange is not None
            self.exchange.hear(node, message)

    def _has_begun(self, descriptor: int) -> bool:
        try:
            recording = Recording(descriptor)
        except ConfigError:
            return False
        os.close(descriptor)
        most = trace.most_events(recording.size, self._nnodes)
        keeps = most if self._is_traced else run_report.KEEPS if self._is_reported else 0
        self._watched.append(_Watched(recording, keeps, self.origin if self._is_reported else None))
        return True

    def is_recorded(self, without: int) -> bool:
        """Return whether a process other than `without` still runs that records."""
        processes = {one.source.recording.process for one in self._watched} - {without}
        return any(state_of(process) != "ended" for process in processes)

    def counters(self) -> list[metrics.Metric]:
        """Return the counters of the newest process of each rank."""
        with self._lock:
            newest = {one.source.rank: one.source for one in self._watched}
            return metrics.metrics_of([newest[rank].look() for rank in sorted(newest)])

    def events(self, sent: Sent) -> dict[str, Any]:
        """Return the dashboard's state, and the points of its curves that are not in `sent`."""
        assert self._board is not None
        with self._lock:
            state, found = self._board.state(), unsent(self._board.curves(), sent)
            if self.exchange is not None:
                state = self.exchange.others.merged(state)
                found += self.exchange.others.new_points(sent)
        return state | {"points": points_for_json(found)}

    def summary(self, node: int, is_first: bool) -> bytes:
        """Return what the dashboard of another host has not been told yet."""
        if self._board is None:
            return b""
        sent = {} if is_first else self._sent[node]
        self._sent[node] = sent
        curves = [one for one in self._board.curves() if one.rank < other_hosts.MOST_RANKS]
        found = unsent(curves, sent, other_hosts.most_points(len(curves)))
        return other_hosts.pack(self._board.state(), found)

    def write_trace(self, path: Path) -> bool:
        """Write this host's part, and say on standard error what is not in it.

        Returns whether that could be done.
        """
        kept = [one.kept for one in self._by_rank() if one.kept is not None]
        missed = sum(one.source.recording.missed for one in self._watched)
        dropped = sum(one.dropped for one in kept)
        size = max((one.source.size for one in self._watched), default=0)
        most = trace.most_events(max(size, 1), self._nnodes)
        incomplete = {one.source.rank for one in self._watched if one.has_lost_events}
        try:
            trace.write(path, kept, size, incomplete)
        except OSError as error:
            say(f"the trace is not written: {path}: {reason(error)}")
            return False
        if not kept:
            say(f"{path} has no events: no rank has called malt.init()")
        if dropped:
            say(
                f"{path} has the newest {most:,} events of each rank; {dropped:,} "
                "older ones are left out"
            )
        series = [one for watched in self._watched for one in watched.source.series.values()]
        thinned = sum(one.count - len(one.points) for one in series)
        if thinned:
            say(
                f"{path} leaves out {thinned:,} values of malt.report(): it has up to "
                f"{MOST_POINTS:,} of each name, spread evenly"
            )
        if missed:
            say(f"{missed:,} events were written over before they could be read")
        return True

    def processes(self) -> list[run_report.Process]:
        """Return what a report needs of this host's ranks."""
        return [one.for_report() for one in self._by_rank()]

    def _by_rank(self) -> list[_Watched]:
        return sorted(self._watched, key=lambda one: one.source.rank)


def serve_metrics(listening: socket.socket, collector: Collector) -> None:
    """Answer GET /metrics, as long as this process lives."""

    class Requests(http_server.Handler):
        def do_GET(self) -> None:  # noqa: N802
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "there is /metrics only")
                return
            page = metrics.text_of(collector.counters()).encode()
            self.answer(200, "text/plain; version=0.0.4; charset=utf-8", page)

    http_server.Server(listening, Requests)


def serve_dashboard(
    listening: socket.socket, collector: Collector, launcher: socket.socket, elastic: str
) -> None:
    """Serve the dashboard, as long as this process lives, and print where it is."""
    process = starter_of(launcher)
    least, _, most = elastic.partition(":")
    fixed = {"elastic": [int(least), int(most)] if elastic else None}
    made = dashboard.Dashboard(
        listening,
        events=lambda sent: fixed | collector.events(sent),
        stop=lambda: launcher.sendall(STOP),
        scale=(lambda what, number: scale.ask(process, what, number)) if elastic else None,
    )
    say(f"dashboard: {made.url}")


def starter_of(launcher: socket.socket) -> int:
    """Return the process on the other side."""
    credentials = launcher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process: int = _CREDENTIALS.unpack(credentials)[0]
    return process


def _send(launcher: socket.socket, node: int, message: bytes) -> None:
    """Send a message to another host's collector; it is dropped if the way is not free."""
    with contextlib.suppress(OSError):
        head = collecting.NODE_HEAD.pack(collecting.MESSAGE, node)
        launcher.send(head + message, socket.MSG_DONTWAIT)


def _collect(collector: Collector, parsed: argparse.Namespace) -> None:
    """Collect until all ranks have ended, and the other hosts have this one's part."""
    with socket.socket(fileno=parsed.launcher) as launcher:
        starter = starter_of(launcher)
        end = None
        if parsed.hosts is not None:
            exchange = Exchange(Hosts(*parsed.hosts), partial(_send, launcher), collector.summary)
            collector.exchange = exchange
            end = endings.End(collector, exchange, parsed.trace, parsed.report is not None)
        launcher.settimeout(_POLL_SECONDS)
        if parsed.dashboard is not None:
            listening = socket.socket(fileno=parsed.dashboard)
            serve_dashboard(listening, collector, launcher, parsed.elastic)
        polled, is_finished = -math.inf, False
        while True:
            with contextlib.suppress(TimeoutError):
                try:
                    data, descriptors, _, _ = socket.recv_fds(launcher, _MAX_BYTES, 1)
                except ConnectionResetError:  # it has ended, and has left something unread
                    break
                if not data:
                    break
                for descriptor in descriptors:
                    collector.add(descriptor)
                if end is not None:
                    end.hear(data)
            if time.monotonic() - polled < _POLL_SECONDS:
                continue
            polled = time.monotonic()
            collector.poll()
            if (
                end is None
                or is_finished
                or not end.is_finished(collector.is_recorded(without=starter))
            ):
                continue
            with contextlib.suppress(OSError):  # until the launcher takes it
                launcher.send(collecting.FINISHED)
                is_finished = True
    collector.poll()
    while collector.is_recorded(without=starter):
        time.sleep(_POLL_SECONDS)
        collector.poll()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("launcher", type=int, help="the descriptor of the launcher's socket")
    parser.add_argument("origin", type=int, help="when it was started, in monotonic nanoseconds")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--command", default="", help="what runs, for the report")
    parser.add_argument("--metrics", type=int, help="the descriptor of a socket that listens")
    parser.add_argument("--otel", action="store_true", help="send them by OpenTelemetry")
    parser.add_argument("--dashboard", type=int, help="the descriptor of a socket that listens")
    parser.add_argument("--elastic", default="", help="MIN:MAX, for the dashboard")
    parser.add_argument("--hosts", type=int, nargs=3, help="the fields of Hosts")
    parsed = parser.parse_args(arguments)
    _, nnodes, watched = Hosts(*(parsed.hosts or ()))
    collector = Collector(
        parsed.origin,
        parsed.trace is not None or bool(watched & TRACE),
        parsed.report is not None or bool(watched & REPORT),
        parsed.dashboard is not None or bool(watched & DASHBOARD),
        nnodes,
    )
    if parsed.metrics is not None:
        serve_metrics(socket.socket(fileno=parsed.metrics), collector)
    with contextlib.ExitStack() as stack:
        if parsed.otel:
            stack.callback(opentelemetry.start(collector.counters))
        _collect(collector, parsed)
    if parsed.trace is not None:
        endings.write_trace(collector, parsed.trace)
    if parsed.report is not None:
        endings.write_report(collector, parsed.report, parsed.command)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as refusal:
        say(str(refusal))
        sys.exit(1)
