"""A pool over a simulated job: calls of rank 0 while ranks are killed, stopped and slow.

The code of both sides is the real one. Of their own the simulation has machines, mail, and groups
of the programs that pool.run() starts.

    P1  A call returns what it should: each chunk is in a sum once, each rank's result in its place.
        Or it raises an error that docs/pool.md has, of this call, which names the right ranks.
    P2  The next call after an error is as right as any.
    P3  No call, and no rank that serves, waits for ever.
    P4  What the ranks keep does not grow with the number of calls.
    P5  One thread at a time uses the mail.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from rejoining.machines import Deadline, Process, World

from malt import _uninterrupted as uninterrupted
from malt._errors import Error, PeerError, TimeoutError  # noqa: A004
from malt._pool import planning
from malt._pool.over_job import backlog, inbox, messenger, naming, program, running, serving
from malt._pool.over_job import calls as job_calls
from malt._pool.over_job.calls import JobCalls
from messaging.mail import Mail, Office
from messaging.network import Network
from messaging.threads import Interrupts, Threading, Time

SILENCE = 1.0
_LATEST_END = 2000.0
_LONGEST_CALL = 60.0  # of the simulation's seconds: no fault takes longer
_SETTLES = 30.0  # after the last call
_MOST_KEPT = 8  # messages
_here: PoolJob


class _Rank:
    def __init__(self, rank: int, process: Process) -> None:
        self.rank = rank
        self.process = process
        self.slowness = 1.0
        self.group: Any = None  # of the program that runs
        self.messenger: Any = None
        self.server: Any = None
        self.nonces = 0
        self.has_ended = False


# What the ranks call


def count(theta: tuple[int, int, list[int], float], ids: Any) -> tuple[Any, float]:
    """Count the rows, and add up what depends on the order of the additions."""
    call, rows, raises, seconds = theta
    _here.compute(seconds)
    if np.isin(raises, ids).any():
        raise ValueError(f"asked for in call {call}")
    counts = np.zeros(rows, np.int64)
    counts[ids] += call
    return counts, float(np.sqrt(ids + call).sum())


def meet(call: int, rounds: int, failing: int, seconds: float) -> list[int]:
    """A program: all ranks come to each round."""
    me = _here.rank_here()
    for round_ in range(rounds):
        _here.compute(seconds)
        if (me.rank, round_) == (failing, rounds - 1):
            raise ValueError(f"asked for in call {call}")
        me.group.barrier((call, round_))
    return [call, me.rank]


class _ProgramGroup:
    """The group of a program, as far as a barrier needs it."""

    def __init__(self, job: PoolJob, me: _Rank, network: Network, messengers: Any) -> None:
        self._job = job
        self._me = me
        self._network = network
        self._messengers = messengers  # by receiver and sender
        self._number = 0

    def barrier(self, what: object) -> None:
        job, rank, network = self._job, self._me.rank, self._network
        job.world.step()
        number, self._number = self._number, self._number + 1
        network.to_others(rank, lambda to: self._messengers[to][rank].append(what))
        while True:
            job.interrupts.check()
            came = self._messengers[rank]
            missing = [o for o in network.live[rank] - {rank} if len(came[o]) <= number]
            if not missing:
                break
            network.await_ring(rank, float("inf"))
        for other in network.others(rank):
            if len(came[other]) > number and came[other][number] != what:
                job.world.complain(f"P1: rank {rank} is in {what}, {other} in {came[other]}")

    def leave(self, timeout: float | None = None) -> None:
        self._network.to_others(self._me.rank, lambda to: self._network.mark(to, self._me.rank))


class PoolJob:
    """One job, from a seed."""

    def __init__(self, seed: int, say: Callable[[str], object] | None = None) -> None:
        self.world = World(seed, say)
        self._draw = draw = self.world.random
        self.interrupts = Interrupts(self.world)
        self.size = draw.choice((2, 3, 3, 4))
        self.timeout = draw.choice((0.3, 10.0, 10.0))
        self._most_piece = draw.choice((100, 700, 700, 1 << 18))
        self.ranks: list[_Rank] = []
        self.calls: Any = None
        self._lost: set[int] = set()  # ranks that were killed, or stopped until they are evicted
        self._number = 0
        self._armed = draw.choice((0, 1, 2, 3))
        self._rate = draw.choice((0.002, 0.01, 0.03))
        self._is_in_call = False
        self._is_interrupted = False
        self._is_quiet = False  # no more faults
        self._datasets: list[Any] = []
        self._networks: dict[tuple[bytes, ...], Any] = {}
        self._nonces: dict[bytes, tuple[bytes, ...]] = {}
        self.right = 0  # results
        self.errors = 0

    def run(self) -> str:
        """What is wrong, or nothing."""
        global _here
        _here = self
        with self._in_the_place_of_modules():
            processes = {
                rank: Process(self.world, rank, f"rank {rank}") for rank in range(self.size)
            }
            self.network = Network(self.world, processes, self._on_message)
            self.office = Office(self.network, self.interrupts)
            for rank, process in processes.items():
                me = _Rank(rank, process)
                self.ranks.append(me)
                process.start(lambda me=me: self._live(me))  # type: ignore[misc]
            try:
                self.world.run(_LATEST_END)
                self._check_end()
            finally:
                self.world.end()
                if self.calls is not None:
                    self._datasets.clear()
                    self.calls.store.close()
        return self.world.wrong

    @contextlib.contextmanager
    def _in_the_place_of_modules(self) -> Iterator[None]:
        time = Time(self.world, self.interrupts)
        threading = Threading(self.world, self.interrupts)
        instead: list[tuple[Any, dict[str, Any]]] = [
            (messenger, {"Mail": Mail, "_MOST_PIECE": self._most_piece}),
            (inbox, {"time": time, "threading": threading}),
            (backlog, {"time": time}),
            (running, {"time": time}),
            (
                program,
                {
                    "Deadline": partial(Deadline, self.world),
                    "threading": threading,
                    "Turns": lambda: None,
                    "Job": lambda *parts: SimpleNamespace(group=parts[4]),
                    "jobs": SimpleNamespace(in_program=self._in_program),
                    "stop_thread": lambda task: self.interrupts.send(task, program.Stop),
                    "_step": self.interrupts.check,
                },
            ),
            (job_calls, {"Messenger": self._make_post}),
            (serving, {"Messenger": self._make_post, "_Server": self._make_server}),
            # Interrupts come where threads wait, and such a step does not wait.
            (uninterrupted, {"_now": SimpleNamespace(_handlers=True)}),
        ]
        before = [(module, {n: getattr(module, n) for n in names}) for module, names in instead]
        self._server = serving._Server
        for module, names in instead:
            vars(module).update(names)
        try:
            yield
        finally:
            for module, names in before:
                vars(module).update(names)

    def _make_post(self, job: Any) -> Any:
        made = self.rank_here().messenger = messenger.Messenger(job)
        return made

    def _make_server(self, *parts: Any) -> Any:
        made = self.rank_here().server = self._server(*parts)
        return made

    # Ranks

    def rank_here(self) -> _Rank:
        return self.ranks[self.world.here().process.host]

    def compute(self, seconds: float) -> None:
        if seconds:
            slowness = self.rank_here().slowness
            self.world.park(self.world.now + seconds * slowness * self._draw.random())
        else:
            self.world.step()
        self.interrupts.check()

    def _live(self, me: _Rank) -> None:
        group = SimpleNamespace(office=self.office, rank=me.rank)
        job: Any = SimpleNamespace(
            rank=me.rank,
            size=self.size,
            group=group,
            settings=SimpleNamespace(timeout=self.timeout),
            deadline=partial(Deadline, self.world, self.timeout),
            within=contextlib.nullcontext,
            make_further=lambda *_: self._form_program,
        )
        names = naming.Names("messaging.pools")
        try:
            if me.rank == 0:
                self._make_calls(me, job, names)
            else:
                serving.serve(job, names)
        except PeerError as error:
            self.world.say(f"rank {me.rank} ends: {error!r}")
            # Its pool, and rank 0, have ended for it.
            if me.rank not in self._lost and not (error.ranks == (0,) and 0 in self._lost):
                self.world.complain(f"P1: rank {me.rank}, which was well, ends by {error!r}")
        except Exception as error:
            self.world.say("".join(traceback.format_exception(error)))
            self.world.complain(f"P1: rank {me.rank} ends by {error!r}")
        finally:
            me.has_ended = True

    def _form_program(
        self,
        members: Sequence[int],
        allgather: Callable[[bytes, Deadline], list[bytes]],
        deadline: Deadline,
    ) -> _ProgramGroup:
        """Form a group as dStorm does: in some steps, of which each has something of the former."""
        me = self.rank_here()
        me.nonces += 1
        mine = b"%d.%d" % (me.rank, me.nonces)
        told = tuple(allgather(mine, deadline))
        for nonce in filter(None, told):
            if self._nonces.setdefault(nonce, told) != told:
                self.world.complain(f"P1: {nonce!r} is in two groups, {told} and another one")
        if told[me.rank] != mine or {r for r, nonce in enumerate(told) if nonce} != {*members}:
            self.world.complain(f"P1: rank {me.rank} gave {mine!r}, and all have {told}")
        for step in range(2):
            parts = allgather(b"%d" % step, deadline)
            if any(parts[rank] != b"%d" % step for rank in members):
                self.world.complain(f"P1: rank {me.rank} has {parts} in step {step}")
        if told not in self._networks:
            processes = {rank: self.ranks[rank].process for rank in members}
            messengers = {to: {sender: [] for sender in members} for to in members}
            network = Network(self.world, processes, self._on_message)
            self._networks[told] = network, messengers
            for lost in self._lost.intersection(members):
                network.evict(lost)
        return _ProgramGroup(self, me, *self._networks[told])

    @contextlib.contextmanager
    def _in_program(self, own: Any) -> Iterator[None]:
        me = self.rank_here()
        me.group = own.group
        try:
            yield
        finally:
            me.group = None
            own.group.leave()

    # Calls

    def _make_calls(self, me: _Rank, job: Any, names: naming.Names) -> None:
        self.calls = calls = JobCalls(job, names)
        draw = self._draw
        for _ in range(draw.randrange(2, 8)):
            self._make_call(calls, is_last=False)
            if 0 in self._lost:
                return
        self._is_quiet = True
        for each in self.ranks:
            each.slowness = 1.0
        # Of which each rank has to do some.
        last = calls.store.share([np.arange(4 * self.size)], None, self.size)
        self._datasets = [last] if draw.random() < 0.5 else [*self._datasets, last]
        self._make_call(calls, is_last=True)
        self.world.park(self.world.now + _SETTLES)
        self._check_kept(calls)
        calls.close()

    def _make_call(self, calls: JobCalls, is_last: bool) -> None:
        draw = self._draw
        self._number += 1
        if not self._datasets or (not is_last and draw.random() < 0.3):
            rows = draw.randrange(1, 40)
            chunks = draw.choice((None, rows, max(1, rows // 3)))
            ids = np.arange(rows) + 1000 * draw.randrange(3)
            self._datasets.append(calls.store.share([ids], chunks, self.size))
            if len(self._datasets) > 2:
                del self._datasets[draw.randrange(3)]
        self._plan_faults(is_last)
        is_sum = is_last or draw.random() < 0.6
        begun = self.world.now
        self.world.say(f"call {self._number}: {'sum' if is_sum else 'run'}")
        task = self.world.here()
        fails = not is_last and draw.random() < 0.15
        self._is_in_call, self._is_interrupted = True, False
        try:
            try:
                self._call_sum(calls, fails) if is_sum else self._call_run(calls, fails)
            finally:
                self._is_in_call = False
                self.interrupts.forget(task)
        except (Exception, KeyboardInterrupt) as error:
            self.world.say(f"call {self._number} raises {error!r}")
            self.errors += 1
            self._check_error(error, is_sum, fails)
            _let_go(error)
        else:
            self.right += 1
        if self.world.now - begun > _LONGEST_CALL:
            self.world.complain(f"P3: call {self._number} took {self.world.now - begun:.1f} s")

    def _call_sum(self, calls: JobCalls, fails: bool) -> None:
        draw = self._draw
        data = self._datasets[-1] if self._is_quiet else draw.choice(self._datasets)
        ids = self._ids_of(calls, data)
        everything = np.concatenate(ids).tolist()
        raises = draw.choices(everything, k=draw.choice((1, 4))) if fails else []
        seconds = draw.choice((0.0, 0.002, 0.05, 0.2))
        theta = (self._number, max(map(max, ids)) + 1, raises, seconds)
        shown: list[int] = []
        counts, total = calls.sum(count, theta, data, shown.append)
        expected = np.zeros_like(counts)
        for each in ids:
            expected[each] += self._number
        if not np.array_equal(counts, expected):
            self.world.complain(f"P1: call {self._number} counts {counts.tolist()}")
        if total != self._total_of(ids):
            self.world.complain(f"P1: call {self._number} adds up {total}")
        if fails:
            self.world.complain(f"P1: call {self._number} has not raised what a function has")
        if shown and shown[-1] > len(ids):
            self.world.complain(f"P1: call {self._number} shows {shown} of {len(ids)} chunks")

    def _ids_of(self, calls: JobCalls, data: Any) -> list[Any]:
        store = calls.store
        found = []
        for block, place in data._places:
            found.append(job_calls.values.unpack(store.blocks[block].get(place))[0])
        return found

    def _total_of(self, ids: list[Any]) -> float:
        def add(call: int, each: Any) -> float:
            return float(np.sqrt(each + call).sum())

        chunks = ((at, (each,)) for at, each in enumerate(ids))
        ((_, total),) = planning.add_up(add, self._number, chunks, len(ids))
        return float(total)

    def _call_run(self, calls: JobCalls, fails: bool) -> None:
        draw = self._draw
        rounds = draw.randrange(1, 4)
        failing = draw.randrange(self.size) if fails else -1
        seconds = draw.choice((0.0, 0.02, 0.3))
        before = set(self._lost)
        results = calls.run(meet, (self._number, rounds, failing, seconds), {})
        for rank, result in enumerate(results):
            is_death = isinstance(result, PeerError) and result.ranks == (rank,)
            if result != [self._number, rank] and not (is_death and rank in self._lost):
                self.world.complain(f"P1: call {self._number}: rank {rank} has {result!r}")
        if fails and failing not in self._lost | before:
            self.world.complain(f"P1: call {self._number} has not raised what a rank has")

    def _check_error(self, error: BaseException, is_sum: bool, fails: bool) -> None:
        is_right = False
        if isinstance(error, KeyboardInterrupt):
            is_right = self._is_interrupted
        elif isinstance(error, ValueError) and not isinstance(error, Error):
            is_right = fails and str(error) == f"asked for in call {self._number}"
        elif isinstance(error, PeerError) and 0 in self._lost:
            is_right = True
        elif isinstance(error, PeerError):
            is_many = is_sum and len(self._lost) >= 3
            is_early = not is_sum and "before the program had begun" in str(error)
            is_right = (is_many or is_early) and {*error.ranks} <= self._lost
        elif isinstance(error, TimeoutError):
            is_right = (
                not is_sum and self.timeout < 1 and 0 not in error.ranks and error.ranks != ()
            )
        if not is_right:
            self.world.say("".join(traceback.format_exception(error)))
            self.world.complain(f"P1: call {self._number} raises {error!r}")

    # Faults

    def _plan_faults(self, is_last: bool) -> None:
        draw = self._draw
        if is_last or draw.random() < 0.4:
            return
        if draw.random() < 0.5:
            self.world.at(1e-3 * 1e3 ** draw.random(), self._fault)
        if draw.random() < 0.4:
            self.world.at(1e-4 * 1e4 ** draw.random(), self._interrupt)

    def _on_message(self) -> None:
        """Between two messages, which is where faults are worth most."""
        if self._armed and self._is_in_call and self._draw.random() < self._rate:
            self._armed -= 1
            self.world.at(1e-4 * 1e3 ** self._draw.random(), self._fault)

    def _interrupt(self) -> None:
        process = self.ranks[0].process
        if self._is_in_call and not self._is_quiet and not process.is_dead:
            self.world.say("rank 0 is interrupted")
            self._is_interrupted = True
            self.interrupts.send(process.tasks[0], KeyboardInterrupt)

    def _fault(self) -> None:
        draw, world = self._draw, self.world
        living = [each for each in self.ranks if each.rank not in self._lost]
        if not self._is_in_call or self._is_quiet or not living:
            return
        me = draw.choice(living)
        kind = draw.choice(("kill", "kill", "stop", "stop long", "slow", "interrupt"))
        if me.rank == 0 and draw.random() < 0.7:
            return
        if kind == "kill":
            world.say(f"rank {me.rank} is killed")
            self._lost.add(me.rank)
            me.process.end(-9)
        elif kind == "stop":
            seconds = draw.random() * SILENCE * 0.7
            world.say(f"rank {me.rank} is stopped for {seconds:.3f} s")
            me.process.stop(seconds)
        elif kind == "stop long" and me.rank != 0:
            seconds = SILENCE * (1.1 + 5 * draw.random())
            world.say(f"rank {me.rank} is stopped for {seconds:.3f} s")
            self._lost.add(me.rank)
            me.process.stop(seconds)
            world.at(SILENCE, lambda: self._evict(me.rank))
        elif kind == "slow":
            me.slowness = 20.0
        elif kind == "interrupt":
            self._interrupt()

    def _evict(self, rank: int) -> None:
        self.world.say(f"rank {rank} is evicted")
        for network in (self.network, *(network for network, _ in self._networks.values())):
            if rank in network.processes:
                network.evict(rank)

    # Checks

    def _check_kept(self, calls: JobCalls) -> None:
        """After the last call."""
        blocks = set(calls.store.blocks)
        used = {block for places in calls.store.datasets.values() for block, _ in places}
        if len(calls.store.datasets) > len(self._datasets) or blocks != used:
            self.world.complain(f"P4: the store has {sorted(calls.store.datasets)}, {blocks}")
        for me in self.ranks:
            if me.rank in self._lost or me.messenger is None:
                continue
            mail = me.messenger._mail
            kept = {
                "begun": len(me.messenger._begun) - self.size,
                "arrived": len(me.messenger._arrived) - _MOST_KEPT,
                "waiting": mail.kept - _MOST_KEPT,
                "inbox": sum(map(len, self.office.inbox[me.rank].values())) - _MOST_KEPT,
            }
            if wrong := [name for name, beyond in kept.items() if beyond > 0]:
                self.world.complain(f"P4: rank {me.rank} keeps many: {wrong}")
            if me.server is not None and not {b for b, _ in me.server._chunks} <= blocks:
                self.world.complain(f"P4: rank {me.rank} keeps {sorted(me.server._chunks)}")

    def _check_end(self) -> None:
        if self.world.wrong:
            return
        for me in self.ranks:
            if not me.has_ended and not me.process.is_dead:
                self.world.complain(f"P3: rank {me.rank} waits for ever")


def _let_go(error: BaseException | None) -> None:
    """Have an error refer to none of the data that its call had."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
