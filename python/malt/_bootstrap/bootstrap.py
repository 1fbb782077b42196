"""How the ranks of a job find one another: they exchange bytes out of band, a few times at start.

After start-up nothing uses this channel. The ways are: an MPI communicator (`mpi.py`), a rendezvous
(that of `malt run`, of an engine's driver, or of rank 0 of a Slurm step, `slurm.py`), torch's store
(`torch_store.py`), one of the program's own, or none (a job of one process). `find_bootstrap.py`
chooses one.
"""

from __future__ import annotations

import abc

from malt._rendezvous import session


class Bootstrap(abc.ABC):
    """A way to exchange bytes with every rank at start. Used by one thread.

    Derive from it to bring ranks together that no launcher known to MALT has started, and give an
    instance to malt.init(bootstrap=), which closes it, or aborts it after an error. It serves for
    one job.

    Collective: every rank makes the same calls in the same order. As a context manager, the
    bootstrap is closed at the end of the block, or aborted when the block raises.

    Attributes:
        rank: this process's number, 0 to size - 1.
        size: how many ranks the job has.
        launcher: the name of what started the ranks, for the log.
        secret: a key that only the ranks of this job know, or empty.
        meeting_point: the name or address of a machine that all ranks can reach, or empty.
    """

    rank: int
    size: int
    launcher: str = "a bootstrap of the program's own"
    secret: bytes = b""
    meeting_point: str = ""

    @abc.abstractmethod
    def allgather(self, data: bytes, timeout: float) -> list[bytes]:
        """Give `data` (lengths may differ by rank) and return every rank's data, by rank.

        Blocks for at most `timeout` seconds. After an error the bootstrap cannot be used again.

        Raises:
            malt.TimeoutError: names the ranks that did not come.
            malt.PeerError: names the ranks known to be dead.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Leave in good order. Idempotent. Collective if MALT initialised the MPI it uses."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Leave at once after an error, without waiting for any rank. Idempotent."""

    def __enter__(self) -> Bootstrap:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Solo(Bootstrap):
    """A job of one process."""

    def __init__(self, launcher: str = "none") -> None:
        self.rank = 0
        self.size = 1
        self.launcher = launcher

    def allgather(self, data: bytes, timeout: float) -> list[bytes]:  # noqa: ARG002
        return [bytes(data)]

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class ThroughRendezvous(Bootstrap):
    """A rank that `malt run` or an engine started: a client of their rendezvous."""

    launcher = "malt run"

    def __init__(self, client: session.Client) -> None:
        self.rank = client.rank
        self.size = client.size
        self.secret = client.key
        self.meeting_point = client.host
        self._client = client

    def allgather(self, data: bytes, timeout: float) -> list[bytes]:
        return self._client.allgather(data, timeout)

    def close(self) -> None:
        self._client.close()

    def abort(self) -> None:
        self._client.abort()
