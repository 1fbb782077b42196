"""Keeps what the ranks of this host record beyond their ends; the launcher's collector."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

from malt._launch.options import Options
from malt._recording import collecting, recorder_memory
from malt._recording.collecting import Collecting, Hosts
from malt._rendezvous.node_session import Node

_END_SECONDS = 60.0  # how long the collector may take to write its files
# How long a launcher stays after the job's end for what other hosts want of this one's collector.
_STAY_SECONDS = 60.0


class Recorders:
    """The launcher's side. The memory of a rank outlives its process, also one that is killed.

    Attributes:
        collecting: the process that collects what is recorded, if one was asked for, as long as it
            lives.
        stays_until: when the launcher leaves at the latest, once the job has ended.
    """

    def __init__(self, options: Options, command: Sequence[str], node: Node) -> None:
        self._descriptors: dict[int, int] = {}  # by rank: of its newest process
        self.collecting: Collecting | None = None
        self.stays_until: float | None = None
        self._records = options.record or bool(node.watched)
        self._exchanges = bool(node.watched) and node.nnodes > 1
        served = (options.metrics, options.dashboard)
        asked = node.watched or options.otel
        if asked or any(one is not None for one in served):
            program = command[command[0] == sys.executable :]
            self.collecting = Collecting(
                options.trace,
                options.metrics,
                options.report,
                program,
                options.dashboard,
                options.elastic,
                options.otel,
                Hosts(node.node, node.nnodes, node.watched) if self._exchanges else None,
            )
        self._started = self.collecting

    def add(self, rank: int, size: int) -> Mapping[str, str]:
        """Make the memory of a process that is about to start; return its environment."""
        if not self._records:
            return {}
        descriptor = recorder_memory.make(size)
        if (before := self._descriptors.get(rank)) is not None:
            os.close(before)  # the collector has a descriptor of its own
        self._descriptors[rank] = descriptor
        if self.collecting is not None:
            self.collecting.add(descriptor)
        return {"MALT_RECORD": "1", "MALT_RECORD_FD": str(descriptor)}

    def hear(self, node: Node) -> bytes:
        """Pass on what the collector says; return it, or b"" if the collector has ended."""
        assert self.collecting is not None
        said = self.collecting.hear()
        if not said:
            self.collecting = None
            if self.stays_until is not None:
                node.finish()
        elif said == collecting.FINISHED:
            node.finish()
        elif said[:1] == collecting.MESSAGE:
            _, to = collecting.NODE_HEAD.unpack_from(said)
            node.relay(to, said[collecting.NODE_HEAD.size :])
        return said

    def deliver(self, node: int, message: bytes) -> None:
        """Pass on what another host's collector says; empty: that host is gone."""
        if self.collecting is not None:
            self.collecting.deliver(node, message)

    def end(self, serving: int) -> bool:
        """Note that all ranks have ended; return whether the launcher is to stay for other hosts.

        `serving` is the node that keeps the books.
        """
        if self._exchanges and self.collecting is not None:
            self.stays_until = time.monotonic() + _STAY_SECONDS
            self.collecting.end(serving)
        return self.stays_until is not None

    @property
    def is_late(self) -> bool:
        """Whether the launcher has stayed long enough."""
        return self.stays_until is not None and self.stays_until <= time.monotonic()

    def limit(self, seconds: float | None) -> float | None:
        """Return how long the launcher may wait for events; `seconds` for other reasons."""
        if self.stays_until is None:
            return seconds
        left = max(0.0, self.stays_until - time.monotonic())
        return left if seconds is None else min(left, seconds)

    def close(self) -> None:
        """Let the collector finish, once all ranks have ended."""
        if self._started is not None:
            self._started.close(_END_SECONDS)
        for descriptor in self._descriptors.values():
            os.close(descriptor)
