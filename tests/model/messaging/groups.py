"""The store, groups, links and exchanges of the torch backend, simulated.

They do what src/dstorm/collective/link.hpp and src/vol/exchange.hpp have, over messages that come
in order, and late.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rejoining.machines import Process, World

from malt._errors import ConfigError, OtherCallError, PeerError, TimeoutError  # noqa: A004
from messaging.network import Network
from messaging.threads import Interrupts, RLock

_DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 4: np.int64}


class Store:
    """A store of torch.distributed that somebody serves for as long as the job lasts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.values: dict[str, Any] = {}

    def _go(self) -> None:
        self._world.park(self._world.now + self._world.delay())

    def set(self, key: str, value: bytes) -> None:
        self._go()
        self.values[key] = value

    def add(self, key: str, amount: int) -> int:
        self._go()
        self.values[key] = self.values.get(key, 0) + amount
        return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        self._go()
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        self._go()
        found: bytes = self.values[key]
        return found

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._go()
        return [self.values[key] for key in keys]

    def delete_key(self, key: str) -> bool:
        self._go()
        return self.values.pop(key, None) is not None


class PrefixStore:
    def __init__(self, prefix: str, store: Any) -> None:
        self._prefix = prefix
        self.underlying_store = store

    def _of(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def set(self, key: str, value: bytes) -> None:
        self.underlying_store.set(self._of(key), value)

    def add(self, key: str, amount: int) -> int:
        return int(self.underlying_store.add(self._of(key), amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self.underlying_store.check(list(map(self._of, keys))))

    def get(self, key: str) -> bytes:
        found: bytes = self.underlying_store.get(self._of(key))
        return found

    def multi_get(self, keys: list[str]) -> list[bytes]:
        found: list[bytes] = self.underlying_store.multi_get(list(map(self._of, keys)))
        return found

    def delete_key(self, key: str) -> bool:
        return bool(self.underlying_store.delete_key(self._of(key)))


class Groups:
    """All groups of a job, by what their members told one another."""

    def __init__(
        self, world: World, interrupts: Interrupts, on_message: Callable[[], object]
    ) -> None:
        self.world = world
        self.interrupts = interrupts
        self.on_message = on_message
        self._made: dict[tuple[bytes, ...], Network] = {}
        self._nonces = 0
        self.evicted: list[Process] = []

    def form(self, bootstrap: Any, timeout: float) -> Group:
        """As malt._job.joining.form_group: some steps, of which the last connects the members."""
        process = self.world.here().process
        deadline = self.world.now + timeout
        with bootstrap as found:
            self._nonces += 1
            told = tuple(found.allgather(b"%d %d" % (process.pid, self._nonces), timeout))
            found.allgather(b"", max(0.0, deadline - self.world.now))
            if told not in self._made:
                pids = [int(each.split()[0]) for each in told]
                processes = {r: self.world.processes[pid - 1] for r, pid in enumerate(pids)}
                self._made[told] = Network(self.world, processes, self.on_message)
                for rank, member in processes.items():
                    if member in self.evicted:
                        self._made[told].evict(rank)
            group = Group(self, found.rank, self._made[told], timeout)
            group.await_all("the group", max(0.0, deadline - self.world.now))
            return group

    def evict(self, process: Process) -> None:
        self.evicted.append(process)
        for network in self._made.values():
            for rank, member in network.processes.items():
                if member is process:
                    network.evict(rank)


class Group:
    """As malt._core.Group."""

    is_one_host = False

    def __init__(self, groups: Groups, rank: int, network: Network, timeout: float) -> None:
        self.groups = groups
        self.world = groups.world
        self.rank = rank
        self.network = network
        self.size = len(network.processes)
        self.timeout = timeout
        self.parts = network.parts

    def alive(self) -> list[int]:
        return sorted(self.network.live[self.rank])

    def leave(self, timeout: float | None = None) -> None:
        self.network.to_others(self.rank, lambda to: self.network.mark(to, self.rank))

    def check_standing(self) -> None:
        self.world.step()
        self.groups.interrupts.check_at_step()
        if self.rank in self.network.evicted[self.rank]:
            raise PeerError(f"rank {self.rank} was evicted from the job", [])

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        deadline = self.world.now + seconds
        while True:
            if self.rank in self.network.evicted[self.rank]:
                raise PeerError(f"rank {self.rank} was evicted from the job", [])
            if ready():
                return True
            self.groups.interrupts.check()
            if self.world.now >= deadline:
                return False
            self.network.await_ring(self.rank, deadline)

    def await_all(self, what: str, timeout: float) -> None:
        """A collective step in which something is made."""
        came = self.parts.setdefault(what, {r: {r} for r in self.network.processes})
        rank, live = self.rank, self.network.live[self.rank]
        self.network.to_others(rank, lambda to: came[to].add(rank))
        if not self.wait(lambda: live <= came[rank], timeout):
            missing = live - came[rank]
            raise TimeoutError(f"{what}: ranks {missing} did not come", missing)


class _Message:
    def __init__(self, tag: int, length: int) -> None:
        self.tag = tag
        self.length = length
        self.arrived = 0
        self.kept = bytearray()
        self.direct = 0  # the address where it goes at once

    @property
    def is_whole(self) -> bool:
        return self.arrived == self.length


class _Part(NamedTuple):
    is_first: bool
    tag: int
    length: int
    payload: bytes


class Link:
    """As malt._core.Link."""

    def __init__(
        self, group: Group, name: str, slot_bytes: int, depth: int, timeout: float
    ) -> None:
        self._group = group
        self._network = group.network
        self._peer = 1 - group.rank
        self._slot_bytes = slot_bytes
        self._free = depth
        self._inbox: deque[_Part] = deque()
        self._messages: list[_Message] = []
        self._room: tuple[int, int, int] | None = None  # tag, address and bytes of a receive()
        self._turn = RLock(group.world, group.groups.interrupts)
        group.parts.setdefault(f"ends of {name}", {})[group.rank] = self
        self._ends = group.parts[f"ends of {name}"]
        group.await_all(name, timeout)

    @property
    def _is_peer_live(self) -> bool:
        return self._peer in self._network.live[self._group.rank]

    def send(self, data: int, bytes: int, tag: int, timeout: float | None = None) -> None:  # noqa: A002
        self._begin()
        with self._turn:
            self._send(data, bytes, tag, timeout)

    def _send(self, data: int, bytes: int, tag: int, timeout: float | None) -> None:  # noqa: A002
        group = self._group
        deadline = group.world.now + (group.timeout if timeout is None else timeout)
        whole = ctypes.string_at(data, bytes)
        for at in range(0, max(bytes, 1), self._slot_bytes):
            left = max(0.0, deadline - group.world.now)
            if not group.wait(lambda: self._free > 0 or not self._is_peer_live, left):
                raise TimeoutError("no room", [self._peer])
            if not self._is_peer_live:
                raise self._dead()
            self._free -= 1
            part = _Part(at == 0, tag, bytes, whole[at : at + self._slot_bytes])
            self._network.send(group.rank, self._peer, lambda part=part: self._bring(part))  # type: ignore[misc]
            group.world.step()

    def try_send(self, data: int, bytes: int, tag: int, ended: list[None]) -> bool:  # noqa: A002
        self._begin()
        if bytes > self._slot_bytes or (self._free == 0 and self._is_peer_live):
            return False
        self.send(data, bytes, tag)
        ended.append(None)
        return True

    def _bring(self, part: _Part) -> None:
        self._ends[self._peer]._inbox.append(part)

    def receive(
        self,
        data: int,
        bytes: int,  # noqa: A002
        tag: int,
        timeout: float,
        ended: list[None],
    ) -> None:
        self._begin()
        deadline = self._group.world.now + timeout
        found = self._find(tag)
        self._room = None if found else (tag, data, bytes)
        try:
            while found is None or not found.is_whole:
                if not self._take_in(deadline):
                    raise TimeoutError("no message", [self._peer])
                found = self._find(tag)
        except BaseException:
            for message in self._messages:
                if message.direct:
                    message.kept[:] = ctypes.string_at(message.direct, message.arrived)
                    message.direct = 0
            raise
        finally:
            self._room = None
        self._messages.remove(found)
        if found.length != bytes:
            raise ConfigError(f"the message has {found.length} bytes, the tensor {bytes}")
        if not found.direct:
            ctypes.memmove(data, builtins_bytes(found.kept), bytes)
        ended.append(None)

    def await_tag(self, tags: Sequence[int], timeout: float) -> int:
        self._begin()
        deadline = self._group.world.now + timeout
        while True:
            for message in self._messages:
                if message.tag in tags:
                    return tags.index(message.tag)
            if not self._take_in(deadline):
                return -1

    def check_room(self, tag: int) -> None:
        """All messages have room here."""

    def shut(self) -> None:
        self._group.leave()

    # Inside

    def _begin(self) -> None:
        self._group.check_standing()

    def _find(self, tag: int) -> _Message | None:
        return next((each for each in self._messages if each.tag == tag), None)

    def _take_in(self, deadline: float) -> bool:
        left = max(0.0, deadline - self._group.world.now)
        if not self._group.wait(lambda: bool(self._inbox) or not self._is_peer_live, left):
            return False
        if not self._inbox:
            raise self._dead()
        while self._inbox:
            self._add(self._inbox.popleft())
            self._network.send(self._group.rank, self._peer, self._free_slot)
        return True

    def _free_slot(self) -> None:
        self._ends[self._peer]._free += 1

    def _add(self, part: _Part) -> None:
        if part.is_first:
            if self._messages and not self._messages[-1].is_whole:
                self._messages.pop()
            begun = _Message(part.tag, part.length)
            if self._room and self._find(part.tag) is None:
                tag, address, length = self._room
                if (tag, length) == (part.tag, part.length):
                    begun.direct = address
            self._messages.append(begun)
        message = self._messages[-1]
        if message.direct:
            ctypes.memmove(message.direct + message.arrived, part.payload, len(part.payload))
        else:
            message.kept += part.payload
        message.arrived += len(part.payload)

    def _dead(self) -> PeerError:
        return PeerError(f"rank {self._peer} is dead, or has left", [self._peer])


builtins_bytes = bytes
_Takes = Sequence[tuple[int, int, int, int, int]]


class _End:
    """This rank's end of what all ranks of a group have made, which it may leave."""

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self._network = group.network
        self._is_shut = False
        self._left: set[int] = set()
        self._ends = group.parts.setdefault(f"ends of {name}", {})

    def _open(self, name: str, timeout: float) -> None:
        self._ends[self._group.rank] = self
        self._group.await_all(name, timeout)

    def shut(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._network.to_others(self._group.rank, self._see_leave)

    def _see_leave(self, to: int) -> None:
        if to in self._ends:
            self._ends[to]._left.add(self._group.rank)


class Exchange(_End):
    """As malt._core.Exchange."""

    def __init__(self, group: Group, name: str, slot_bytes: int, timeout: float) -> None:
        super().__init__(group, name)
        self._slot_bytes = slot_bytes
        self._round = 0
        self._posts: dict[int, deque[tuple[int, int, bytes]]] = {
            rank: deque() for rank in group.network.processes
        }
        self._open(name, timeout)

    def run(
        self,
        gives: Sequence[tuple[int, int]],
        takes: _Takes,
        kind: int,
        timeout: float,
        may_miss: bool = False,
        call: int = 0,
    ) -> list[int]:
        given = b"".join(ctypes.string_at(address, length) for address, length in gives)
        whole, wrong, missing = self._exchange(given, takes, kind ^ call << 3, timeout)
        for rank, offset, length, to, of in takes:
            needed, gave = of or offset + length, len(whole[rank])
            if rank not in missing and not wrong and (gave < needed or (gave != needed and of)):
                wrong = f"rank {rank} gave {gave} bytes, and this rank needs {needed}"
            if not wrong:  # what came of a missing one too
                came = whole[rank][offset : offset + length]
                ctypes.memmove(to, came, len(came))
        if may_miss and not wrong:
            return sorted(missing)
        self._raise(wrong, missing)
        return []

    def fold(
        self, data: int, count: int, dtype: int, mean: bool, timeout: float, call: int
    ) -> None:
        kind = np.dtype(_DTYPES[dtype])
        length = count * kind.itemsize
        own = ctypes.string_at(data, length)
        kind_of_call = (1 << 31 | dtype) ^ call << 3
        whole, wrong, missing = self._exchange(own, [], kind_of_call, timeout)
        self._raise(wrong, missing)
        whole[self._group.rank] = own
        rows = [np.frombuffer(whole[rank], kind) for rank in sorted(whole)]
        total = np.sum(rows, axis=0) / (len(rows) if mean else 1)
        ctypes.memmove(data, total.astype(kind).tobytes(), length)

    def _exchange(
        self, given: bytes, takes: _Takes, kind: int, timeout: float
    ) -> tuple[dict[int, bytes], str, set[int]]:
        group = self._group
        group.check_standing()
        if self._is_shut:
            raise PeerError("an earlier call did not come to its end", [group.rank])
        try:
            return self._rounds(given, takes, kind, group.world.now + timeout)
        except BaseException:
            self.shut()
            raise

    def _rounds(
        self, given: bytes, takes: _Takes, kind: int, deadline: float
    ) -> tuple[dict[int, bytes], str, set[int]]:
        group, rank = self._group, self._group.rank
        others = list(self._network.others(rank))
        whole = dict.fromkeys(others, b"")
        wrong, missing, at, most = "", set(), 0, len(given)
        while at == 0 or at < most:
            post = len(given), kind, given[at : at + self._slot_bytes]
            self._network.to_others(rank, lambda to, post=post: self._bring(to, post))  # type: ignore[misc]

            def lacking() -> set[int]:
                live = self._network.live[rank] - self._left
                return {r for r in others if r in live and not self._posts[r]}

            if not group.wait(lambda: not lacking(), max(0.0, deadline - group.world.now)):
                raise TimeoutError("ranks did not come", lacking())
            for other in others:
                if not self._posts[other]:
                    missing.add(other)
                    continue
                total, other_kind, payload = self._posts[other].popleft()
                most = max(most, total)
                whole[other] += payload
                if other_kind != kind:
                    wrong = f"rank {other} made another call"
            at += self._slot_bytes
            for source, offset, length, *_ in takes:
                if source in missing:  # others may have seen how much it gives
                    most = max(most, offset + length)
        return whole, wrong, missing

    def _bring(self, to: int, post: tuple[int, int, bytes]) -> None:
        if to in self._ends and self._group.rank in self._network.live[to]:
            self._ends[to]._posts[self._group.rank].append(post)

    def _raise(self, wrong: str, missing: set[int]) -> None:
        if wrong:  # about a call, which all ranks see, or about a length
            raise OtherCallError(wrong) if "another call" in wrong else ConfigError(wrong)
        if missing:
            raise PeerError(f"ranks {missing} are dead, or left before this call", missing)


class _Sum:
    """A round of a reducer: what ranks have given, and once it is decided, of whom the sum is.

    Attributes:
        come: by rank, the ranks that it knows to have come.
        gave_up: by rank, the ranks that it knows to have given up.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.given: dict[int, bytes] = {}
        self.ranks: list[int] | None = None
        self.come = {rank: {rank} for rank in ranks}
        self.gave_up: dict[int, set[int]] = {rank: set() for rank in ranks}


class Reducer(_End):
    """As malt._core.Reducer: a round is decided once, for all of its ranks.

    How they decide is simulated elsewhere (src/dstorm/collective).
    """

    def __init__(self, group: Group, dtype: str, _count: int, name: str, timeout: float) -> None:
        super().__init__(group, name)
        self._dtype = np.dtype(dtype)
        self._name = name
        self._number = 0
        self._open(name, timeout)

    def allreduce(
        self, data: int, count: int, mean: bool, timeout: float, _call: int = 0
    ) -> list[int]:
        group, rank = self._group, self._group.rank
        group.check_standing()
        if self._is_shut:
            raise PeerError("an earlier call did not come to its end", [rank])
        self._number += 1
        here: _Sum = group.parts.setdefault(  # type: ignore[assignment]
            f"round {self._number} of {self._name}",
            _Sum(self._network.processes),  # type: ignore[arg-type]
        )
        come, gave_up = here.come[rank], here.gave_up[rank]
        length = count * self._dtype.itemsize
        here.given[rank] = ctypes.string_at(data, length)
        self._network.to_others(rank, lambda to: here.come[to].add(rank))

        def missing() -> set[int]:
            return self._network.live[rank] - self._left - come

        try:
            if not group.wait(lambda: here.ranks is not None or not missing() or gave_up, timeout):
                raise TimeoutError("ranks did not come", missing())
            if here.ranks is None and gave_up:
                raise TimeoutError("ranks gave up", missing() or gave_up)
        except BaseException:
            self._network.to_others(rank, lambda to: here.gave_up[to].add(rank))
            raise
        if here.ranks is None:
            here.ranks = sorted(come & (self._network.live[rank] - self._left | {rank}))
            for other in self._network.others(rank):
                group.world.at(
                    group.world.delay(),
                    lambda other=other: self._network.ring(other),  # type: ignore[misc]
                )
        if rank not in here.ranks:
            raise PeerError(f"rank {rank} was left out", [])
        rows = [np.frombuffer(here.given[each], self._dtype) for each in here.ranks]
        total = np.sum(rows, axis=0) / (len(rows) if mean else 1)
        ctypes.memmove(data, total.astype(self._dtype).tobytes(), length)
        return [each for each in here.ranks if each != rank]
