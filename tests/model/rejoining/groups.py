"""Groups and vectors as `_rejoining/generations.py` sees them.

What a rank does comes to each other host in order, and late. They do what dStorm's do, and no more
than rejoining needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from malt._errors import ConfigError, PeerError, SupersededError, TimeoutError  # noqa: A004
from rejoining.machines import Deadline, Process, Waiters, World

LIVE, DEAD, LEFT, EVICTED = "live", "dead", "left", "evicted"
_NAP = 0.2


class _Host:
    """What the ranks of one host see of a group."""

    def __init__(self, world: World, members: Sequence[int]) -> None:
        self.state = dict.fromkeys(members, LIVE)
        self.epoch = 0
        self.superseded_by = 0
        self.posted = dict.fromkeys(members, 0)
        self.posts: dict[tuple[int, int], tuple[str, bytes]] = {}
        self.clocks: dict[tuple[str, int], int] = {}
        self.updates: dict[tuple[str, int], list[Any]] = {}
        self.taken: dict[tuple[str, int, int], int] = {}  # by vector, sender and receiver
        self.closed: set[tuple[str, int]] = set()
        self.reduced: dict[Any, set[int]] = {}  # ranks whose values have come
        self.bell = Waiters(world)
        self.rung = 0

    def ring(self) -> None:
        self.rung += 1
        self.bell.wake()


class _Meeting:
    """A group, from outside: its hosts, and what is on its way between them."""

    def __init__(self, world: World, processes: dict[int, Process]) -> None:
        self.world = world
        self.processes = processes
        self.hosts = {
            host: _Host(world, list(processes)) for host in {p.host for p in processes.values()}
        }
        self.given: dict[Any, dict[int, Any]] = {}  # to a reduction, by rank
        self.decided: dict[Any, Any] = {}
        self._last: dict[tuple[int, int], float] = {}
        self._cut: dict[int, float] = {}  # what a dead rank had not sent by then never comes

    def change(self, rank: int, call: Callable[[_Host], object]) -> None:
        """What `rank` does comes to its host at once, and to the others."""
        for host in self.hosts:
            self._bring(rank, host, call, self.processes[rank].host == host)

    def _bring(self, rank: int, host: int, call: Callable[[_Host], object], is_here: bool) -> None:
        there = self.hosts[host]
        if is_here:
            call(there)
            there.ring()
            return
        sent = self.world.now
        when = max(self._last.get((rank, host), 0.0), sent + self.world.delay())
        self._last[rank, host] = when

        def arrive() -> None:
            if sent <= self._cut.get(rank, sent):
                call(there)
                there.ring()

        self.world.at(when - sent, arrive)

    def die(self, rank: int) -> None:
        """Some of what it did last may never come."""
        self._cut[rank] = self.world.now - self.world.delay()
        for host in self.hosts:
            last = max(self._last.get((rank, host), 0.0), self.world.now)
            self.world.at(
                last - self.world.now + self.world.delay(), lambda host=host: self._mark(host, rank)
            )

    def _mark(self, host: int, rank: int, state: str = DEAD) -> None:
        there = self.hosts[host]
        if there.state[rank] == LIVE:
            there.state[rank] = state
            there.epoch += 1
            there.ring()

    def leave(self, rank: int) -> None:
        host = self.processes[rank].host
        self._mark(host, rank, LEFT)
        for other in self.hosts:
            if other != host:
                self._bring(
                    rank, other, lambda _, other=other: self._mark(other, rank, LEFT), False
                )

    def is_quorum_without(self, victim: int) -> bool:
        """Whether the others, who hear nothing of it, may agree to go on without it."""
        members = [r for r in self.processes if self._is_well(r) or r == victim]
        others = [r for r in members if r != victim]
        half = 2 * len(others) - len(members)
        return half > 0 or (half == 0 and bool(others) and min(members) in others)

    def _is_well(self, rank: int) -> bool:
        process = self.processes[rank]
        is_member = all(host.state[rank] == LIVE for host in self.hosts.values())
        return is_member and not process.is_dead and process.stopped_until <= self.world.now

    def evict(self, victim: int) -> None:
        for host in self.hosts:
            self.world.at(self.world.delay(), lambda host=host: self._mark(host, victim, EVICTED))


class Meetings:
    """The groups of a job, by what their members told one another through the launcher."""

    def __init__(self, world: World, on_step: Callable[[str], object]) -> None:
        self.world = world
        self.on_step = on_step
        self.joined = 0  # so often somebody has begun to
        self.all: dict[tuple[bytes, ...], _Meeting] = {}

    def of(self, process: Process) -> list[tuple[int, _Meeting]]:
        """The rank and the group, of each that it is in."""
        return [
            (rank, meeting)
            for meeting in self.all.values()
            for rank, member in meeting.processes.items()
            if member is process
        ]

    def join(self, told: Sequence[bytes]) -> _Meeting:
        key = tuple(told)
        if key not in self.all:
            by_pid = self.world.processes
            pids = {rank: int(text.split()[0]) for rank, text in enumerate(told) if text}
            processes = {rank: by_pid[pid - 1] for rank, pid in pids.items()}
            self.all[key] = _Meeting(self.world, processes)
            for rank, process in processes.items():
                if process.is_dead:
                    self.all[key].die(rank)
        return self.all[key]


class Group:
    """As `malt._core.Group`."""

    def __init__(
        self,
        meetings: Meetings,
        size: int,
        rank: int,
        members: Sequence[int],
        allgather: Callable[[bytes, Deadline], list[bytes]],
        deadline: Deadline,
        look_again: Callable[[bool], bool],
        at_round_end: Callable[[str], object],
    ) -> None:
        self.world = meetings.world
        self._on_step = meetings.on_step
        self.size = size
        self.rank = rank
        self.members = list(members)
        self.timeout = deadline.limit
        self.number = 0
        self._look_again = look_again
        self.at_round_end = at_round_end
        process = self.world.here().process
        meetings.joined += 1
        told = allgather(b"%d %d" % (process.pid, meetings.joined), deadline)
        if [r for r, pid in enumerate(told) if pid] != self.members:
            self.world.complain(f"G2: rank {rank} is called with {members}, {told} have come")
        self.world.step()
        allgather(b"", deadline)
        self._meeting = meetings.join(told)
        self._host = self._meeting.hosts[process.host]
        self._exchanges = 0
        self._waits = 0
        self._last_wait = 0
        self._has_left = False
        self._names: list[str] = []
        self._passed_since, self._passed_by, self._kept_since = 0, 0, 0
        if self.world.random.random() < 0.3:
            dead = [r for r, p in self._meeting.processes.items() if p.is_dead]
            if dead:
                raise PeerError(f"ranks {dead} cannot be reached", dead)
        allgather(b"", deadline)

    @property
    def epoch(self) -> int:
        return self._host.epoch

    @property
    def posted(self) -> int:
        return self._host.posted[self.rank]

    def alive(self) -> tuple[int, ...]:
        self.world.step()
        return tuple(r for r in self.members if self._is_live(r))

    def _is_live(self, rank: int) -> bool:
        return self._host.state[rank] == LIVE

    def is_left_out(self, rank: int) -> bool:
        return self._host.state[rank] == EVICTED

    def leave(self, timeout: float | None = None) -> None:
        self.world.step()
        if not self._has_left:
            self._has_left = True
            self._meeting.leave(self.rank)
            self.world.step()

    def check_standing(self) -> None:
        if self._has_left:
            raise ConfigError("this rank has left the job")
        if self.is_left_out(self.rank):
            raise PeerError(f"rank {self.rank} was evicted from the job", self.members)

    def supersede(self, call: int) -> None:
        self.world.step()
        self.world.say(f"    rank {self.rank}: group {self.number} is superseded")
        self._host.superseded_by = self._host.superseded_by or call
        self._host.ring()

    def restore(self) -> None:
        self.world.step()
        self.world.say(f"    rank {self.rank}: group {self.number} is restored")
        self._host.superseded_by = 0

    @property
    def is_superseded(self) -> bool:
        return self.superseded_by != 0

    @property
    def superseded_by(self) -> int:
        self.world.step()
        return self._host.superseded_by

    def check_open_at(self, name: str) -> None:
        """Where a round may begin."""
        self.world.step()
        if call := self._host.superseded_by:
            is_first = self._names[0] == name
            if self._passed_since != call:
                self._passed_since, self._passed_by = call, 0
            self._passed_by += 25 if is_first else 1
            if (is_first and self._kept_since == call) or self._passed_by > 100:
                raise SupersededError("the ranks move to another group")

    def keep_round(self, name: str) -> None:
        if self._names[0] == name:
            self._kept_since = self._host.superseded_by

    def barrier(self, timeout: float | None = None) -> None:
        self.exchange("barrier", b"", timeout)

    def exchange(
        self, what: str, mine: bytes, timeout: float | Deadline | None = None, kept: Any = None
    ) -> list[bytes | None]:
        self._on_step(what)
        self.world.step()
        self.check_standing()
        host, number = self._host, self._exchanges + 1
        if host.posted[self.rank] == number:
            if host.posts[self.rank, number][0] != what:
                raise ConfigError(
                    f"{what} cannot start: {host.posts[self.rank, number][0]} timed out before"
                )
        else:

            def post(there: _Host) -> None:
                there.posts[self.rank, number] = what, mine
                there.posted[self.rank] = number

            self._meeting.change(self.rank, post)
        seen: set[int] = set()

        def all_here() -> bool:
            for r in self.members:
                if r not in seen and (host.posted[r] >= number or not self._is_live(r)):
                    seen.add(r)
            return len(seen) == len(self.members)

        limit = self.timeout if timeout is None else timeout
        if not self.until(all_here, limit.left if isinstance(limit, Deadline) else limit):
            missing = [r for r in self.members if r not in seen]
            raise TimeoutError(f"{what}: ranks {missing} did not come", missing)
        self._exchanges = number
        posts = {r: host.posts[r, number] for r in self.members if host.posted[r] >= number}
        if len({name for name, _ in posts.values()}) > 1:
            raise ConfigError(f"the ranks make different collective calls at once: {posts}")
        if self.world.is_traced:
            self.world.say(f"    rank {self.rank}, group {self.number}: {what} with {[*posts]}")
        found = [posts[r][1] if r in posts else None for r in range(self.size)]
        if kept is not None:
            kept.append(found)
        return found

    @property
    def pending(self) -> str:
        host, number = self._host, self._exchanges + 1
        is_posted = host.posted[self.rank] == number
        return host.posts[self.rank, number][0] if is_posted else ""

    def await_posts(self, by_rank: Sequence[int], timeout: float) -> None:
        posted = self._host.posted

        def missing() -> list[int]:
            return [r for r in self.members if self._is_live(r) and posted[r] < by_rank[r]]

        if not self.watch(lambda: not missing(), timeout):
            raise TimeoutError(f"what ranks {missing()} posted last did not come", missing())

    def until(self, ready: Callable[[], bool], limit: float) -> bool:
        """A wait in which the rank may be asked to look whether it is in vain."""
        if ready():
            return True
        self._waits += 1
        deadline = self.world.now + limit
        looked = self.world.now
        while True:
            rung = self._host.rung
            if ready():
                return True
            self.world.step()
            if self._host.superseded_by:
                self._interrupt()
                continue
            if self.world.now >= deadline:
                return ready()
            if self._host.rung == rung:
                self._host.bell.add()
                self.world.park(min(deadline, self.world.now + _NAP))
            if self.world.now - looked >= _NAP:
                looked = self.world.now
                self._interrupt()

    def watch(self, ready: Callable[[], bool], limit: float) -> bool:
        """A wait in which it is not."""
        deadline = self.world.now + limit
        while not ready():
            if self.world.now >= deadline:
                return False
            self._host.bell.add()
            self.world.park(min(deadline, self.world.now + _NAP))
        return True

    def _interrupt(self) -> None:
        self.check_standing()
        if not self._host.superseded_by:
            return
        is_new, self._last_wait = self._last_wait != self._waits, self._waits
        if not self._look_again(is_new):
            raise SupersededError("the ranks move to another group")


class Vector:
    """As `malt._core.Vector`, with the options that rejoining has a use for."""

    def __init__(
        self,
        *,
        group: Group,
        name: str,
        rejoins: bool,
        own_count: int,
        dtype: Any = np.int64,
        policy: str = "latest",
        depth: int = 4,
        **_: Any,
    ) -> None:
        self.name = name
        self.iteration = 0
        self.is_closed = False
        self.is_used = False
        self.uses = SimpleNamespace(scatters=0, gathers=0, allreduces=1, found=0, folded=0)
        self.array: Any = np.zeros(own_count, dtype)
        self._is_queue = policy == "queue"
        self._depth = depth
        self._is_in_round = False
        self._group: Group | None = None
        if rejoins:
            self._agree(group)
        self._open(group)

    def regroup(self, group: Group) -> None:
        """Go over to another group."""
        self._agree(group)
        self._open(group)

    def _agree(self, group: Group) -> None:
        mine = b""
        if self._group is not None:
            mine = b"%d %d" % (self.iteration, self.iteration - self._is_in_round)
        posts = group.exchange(f"iteration of {self.name}", mine)
        states = {r: [int(n) for n in post.split()] for r, post in enumerate(posts) if post}
        if not states:
            return
        old = self._group
        for r in [*states] if old is not None else ():
            assert old is not None
            if r == old.rank or not old._is_live(r):
                continue
            here = old._host.clocks
            if not old.watch(
                lambda r=r, here=here: (
                    here.get((self.name, r), 0) >= states[r][0] or not group._is_live(r)
                ),
                group.timeout,
            ):
                raise TimeoutError(f"what rank {r} sent last did not come", [r])
        if old is None:
            self.iteration = min(least for _, least in states.values())
        self._resumed = {r: state[0] for r, state in states.items()}

    def _open(self, group: Group) -> None:
        group.exchange(f"shape of {self.name}", b"")
        group._names.append(self.name)
        self._group = group
        resumed, name, rank = self.iteration, self.name, group.rank

        def begin(there: _Host) -> None:
            there.clocks[name, rank] = max(resumed, there.clocks.get((name, rank), 0))

        group._meeting.change(rank, begin)
        group.exchange(f"memory of {self.name}", b"")

    def clock_of(self, rank: int) -> int:
        assert self._group is not None
        clock: int = self._group._host.clocks.get((self.name, rank), 0)
        return clock

    def close(self) -> None:
        assert self._group is not None
        self.is_closed = True
        key = self.name, self._group.rank
        self._group._meeting.change(self._group.rank, lambda there: there.closed.add(key))

    def scatter(self) -> None:
        group = self._begin()
        if not self._is_queue:
            group.check_open_at(self.name)
        host, meeting, key = group._host, group._meeting, (self.name, group.rank)

        def has_room() -> bool:
            taken = [
                meeting.hosts[process.host].taken.get((*key, r), 0)
                for r, process in meeting.processes.items()
                if r != group.rank and group._is_live(r) and (self.name, r) not in host.closed
            ]
            return self.iteration - min(taken, default=self.iteration) < self._depth

        if self._is_queue and not group.until(has_room, group.timeout):
            raise TimeoutError(f"scatter of {self.name}: no room", [])
        self.iteration += 1
        self._is_in_round = True
        if group.world.is_traced:
            group.world.say(
                f"    rank {group.rank} scatters {self.name} {self.iteration} in {group.number}"
            )
        iteration, values = self.iteration, self.array.copy() if self._is_queue else None

        def arrive(there: _Host) -> None:
            if self._is_queue:
                there.updates.setdefault(key, []).append(values)
            there.clocks[key] = iteration

        group._meeting.change(group.rank, arrive)

    def gather(self, fold: Any = None, staleness: int | None = None) -> Any:
        group = self._begin()
        if staleness is not None:
            target, clocks = self.iteration - staleness, group._host.clocks

            def missing() -> list[int]:
                return [
                    r
                    for r in group.members
                    if group._is_live(r) and clocks.get((self.name, r), 0) < target
                ]

            if not group.until(lambda: not missing(), group.timeout):
                raise TimeoutError(f"gather of {self.name}: {missing()}", missing())
        self._is_in_round = False
        if group.world.is_traced:
            group.world.say(
                f"    rank {group.rank} gathered {self.name} {self.iteration} in {group.number}"
            )
        updates = self._take() if self._is_queue else []
        if updates:
            fold(None, updates)
        if group.is_superseded:
            group.at_round_end(self.name)
        return _Gathered(len(updates))

    def _take(self) -> list[_Update]:
        group = self._group
        assert group is not None
        found = []
        for r in group.members:
            come = group._host.updates.get((self.name, r), [])
            key = self.name, r, group.rank
            start = group._host.taken.get(key, 0)
            found += [_Update(r, values) for values in come[start:]]
            if len(come) > start:
                self._acknowledge(group, key, len(come))
        return found

    def _acknowledge(self, group: Group, key: tuple[str, int, int], count: int) -> None:
        group._host.taken[key] = count
        for there in group._meeting.hosts.values():
            group.world.at(group.world.delay(), there.ring)

    def _begin(self) -> Group:
        group = self._group
        assert group is not None
        group.world.step()
        group.check_standing()
        self.is_used = True
        return group


class _Update:
    def __init__(self, rank: int, values: Any) -> None:
        self.rank = rank
        self.values = values


class _Gathered:
    def __init__(self, count: int) -> None:
        self.count = count
