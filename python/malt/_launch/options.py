"""Options of a launcher: how to start the ranks, and what to do when a rank fails."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from malt._recording.collecting import DASHBOARD, REPORT, TRACE
from malt._rendezvous import wire


@dataclass
class Options:
    """How to start the ranks, and what to do when a rank fails."""

    ranks: int  # here, at first
    nnodes: int = 1
    node: int = 0
    rendezvous: str = ""  # for several nodes: the address where node 0 listens
    awaits_name: bool = False  # that address's name may come to be known only as node 0 starts
    key: bytes = b""  # for several nodes: the key that all of them know
    start_seconds: float = 30.0
    keep_going: bool = False
    restarts: int | None = None  # of each rank, at most; None: no rank can rejoin the job
    elastic: range = range(0)  # how many ranks may run in the whole job; empty: as many as at first
    preload: bool | None = None  # None: when this host starts more ranks than it has cores
    prefix: bool | None = None  # None: when there are several ranks
    grace_seconds: float = 5.0
    environ: dict[str, str] = field(default_factory=dict)
    verbose: bool = False
    record: bool = False
    trace: str = ""  # the file for what was recorded; implies record
    report: str = ""  # the page about what was recorded; implies record
    metrics: socket.socket | None = None  # listens for Prometheus; implies record
    dashboard: socket.socket | None = None  # listens for browsers; implies record
    otel: bool = False  # counters are sent by OpenTelemetry; implies record

    @property
    def goes_on_without_a_node(self) -> bool:
        """Whether the job goes on when a node is lost."""
        return self.keep_going or bool(self.elastic)

    @property
    def may_take_over(self) -> bool:
        """Whether this node's launcher may take over the job's books."""
        return self.goes_on_without_a_node and 0 < self.node <= wire.MAX_STANDBYS

    @property
    def watched(self) -> int:
        """Return what this launcher shows of all hosts, as bits."""
        return (
            DASHBOARD * (self.dashboard is not None)
            | REPORT * bool(self.report)
            | TRACE * bool(self.trace)
        )

    @property
    def most(self) -> int:
        """How many ranks may run here."""
        return self.elastic[-1] if self.elastic else self.ranks
