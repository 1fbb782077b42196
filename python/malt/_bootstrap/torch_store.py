"""The bootstrap over torch's key-value store, which torchrun and other launchers of torch provide.

torchrun's agent serves the store at MASTER_ADDR and MASTER_PORT. Under launchers that leave this to
rank 0, its process serves it, in such a way that torch.distributed shares it.

A store outlives the ranks: torchrun starts new ones after a death, with the same store, and the
agents of several hosts count these attempts differently. So the ranks of an attempt first meet
(`meet`), and then use keys of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
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
_LONGER = "malt.init(timeout=...) or MALT_TIMEOUT"

# By address: the store itself where this process serves it: torch.distributed's other ranks may use
# it as long as they live.
_served: dict[tuple[str, int], Any] = {}


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    """Raise the errors of torch's store as PeerErrors."""
    try:
        yield
    except RuntimeError as error:  # DistError and its kinds
        raise PeerError(f"torch's store cannot be reached any more: {error}") from error


class Patience:
    """How long a rank waits for others at a store, and what it says then.

    Attributes:
        is_over: the next nap() raises TimeoutError.
    """

    def __init__(self, timeout: float, find_dead: Callable[[], set[int]], longer: str) -> None:
        """`find_dead` returns the ranks that are known to be dead: it is no use to wait for them.

        `longer` says how a user sets another time limit.
        """
        self._timeout = timeout
        self._find_dead = find_dead
        self._longer = longer
        self._end = time.monotonic() + timeout
        self.is_over = False
        self._nap = _LEAST_NAP

    def nap(self, missing: set[int]) -> None:
        """Sleep for a moment, because of the ranks `missing`.

        Raises:
            malt.PeerError: some of them are dead.
            malt.TimeoutError: the time was up before the caller looked for them.
        """
        if dead := missing & self._find_dead():
            raise PeerError(f"{describe_ranks(dead)} died before joining", dead)
        if self.is_over and missing:
            raise errors.TimeoutError(
                f"{describe_ranks(missing)} did not come within {self._timeout:g} s; a longer "
                f"limit: {self._longer}",
                missing,
            )
        time.sleep(self._nap)
        self._nap = min(2 * self._nap, _MOST_NAP)
        self.is_over = time.monotonic() >= self._end


@_reached()
def meet(store: Any, rank: int, size: int, patience: Patience) -> str:
    """Wait for the other ranks of this attempt, and return a name that these ranks alone have.

    Each rank draws a number and shows it. It then shows all ranks' numbers that it sees, as a
    digest, again whenever these change, and has met the others once all ranks show its digest.

    1. A name is of one attempt: the numbers behind it are drawn by its ranks. The digest that
       a dead rank has left in the store has no numbers drawn after its end.
    2. All ranks of an attempt that meet get the same name: each shows the digest that it returns,
       and the ranks of an attempt show no other once all their numbers are there.
    3. A rank may meet the others again, as the same rank or as another one, once they have met:
       that is, after an exchange with them under the name. A rank that meets them earlier, because
       an exception has ended its meeting, or that exchange, draws a new number. Then those that
       still look see it, and meet it; those that do not will time out, and come again.
    """
    drawn = [f"drawn/{each}" for each in range(size)]
    shown = [f"seen/{each}" for each in range(size)]
    store.set(drawn[rank], secrets.token_bytes(16))
    told = ""
    undrawn: set[int] = set()
    unshown: set[int] = set()
    while True:
        missing = undrawn = _missing(store, drawn, undrawn, patience)
        if not missing:
            seen = hashlib.sha256(b"".join(store.multi_get(drawn))).hexdigest()
            if seen != told:
                store.set(shown[rank], seen.encode())
                told = seen
            missing = unshown = _missing(store, shown, unshown, patience)
        if not missing:
            theirs = [bytes(each).decode() for each in store.multi_get(shown)]
            missing = {each for each, digest in enumerate(theirs) if digest != seen}
        if not missing:
            return seen
        patience.nap(missing)


def _missing(store: Any, keys: list[str], before: set[int], patience: Patience) -> set[int]:
    """Return the places of the keys that are not there; `before`: what this returned before.

    As long as the first of them is not there, it looks for no other one, before the time is up.
    """
    if before and not patience.is_over and not store.check([keys[min(before)]]):
        return before
    if store.check(keys):
        return set()
    return {place for place, key in enumerate(keys) if not store.check([key])}


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
        longer: str = _LONGER,
    ) -> None:
        """Use `store` (a torch.distributed.Store), as `rank` of `size`.

        `find_dead` and `longer` are as for Patience.
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
        patience = Patience(timeout, self._find_dead, self._longer)
        keys = [self._key(rank) for rank in range(self.size)]
        try:
            with _reached():
                self._store.set(keys[self.rank], data)
                missing: set[int] = set()
                while missing := _missing(self._store, keys, missing, patience):
                    patience.nap(missing)
                parts = [bytes(part) for part in self._store.multi_get(keys)]
        finally:
            self._round += 1
        # All have come to this round, so all have read the last one.
        if self._round > 1:
            self._forget(self._round - 2)
        return parts

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
    of_jobs = distributed.PrefixStore("malt", store)
    patience = Patience(timeout, set, _LONGER)
    attempt = meet(of_jobs, launcher.rank, launcher.size, patience)
    own = distributed.PrefixStore(attempt, of_jobs)
    return TorchStore(own, launcher.rank, launcher.size, launcher.name, host)


def _import_torch(launcher: Launcher) -> Any:
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        raise ConfigError(
            f"{launcher.name} started this process, but PyTorch is not installed in "
            f"{sys.executable} ({error}): {pip_install('torch')}; or start the program with "
            f"`malt run -n {launcher.size}`, which needs no PyTorch"
        ) from error
