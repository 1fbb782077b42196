"""The bootstrap of a Slurm step without MPI: rank 0 hosts a rendezvous, and a file names it.

The file lies in the user's home, which the nodes of a cluster share, and only the user can read it:
it holds the job's key. Rank 0 removes it as soon as all ranks have joined.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from malt import _errors as errors
from malt._bootstrap.bootstrap import ThroughRendezvous
from malt._bootstrap.launchers import Launcher
from malt._errors import ConfigError
from malt._rendezvous import session
from malt._rendezvous.driver import Rendezvous
from malt._rendezvous.own_address import own_address

_POLL_SECONDS = 0.05
_STALE_SECONDS = 86400.0

_joins = 0  # how often this process has joined: all ranks join as often


class _Host(ThroughRendezvous):
    """Rank 0, which hosts the rendezvous until the other ranks have left it."""

    def __init__(self, rendezvous: Rendezvous, file: Path, timeout: float) -> None:
        variables = rendezvous.environ(0)
        super().__init__(session.Client.from_environ(variables, timeout))
        self._rendezvous = rendezvous
        self._file = file
        self._timeout = timeout

    def close(self) -> None:
        super().close()
        self._file.unlink(missing_ok=True)
        self._rendezvous.await_leaving(self._timeout)
        self._rendezvous.close()

    def abort(self) -> None:
        super().abort()
        self._file.unlink(missing_ok=True)
        self._rendezvous.close()


def join(launcher: Launcher, env: Mapping[str, str], timeout: float) -> ThroughRendezvous:
    """Join the ranks of this process's Slurm step.

    Raises:
        malt.ConfigError: the user's home cannot be written.
        malt.TimeoutError: rank 0 did not come, or its file does not show on this node.
    """
    global _joins
    assert launcher.rank is not None
    assert launcher.size is not None
    folder = Path(env.get("HOME") or Path.home(), ".cache", "malt")
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    step = "-".join(env.get(name, "0") for name in names)
    file = folder / f"slurm-{step}-{_joins}.json"
    _joins += 1
    if launcher.rank == 0:
        host = _host(launcher.size, file, env, timeout)
        host.launcher = launcher.name
        return host
    variables = _await(file, timeout)
    variables |= {"MALT_RANK": str(launcher.rank), "MALT_SIZE": str(launcher.size)}
    bootstrap = ThroughRendezvous(session.Client.from_environ(variables, timeout))
    bootstrap.launcher = launcher.name
    return bootstrap


def _host(size: int, file: Path, env: Mapping[str, str], timeout: float) -> _Host:
    rendezvous = Rendezvous(size, host=_own_address(env))
    try:
        variables = rendezvous.environ(0)
        shared = {name: variables[name] for name in ("MALT_RENDEZVOUS", "MALT_JOB_KEY")}
        _write(file, json.dumps(shared))
        return _Host(rendezvous, file, timeout)
    except BaseException:
        rendezvous.close()
        file.unlink(missing_ok=True)
        raise


def _own_address(env: Mapping[str, str]) -> str:
    """Return this node's address in the cluster's network, by the way to the node of srun."""
    if env.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    toward = env.get("SLURM_LAUNCH_NODE_IPADDR") or socket.gethostname()
    return own_address(toward)


def _write(file: Path, text: str) -> None:
    """Write the file whole, readable by its owner alone, and remove those of killed jobs."""
    draft = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in file.parent.glob("slurm-*"):
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > _STALE_SECONDS:
                    other.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as stream:
            stream.write(text)
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(
            f"rank 0 tells the other ranks of a Slurm step where to meet in {file}, which cannot "
            f"be written: {error.strerror}; set HOME to a folder that all nodes share"
        ) from error


def _await(file: Path, timeout: float) -> dict[str, str]:
    deadline = time.monotonic() + timeout
    while True:
        try:
            os.listdir(file.parent)  # has a network's file system look again
            read: dict[str, str] = json.loads(file.read_text())
            return read
        except OSError:
            if time.monotonic() >= deadline:
                raise errors.TimeoutError(
                    f"rank 0 did not come to malt.init() within {timeout:g} s, or the nodes do not "
                    f"share {file.parent}, where it says how to reach it; set HOME to a folder "
                    "that they share, start with `srun --mpi=pmix`, or give a longer limit: "
                    "MALT_TIMEOUT",
                    [0],
                ) from None
            time.sleep(_POLL_SECONDS)
