"""What a launcher is told: how to start the ranks, and what to do when a rank fails."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Options:
    """How to start the ranks, and what to do when a rank fails."""

    ranks: int  # here, at first
    nnodes: int = 1
    node: int = 0
    rendezvous: str = ""  # for several nodes: the address where node 0 listens
    key: bytes = b""  # for several nodes: the key that all of them know
    start_seconds: float = 30.0
    keep_going: bool = False
    restarts: int | None = None  # of each rank, at most; None: no rank can rejoin the job
    elastic: range = range(0)  # how many ranks may run in the whole job; empty: as many as at first
    prefix: bool | None = None  # None: when there are several ranks
    grace_seconds: float = 5.0
    environ: dict[str, str] = field(default_factory=dict)
    verbose: bool = False

    @property
    def most(self) -> int:
        """How many ranks may run here."""
        return self.elastic[-1] if self.elastic else self.ranks
