"""The bootstrap over torch's key-value store, which torchrun and other launchers of torch provide.

torchrun's agent serves the store at MASTER_ADDR and MASTER_PORT. Under launchers that leave this to
rank 0, its process serves it, in such a way that torch.distributed shares it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from malt import _errors as errors
from malt._bootstrap.bootstrap import Bootstrap
from malt._bootstrap.launchers import Launcher
from malt._distribution import pip_install
from malt._errors import ConfigError, Error, PeerError, describe_ranks

# Seconds between two looks at the store. Its own wait() sees neither a signal nor a death.
_LEAST_NAP, _MOST_NAP = 0.0005, 0.02
_SECONDS_MOST = 86400.0

# By address: how often this process has joined through its store, and the store itself where this
# process serves it: torch.distributed's other ranks may use it as long as they live.
_joins: dict[tuple[str, int], int] = {}
_served: dict[tuple[str, int], Any] = {}


class TorchStore(Bootstrap):
    """A bootstrap over any store of torch.distributed. Keys of other users must not be in it."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        launcher: str,
        meeting_point: str,
        *,
        find_dead: Callable[[], set[int]] = set,
        longer: str = "malt.init(timeout=...) or MALT_TIMEOUT",
    ) -> None:
        """Use `store` (a torch.distributed.Store), as `rank` of `size`.

        `find_dead` returns the ranks that are known to be dead, for which it is no use to wait.
        `longer` says how a user sets another time limit.
        """
        self.rank = rank
        self.size = size
        self.launcher = launcher
        self.meeting_point = meeting_point
        self._store = store
        self._find_dead = find_dead
        self._longer = longer
        self._round = 0

    def allgather(self, data: bytes, timeout: float) -> list[bytes]:
        if self._store is None:
            raise Error("the bootstrap by torch's store is closed, or was left after an error")
        deadline = time.monotonic() + timeout
        keys = [self._key(rank) for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], data)
            self._await(keys, deadline, timeout)
            parts = [bytes(part) for part in self._store.multi_get(keys)]
        except RuntimeError as error:  # of torch's: DistError and its kinds
            raise PeerError(f"torch's store cannot be reached any more: {error}") from error
        finally:
            self._round += 1
        # All have come to this round, so all have read the last one.
        if self._round > 1:
            self._forget(self._round - 2)
        return parts

    def _await(self, keys: list[str], deadline: float, timeout: float) -> None:
        nap = _LEAST_NAP
        while not self._store.check(keys):
            missing = {r for r, key in enumerate(keys) if not self._store.check([key])}
            if dead := missing & self._find_dead():
                raise PeerError(f"{describe_ranks(dead)} died before joining", dead)
            if missing and time.monotonic() >= deadline:
                raise errors.TimeoutError(
                    f"{describe_ranks(missing)} did not come within {timeout:g} s; a longer limit: "
                    f"{self._longer}",
                    missing,
                )
            time.sleep(nap)
            nap = min(2 * nap, _MOST_NAP)

    def _key(self, rank: int) -> str:
        return f"{self._round}/{rank}"

    def _forget(self, round_: int) -> None:
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(f"{round_}/{self.rank}")

    def close(self) -> None:
        self._store = None

    def abort(self) -> None:
        self._store = None


def join(launcher: Launcher, env: Mapping[str, str], timeout: float) -> Bootstrap:
    """Make a bootstrap over the store of the launcher that `launchers.choose` has found.

    Raises:
        malt.ConfigError: PyTorch is not installed, or MASTER_PORT is no port.
        malt.TimeoutError: nobody serves the store.
    """
    distributed = _import_torch(launcher)
    host, port = env["MASTER_ADDR"], env["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"MASTER_PORT is {port!r}; it is a port, 1 to 65535")
    assert launcher.rank is not None
    assert launcher.size is not None
    address = host, int(port)
    is_served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = launcher.rank == 0 and not is_served
    seconds = min(timeout, _SECONDS_MOST)
    try:
        store = _served.get(address) or distributed.TCPStore(
            *address,
            is_master=serves,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        server = "torchrun" if is_served else "rank 0"
        raise errors.TimeoutError(
            f"torch's store, which {server} serves at {host}:{port} (MASTER_ADDR, MASTER_PORT), "
            f"did not answer within {timeout:g} s: {str(error).splitlines()[0]}",
            [] if launcher.rank == 0 else [0],
        ) from error
    if serves:
        _served[address] = store
    _joins[address] = _joins.get(address, 0) + 1
    prefix = f"malt/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_joins[address]}"
    prefixed = distributed.PrefixStore(prefix, store)
    return TorchStore(prefixed, launcher.rank, launcher.size, launcher.name, host)


def _import_torch(launcher: Launcher) -> Any:
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        raise ConfigError(
            f"{launcher.name} started this process, but PyTorch is not installed in "
            f"{sys.executable} ({error}): {pip_install('torch')}; or start the program with "
            f"`malt run -n {launcher.size}`, which needs no PyTorch"
        ) from error
