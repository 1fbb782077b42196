"""Process groups of the torch backend over simulated ranks, which die, stop and are late.

The code of malt.torch._backend is the real one, down to the core: its groups, links and exchanges
are simulated, and so is torch's store.

    B1  The messages of a tag are received whole, once, and in their order. What a send that failed
        had sent never arrives; nothing else is left out.
    B2  An error is one that docs/torch_backend.md has, and names the right ranks.
    B3  A collective call of a rank meets the same call of the others, or fails: also the call that
        follows one which was refused, because a rank made another, gave another length, or gave
        wrong arguments.
    B4  No call and no thread waits for ever.
    B5  Where the ranks keep going, a death ends a call alike on all that live: the sum is of the
        same ranks, those that live among them, each once; all have a broadcast or none; all others
        fail, with the same ranks in the error, unless all ranks had begun them. No call waits for
        its time limit because of a death, and the calls after it are as if it had not been.
    B6  When all are well again, messages arrive, and a new process group works.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from rejoining.machines import Process, Waiters, World
from torch.distributed import ReduceOp

from malt._bootstrap import torch_store
from malt._errors import ConfigError, PeerError, TimeoutError  # noqa: A004
from malt.torch._backend import (
    collectives,
    core,
    limits,
    members,
    point_to_point,
    reducers,
    store_bootstrap,
    typed_link,
    work,
)
from malt.torch._backend.operations import Operations
from messaging.groups import Exchange, Groups, Link, PrefixStore, Reducer, Store
from messaging.threads import Interrupts, SimpleQueue, Threading, Time

SILENCE = 1.0
_LATEST_END = 1000.0
_SLOT = 64  # bytes
_DTYPES = (torch.int64, torch.float64, torch.int16)
_TAGS, _ANY_TAG, _QUIET = 3, 10, 100  # tags from any source are above the second, quiet ones above


class Message(NamedTuple):
    source: int
    target: int
    tag: int
    number: int


class Step(NamedTuple):
    """A collective call of all ranks. One rank may make it otherwise, or -1."""

    kind: str
    root: int = 0
    dtype: torch.dtype = torch.int64
    length: int = 30
    odd: int = -1
    is_unlike: bool = False  # the odd one gives another length
    is_refused: bool = False  # it gives wrong arguments; otherwise it makes another call


_GOING_ON = ("barrier", "broadcast", "all_reduce", "mean")  # whatever ranks have died


class Outcome(NamedTuple):
    """What a collective call has given a rank, and what it is to give.

    Attributes:
        kind: which call this rank has made.
        reduce: gives for the ranks whose values are in a reduction what it is; None: for all.
    """

    name: str
    step: Step
    kind: str
    error: BaseException | None
    has: list[torch.Tensor]
    expected: list[float]
    before: list[torch.Tensor]
    reduce: Callable[[set[int]], float] | None

    @property
    def found(self) -> list[set[float]]:
        return [set(each.tolist()) for each in self.has]

    @property
    def is_whole(self) -> bool:
        return self.found == [{value} for value in self.expected]


class _Rank:
    def __init__(self, rank: int, process: Process) -> None:
        self.rank = rank
        self.process = process
        self.slow_until = 0.0
        self.core: Any = None
        self.operations: Any = None
        self.has_failed = False  # a collective of the present group
        self.is_lost = False
        self.has_ended = False
        self.is_in_script = False
        self.pending: list[Callable[[], None]] = []

    @property
    def has_left(self) -> bool:
        return self.core is not None and self.core.members._exchange._is_shut


class BackendJob:
    """One job, from a seed."""

    def __init__(self, seed: int, say: Callable[[str], object] | None = None) -> None:
        self.world = World(seed, say)
        self._draw = draw = self.world.random
        self.interrupts = Interrupts(self.world, at_steps=False)
        self.size = draw.choice((2, 2, 3, 3, 4))
        self.names = [5 + 2 * rank for rank in range(self.size)]
        self.timeout = draw.choice((2.0, 4.0))
        self._keeps_going = draw.random() < 0.5
        self._ends: dict[str, tuple[str, int]] = {}  # of calls: how they ended first, and where
        self._begun: dict[str, set[int]] = defaultdict(set)  # the ranks that have begun a call
        # Of tensors, by tag.
        self._lengths: dict[int, int] = defaultdict(lambda: draw.choice((1, 4, 30, 100)))
        self.ranks: list[_Rank] = []
        self._is_quiet = False
        self._faults = 0
        self._delays = 0  # those of them that may have another rank wait for long
        self._armed = draw.choice((0, 1, 2, 3))
        self._rate = draw.choice((0.002, 0.01, 0.05))
        self._sent: dict[tuple[int, int, int], list[tuple[int, str]]] = defaultdict(list)
        self._received: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._script = [self._step(n) for n in range(draw.randrange(2, 8))]
        self._last = self._messages(_QUIET, 0)
        self._arrived_at: dict[str, list[_Rank]] = defaultdict(list)
        self._meeting = Waiters(self.world)
        self.right = 0
        self.errors = 0

    def run(self) -> str:
        """What is wrong, or nothing."""
        with self._in_the_place_of_modules():
            self.groups = Groups(self.world, self.interrupts, self._on_message)
            self.store = Store(self.world)
            for rank in range(self.size):
                process = Process(self.world, rank, f"rank {rank}")
                me = _Rank(rank, process)
                self.ranks.append(me)
                process.at_end.append(lambda _, me=me: self._lose(me))  # type: ignore[misc]
                process.start(lambda me=me: self._live(me))  # type: ignore[misc]
            if self._armed and self._draw.random() < 0.5:
                self.world.at(1e-3 * 2e3 ** self._draw.random(), self._fault)
            try:
                self.world.run(_LATEST_END)
                self._check_end()
            finally:
                self.world.end()
        return self.world.wrong

    @contextlib.contextmanager
    def _in_the_place_of_modules(self) -> Iterator[None]:
        world = self.world
        time = Time(world, self.interrupts)
        threading = Threading(world, self.interrupts)
        dist = SimpleNamespace(PrefixStore=PrefixStore, TCPStore=type(None))
        form_group = lambda bootstrap, timeout: self.groups.form(bootstrap, timeout)  # noqa: E731
        instead: list[tuple[Any, dict[str, Any]]] = [
            (torch_store, {"time": time, "_MOST_NAP": 0.1}),
            (store_bootstrap, {"dist": dist}),
            (collectives, {"SLOT_BYTES": 8 * _SLOT}),
            (core, {"dist": dist, "_open": set(), "_dead_in_world": self._dead_in_world}),
            (
                members,
                {
                    "dist": dist,
                    "form_group": form_group,
                    "Exchange": Exchange,
                    "_going_on": self._keeps_going,
                    "SLOT_BYTES": 8 * _SLOT,
                },
            ),
            (
                point_to_point,
                {
                    "dist": dist,
                    "form_group": form_group,
                    "threading": threading,
                    "time": time,
                    "_SLOT_BYTES": _SLOT,
                    "_DEPTH": self._draw.choice((1, 2, 8)),
                    "_LOOK_SECONDS": 0.05,
                    "_NAP_SECONDS": 0.02,
                },
            ),
            (limits, {"time": time}),
            (reducers, {"Reducer": Reducer, "_MOST_KEPT": 2}),
            (typed_link, {"Link": Link}),
            (
                work,
                {
                    "threading": threading,
                    "queue": SimpleNamespace(SimpleQueue=lambda: SimpleQueue(world)),
                    "_lock": threading.Lock(),
                    "_threads": set(),
                },
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
            torch.set_grad_enabled(True)

    def _dead_in_world(self) -> set[int]:
        """As those of a world's group: what this rank has heard."""
        me = self.ranks[self.world.here().process.host]
        return {self.names[rank] for rank in (me.core.members.dead() if me.core else ())}

    # What the ranks do

    def _step(self, number: int) -> Any:
        draw = self._draw
        if draw.random() < (0.1 if self._keeps_going else 0.5):
            return self._messages(0, number)
        others = (
            "all_gather",
            "max",
            "all_to_all",
            "gather",
            "reduce",
            "reduce_scatter",
            "scatter",
        )
        kind, root = draw.choice((*_GOING_ON, *others)), draw.randrange(self.size)
        dtype = torch.float64 if kind == "mean" else draw.choice(_DTYPES)
        length = draw.choice((1, 100, 300) if self._keeps_going else (1, 4, 30, 100))
        if draw.random() < 0.9:
            return Step(kind, root, dtype, length)
        odd = draw.randrange(self.size)
        is_unlike = kind == "broadcast" and odd != root and draw.random() < 0.7
        # Ranks that sum would not see that one makes another call.
        is_refused = kind in ("all_reduce", "mean") or (not is_unlike and draw.random() < 0.5)
        return Step(kind, root, dtype, length, odd, is_unlike, is_refused)

    def _messages(self, above: int, step: int) -> list[tuple[int, int, int]]:
        """From, to, and tag; a tag from any source is of one step.

        Where the ranks keep going there is none: what a dead one has not sent is waited for.
        """
        draw = self._draw
        found = []
        for _ in range(draw.randrange(1, 10)):
            source, target = draw.sample(range(self.size), 2)
            is_any = draw.random() < 0.3 and not self._keeps_going
            tag = _ANY_TAG + 2 * step + draw.randrange(2) if is_any else draw.randrange(_TAGS)
            found.append((source, target, tag + above))
        return found

    def _live(self, me: _Rank) -> None:
        try:
            if not self._make_core(me, self.timeout):
                return
            me.is_in_script = True
            for number, step in enumerate(self._script):
                self.world.park(max(self.world.now + 0.05 * self._draw.random(), me.slow_until))
                if isinstance(step, list):
                    self._exchange_messages(me, step)
                else:
                    self._call(me, number, step)
            self._finish(me)
            me.is_in_script = False
            self.interrupts.forget(self.world.here())
            self._meet("script")
            self._is_quiet = True
            if not self._lost:
                self._end_well(me)
            if me.core is not None:
                me.core.close()
        except Exception as error:
            self.world.say("".join(traceback.format_exception(error)))
            if not me.is_lost:
                self.world.complain(f"B2: rank {me.rank} ends by {error!r}")
        finally:
            me.has_ended = True

    def _make_core(self, me: _Rank, limit: float) -> bool:
        try:
            me.core = core.Core(self.store, me.rank, self.size, self.names, limit)
        except (PeerError, TimeoutError) as error:
            self._check_error(me, error, set(range(self.size)))
            me.has_failed = True
            return False
        me.operations = Operations()
        me.operations.core = me.core
        me.has_failed = False
        return True

    def _end_well(self, me: _Rank) -> None:
        """What must be right whatever has failed, since all live and are well."""
        self._exchange_messages(me, self._last)
        me.core.close()
        self._meet("closed")
        me.core = None
        if self._make_core(me, 60.0):
            self._exchange_messages(me, self._last)
            for number, kind in enumerate(("all_gather", "all_reduce", "barrier")):
                self._call(me, 1000 + number, Step(kind))
        self._meet("end")

    def _meet(self, where: str) -> None:
        """Wait for all ranks that live, outside all that is looked at here."""
        self._arrived_at[where].append(self.ranks[self.world.here().process.host])
        while any(me not in [*self._arrived_at[where], *self._lost] for me in self.ranks):
            self._meeting.add()
            self.world.park(self.world.now + 1.0)
        self._meeting.wake()

    @property
    def _lost(self) -> list[_Rank]:
        return [me for me in self.ranks if me.is_lost or (me.has_ended and me.core is None)]

    def _exchange_messages(self, me: _Rank, plan: list[tuple[int, int, int]]) -> None:
        draw = self._draw
        own = [each for each in plan if me.rank in each[:2]]
        draw.shuffle(own)
        begun: list[tuple[str, Any, Any, Any]] = []
        for source, target, tag in own:
            length = self._lengths[tag]
            if source == me.rank:
                key = (source, target, tag)
                number = len(self._sent[key]) + 1
                tensor = torch.full((length,), 1000 * source + number, dtype=torch.int32)
                self._sent[key].append((number, "begun"))
                call = self._begin(me.operations.send, [tensor], target, tag)
                begun.append(("send", call, tensor, (key, number)))
                continue
            tensor = torch.zeros((length, 2), dtype=torch.int32)[:, 0]  # with gaps
            if draw.random() < 0.7:
                tensor = torch.zeros(length, dtype=torch.int32)
            if tag % _QUIET >= _ANY_TAG:
                call = self._begin(me.operations.recv_anysource, [tensor], tag)
                begun.append(("any", call, tensor, (None, tag)))
            else:
                call = self._begin(me.operations.recv, [tensor], source, tag)
                begun.append(("recv", call, tensor, (source, tag)))
            if draw.random() < 0.2:
                self.world.park(self.world.now + 0.1 * draw.random())
        for kind, call, tensor, about in begun:
            error = call if isinstance(call, BaseException) else self._outcome(call)
            self._note(me, kind, call, tensor, about, error)

    def _begin(self, begin: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return begin(*arguments)
        except (ConfigError, PeerError, TimeoutError, KeyboardInterrupt) as error:
            return error

    def _outcome(self, call: Any) -> BaseException | None:
        while True:
            try:
                call.wait()
            except KeyboardInterrupt:
                continue
            except (ConfigError, PeerError, TimeoutError) as error:
                return error
            else:
                return None

    def _note(
        self, me: _Rank, kind: str, call: Any, tensor: Any, about: Any, error: BaseException | None
    ) -> None:
        if kind == "send":
            key, number = about
            is_unknown = isinstance(error, KeyboardInterrupt)
            outcome = "begun" if is_unknown else "failed" if error else "sent"
            self._sent[key][number - 1] = number, outcome
            if error is not None:
                self._check_error(me, error, {key[1]})
            return
        source, tag = about
        if error is not None:
            others = set(range(self.size)) - {me.rank}
            self._check_error(me, error, others if kind == "any" else {source})
            return
        values = tensor.tolist()
        found, number = divmod(values[0], 1000)
        self.world.say(f"rank {me.rank} has message {number} of {found}, tag {tag}")
        if set(values) != {values[0]}:
            self.world.complain(f"B1: rank {me.rank} has received {values}")
        if call.source_rank() != found or source not in (None, found):
            self.world.complain(f"B1: {values[0]} is said to be of rank {call.source_rank()}")
        self._received[found, me.rank, tag].append(number)
        self.right += 1

    def _call(self, me: _Rank, number: int, step: Step) -> None:
        operations, size, rank, root = me.operations, self.size, me.rank, step.root
        opts = SimpleNamespace(
            asyncOp=self._draw.random() < 0.5,
            rootRank=root,
            rootTensor=0,
            reduceOp=ReduceOp(ReduceOp.SUM),
        )
        mark = 1000 * (number + 1)
        name = f"{number}, {step.kind}"
        self._begun[name].add(rank)
        kind, length = step.kind, step.length
        if rank == step.odd and step.is_unlike:
            length += 1
        elif rank == step.odd and step.is_refused:
            kind = "refused"
        elif rank == step.odd:
            kind = "barrier" if kind != "barrier" else "all_gather"
        own = torch.full((length,), mark + rank, dtype=step.dtype)
        rows = [torch.zeros_like(own) for _ in range(size)]
        each = [own + 100 * other for other in range(size)]
        out = torch.zeros_like(own)
        shares = torch.full_like(own, mark + (1 << rank))  # their sums differ, whosever they are

        def mean(ranks: set[int]) -> float:
            return sum(mark + (1 << other) for other in ranks) / len(ranks)

        def total(ranks: set[int]) -> float:
            return mean(ranks) * (size if step.dtype.is_floating_point else len(ranks))

        everyone = set(range(size))
        begin, has, expected = {
            "barrier": (lambda: operations.barrier(opts), [], []),
            "broadcast": (lambda: operations.broadcast([own], opts), [own], [mark + root]),
            "all_gather": (
                lambda: operations.allgather([rows], [own], opts),
                rows,
                [mark + other for other in range(size)],
            ),
            "refused": (lambda: operations.allgather([rows[1:]], [own], opts), rows, [-1]),
            "all_reduce": (
                lambda: operations.allreduce([shares], opts),
                [shares],
                [total(everyone)],
            ),
            "mean": (
                lambda: operations.allreduce([shares], self._with_op(opts, ReduceOp(ReduceOp.AVG))),
                [shares],
                [mean(everyone)],
            ),
            "max": (
                lambda: operations.allreduce([own], self._with_op(opts, ReduceOp(ReduceOp.MAX))),
                [own],
                [mark + size - 1],
            ),
            "all_to_all": (
                lambda: operations.alltoall(rows, each, opts),
                rows,
                [mark + other + 100 * rank for other in range(size)],
            ),
            "gather": (
                lambda: operations.gather([rows] if rank == root else [], [own], opts),
                rows if rank == root else [],
                [mark + other for other in range(size)] if rank == root else [],
            ),
            "reduce": (
                lambda: operations.reduce([shares], opts),
                [shares] if rank == root else [],
                [total(everyone)] if rank == root else [],
            ),
            "scatter": (
                lambda: operations.scatter([out], [each] if rank == root else [], opts),
                [out],
                [mark + root + 100 * rank],
            ),
            "reduce_scatter": (
                lambda: operations.reduce_scatter([out], [each], opts),
                [out],
                [sum(mark + other + 100 * rank for other in range(size))],
            ),
        }[kind]
        self.world.say(f"rank {rank}: {name}{' as ' + kind if kind != step.kind else ''}")
        before = [tensor.clone() for tensor in has]
        call = self._begin(begin)

        def finish() -> None:
            error = call if isinstance(call, BaseException) else self._outcome(call)
            reduce = {"all_reduce": total, "mean": mean}.get(kind)
            outcome = Outcome(name, step, kind, error, has, expected, before, reduce)
            if isinstance(error, ConfigError):
                self._note_refused(me, outcome)
            elif self._keeps_going and me.is_in_script:
                self._note_end(me, outcome)
            else:
                self._note_call(me, outcome)

        me.pending.append(finish)
        if not opts.asyncOp or self._is_quiet or self._draw.random() < 0.5:
            self._finish(me)

    def _finish(self, me: _Rank) -> None:
        """Look at all calls that were begun."""
        while me.pending:
            me.pending.pop(0)()

    def _note_refused(self, me: _Rank, outcome: Outcome) -> None:
        step = outcome.step
        self.world.say(f"rank {me.rank}: {outcome.name}: {outcome.error!r}")
        is_right = step.odd >= 0 and (not step.is_unlike or step.odd == me.rank)
        # After a death, a call that was refused here may have gone on elsewhere, up to its limit.
        is_left = self._lost and any(isinstance(s, Step) and s.odd >= 0 for s in self._script)
        if not is_right and not is_left:
            self.world.complain(f"B3: {outcome.name} of rank {me.rank}: {outcome.error!r}")
        if "this rank has left" in str(outcome.error):  # the others could not be told
            me.has_failed = True
            if not self._faults:
                self.world.complain(f"B3: rank {me.rank} leaves in {outcome.name}: all are well")

    def _note_call(self, me: _Rank, outcome: Outcome) -> None:
        name, error = outcome.name, outcome.error
        if error is not None:
            self.world.say(f"rank {me.rank}: {name}: {error!r}")
            is_again = me.has_failed
            is_late = self._delays > 0 or outcome.step.odd >= 0
            if self._keeps_going and isinstance(error, TimeoutError) and not is_late:
                self.world.complain(f"B5: rank {me.rank}: {error!r} though no rank is late")
            me.has_failed = True
            if not isinstance(error, KeyboardInterrupt):
                self._check_error(me, error, set(range(self.size)) if is_again else None)
            return
        if me.has_failed:
            self.world.complain(f"B3: {name} of rank {me.rank} works after one that has failed")
        if not outcome.is_whole:
            self.world.complain(
                f"B3: {name} of rank {me.rank} has {outcome.found}, not {outcome.expected}"
            )
        self._check_met(me, outcome, set(range(self.size)))
        self.right += 1

    def _check_met(self, me: _Rank, outcome: Outcome, ranks: set[int]) -> None:
        """The call has worked: these ranks must have made it, all of them the same."""
        name, step, *_ = outcome
        others = ranks - {me.rank} if me.rank == step.odd else ranks & {step.odd}
        if step.is_unlike:
            others = {step.root} if me.rank == step.odd and outcome.is_whole else set()
        others |= ranks - self._begun[name]
        if others:
            self.world.complain(f"B3: {name} of rank {me.rank} works without that of {others}")

    def _note_end(self, me: _Rank, outcome: Outcome) -> None:
        """As _note_call, where the ranks keep going."""
        name, _, kind, error, has, *_ = outcome
        if me.has_failed or not isinstance(error, PeerError | None):
            self._note_call(me, outcome)
            return
        if error is not None:
            self._check_error(me, error, set(range(self.size)))
        if me.is_lost:
            return
        met = set(range(self.size)) - (self._gone if kind in _GOING_ON else set())
        if error is not None:
            end = f"dead: {error.ranks}"
            if kind in _GOING_ON or not error.ranks:
                end = f"wrong: {error!r}"
        elif outcome.reduce is not None:
            those = self._those_in(me, outcome.reduce, outcome.found[0])
            end = f"of {those}" if those >= met else f"wrong: {outcome.found} without all of {met}"
        elif outcome.is_whole:
            end = "all"
        elif kind == "broadcast" and all(map(torch.equal, has, outcome.before)):
            end = "nothing"
        else:
            end = f"wrong: {outcome.found}"
        first, rank = self._ends.setdefault(f"{name} as {kind}", (end, me.rank))
        if end != first or end.startswith("wrong"):
            self.world.complain(f"B5: {name}: {end} on rank {me.rank}, {first} on rank {rank}")
        if error is None:
            self._check_met(me, outcome, met)
            self.right += 1

    def _those_in(
        self, me: _Rank, reduce: Callable[[set[int]], float], found: set[float]
    ) -> set[int]:
        """Return the ranks of which it is the reduction, this one among them, or none."""
        others = set(range(self.size)) - {me.rank}
        for n in range(self.size):
            for some in combinations(others, n):
                ranks = {me.rank, *some}
                if all(abs(value - reduce(ranks)) < 1e-6 for value in found):
                    return ranks
        return set()

    @staticmethod
    def _with_op(opts: SimpleNamespace, op: Any) -> SimpleNamespace:
        opts.reduceOp = op
        return opts

    # Faults

    def _on_message(self) -> None:
        """Between two messages, which is where faults are worth most."""
        if self._armed and self._draw.random() < self._rate:
            self._armed -= 1
            if self._keeps_going and self._draw.random() < 0.5:
                sender = self.ranks[self.world.here().process.host]
                self.world.at(0.0, lambda: self._fault(sender))
            else:
                self.world.at(1e-4 * 1e3 ** self._draw.random(), self._fault)

    def _fault(self, victim: _Rank | None = None) -> None:
        """Let something happen to a rank; to `victim`, that it dies or is stopped for long."""
        draw, world = self._draw, self.world
        living = [me for me in self.ranks if not me.is_lost and not me.has_ended]
        if self._is_quiet or not living:
            return
        self._faults += 1
        me = draw.choice(living)
        kinds = ("kill", "stop", "stop", "stop long", "slow", "slow", "interrupt")
        if self._keeps_going:
            kinds = ("kill", "kill", "stop long", *kinds)
        if victim in living:
            me, kinds = victim, ("kill", "kill", "stop long")
        kind = draw.choice(kinds)
        self._delays += kind != "kill"
        world.say(f"rank {me.rank}: {kind}")
        if kind == "kill":
            self._lose(me)
            me.process.end(-9)
        elif kind == "stop":
            me.process.stop(draw.random() * SILENCE * 0.9)
        elif kind == "stop long":
            self._lose(me)
            me.process.stop(SILENCE * (1.1 + 3 * draw.random()))
            world.at(SILENCE, lambda: self.groups.evict(me.process))
        elif kind == "slow":
            me.slow_until = world.now + self.timeout * (0.5 + 2 * draw.random())
        elif kind == "interrupt" and me.is_in_script:
            self.interrupts.send(me.process.tasks[0], KeyboardInterrupt)

    def _lose(self, me: _Rank) -> None:
        me.is_lost = True
        self._meeting.wake()

    # Checks

    @property
    def _gone(self) -> set[int]:
        """The ranks that calls of others may do without."""
        return {
            each.rank
            for each in self.ranks
            if each.is_lost or each.has_failed or each.has_ended or each.has_left
        }

    def _check_error(self, me: _Rank, error: BaseException, about: set[int] | None) -> None:
        """`about`: the ranks that the call may be waiting for; None: all others."""
        self.errors += 1
        self.world.say(f"rank {me.rank}: {error!r}")
        if me.is_lost or isinstance(error, KeyboardInterrupt):
            return
        among = about if about is not None else set(range(self.size)) - {me.rank}
        ranks = {self.names.index(name) for name in error.ranks if name in self.names}  # type: ignore[attr-defined]
        gone = self._gone
        is_right = self._faults > 0 and not self._is_quiet and len(ranks) == len(error.ranks)  # type: ignore[attr-defined]
        is_right = is_right and ranks <= among
        if isinstance(error, PeerError):
            is_right = is_right and ranks <= gone
        else:
            is_right = (
                is_right and ranks != set() and (about is None or len(about) > 1 or ranks == about)
            )
        if not is_right:
            self.world.say("".join(traceback.format_exception(error)))
            self.world.complain(f"B2: rank {me.rank}: {error!r} ({ranks} of {among}, {gone} gone)")

    def _check_end(self) -> None:
        if self.world.wrong:
            return
        for me in self.ranks:
            if me.process.is_dead:
                continue
            if not me.has_ended or any(not task.dead for task in me.process.tasks):
                self.world.complain(f"B4: a thread of rank {me.rank} waits for ever")
        for key, received in self._received.items():
            source, target, tag = key
            sent = self._sent[key]
            may = [number for number, outcome in sent if outcome != "failed"]
            must = [number for number, outcome in sent if outcome == "sent"]
            least = [number for number in must if number <= max(received)]
            if not set(least) <= set(received) or received != [n for n in may if n in received]:
                self.world.complain(
                    f"B1: rank {target} has {received} of rank {source}, tag {tag}: {sent}"
                )
