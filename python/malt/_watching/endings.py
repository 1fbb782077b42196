"""The end of a collector: it gathers the hosts' parts, and writes files.

On several hosts each collector first offers its part, and asks the others for theirs, while the
launchers stay for that (`_rendezvous/relay.py`). Every report has all hosts; the trace is written
by the collector of the launcher that keeps the books.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from malt._errors import ConfigError
from malt._recording import collecting
from malt._recording.collecting import REPORT, TRACE
from malt._system_limits import reason
from malt._watching import pulls, report_parts, run_report
from malt._watching.exchange import Exchange, Part, discard, file_of, node_file, packed
from malt._watching.merge import merge

if TYPE_CHECKING:
    from malt._watching.collect import Collector


class End:
    """The end of a job of several hosts, from the launcher's word that all ranks have ended."""

    def __init__(
        self, collector: Collector, exchange: Exchange, path: Path | None, is_reported: bool
    ) -> None:
        """`path` is of the job's trace, if this host was asked for one."""
        self._collector, self._exchange = collector, exchange
        self._path, self._is_reported = path, is_reported
        self._has_begun = False

    def hear(self, said: bytes) -> None:
        """Handle what the launcher says."""
        if said == collecting.MEMORY:
            return
        _, node = collecting.NODE_HEAD.unpack_from(said)
        if said[:1] == collecting.ENDED:
            self._exchange.serving = node
        else:
            self._collector.hear(node, said[collecting.NODE_HEAD.size :])

    def is_finished(self, is_recorded: bool) -> bool:
        """Do what is due; return whether this host needs nothing more of the others.

        `is_recorded`: a process here still records.
        """
        if self._exchange.serving is None or is_recorded:
            return False
        if not self._has_begun:
            self._has_begun = True
            self._begin(self._exchange.hosts.watched)
        return self._exchange.is_finished()

    def _begin(self, watched: int) -> None:
        exchange = self._exchange
        if watched & REPORT:
            exchange.offer(pulls.REPORT, self._report_part())
            if self._is_reported:
                exchange.ask_all(pulls.REPORT, lambda _: io.BytesIO())
        if watched & TRACE and exchange.serving != exchange.hosts.node:
            exchange.offer(pulls.TRACE, self._trace_part(exchange.hosts.node))
        elif watched & TRACE and self._path is not None:
            path = self._path
            exchange.ask_all(pulls.TRACE, lambda node: Part(node_file(path, node, ".gz")))

    def _report_part(self) -> BinaryIO:
        """Return this host's part of a report."""
        try:
            return file_of(report_parts.pack(self._collector.processes()))
        except OSError as error:
            say(f"this host's part of the report cannot be sent: {error.strerror}")
        return open(os.devnull, "rb")

    def _trace_part(self, node: int) -> BinaryIO:
        """Write this host's part of the trace; return it as another host gets it."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "part") if self._path is None else node_file(self._path, node)
            try:
                if self._collector.write_trace(path):
                    return packed(path)
            except OSError as error:
                say(f"this host's part of the trace cannot be sent: {error.strerror}")
        return open(os.devnull, "rb")


def write_trace(collector: Collector, path: Path) -> None:
    """Write the trace of the job, or this host's part of it, and say what it lacks."""
    exchange = collector.exchange
    if exchange is None:
        collector.write_trace(path)
        return
    node = exchange.hosts.node
    own = node_file(path, node)
    if exchange.serving is None and node:  # it ends before another host has asked for it
        collector.write_trace(own)
    if node != (exchange.serving or 0):
        if exchange.has_been_taken:
            discard(own)
        else:
            say(f"{own} has the ranks of this host alone: see malt trace merge")
    elif collector.write_trace(own):
        parts = exchange.parts(pulls.TRACE)
        absent = exchange.absent(pulls.TRACE)
        for text in absent:
            say(f"{path} lacks {text}")
        for other in {*range(exchange.hosts.nnodes)} - parts.keys():
            discard(node_file(path, other, ".gz"))  # the piece of it that has come
        files = [own, *(node_file(path, other, ".gz") for other in sorted(parts))]
        try:
            merge(files, path, absent)
        except (ConfigError, OSError) as error:
            say(f"{path} is not written: {error}; the parts of the hosts are beside it")
            return
        for file in files:
            discard(file)


def write_report(collector: Collector, path: Path, command: str) -> None:
    """Write the page; it says itself what is not on it."""
    processes, exchange = collector.processes(), collector.exchange
    hosts, absent = 1, []
    if exchange is not None:
        absent = exchange.absent(pulls.REPORT)
        for node, pull in exchange.parts(pulls.REPORT).items():
            assert isinstance(pull.into, io.BytesIO)
            packed_, shift = pull.into.getvalue(), exchange.shift(node)
            try:
                processes += report_parts.unpack(packed_, collector.origin, shift)
                hosts += 1
            except ValueError as error:
                absent.append(f"the ranks of node {node}: it sent {error}")
    processes.sort(key=lambda one: (one.timeline.rank, one.timeline.began))
    wall_offset = time.time_ns() - time.monotonic_ns()
    if not processes:
        say(f"{path} shows nothing: no rank has called malt.init()")
    try:
        run_report.write(path, command, collector.origin, wall_offset, processes, hosts, absent)
    except OSError as error:
        say(f"the report is not written: {path}: {reason(error)}")


def say(text: str) -> None:
    print(f"malt: {text}", file=sys.stderr)
