"""The kernel's counters of the TCP connections of this host, and how fast its links are.

Connections: sock_diag(7) over netlink, with struct tcp_info of include/uapi/linux/tcp.h, which any
user may ask for. Links: the ioctl ETHTOOL_GSET of include/uapi/linux/ethtool.h, since a container
may see other interfaces under /sys/class/net than it has.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SOCK_DIAG = 4  # the protocol NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # the message SOCK_DIAG_BY_FAMILY
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_REQUESTED = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2
_INFO = 2  # the attribute INET_DIAG_INFO
_ESTABLISHED = 1 << 1  # a set of states
_SOCKET = struct.Struct("=BBBB2s2s16s16s12x4x4x4x4xI")  # struct inet_diag_msg
# Of struct tcp_info: bytes_acked, notsent_bytes, busy_time, rwnd_limited, sndbuf_limited,
# bytes_sent, bytes_retrans. Before Linux 4.19 it ends before bytes_sent.
_FIGURES = struct.Struct("=120xQ16xI20xQQQ8xQQ")

_SIOCETHTOOL, _GSET = 0x8946, 0x1
_ETHTOOL_BYTES = 44
_SPEED_LOW, _SPEED_HIGH = struct.Struct("=12xH"), struct.Struct("=28xH")
_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)


class Connection(NamedTuple):
    """An open connection of this host. Times are microseconds since it was opened."""

    inode: int  # of its socket
    local: str  # an address
    remote: str  # an address
    acknowledged: int  # bytes that have arrived there
    unsent: int  # bytes that wait here
    busy: int  # the time during which there was something to send, or unacknowledged
    held_up: int  # the part of that during which the receiver, or the buffer here, had no room
    sent: int  # bytes, each time that they were sent
    resent: int  # bytes that were sent again


def connections() -> list[Connection]:
    """Return the open TCP connections of this network namespace; none if Linux does not tell."""
    found: list[Connection] = []
    with contextlib.suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            found += _connections(family)
    return found


def _connections(family: int) -> Iterator[Connection]:
    body = _REQUESTED.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    size = _HEADER.size + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(5.0)
        netlink.sendall(_HEADER.pack(size, _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 16)
            while len(data) >= _HEADER.size:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind in (_ERROR, _DONE):
                    return
                if (one := _parse(data[_HEADER.size : length])) is not None:
                    yield one
                data = data[(length + 3) & ~3 :]


def _parse(message: bytes) -> Connection | None:
    family, _, _, _, _, _, here, there, inode = _SOCKET.unpack_from(message)
    size = 4 if family == socket.AF_INET else 16
    local, remote = (socket.inet_ntop(family, one[:size]) for one in (here, there))
    at = _SOCKET.size
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INFO and length - 4 >= _FIGURES.size:
            acked, unsent, busy, room, buffer, sent, resent = _FIGURES.unpack_from(message, at + 4)
            held_up = room + buffer
            return Connection(inode, local, remote, acked, unsent, busy, held_up, sent, resent)
        at += max(4, (length + 3) & ~3)
    return None


def sockets_of(process: int) -> set[int]:
    """Return the inodes of the sockets that a process has; none if it is another user's."""
    inodes = set()
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/{process}/fd/{descriptor}")
                if name.startswith("socket:["):
                    inodes.add(int(name[8:-1]))
    return inodes


def link_speed(interface: str) -> int | None:
    """Return the speed of an interface's link in bits a second, if its driver says one."""
    command = array.array("B", struct.pack("=I", _GSET).ljust(_ETHTOOL_BYTES, b"\0"))
    # struct ifreq: the name, and a pointer to the command.
    request = struct.pack("16sP16x", interface.encode()[:15], command.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    except OSError:
        return None
    speed = _SPEED_HIGH.unpack_from(command)[0] << 16 | _SPEED_LOW.unpack_from(command)[0]
    return None if speed in _UNKNOWN else int(speed) * 1_000_000


def bytes_sent() -> dict[str, int]:
    """Return the bytes that each interface has sent, for all programs."""
    sent = {}
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        sent[name.strip()] = int(counters.split()[8])
    return sent
