"""Ranks that cannot reach others: a firewall drops their packets, or refuses their calls."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from malt._watching.sources import Look, Source

# By state of a connection (include/net/tcp_states.h of Linux): how often a packet has been sent
# again, each time after twice as long, before the other side counts as silent.
_AGAIN = {"01": 3, "02": 1}  # established, calling
_LEAST_CALLS = 3  # that fail one after another
_PORTS = (
    "ranks listen at ports of the system's choice (sysctl net.ipv4.ip_local_port_range), which the "
    "hosts of a job must let through; MALT_INTERFACE chooses the network."
)


def firewalls(sources: list[Source]) -> list[str]:
    """Return which ranks get no answer, and from which addresses; a sentence or two each."""
    found = []
    for source in sources:
        addresses = sorted(set(unanswered(source.recording.process)))
        if addresses:
            shown = ", ".join(addresses[:3]) + (", ..." if len(addresses) > 3 else "")
            found.append(
                f"Rank {source.rank} sends to {shown} again and again, and gets no answer. A "
                "firewall drops the packets, the host is down, or the network does not lead there: "
                f"{_PORTS}"
            )
    return found


def failing_calls(looks: Sequence[Sequence[Look]]) -> list[str]:
    """Return which ranks' calls to which others failed while they were watched, and why.

    Args:
        looks: at the same processes in the same order, at least two.
    """
    found = []
    for first, last in zip(looks[0], looks[-1], strict=True):
        ports: defaultdict[int, list[str]] = defaultdict(list)  # by error
        for peer, (before, now) in enumerate(zip(first.peers, last.peers, strict=True)):
            count, error, port = map(int, now[3:])
            if count >= _LEAST_CALLS and count > int(before[3]):
                ports[error].append(f"port {port} of rank {peer}")
        for error, where in ports.items():
            shown = ", ".join(where[:3]) + (", ..." if len(where) > 3 else "")
            if error == errno.ECONNREFUSED:
                how = "are refused: a firewall rejects them, or the rank there has ended"
            else:
                how = f"fail: {os.strerror(error)}"
            found.append(
                f"Rank {last.rank} cannot reach {shown}. Its calls {how}. Mind that {_PORTS}"
            )
    return found


def unanswered(process: int) -> Iterator[str]:
    """Return the addresses to which a process has sent a packet again without an answer."""
    own = _sockets_of(process)
    for version in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{process}/net/{version}").read_text().splitlines()[1:]
        except OSError:  # it has ended, or IPv6 is off
            continue
        for words in map(str.split, lines):
            remote, state, again, inode = words[2], words[3], int(words[6], 16), int(words[9])
            if again >= _AGAIN.get(state, again + 1) and inode in own:
                yield _address_of(remote)


def _sockets_of(process: int) -> set[int]:
    """Return the inodes of the sockets that a process has; none if it is another user's."""
    inodes = set()
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/{process}/fd/{descriptor}")
                if name.startswith("socket:["):
                    inodes.add(int(name[8:-1]))
    return inodes


def _address_of(text: str) -> str:
    """Return "10.91.0.2:40000" for "02005B0A:9C40": the kernel shows words of the host's order."""
    words, _, port = text.partition(":")
    raw = b"".join(
        int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)
    )
    address = ipaddress.ip_address(raw)
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{shown}:{int(port, 16)}"
