"""The sessions of clients that have proved the key, as the server has them: sends them frames."""

from __future__ import annotations

import selectors

from malt._rendezvous import wire
from malt._rendezvous.connection import Connection


def _most_unread(ranks: int) -> int:
    """Return the room for the answers of two rounds; a client that reads is owed no more."""
    return 2 * (ranks + 1) * (wire.LENGTH.size + wire.MAX_FRAME + wire.MAC_BYTES)


class Sessions:
    """The connections whose clients have proved the key.

    Attributes:
        joined: by kind (wire.RANK, MEMBER or NODE) and number: those that have been let in.
        broken: connections found closed while frames were sent to them. They are dropped only once
            the present frames have gone to all their receivers, because the tables answer a loss
            with frames that must come later.
        most_unread: bytes that are kept for a client that does not read them. A client that leaves
            more unread counts as broken.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """`selector` is to wait for the connections, each with itself as the data."""
        self.joined: dict[bytes, dict[int, Connection]] = {
            kind: {} for kind in (wire.RANK, wire.MEMBER, wire.NODE)
        }
        self.broken: list[Connection] = []
        self.most_unread = _most_unread(0)
        self._connections: set[Connection] = set()
        self._selector = selector

    def expect(self, ranks: int) -> None:
        """Prepare for a job of so many ranks."""
        self.most_unread = _most_unread(ranks)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._connections

    def begin(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def end(self, connection: Connection) -> bool:
        """Close a connection; return whether it was still there."""
        if connection not in self._connections:
            return False
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.has_joined:
            del self.joined[connection.kind][connection.number]
        return True

    def close(self) -> None:
        for connection in self._connections:
            connection.socket.close()
        self._connections.clear()

    def send(self, connection: Connection, *payloads: bytes) -> None:
        """Send frames, all of them with one call of the system if it takes them now."""
        if connection in self.broken:
            return
        sealed = memoryview(b"".join(map(connection.sealer.seal, payloads)))
        connection.outbox.append(sealed)
        connection.unread += len(sealed)
        if connection.unread > self.most_unread:
            self.broken.append(connection)
        else:
            self.flush(connection)

    def flush(self, connection: Connection) -> None:
        """Send as much as the client's system takes now."""
        if connection in self.broken:
            return
        outbox = connection.outbox
        try:
            while outbox:
                sent = connection.socket.send(outbox[0])
                connection.unread -= sent
                if sent < len(outbox[0]):
                    outbox[0] = outbox[0][sent:]
                else:
                    outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.broken.append(connection)
            return
        if connection.closing and not outbox:
            self.broken.append(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if outbox else 0)
        self._selector.modify(connection.socket, events, connection)
