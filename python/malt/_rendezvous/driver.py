"""A rendezvous for the ranks that another program starts: an engine's driver, or rank 0 itself."""

from __future__ import annotations

import secrets
import time
from types import TracebackType

from malt._arguments import text, whole
from malt._errors import ConfigError
from malt._rendezvous import wire
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server

_START_SECONDS = 30.0  # far more than it takes: no other node has to come
_POLL_SECONDS = 0.002


class Rendezvous:
    """The meeting point of a job whose ranks the program starts by its own means.

        with malt.jobs.Rendezvous(4) as rendezvous:
            for rank in range(4):
                start(work, rendezvous.environ(rank))  # a process that calls malt.init()

    Each process puts its variables into its environment before malt.init(), or calls
    malt.init(bootstrap=variables). They hold the job's key: hand them only to that process.

    A thread of this process serves the ranks from the start to the end of the block. After
    malt.init() they need it no more, except to call malt.finalize() and malt.init() again.

    Attributes:
        size: how many ranks the job has.
        address: "host:port", where this process listens.
    """

    def __init__(self, size: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen for the ranks of a new job.

        Args:
            size: how many ranks the job has.
            host: an address of this host that all ranks can reach. By default only processes of
                this host can.
            port: the port; 0: any.

        Raises:
            ConfigError: the size is impossible, the host is not this one, or the port is taken.
        """
        whole("size", size, 1, wire.MAX_RANKS)
        text("host", host)
        whole("port", port, 0, 65535)
        key = secrets.token_bytes(wire.KEY_BYTES)
        self.size = size
        self._failed: set[int] = set()
        try:
            self._server = Server(1, key, host, port)
        except ConfigError as error:
            raise ConfigError(
                f"malt.jobs.Rendezvous(host={host!r}, port={port}): {error}"
            ) from error
        self._node = Node(self._server.address, key, 0, 1)
        try:
            self._node.start(size, _START_SECONDS, self._server)
            self._server.start()
        except BaseException:
            self.close()
            raise
        self.address = self._server.address

    def environ(self, rank: int) -> dict[str, str]:
        """Return the variables for the process of `rank`."""
        if not 0 <= rank < self.size:
            raise ConfigError(f"rank {rank} is not one of this job's {self.size}")
        variables = self._node.environ(rank, rank)
        # Only the program knows which ranks are on which host.
        for name in ("MALT_LOCAL_RANK", "MALT_NODE_RANK", "MALT_NNODES", "MALT_SUCCESSORS"):
            del variables[name]
        return variables

    def fail(self, rank: int) -> None:
        """Say that the process of `rank` has died, or will not come: nobody waits for it any more.

        Ranks that have found one another need not be told. Idempotent.
        """
        if 0 <= rank < self.size and rank not in self._failed:
            self._failed.add(rank)
            self._node.rank_ended(rank, 0, 1)

    def await_leaving(self, timeout: float) -> None:
        """Wait until no rank has a session any more, for at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._server.has_ranks() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Stop listening; ranks that still wait in malt.init() get an error. Idempotent."""
        self._node.abort()
        self._server.close()

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
