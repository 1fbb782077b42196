"""Passes messages on between the collectors of different hosts: the server's part.

A collector (`malt/_watching/`) has what the ranks of its own host record. For a page of all hosts
it asks the others, through the sessions that their launchers have with the server.

    W1  A message may be lost: it is dropped wherever the way is not free. So no launcher, and not
        the server, waits for one that is slow, and nothing piles up. A collector that needs an
        answer asks again.
    W2  A launcher that has no session is gone for good; a message for it is answered with an empty
        one. A server that takes over answers so only for launchers for which it no longer waits.
    W3  Launchers leave a watched job together: when each has said FINISHED or is gone. Until then
        each collector answers the others.
    W4  STOP of one launcher comes to all, it included.
"""

from __future__ import annotations

from collections.abc import Set

from malt._rendezvous import wire
from malt._rendezvous.allgather_table import ProtocolError
from malt._rendezvous.sessions import Sessions
from malt._rendezvous.wire import ToClient, ToServer


class Relay:
    """The launchers that exchange messages, by their sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._finished: set[int] = set()

    def hear(self, node: int, payload: bytes, awaited: Set[int]) -> None:
        """Handle a launcher's frame: RELAY, FINISHED or STOP.

        `awaited` are nodes that have no session and may still come (W2).
        """
        if payload == ToServer.FINISHED:
            self._finished.add(node)
            self.end_if_finished()
            return
        if payload == ToServer.STOP:
            self._send_all(ToClient.STOP)
            return
        head, most = wire.RELAY_HEAD, wire.MAX_RELAYED
        if payload[:1] != ToServer.RELAY or not head.size < len(payload) <= head.size + most:
            raise ProtocolError
        _, to = head.unpack_from(payload)
        if to in self._sessions.joined[wire.NODE]:
            self._send(to, head.pack(ToClient.RELAY, node) + payload[head.size :])
        elif to not in awaited:
            self._send(node, head.pack(ToClient.RELAY, to))

    def end_if_finished(self) -> None:
        """Tell all launchers once none needs anything more of another (W3)."""
        joined = self._sessions.joined[wire.NODE]
        if self._finished and joined.keys() <= self._finished:
            self._finished.clear()
            self._send_all(ToClient.FINISHED)

    def _send_all(self, frame: bytes) -> None:
        for connection in list(self._sessions.joined[wire.NODE].values()):
            self._sessions.send(connection, frame)

    def _send(self, node: int, frame: bytes) -> None:
        connection = self._sessions.joined[wire.NODE][node]
        if not connection.outbox:  # W1
            self._sessions.send(connection, frame)
