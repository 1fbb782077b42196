"""Which launchers have come, and what became of their ranks: the server's books, without sockets.

Methods that return frames return those to send now, by node.
"""

from __future__ import annotations

import signal
import struct
from dataclasses import dataclass, field

from malt import _wire as wire
from malt._errors import describe_ranks
from malt._rank import exit_code_of
from malt._rounds import Frames, ProtocolError


@dataclass
class _Node:
    count: int
    come_back: bool  # its ranks, when they fail
    seconds: float
    deadline: float
    ranks: range = range(0)
    running: set[int] = field(default_factory=set)  # its ranks that have not ended


class Nodes:
    """The launchers of one job. Times are of `time.monotonic`.

    Attributes:
        size: of the job, once all have come; before, 0.
        is_settled: all have come, or have been told that there will be no such job.
    """

    def __init__(self, nnodes: int) -> None:
        self.nnodes = nnodes
        self.size = 0
        self.is_settled = False
        self._nodes: dict[int, _Node] = {}
        self._exit_code = 0

    def come(self, node: int, payload: bytes, now: float) -> Frames:
        """A launcher says how many ranks it has; the last to do so lets all start."""
        _, count, come_back, seconds = _unpack(wire.RANKS_FRAME, payload)
        room = wire.MAX_RANKS - sum(other.count for other in self._nodes.values())
        if node in self._nodes or not 1 <= count <= room or not 0 <= seconds <= wire.MAX_SECONDS:
            raise ProtocolError
        self._nodes[node] = _Node(count, bool(come_back), seconds, now + seconds)
        if len(self._nodes) < self.nnodes:
            return []
        self.is_settled = True
        without = [number for number, state in self._nodes.items() if not state.come_back]
        if 0 < len(without) < self.nnodes:
            text = f"{describe_ranks(without, 'node')} came without --respawn, the others with it"
            refusal = wire.REFUSED + f"{text}: give it to each launcher, or to none".encode()
            return [(number, [refusal]) for number in self._nodes]
        for _, state in sorted(self._nodes.items()):
            state.ranks = range(self.size, self.size + state.count)
            state.running = set(state.ranks)
            self.size += state.count
        return [
            (number, [wire.START_FRAME.pack(wire.START, state.ranks.start, self.size)])
            for number, state in sorted(self._nodes.items())
        ]

    def end(self, node: int, payload: bytes) -> tuple[int, int, int, Frames]:
        """A rank has ended: its number, process and exit code; other nodes hear of a failure."""
        _, rank, process, code = _unpack(wire.ENDED_FRAME, payload)
        if node not in self._nodes or rank not in self._nodes[node].running:
            raise ProtocolError
        if not -signal.NSIG < code <= 255:  # no process ends so
            raise ProtocolError
        self._nodes[node].running.remove(rank)
        frames: Frames = []
        if code != 0:
            self._exit_code = self._exit_code or exit_code_of(code)
            failed = wire.FAILED_FRAME.pack(wire.FAILED, node, rank, code)
            frames = [(other, [failed]) for other in self._nodes if other != node]
        return rank, process, code, frames + self._over()

    def start(self, node: int, rank: int) -> None:
        """A rank that had ended, or was not started yet, is started."""
        self.check(node, rank)
        self._nodes[node].running.add(rank)

    def check(self, node: int, rank: int) -> None:
        """Raises ProtocolError if the rank is not one of the node's."""
        if node not in self._nodes or rank not in self._nodes[node].ranks:
            raise ProtocolError

    def leave(self, node: int) -> tuple[set[int], Frames]:
        """The session of a launcher has ended; returns the ranks that are lost with it."""
        left = self._nodes.pop(node, None)
        if left is None or not left.running:
            return set(), []
        self._exit_code = self._exit_code or 1
        lost = wire.LOST_FRAME.pack(wire.LOST, node)
        return left.running, [(other, [lost]) for other in self._nodes] + self._over()

    def next_deadline(self) -> float | None:
        if self.is_settled:
            return None
        return min((node.deadline for node in self._nodes.values()), default=None)

    def expire(self, now: float) -> Frames:
        """Give up, for all, when a launcher has waited for the others long enough."""
        if (deadline := self.next_deadline()) is None or deadline > now:
            return []
        self.is_settled = True
        missing = [node for node in range(self.nnodes) if node not in self._nodes]
        seconds = min(self._nodes.values(), key=lambda node: node.deadline).seconds
        late = wire.pack_ranks(wire.LATE, missing, f"within {seconds:g} s")
        return [(node, [late]) for node in self._nodes]

    def _over(self) -> Frames:
        if any(node.running for node in self._nodes.values()):
            return []
        over = wire.OVER_FRAME.pack(wire.OVER, self._exit_code)
        return [(node, [over]) for node in self._nodes]


def _unpack(frame: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != frame.size:
        raise ProtocolError
    return frame.unpack(payload)
