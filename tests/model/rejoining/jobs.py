"""A whole job whose ranks are killed, stopped and started again, and leave; and what must hold.

The launchers, the server of the rendezvous and the ranks' sides of rejoining are the real ones. Of
their own the simulation has machines and sockets, and what dStorm does (`groups`).

    G1  A rank that takes part, lives and makes its calls in time is neither dropped nor killed, and
        no call of its own fails.
    G2  Ranks that go on do so in one group: a number means the same members everywhere, and nobody
        goes on in an older group than another member has gone on in.
    G3  No call waits for ever: a job whose ranks may all come back ends with all of them.
    G4  A process that has been evicted takes part no more; its successor does.
    G5  A rank that comes back gets what the others have: values, and an iteration of theirs.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from operator import eq
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from malt._core_import import Turns
from malt._errors import Error, PeerError, SupersededError, TimeoutError  # noqa: A004
from malt._job import agreement, calls, parting
from malt._job import job as jobs
from malt._job.settings import Settings
from malt._launch import host_ranks
from malt._launch.options import Options
from malt._messages import collective
from malt._rejoining import await_ranks, forming, generations, handover
from malt._rendezvous import member_session, node_session, server, session, wire
from malt._rendezvous.wire import ToClient, ToServer
from malt._shared import replica
from rejoining import groups, launchers, shared
from rejoining.machines import Deadline, Process, Threading, Time, World
from rejoining.sockets import Listener, SelectModule, SelectorsModule, SocketModule

TIMEOUT = 10.0
SILENCE = 1.0
_FAULTS_UNTIL = 6.0
_ROUNDS_AFTER = 3
_LATEST_END = 200.0
_TRAINED = 7
_CHANCES = {"a vote": 0.05, "the sender of the values": 0.2, "a reduction": 0.1}  # of a fault
_RESTARTS = 20


def _make_further(*_: object) -> NoReturn:
    raise AssertionError("no job of the model makes groups besides its own")


class Life:
    """One process of a rank's."""

    def __init__(self, rank: int, restarts: int, process: Process) -> None:
        self.rank = rank
        self.restarts = restarts
        self.process = process
        self.has_begun = False  # it takes part
        self.has_finished = False
        self.leaves_at = math.inf
        self.computes_until = 0.0
        self.late_until = 0.0  # it computes for longer than the time limit
        self.job: Any = None
        self.vector: Any = None
        self.adding: Any = None

    @property
    def takes_part(self) -> bool:
        return self.has_begun and not self.has_finished and not self.process.blame

    def __str__(self) -> str:
        return f"rank {self.rank}.{self.restarts}"


class Job:
    """One job, from a seed."""

    def __init__(self, seed: int, say: Callable[[str], object] | None = None) -> None:
        self.world = World(seed, say)
        draw = self.world.random
        self._draw = draw
        self.size = draw.choice((2, 3, 3, 3, 4, 4))
        self._hosts = [draw.randrange(draw.choice((1, 1, 2, 3))) for _ in range(self.size)]
        self._nodes = 1 if draw.random() < 0.7 else 2
        self.staleness = draw.choice((0, 0, 2, None))
        self._more = draw.choice(("", "", "barrier", "second vector", "shared array"))
        self._barriers = draw.randrange(3)
        self._pace = draw.choice((0.1, 0.5))
        self._pauses = draw.choice(("each round", "some rounds", "between the vectors"))
        self.meetings = groups.Meetings(self.world, self.on_step)
        self.lives: dict[Process, Life] = {}
        self._goal = math.inf
        self._armed = 0
        self._newest = 0  # group in which somebody has gone on,
        self._newest_meeting: Any = None
        self._members_of: dict[int, tuple[int, ...]] = {}
        self._came: list[tuple[Life, int, int]] = []
        self._begun_at: dict[int, dict[Life, int]] = {}  # each group
        self._is_slow = False  # somebody computes for longer than the time limit
        self._dtype = draw.choice((np.int64, np.float64))
        self._drains: set[int] = set()  # iterations after which ranks have drained
        self._drained: list[tuple[Life, list[int], Any]] = []  # by the last drain
        self.launchers: list[launchers.Launcher] = []

    @property
    def come_back(self) -> int:
        """Processes that have taken up what the others had."""
        return len(self._came)

    def run(self) -> str:
        """What is wrong, or nothing."""
        with self._in_the_place_of_modules():
            first, node_ranks = 0, self._split()
            for node, ranks in enumerate(node_ranks):
                self._launch(node, ranks)
                first += ranks
            self._plan_faults()
            try:
                self.world.run(_LATEST_END)
                self._check_end()
            except Exception as error:
                self.world.complain(f"an exception outside all ranks: {error!r}")
                raise
            finally:
                self.world.end()
        return self.world.wrong

    def _split(self) -> list[int]:
        if self._nodes == 1 or self.size < 2:
            return [self.size]
        first = self._draw.randrange(1, self.size)
        return [first, self.size - first]

    def _launch(self, node: int, ranks: int) -> None:
        process = Process(self.world, -1 - node, f"node {node}")
        nnodes = len(self._split_of) if hasattr(self, "_split_of") else self._nodes
        options = Options(
            ranks=ranks, nnodes=nnodes, node=node, restarts=_RESTARTS, keep_going=True
        )
        if node == 0:
            self._socket.listener = Listener(self.world, process)
        launcher = launchers.Launcher(self.world, options, self._start_rank, self._on_kill)
        self.launchers.append(launcher)
        process.start(launcher.run_all)

    @contextlib.contextmanager
    def _in_the_place_of_modules(self) -> Iterator[None]:
        world = self.world
        time, threading, deadline = Time(world), Threading(world), partial(Deadline, world)
        self._socket = socket = SocketModule(world)
        pid = SimpleNamespace(getpid=lambda: world.here().process.pid)
        instead: list[tuple[Any, dict[str, Any]]] = [
            (host_ranks, {"time": time}),
            (node_session, {"time": time, "Node": launchers.Node}),
            (
                session,
                {"time": time, "socket": socket, "os": pid, "channel": socket},
            ),
            (
                server,
                {
                    "time": time,
                    "threading": threading,
                    "socket": socket,
                    "selectors": SelectorsModule(world),
                    "Listener": lambda host, port, key, selector: socket.listen(selector),
                },
            ),
            (wire, {"hmac": SimpleNamespace(digest=lambda *_: bytes(32), compare_digest=eq)}),
            (member_session, {"time": time, "threading": threading, "select": SelectModule(world)}),
            (generations, {"threading": threading, "Deadline": deadline}),
            (agreement, {"Deadline": deadline}),
            (forming, {"Deadline": deadline}),
            (parting, {"Deadline": deadline}),
            (await_ranks, {"time": time}),
            (handover, {"time": time, "Vector": groups.Vector}),
            (
                replica,
                {"Deadline": deadline, "Messages": shared.Messages, "Reducer": shared.Reducer},
            ),
            (
                jobs,
                {"current": lambda: self.lives[world.here().process].job, "Deadline": deadline},
            ),
        ]
        before = [(module, {n: getattr(module, n) for n in names}) for module, names in instead]
        for module, names in instead:
            vars(module).update(names)
        try:
            yield
        finally:
            for module, names in before:
                vars(module).update(names)

    # Ranks

    def _start_rank(self, rank: int, restarts: int) -> Process:
        process = Process(self.world, self._hosts[rank], f"rank {rank}.{restarts}")
        life = self.lives[process] = Life(rank, restarts, process)
        process.at_end.append(lambda code: self._has_ended(life, code))
        begins = 0.01 * 50 ** self._draw.random()
        self.world.at(begins, lambda: process.is_dead or process.start(lambda: self._run(life)))
        return process

    def _has_ended(self, life: Life, code: int) -> None:
        self.world.say(f"{life} ends with code {code}")
        for rank, meeting in self.meetings.of(life.process):
            meeting.die(rank)

    def _run(self, life: Life) -> None:
        code = 0
        try:
            try:
                self._train(life)
            except Exception as error:
                code = 1
                self._on_error(life, error)
            if life.job is not None:
                life.job.leave()
                # Its program goes on.
                self.world.park(self.world.now + 3 * self._draw.random() ** 3)
        finally:
            life.process.is_dead or life.process.end(code)

    def _train(self, life: Life) -> None:
        world = self.world
        member = Member(self, life)
        way = generations.Generations(member, life.restarts, self._make_group, TIMEOUT)
        settings = Settings("tcp", TIMEOUT, SILENCE, "lowest", 30.0)
        life.job = jobs.Job(life.rank, self.size, settings, Turns(), way, _make_further)
        is_fresh = not way.is_rejoining
        world.say(f"{life} joins, {'at the beginning' if is_fresh else 'back'}")
        if is_fresh:
            way.start()
            self._check_fresh(life)
        world.park(world.now + self._draw.random() ** 3)
        v = life.vector = self._make("v", is_fresh)
        if self._more == "second vector" and not is_fresh and self._draw.random() < 0.3:
            self._make_late(life)
        u = self._make("u", is_fresh) if self._more == "second vector" else None
        if self._more == "shared array":
            life.adding = shared.Adding(
                self._draw, self.size, life.rank, life.restarts, self._dtype
            )
        self._check_taken(life, v, is_fresh)
        if u is not None:
            self._check_steps(life, u)
        life.has_begun = True
        if life.adding is not None:
            self._drain_if_due(life)
        for _ in range(self._barriers):
            collective.barrier()
            world.park(world.now + self._draw.random() ** 3)
        while v.iteration < min(self._goal, life.leaves_at):
            before = v.iteration
            v.array[1] += 1
            self._call(lambda: self._scatter(life, v))
            if v.iteration != before + 1:
                world.complain(f"G5: the iteration of {life} went from {before} to {v.iteration}")
            self._call(lambda: v.gather(staleness=self.staleness))
            if u is not None:
                if self._pauses == "between the vectors":
                    self._compute()
                u.array[1] += 1
                self._call(lambda: u.scatter())
                self._call(lambda: u.gather(staleness=self.staleness))
            if life.adding is not None:
                self._add(life)
            if self._more == "barrier" and self.staleness == 0:
                collective.barrier()
            if u is None or self._pauses != "between the vectors":
                self._compute()
            if life.computes_until > world.now:
                world.park(life.computes_until)
        if life.adding is not None:
            if v.iteration < life.leaves_at:
                drained = self._drain(life)
                self._drained.append((life, drained, life.adding.shared.array.copy()))
            life.adding.shared.close()
        life.has_finished = True
        world.say(f"{life} is done at iteration {v.iteration}")
        v.close()

    def _add(self, life: Life) -> None:
        life.adding.add()
        life.adding.exchange()
        if self._draw.random() < 0.3:
            life.adding.add()
        self._drain_if_due(life)

    def _drain_if_due(self, life: Life) -> None:
        """Drain after each third round, unless this rank came back when the others had done so."""
        at = life.vector.iteration
        if self.staleness == 0 and at > 0 and at % 3 == 0 and at not in self._drains:
            self._drain(life)
            self._drains.add(at)

    def _drain(self, life: Life) -> list[int]:
        drained = life.adding.drain()
        self._check_drained(life, drained)
        return drained

    def _compute(self) -> None:
        if self._pauses != "some rounds" or self._draw.random() < 0.5:
            self.world.park(self.world.now + self._pace * self._draw.random())

    def _make_late(self, life: Life) -> None:
        """Come to the next vector at the end of the time limit, and so for some of the others."""
        spread = self._draw.choice((0.001, 0.01, 2.0))
        late = TIMEOUT + spread * (self._draw.random() - 0.5)
        if self._draw.random() < 0.2:
            late = 3 * TIMEOUT * self._draw.random()
        self.world.say(f"{life} makes its next vector {late:.4f} s later")
        life.process.blame = "late"
        self._is_slow = True  # the others wait, and who wants to come back meanwhile does, too
        self.world.park(self.world.now + late)

    def _make(self, name: str, is_fresh: bool) -> Any:
        values = 0 if not is_fresh and jobs.current().makes_due() else _TRAINED

        def build(group: Any, rejoins: bool) -> Any:
            made = groups.Vector(group=group, name=name, rejoins=rejoins, own_count=2)
            made.array[0] = values
            return made

        return calls.make(build, name)

    def _scatter(self, life: Life, v: Any) -> None:
        v.scatter()
        self._check_goes_on(life, v._group)

    def _call(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
                return
            except SupersededError:
                jobs.regroup()

    def _make_group(self, members: list[int], allgather: Any, deadline: Any) -> Any:
        life = self.lives[self.world.here().process]
        group = groups.Group(
            self.meetings,
            self.size,
            life.rank,
            members,
            allgather,
            deadline,
            jobs.look_again,
            jobs.keep_round,
        )
        group.number = allgather.args[0]
        self.world.say(f"{life} is in group {group.number} of {members}")
        if self._members_of.setdefault(group.number, tuple(members)) != tuple(members):
            self.world.complain(f"G2: two groups {group.number}")
        return group

    # Faults

    def _plan_faults(self) -> None:
        draw, world = self._draw, self.world
        when = 0.3 + draw.random() * 1.5
        for _ in range(draw.randrange(1, 6)):
            if draw.random() < 0.5:
                self._armed += 1
                continue
            world.at(when, self._fault)
            # From the time that a message takes to that of a process that is started again.
            when += 1e-4 * 3e4 ** draw.random()
        world.at(when + 2.5, self._set_goal)

    def on_call(self) -> None:
        """A rank is called to the next group, which is when faults are worth most."""
        if self._armed > 0 and self._draw.random() < 0.15:
            self._armed -= 1
            self.world.at(1e-4 * 1e4 ** self._draw.random(), self._fault)

    def on_step(self, what: str) -> None:
        """A rank does a collective step, as it does on the way to the next group."""
        chance = _CHANCES.get(what, 0.02)
        if self._armed > 0 and self._draw.random() < chance:
            self._armed -= 1
            self.world.at(1e-4 * 1e3 ** self._draw.random(), self._fault)

    def _set_goal(self) -> None:
        at = [life.vector.iteration for life in self._living() if life.has_begun]
        self._goal = max(at, default=0) + _ROUNDS_AFTER

    def _living(self) -> list[Life]:
        return [life for life in self.lives.values() if not life.process.is_dead]

    def _fault(self) -> None:
        draw, world = self._draw, self.world
        if not (living := self._living()):
            return
        life = draw.choice(living)
        process = life.process
        kind = draw.choice(("kill", "kill", "kill", "stop", "stop long", "leave", "compute", "cut"))
        if kind == "kill":
            world.say(f"{life} is killed")
            process.blame = "killed"
            process.end(-9)
        elif kind == "leave" and life.has_begun:
            world.say(f"{life} is about to leave")
            life.leaves_at = life.vector.iteration + 1
        elif kind == "compute" and self.staleness is None and not self._more:
            seconds = draw.choice((2.0, 15.0))
            world.say(f"{life} computes for {seconds:.1f} s")
            self._is_slow = self._is_slow or seconds > TIMEOUT / 2
            life.computes_until = world.now + seconds
            if seconds > TIMEOUT:
                life.late_until = life.computes_until
        elif kind == "stop":
            seconds = draw.random() * SILENCE * 0.7
            world.say(f"{life} is stopped for {seconds:.3f} s")
            process.stop(seconds)
        elif kind == "stop long":
            self._stop_long(life)
        elif kind == "cut":
            world.say(f"{life} loses its session with node 0's launcher")
            process.blame = "cut off from its launcher"
            for socket in process.sockets:
                socket.cut()

    def _stop_long(self, life: Life) -> None:
        """For longer than the silence, if the others may leave it out."""
        meetings = self.meetings.of(life.process)
        if not life.has_begun or not all(
            meeting.is_quorum_without(rank) for rank, meeting in meetings
        ):
            return
        seconds = SILENCE * (1.1 + self._draw.random() * self._draw.choice((0.5, 15)))
        self.world.say(f"{life} is stopped for {seconds:.3f} s")
        life.process.blame = "stopped"
        life.process.stop(seconds)
        self.world.at(SILENCE, lambda: self._evict(life))

    def _evict(self, life: Life) -> None:
        for rank, meeting in self.meetings.of(life.process):
            if meeting.is_quorum_without(rank):
                self.world.say(f"{life} is evicted")
                meeting.evict(rank)
            else:
                # The others are cut off, and say so; no more is promised of this job.
                for other in self._living():
                    other.process.blame = other.process.blame or "cut off"

    # Checks

    def _on_kill(self, rank: launchers.Rank) -> None:
        life = self.lives[rank.process]
        self.world.say(f"{life} is to be killed by its launcher")
        is_late = life.late_until > self.world.now
        if not life.process.blame and not is_late and not self._may_fail(life):
            self.world.complain(f"G1: {life} is killed, and was well")

    def _on_error(self, life: Life, error: Exception) -> None:
        self.world.say(f"{life} fails: {error!r}")
        if isinstance(error, Error) and (life.process.blame or self._may_fail(life, error)):
            return
        self.world.say("".join(traceback.format_exception(error)))
        self.world.complain(f"G1: a call of {life} fails, which was well: {error!r}")

    def _may_fail(self, life: Life, error: Exception | None = None) -> bool:
        """Whether docs/membership.md has it that such a rank may."""
        if life.has_begun:
            return False
        if not any(other.takes_part for other in self._living()):
            return True  # nobody to come back to
        if error is None:
            return False
        return (isinstance(error, PeerError) and "while it sent" in str(error)) or (
            isinstance(error, TimeoutError) and self._is_slow
        )

    def _check_fresh(self, life: Life) -> None:
        for other in self._living():
            if other.has_begun and not other.process.blame and other.vector.iteration > 1:
                self.world.complain(f"G5: {life} begins anew, though {other} is there")

    def _check_taken(self, life: Life, v: Any, is_fresh: bool) -> None:
        self.world.say(f"{life} has its vectors, at iteration {v.iteration}")
        if v.array[0] != _TRAINED:
            self.world.complain(f"G5: {life} has the values {v.array}")
        self._check_steps(life, v)
        if not is_fresh:
            self._came.append((life, v._group.number, v.iteration))

    def _check_steps(self, life: Life, vector: Any) -> None:
        """In lockstep, the values are those of as many steps as the iteration says."""
        if self.staleness != 0 or vector.array[1] == vector.iteration:
            return
        members = vector._group._meeting.processes.values()
        if any(process.is_dead or process.blame for process in members):
            vector.array[1] = vector.iteration  # it may be the one that had kept them
        else:
            self.world.complain(
                f"G5: {life} takes up {vector.name} at iteration {vector.iteration} with the "
                f"values of step {vector.array[1]}"
            )

    def _check_goes_on(self, life: Life, group: Any) -> None:
        if group.is_left_out(group.rank):
            return  # it will hear of it
        self._begun_at.setdefault(group.number, {}).setdefault(life, life.vector.iteration - 1)
        if group.number > self._newest:
            self._newest, self._newest_meeting = group.number, group._meeting
        elif group.number < self._newest:
            for process in self._newest_meeting.processes.values():
                if process is life.process and not life.process.blame:
                    self.world.complain(
                        f"G2: {life} goes on in group {group.number}, others in {self._newest}"
                    )

    def _check_drained(self, life: Life, drained: list[int]) -> None:
        """H2, H3."""
        for other in self.lives.values():
            if other.adding is None:
                continue
            there, adding = life.adding.of(other.adding), other.adding
            is_there = other.rank in drained and not other.process.is_dead
            is_right = len(set(there)) == 1 and (
                there[0] == adding.in_drain
                if is_there and other is life
                else there[0] <= adding.added
            )
            if not is_right:
                self.world.complain(
                    f"H2: {life} has {there} of {other}, which had added {adding.in_drain} of "
                    f"{adding.added}"
                )

    def _check_end(self) -> None:
        world = self.world
        if world.wrong:
            return
        for life, drained, array in self._drained:
            for other, others, theirs in self._drained:
                if drained == others and not (array == theirs).all():
                    world.complain(f"H1: {life} and {other} have other arrays")
        for life, number, iteration in self._came:
            began = [
                at for other, at in self._begun_at.get(number, {}).items() if other is not life
            ]
            if began and iteration > min(began):
                world.complain(f"G5: {life} begins at {iteration}, the others at {began}")
        for launcher in self.launchers:
            if not launcher._is_over:
                world.complain(
                    f"G3: at {world.now:.1f} s node {launcher._options.node} is not done"
                )
        for life in self._living():
            world.complain(f"G3: {life} is still there")


class Member(member_session.Member):
    """A rank's session, looked at."""

    def __init__(self, job: Job, life: Life) -> None:
        self._of_job = job
        self._life = life
        super().__init__("127.0.0.1:1", launchers.KEY, life.rank, job.size, TIMEOUT)

    def _hear(self, frame: bytes) -> None:
        if frame[:1] == ToClient.GENERATION:
            self._of_job.on_call()
        if self._of_job.world.is_traced:
            self._of_job.world.say(f"    {self._life} hears {_text_of(ToClient(frame[:1]), frame)}")
        super()._hear(frame)

    def _say(self, payload: bytes) -> None:
        if self._of_job.world.is_traced:
            self._of_job.world.say(
                f"    {self._life} says {_text_of(ToServer(payload[:1]), payload)}"
            )
        super()._say(payload)

    def agree(self, *args: Any) -> list[bytes]:
        self._of_job.on_step("a vote")
        return super().agree(*args)

    def formed(self, number: int, *rest: Any) -> None:
        if self._of_job._members_of.get(number) is None:
            self._of_job.world.complain(f"G2: nobody has heard of group {number}")
        super().formed(number, *rest)


def _text_of(kind: ToServer | ToClient, frame: bytes) -> str:
    name = kind.name.lower()
    if kind in (ToClient.GENERATION, ToClient.OFF, ToServer.ABSENT):
        return f"{name} {wire.unpack_members(frame)}"
    if kind in (ToServer.PART, ToClient.COMPLETE):
        return f"{name} {wire.GENERATION_PART.unpack_from(frame)[1:]}"
    return name
