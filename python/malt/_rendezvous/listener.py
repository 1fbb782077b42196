"""The listener of the rendezvous: the server's listening socket, and the handshakes of its callers.

`src/dstorm/remote/net/listener.hpp` does the work, and says how callers that do not prove the job's
key neither slow the job down nor keep ranks out.
"""

from __future__ import annotations

import errno
import selectors
import socket

from malt import _core_import as core
from malt._errors import ConfigError
from malt._rendezvous import tls, wire
from malt._rendezvous.channel import Channel
from malt._rendezvous.connection import Connection

HANDSHAKE_SECONDS = 5.0
_BACKLOG = 4096  # the system may allow less


class Listener:
    """Lets in clients that know the key. Used by one thread.

    Attributes:
        host, port: where it listens.
    """

    def __init__(
        self, host: str, port: int, key: bytes, server_selector: selectors.BaseSelector
    ) -> None:
        """Listen; port 0 means any port. `server_selector` wakes the server to call `ready`.

        Raises:
            malt.ConfigError: the port is taken, the address is not of this host, or MALT_TLS is
                unusable.
        """
        encryption = tls.context()
        listening = _listen(host, port)
        listening.setblocking(False)
        self.host, self.port = listening.getsockname()[:2]
        self._core = core.Listener(listening.detach(), key, HANDSHAKE_SECONDS, encryption)
        self.expect_from(self.host)
        server_selector.register(self._core, selectors.EVENT_READ)

    @property
    def last_refusal(self) -> str:
        """The last caller that was refused, and why; empty if none was."""
        return self._core.last_refusal

    @property
    def half_open(self) -> int:
        """How many callers have not proved the key yet."""
        return self._core.half_open

    def close(self) -> None:
        self._core.close()

    def expect(self, clients: int) -> None:
        """Let so many clients come at once."""
        self._core.expect_at_once(clients)

    def expect_from(self, host: str) -> None:
        """Have callers from a host of the job take turns with all others."""
        self._core.expect_from(host)

    def ready(self) -> list[Connection]:
        """Take a turn at the handshakes; return the connections that have proved the key in it."""
        connections = []
        for call, session_key, host, number, about in self._core.ready():
            who = wire.Introduction.unpack(number, about)
            if who.kind in (wire.RANK, wire.MEMBER, wire.NODE):
                sealers = wire.sealers(session_key)
                connections.append(Connection(Channel(call), host, *who, *sealers))
        return connections


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        hint = {
            errno.EADDRINUSE: "the port is in use, by another job or another --node-rank 0; take "
            "another in --rendezvous",
            errno.EADDRNOTAVAIL: "no address of this host, where node 0 is to listen; give one in "
            "--rendezvous, or start --node-rank 0 where it is",
        }.get(error.errno or 0, f"{error}; see --rendezvous")
        raise ConfigError(f"node 0 cannot listen at {host}, port {port}: {hint}") from error
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(listening.getsockname())  # sends nothing
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"ranks of this host cannot reach {host}, where their launcher listens "
            f"({error.strerror}): turn the loopback interface on (ip link set lo up)"
        ) from error
    return listening
