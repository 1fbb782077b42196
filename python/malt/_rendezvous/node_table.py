"""The launchers that have come, and the state of their ranks: the server's state, without sockets.

In an elastic job this state also says which ranks run, and on which node. The job has as many
*places*, that is rank numbers, as ranks may run. Any node may take a place that no rank has.

Methods that return frames return those to send now, by node.
"""

from __future__ import annotations

import signal
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from malt._errors import describe_ranks
from malt._rendezvous import placement, wire
from malt._rendezvous.allgather_table import Frames, ProtocolError
from malt._rendezvous.exit_code import exit_code_of
from malt._rendezvous.wire import ToClient

# Of one rank: no job comes near it; frames have room for twice as many.
_MOST_STARTS = 1 << 31


@dataclass
class _Node:
    count: int
    rejoins: bool  # whether its ranks rejoin when they fail
    limits: range  # of --elastic; empty: without it
    seconds: float
    deadline: float
    running: set[int] = field(default_factory=set)  # its ranks that have not ended
    starts_more: bool = True  # whether it starts ranks when it is told to


class Changed(NamedTuple):
    """The outcome of a request for another number of ranks, or that a rank leave."""

    starting: list[int]
    leaving: list[int]
    frames: Frames


class Nodes:
    """The launchers of one job. Times are of `time.monotonic`.

    Attributes:
        size: of the job, once all have come; before, 0. Of an elastic job, its number of places.
        is_settled: all have come, or have been told that there will be no such job.
        leaving: ranks that have been asked to leave and have not ended.
        is_closed: no more ranks are added; the caller sets it.
        last_refusal: the last caller that the listener refused, and why; or empty.
        addresses: by node, where its own server stands by, ready to take over from this one.
        missing: the nodes for whose ranks a server that takes over still waits.
        watched: what is watched by any of the nodes.
    """

    def __init__(self, nnodes: int) -> None:
        self.nnodes = nnodes
        self.size = 0
        self.is_settled = False
        self.leaving: set[int] = set()
        self.is_closed = False
        self.last_refusal = ""
        self.addresses: dict[int, str] = {}
        self.missing: set[int] = set()
        self.watched = 0
        self._is_taking_over = False
        self._nodes: dict[int, _Node] = {}
        self._limits = range(0)
        self._starts: Counter[int] = Counter()  # by rank: starts since the job began
        self._are_few = False  # too few ranks are left, and all nodes have been told
        self._exit_code = 0

    def come(self, node: int, payload: bytes, now: float) -> Frames:
        """Handle a launcher's number of ranks; once the last launcher has come, all start."""
        _, count, rejoins, least, most, seconds = _unpack(wire.RANKS_FRAME, payload)
        room = wire.MAX_RANKS - sum(other.count for other in self._nodes.values())
        if node in self._nodes or not 1 <= count <= room or not 0 <= seconds <= wire.MAX_SECONDS:
            raise ProtocolError
        if (least, most) != (0, 0) and not 1 <= least <= most <= wire.MAX_RANKS:
            raise ProtocolError
        limits = range(least, most + 1) if most else range(0)
        self._nodes[node] = _Node(count, bool(rejoins), limits, seconds, now + seconds)
        if len(self._nodes) < self.nnodes:
            return []
        self.is_settled = True
        if refusal := self._disagreement():
            return self._to_all(ToClient.REFUSED + refusal.encode())
        return self._start()

    def watch(self, payload: bytes) -> None:
        """Note what a launcher's collector is to show of all hosts."""
        self.watched |= _unpack(wire.WATCH_FRAME, payload)[1]

    def end(self, node: int, payload: bytes) -> tuple[int, int, int, Frames]:
        """Return an ended rank, its process and exit code; frames tell other nodes of a failure."""
        _, rank, process, code = _unpack(wire.ENDED_FRAME, payload)
        self._check(node, rank)
        if not -signal.NSIG < code <= 255:  # no process has such an exit code
            raise ProtocolError
        self._nodes[node].running.remove(rank)
        self.leaving.discard(rank)
        frames: Frames = []
        if process == 0:
            self._nodes[node].starts_more = False
            if self._limits and not self.is_closed and (starters := self._starters()):
                frames = [
                    (at, [self._begin(at, rank)]) for at, rank in placement.starts(starters, [rank])
                ]
        if code != 0:
            self._exit_code = self._exit_code or exit_code_of(code)
            failed = wire.FAILED_FRAME.pack(ToClient.FAILED, node, rank, code)
            frames += [(other, [failed]) for other in self._nodes if other != node] + self._few()
        return rank, process, code, frames + self._over()

    # Taking over from a server that is lost (`succession.py`)

    def succeed(self, size: int, limits: range, nodes: set[int]) -> None:
        """Begin to take over a job of `size` ranks from another server, with these nodes left."""
        self.size, self._limits = size, limits
        self.missing = set(nodes)
        self.is_settled = self._is_taking_over = True

    def resume(self, node: int, payload: bytes) -> None:
        """Handle what a launcher says of its ranks."""
        head = wire.RESUME_HEAD
        if len(payload) < head.size or node not in self.missing:
            raise ProtocolError
        _, rejoins, starts_more, code, count = head.unpack_from(payload)
        if len(payload) != head.size + count * wire.RESUMED_RANK.size or not 0 <= code <= 255:
            raise ProtocolError
        ranks = list(wire.RESUMED_RANK.iter_unpack(payload[head.size :]))
        running = {rank for rank, _, _ in ranks}
        if len(running) < count or any(rank >= self.size or self.has(rank) for rank in running):
            raise ProtocolError
        if any(starts > _MOST_STARTS for _, starts, _ in ranks):
            raise ProtocolError
        self.missing.remove(node)
        self._nodes[node] = _Node(
            count, rejoins, self._limits, 0.0, 0.0, running, starts_more=starts_more
        )
        self._exit_code = self._exit_code or code
        for rank, starts, is_leaving in ranks:
            self._starts[rank] = starts
            if is_leaving:
                self.leaving.add(rank)

    def running(self, *, rejoining: bool = False) -> set[int]:
        """Return the ranks that run, or are to be started; or those of them that may rejoin."""
        nodes = [node for node in self._nodes.values() if node.rejoins or not rejoining]
        return set().union(*(node.running for node in nodes))

    def settle(self) -> Frames:
        """End the time of taking over: nodes that are missing now are lost, with their ranks."""
        self._is_taking_over = False
        self.missing = set()
        return self._few() + self._over()

    def again(self, node: int, payload: bytes) -> tuple[int, int]:
        """Return the rank whose process has ended and is followed by another, and the process."""
        _, rank, process = _unpack(wire.PROCESS_FRAME, payload)
        self._check(node, rank)
        self._starts[rank] += 1
        return rank, process

    def leave(self, node: int) -> tuple[set[int], Frames]:
        """Handle the end of a launcher's session; return the ranks that are lost with it."""
        left = self._nodes.pop(node, None)
        self.missing.discard(node)
        if left is None or not left.running:
            return set(), []
        self._exit_code = self._exit_code or 1
        self.leaving -= left.running
        lost = self._to_all(wire.LOST_FRAME.pack(ToClient.LOST, node))
        return left.running, lost + self._few() + self._over()

    def has(self, rank: int) -> bool:
        """Return whether `rank` runs, or is to be started, on one of the nodes."""
        return any(rank in state.running for state in self._nodes.values())

    # Elastic jobs

    def free(self) -> list[int]:
        """Return the places that no rank has."""
        taken = self.running()
        return [rank for rank in range(self.size) if rank not in taken]

    def scale(self, node: int, payload: bytes) -> Changed:
        """Handle a request for a number of ranks, not counting those that leave."""
        _, count = _unpack(wire.SCALE_FRAME, payload)
        if node not in self._nodes or not self._limits:
            raise ProtocolError
        staying = {number: state.running - self.leaving for number, state in self._nodes.items()}
        missing = count - sum(map(len, staying.values()))
        if refusal := self._refusal(count, missing):
            return Changed([], [], _answer(node, False, refusal))
        places = self.free()[:missing] if missing > 0 else []
        starting = placement.starts(self._starters(), places) if places else []
        leaving = placement.leaves(staying, -missing) if missing < 0 else []
        frames = [(at, [self._begin(at, rank)]) for at, rank in starting]
        frames += [(at, [self._ask(rank)]) for at, rank in leaving]
        started, asked = [rank for _, rank in starting], [rank for _, rank in leaving]
        changes = (("started", started), ("asked to leave", asked))
        done = [f"{what}: {describe_ranks(ranks)}" for what, ranks in changes if ranks]
        frames += _answer(node, True, "; ".join(done) or f"{count} ranks run already")
        return Changed(started, asked, frames)

    def ask_to_leave(self, node: int, payload: bytes) -> Changed:
        """Handle a request of a node that a rank, of any node, leave."""
        _, rank = _unpack(wire.LEAVE_FRAME, payload)
        if node not in self._nodes or not self._limits:
            raise ProtocolError
        running = self.running()
        staying = running - self.leaving
        if rank in self.leaving:
            return Changed([], [], _answer(node, True, f"rank {rank} has been asked already"))
        refusal = self._refusal(len(staying), 0)
        if not refusal and rank not in running:
            refusal = f"rank {rank} does not run; of this job run {describe_ranks(running)}"
        if refusal := refusal or self._refusal(len(staying) - 1, -1):
            return Changed([], [], _answer(node, False, refusal))
        (at,) = (number for number, state in self._nodes.items() if rank in state.running)
        frames = [(at, [self._ask(rank)]), *_answer(node, True, f"asked to leave: rank {rank}")]
        return Changed([], [rank], frames)

    def _starters(self) -> dict[int, set[int]]:
        """Return the nodes that may start ranks, each with its ranks."""
        return {
            number: state.running - self.leaving
            for number, state in self._nodes.items()
            if state.starts_more
        }

    def _begin(self, node: int, rank: int) -> bytes:
        self._nodes[node].running.add(rank)
        self._starts[rank] += 1
        return wire.BEGIN_FRAME.pack(ToClient.BEGIN, rank, self._starts[rank])

    def _ask(self, rank: int) -> bytes:
        self.leaving.add(rank)
        return wire.LEAVE_FRAME.pack(ToClient.LEAVE, rank)

    # Waits

    def next_deadline(self) -> float | None:
        if self.is_settled:
            return None
        return min((node.deadline for node in self._nodes.values()), default=None)

    def expire(self, now: float) -> Frames:
        """Give up, for all, when a launcher has waited long enough for the others."""
        if (deadline := self.next_deadline()) is None or deadline > now:
            return []
        self.is_settled = True
        missing = [node for node in range(self.nnodes) if node not in self._nodes]
        seconds = min(self._nodes.values(), key=lambda node: node.deadline).seconds
        within = f"within {seconds:g} s"
        if self.last_refusal:
            within += f" (a caller was refused: {self.last_refusal})"
        return self._to_all(wire.pack_ranks(ToClient.LATE, missing, within))

    def _disagreement(self) -> str:
        """Return why these launchers cannot form a job, or nothing."""
        nodes = sorted(self._nodes.items())
        limits = nodes[0][1].limits
        for number, state in nodes:
            if state.limits != limits:
                return (
                    f"node {nodes[0][0]} started {_name_of(limits)}, node {number} started "
                    f"{_name_of(state.limits)}: give each launcher the same"
                )
        without = [number for number, state in nodes if not state.rejoins]
        if 0 < len(without) < self.nnodes:
            names = describe_ranks(without, "node")
            text = f"{names} started without --respawn, the others with it"
            return f"{text}: give it to each launcher, or to none"
        count = sum(state.count for _, state in nodes)
        if limits and count not in limits:
            limit = f"{limits[0]}:{limits[-1]}"
            return f"the nodes start {count} ranks (-n), which is not within --elastic {limit}"
        return ""

    def _start(self) -> Frames:
        """Let all launchers start: all have come."""
        frames: Frames = []
        nodes = sorted(self._nodes.items())
        self._limits = nodes[0][1].limits
        count = sum(state.count for _, state in nodes)
        self.size = self._limits[-1] if self._limits else count
        first = 0
        for number, state in nodes:
            state.running = set(range(first, first + state.count))
            start = wire.START_FRAME.pack(ToClient.START, first, self.size, self.watched)
            frames.append((number, [start + self._successors()]))
            first += state.count
        return frames

    def _successors(self) -> bytes:
        nodes = range(1, min(self.nnodes, wire.MAX_STANDBYS + 1))
        return ",".join(self.addresses.get(node, "") for node in nodes).encode()

    def _check(self, node: int, rank: int) -> None:
        """Raise ProtocolError if the rank is not one of the node's, or has ended."""
        if node not in self._nodes or rank not in self._nodes[node].running:
            raise ProtocolError

    def _refusal(self, count: int, missing: int) -> str:
        """Return why `count` ranks, `missing` more than now, are impossible now, or nothing."""
        free = len(self.free())
        if self._is_taking_over:
            return "a node is lost, and another one takes over its part: try again in a second"
        if self.is_closed or self._are_few or free == self.size:
            return "the job ends"
        if count not in self._limits:
            limits = f"{self._limits[0]} to {self._limits[-1]} (--elastic)"
            return f"{_ranks(count)} not within the job's {limits}"
        if missing > 0 and not any(state.starts_more for state in self._nodes.values()):
            return "the remaining nodes start no more ranks: their `malt run` is ending"
        if missing > free:
            return (
                f"{self.size - free} of {self.size} ranks run, {describe_ranks(self.leaving)} "
                "among them, which were asked to leave; try again when they have ended"
            )
        return ""

    def _few(self) -> Frames:
        """Return frames if, after a failure, too few ranks are left."""
        left = len(self.running())
        is_enough = not self._limits or left >= self._limits[0] or left == 0
        if is_enough or self._is_taking_over or self._are_few:
            return []
        self._are_few = True
        return self._to_all(wire.FEW_FRAME.pack(ToClient.FEW, left))

    def _over(self) -> Frames:
        if self._is_taking_over or self.running():
            return []
        return self._to_all(wire.OVER_FRAME.pack(ToClient.OVER, self._exit_code))

    def _to_all(self, frame: bytes) -> Frames:
        return [(node, [frame]) for node in self._nodes]


def _ranks(count: int) -> str:
    return "1 rank is" if count == 1 else f"{count} ranks are"


def _name_of(limits: range) -> str:
    return f"with --elastic {limits[0]}:{limits[-1]}" if limits else "without --elastic"


def _answer(node: int, is_done: bool, text: str) -> Frames:
    head = wire.ANSWER_HEAD.pack(ToClient.ANSWER, is_done)
    return [(node, [head + text.encode()[: wire.MAX_ANSWER]])]


def _unpack(frame: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != frame.size:
        raise ProtocolError
    return frame.unpack(payload)
