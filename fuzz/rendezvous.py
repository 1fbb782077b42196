"""Frames of the rendezvous: what the server hears of launchers, ranks and members that have proved
the key (before that: fuzz/listener.cpp), and what these hear of it.

As fuzz/target.py says. A frame of the input says from whom it is, and whether the clock moves on.

usage: rendezvous.py [OPTION]... [FOLDER OR FILE]...
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from make_corpus import RENDEZVOUS
from target import MIB, Decoder, frames, fuzz, instrument

import malt
from malt._rendezvous import member_session, node_session, server, session, wire
from malt._rendezvous.connection import Connection
from malt._rendezvous.held import Held
from malt._rendezvous.wire import ToServer

KEY = bytes(range(32))
NODES, RANKS = 2, 4  # of the job; each launcher has two ranks
LEAVES = 0x80  # of a frame's first byte: whoever it is from closes the connection instead
MOVES_ON = 0x40  # the clock moves on, by seconds
MOST_UNREAD = 2 * (RANKS + 2) * wire.MAX_FRAME  # bytes that the server keeps for a client

wire.MAX_RANKS = 1 << 8  # the server's work and memory grow with the ranks that launchers announce
clock = SimpleNamespace(now=1000.0)
SENDERS = [(wire.NODE, 0), (wire.NODE, 1), *((wire.MEMBER, r) for r in range(RANKS))]
SENDERS += [(wire.RANK, rank) for rank in range(RANKS)]


class NoListener:
    """A listener that nobody calls."""

    host, port, last_refusal = "127.0.0.1", 1, ""

    def __init__(self, *_: object) -> None: ...

    def ignore(self, _: object = None) -> None: ...

    close = expect = expect_from = ignore

    def ready(self) -> list[Connection]:
        return []


class Meeting:
    """A server, and clients that have proved the key and never read what it sends them."""

    def __init__(self) -> None:
        self.server = server.Server(NODES, KEY)
        self.ends: dict[tuple[bytes, int], tuple[socket.socket, wire.Sealer, Connection]] = {}

    def close(self) -> None:
        self.server.close()
        for end, _, _ in self.ends.values():
            end.close()

    def attach(self, who: tuple[bytes, int]) -> None:
        kind, number = who
        count = NODES if kind == wire.NODE else self.server.size
        end, key = self.server.attach(wire.Introduction(kind, number, count, 7))
        end.setblocking(False)
        (connection,) = self.server._sessions._connections - {c for _, _, c in self.ends.values()}
        if who in self.ends:
            self.ends.pop(who)[0].close()
        self.ends[who] = end, wire.sealers(key)[0], connection

    def hear(self, who: tuple[bytes, int], payload: bytes) -> None:
        """Have the server read a frame; without a payload its client has gone."""
        if who not in self.ends or self.ends[who][2] not in self.server._sessions:
            self.attach(who)
        end, sealer, connection = self.ends[who]
        if payload:
            with contextlib.suppress(OSError):
                end.sendall(sealer.seal(payload))
        else:
            end.shutdown(socket.SHUT_WR)
        self.server._attend(connection, server.selectors.EVENT_READ)
        self.server._drop_broken()

    def turn(self) -> None:
        """Do what is due, as the server's thread does; without a wait for sockets."""
        self.server._selector.select = lambda _=None: []
        self.server._turn()
        unread = max((sum(map(len, c.outbox)) for _, _, c in self.ends.values()), default=0)
        assert unread <= MOST_UNREAD, f"{unread:,} bytes for a client that does not read"


def meet(frames_: Iterator[tuple[int, bytes]], begin: Any) -> None:
    server.Listener, server.time = NoListener, SimpleNamespace(monotonic=lambda: clock.now)
    meeting = Meeting()
    try:
        begin(meeting)
        for head, payload in frames_:
            who = SENDERS[(head & 0x3F) % len(SENDERS)]
            if who[0] != wire.NODE and not meeting.server.size:
                continue  # ranks come only later
            meeting.hear(who, b"" if head & LEAVES else payload)
            clock.now += 3 if head & MOVES_ON else 0.01
            meeting.turn()
            if meeting.server._nodes.is_settled and not meeting.server.size:
                if not meeting.server._nodes.size:
                    return  # the launchers do not agree, and end
                meeting.server.gather()
    finally:
        meeting.close()


def begin_job(given: bytes) -> None:
    """From the launchers' first frames on."""
    meet(frames(given), lambda _: None)


def go_on(given: bytes, *, least: int = 0) -> None:
    """Launchers and ranks of a job that has begun; an elastic one if there is a least number."""

    def begin(meeting: Meeting) -> None:
        for node in range(NODES):
            limits = (least, RANKS if least else 0)
            count = 1 if least else RANKS // NODES
            come = wire.RANKS_FRAME.pack(ToServer.RANKS, count, True, *limits, 60.0)
            meeting.hear((wire.NODE, node), come)
        meeting.server.gather()

    meet(frames(given), begin)


def take_over(given: bytes) -> None:
    meet(frames(given), lambda meeting: meeting.server.succeed(RANKS, range(0), {0, 1}))


# ---- what a client hears -------------------------------------------------------------------------


def hear_as_launcher(given: bytes) -> None:
    """All that the server says in one stream, sealed or cut short."""
    to_client = [wire.sealers(KEY)[1] for _ in range(2)]
    node = node_session.Node("127.0.0.1:1", KEY, 0, NODES)
    node._socket, end = socket.socketpair()
    node._opener = to_client[0]
    with node._socket, end:
        for is_cut, frame in frames(given):
            sealed = to_client[1].seal(frame)
            end.sendall(sealed[:-1] if is_cut & 1 else sealed)
        for event in node.hear():
            repr(event)


def start_launcher(given: bytes) -> None:
    """The answer that starts a launcher."""
    node = node_session.Node("127.0.0.1:1", KEY, 1, NODES)
    node._connect = lambda _: None
    with answering(node, given):
        node.start(2, 1.0, None)
        assert not any("\0" in text for text in node.environ(0, 0).values())
        with contextlib.suppress(IndexError):
            node.next_of(1, None)


def welcome(given: bytes) -> None:
    """The server's first frame."""
    node = node_session.Node("127.0.0.1:1", KEY, 1, NODES)
    with answering(node, given):
        node._be_welcomed()


def gather_ranks(given: bytes) -> None:
    client: Any = object.__new__(session.Client)
    client.size = 3
    with answering(client, given):
        parts = client.allgather(b"part", 1.0)
        assert len(parts) == client.size


@contextlib.contextmanager
def answering(client: Any, given: bytes) -> Iterator[socket.socket]:
    """Give a client the frames, and then the end of the connection."""
    client._opener, client._sealer = wire.Sealer(KEY, b"<"), wire.Sealer(KEY, b">")
    sealer = wire.Sealer(KEY, b"<")
    client._socket, end = socket.socketpair()
    with contextlib.closing(client._socket), end:
        client._deadline = time.monotonic() + 1
        for _, frame in frames(given):
            end.sendall(sealer.seal(frame))
        if given:
            end.shutdown(socket.SHUT_WR)
        yield end


def hear_as_member(given: bytes) -> None:
    """Frames for a member, which now and then does a part, as one that forms generations does."""
    member: Any = object.__new__(member_session.Member)
    member.rank, member.size, member.is_asked_to_leave = 0, RANKS, False
    member.on_call = lambda: None
    member._changed = threading.Condition()
    member._latest = member_session.Generation(0, [], [])
    member._complete, member._collecting, member._parts = {}, [0, 0, 0], {}
    member._late, member._round, member._held = [], 0, Held(0)
    member._is_lost = member._is_between = member._is_closed = False
    member._access = threading.Lock()
    member._successors = []
    sealer, member._opener = (wire.Sealer(KEY, b"<") for _ in range(2))
    ours, end = socket.socketpair()
    ours.setblocking(False)
    with ours, end:
        for _, frame in frames(given):
            end.sendall(sealer.seal(frame))
        waits = iter([lambda: None, partial(end.shutdown, socket.SHUT_WR)])
        member_session._await = lambda *_: next(waits)()
        member._take(ours)
    assert len(member._complete) <= 8
    assert len(member._parts) <= RANKS
    for frame in member._held.frames(member._latest.number, True):
        assert len(frame) <= wire.MAX_FRAME


REFUSALS = (malt.Error,)
DECODERS = {
    "begin": Decoder(begin_job, REFUSALS),
    "rejoining": Decoder(go_on, REFUSALS),
    "elastic": Decoder(lambda given: go_on(given, least=1), REFUSALS),
    "taking_over": Decoder(take_over, REFUSALS),
    "launcher": Decoder(hear_as_launcher, REFUSALS),
    "started": Decoder(start_launcher, REFUSALS),
    # Whoever connects takes OSError for a connection that is cut.
    "welcome": Decoder(welcome, (*REFUSALS, OSError)),
    "gathered": Decoder(gather_ranks, REFUSALS),
    "member": Decoder(hear_as_member, REFUSALS, 16 * MIB),
}


if __name__ == "__main__":
    instrument("malt._rendezvous")
    fuzz(RENDEZVOUS, DECODERS)
