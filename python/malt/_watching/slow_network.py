"""Finds a network that delivers less than the link of this host could send.

Linux knows for each connection during which time there was something to send, and the part of it
during which the receiver or the buffer here had no room. The rest of the time the network held the
data up. If the interface then sent much less than its link can, the link is not the limit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from malt._core_import import interfaces
from malt._watching.connections import (
    Connection,
    bytes_sent,
    connections,
    link_speed,
    sockets_of,
)
from malt._watching.table import in_units

_HELD_UP = 0.5  # of the time
_WAITING = 0.5  # of the looks: data waited here at that moment
_USED = 0.5  # of the link's speed, at most


class _Look(NamedTuple):
    time: float
    connections: dict[int, Connection]  # by inode
    sent: dict[str, int]  # by interface


class NetworkWatch:
    """Looks at the connections of ranks again and again.

    Args:
        processes: of this host, by rank.
    """

    def __init__(self, processes: Mapping[int, int]) -> None:
        self._processes = processes
        self._ranks: dict[int, int] = {}  # by inode of a socket
        self._looks: list[_Look] = []

    def look(self) -> None:
        for rank, process in self._processes.items():
            self._ranks.update(dict.fromkeys(sockets_of(process), rank))
        now = {one.inode: one for one in connections() if one.inode in self._ranks}
        self._looks.append(_Look(time.monotonic(), now, bytes_sent()))

    def problems(self) -> list[str]:
        """Return a sentence or two for each interface whose network holds data up."""
        names = {one.address: one.name.partition(":")[0] for one in interfaces()}
        held_up: defaultdict[str, list[Connection]] = defaultdict(list)
        for inode, last in self._looks[-1].connections.items():
            if last.local in names and self._is_held_up(inode):
                held_up[names[last.local]].append(last)
        found = []
        for name, slow in held_up.items():
            speed = link_speed(name)
            most = max(self._rate(name, one.inode) for one in slow)
            if speed is not None and most < _USED * speed:
                found.append(self._describe(name, slow, most, speed))
        return found

    def _is_held_up(self, inode: int) -> bool:
        there = [look.connections[inode] for look in self._looks if inode in look.connections]
        if len(there) < len(self._looks):
            return False
        seconds = self._looks[-1].time - self._looks[0].time
        waiting = sum(one.unsent > 0 for one in there)
        is_waiting = waiting >= _WAITING * len(there)
        return is_waiting and self._seconds_held_up(inode) >= _HELD_UP * seconds

    def _seconds_held_up(self, inode: int) -> float:
        """Return how long the network alone held up a connection that was there at all looks."""
        first, last = (self._looks[at].connections[inode] for at in (0, -1))
        return (last.busy - first.busy - (last.held_up - first.held_up)) / 1e6

    def _rate(self, interface: str, inode: int) -> float:
        """Return the bits a second of the interface, as if it had sent only in that time."""
        first, last = self._looks[0].sent[interface], self._looks[-1].sent[interface]
        return 8 * (last - first) / self._seconds_held_up(inode)

    def _describe(self, name: str, slow: list[Connection], most: float, speed: int) -> str:
        pairs = sorted({(self._ranks[one.inode], one.remote) for one in slow})
        shown = ", ".join(f"rank {rank} for {remote}" for rank, remote in pairs[:3])
        shown += ", ..." if len(pairs) > 3 else ""
        before = self._looks[0].connections
        sent = sum(one.sent - before[one.inode].sent for one in slow)
        again = sum(one.resent - before[one.inode].resent for one in slow)
        return (
            f"The network behind {name} is slower than its link: data of {shown} waited here most "
            f"of the time, the receivers had room, and {name} sent at most {_text(most)} of its "
            f"link's {_text(speed)}; {again / max(1, sent):.1%} was sent again. Something on the "
            "way is slower, limits the rate or loses packets: measure it, for instance by iperf3. "
            "Codecs, a graph with fewer edges and rarer scatters send less."
        )


def _text(bits: float) -> str:
    return in_units(bits, "b/s", "kb/s", "Mb/s", "Gb/s")
