"""Finds missing ranks before MPI_Init, which waits for all without a limit or a message.

Every rank of a job on one host listens at an abstract socket address made from the launcher's name
of the job and its rank. A rank is present once its address answers for the same user. Nothing is
exchanged, and the addresses vanish with the processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from malt import _errors as errors
from malt._errors import describe_ranks

_POLL_SECONDS = 0.01


@contextlib.contextmanager
def answered(env: Mapping[str, str], timeout: float) -> Iterator[None]:
    """Wait until all ranks are here, then run the block while the others still see this one.

    Does nothing where the job is on several hosts or its launcher does not name it.

    Raises:
        malt.TimeoutError: names the ranks that did not come.
    """
    call = _find(env)
    if call is None:
        yield
        return
    job, rank, size = call
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
        # A bind that fails (a second process of the same rank) is left to MPI to report.
        with contextlib.suppress(OSError):
            mine.bind(_address(job, rank))
            mine.listen(size)
        missing = set(range(size)) - {rank}
        deadline = time.monotonic() + timeout
        while missing := {other for other in missing if not _present(job, other)}:
            if time.monotonic() >= deadline:
                raise errors.TimeoutError(
                    f"{describe_ranks(missing)} did not come to malt.init() within {timeout:g} s; "
                    "a longer limit: malt.init(timeout=...) or MALT_TIMEOUT",
                    missing,
                )
            time.sleep(_POLL_SECONDS)
        yield


def _find(env: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Return the job's name, this rank and the size, when all ranks are on this host."""
    try:
        if "OMPI_COMM_WORLD_SIZE" in env:
            size, local = int(env["OMPI_COMM_WORLD_SIZE"]), int(env["OMPI_COMM_WORLD_LOCAL_SIZE"])
            rank = int(env["OMPI_COMM_WORLD_RANK"])
            job = env["PMIX_NAMESPACE"] + " " + env["PMIX_SERVER_URI2"]
        else:
            size, local = int(env["PMI_SIZE"]), int(env["MPI_LOCALNRANKS"])
            rank = int(env["PMI_RANK"])
            # Hydra gives its jobs no name, but all ranks inherit one control socket.
            job = os.readlink(f"/proc/self/fd/{int(env['HYDI_CONTROL_FD'])}")
    except (KeyError, ValueError, OSError):
        return None
    return (job, rank, size) if size == local > 1 else None


def _address(job: str, rank: int) -> bytes:
    return b"\0malt-" + hashlib.sha256(f"{job} {rank}".encode()).hexdigest()[:32].encode()


def _present(job: str, rank: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_address(job, rank))
        except BlockingIOError:
            return True  # it listens, and its queue is full of other ranks' connections
        except OSError:
            return False
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", credentials)[1] == os.getuid())
