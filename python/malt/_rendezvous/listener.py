"""The listener of the rendezvous: the server's listening socket, and the handshakes of its callers.

It lets in callers that prove the job's key. All others neither slow the job down nor keep ranks
out:

    H1  A limited number of connections are half-open at a time, none of them for longer than
        HANDSHAKE_SECONDS. When one more comes, another makes way: one of the origin that has most
        half-open connections, drawn at random, so that the timing of a flood does not decide.
    H2  A connection that has proved the key is no longer half-open. It never makes way.
    H3  No call here waits for a caller. Before each turn at the handshakes the server serves those
        that have proved the key. A turn begins no step of a handshake after TURN_SECONDS.
    H4  All turns together take at most SHARE of a processor, beyond what has been saved. The cost
        of a TLS handshake is known only after it. So the listener measures the processor time of
        its thread, and rests when its share is spent.
    H5  Each host of the job is an origin, and all strangers together are one. In each turn, one
        caller of each origin comes after the other. So a flood from elsewhere delays a rank by a
        few steps of strangers' handshakes.

Times are limited (H3, H4) once all launchers have come: before that there are no ranks to slow
down, and launchers on other hosts are strangers.

`src/dstorm/remote/net/listener.hpp` is the same for the ranks' own ports.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import random
import secrets
import selectors
import socket
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import zip_longest

from malt._errors import ConfigError
from malt._rendezvous import tls, wire
from malt._rendezvous.connection import Connection
from malt._rendezvous.processor_budget import ProcessorBudget

HANDSHAKE_SECONDS = 5.0
TURN_SECONDS = 0.002
SHARE = 0.1
# What the listener may save: enough for all ranks to come at once, over TLS.
SAVED_SECONDS = 0.5
SAVED_SECONDS_PER_RANK = 0.01
# Fewer than may be half-open (H1): so most callers are served before they make way.
_ACCEPTED_A_TURN = 16
_STRANGERS = ""


class Listener:
    """Lets in clients that know the key. Used by one thread.

    Attributes:
        host, port: where it listens.
        other_version: the host of the last caller that has another version of MALT, or "".
    """

    def __init__(
        self, host: str, port: int, key: bytes, server_selector: selectors.BaseSelector
    ) -> None:
        """Listen; port 0 means any port. `server_selector` wakes the server to call `ready`.

        Raises:
            malt.ConfigError: the port is taken, the address is not of this host, or MALT_TLS is
                unusable.
        """
        self._key = key
        self._encryption = tls.context(server_side=True)
        self._socket = _listen(host, port)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self.other_version = ""
        self._hosts = {self.host}
        self._half_open: dict[Connection, None] = {}  # oldest first
        self._most_half_open = 0
        self._random = random.Random()
        self._budget: ProcessorBudget | None = None
        self._rests_until: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._server_selector = server_selector
        server_selector.register(self._selector, selectors.EVENT_READ)

    def close(self) -> None:
        for connection in self._half_open:
            connection.socket.close()
        self._half_open.clear()
        self._selector.close()
        self._socket.close()

    def expect(self, clients: int) -> None:
        """Let so many clients come at once."""
        self._most_half_open = max(64, 2 * clients)
        self._socket.listen(max(128, 2 * clients))

    def expect_from(self, host: str) -> None:
        """Have callers from a host of the job take turns with all others (H5)."""
        self._hosts.add(host)

    def limit(self, ranks: int) -> None:
        """Begin to limit the time of handshakes (H3, H4), in a job of so many ranks."""
        saved = SAVED_SECONDS + SAVED_SECONDS_PER_RANK * ranks
        self._budget = ProcessorBudget(SHARE, saved, time.monotonic())

    def next_deadline(self) -> float | None:
        """Return when to call `ready` next, if no caller sends anything before; None: never."""
        deadlines = [oldest.since + HANDSHAKE_SECONDS for oldest in [*self._half_open][:1]]
        if self._rests_until is not None:
            deadlines.append(self._rests_until)
        return min(deadlines, default=None)

    def ready(self) -> list[Connection]:
        """Take a turn at the handshakes; return the connections that have proved the key in it."""
        now = time.monotonic()
        for connection in list(self._half_open):
            if connection.since + HANDSHAKE_SECONDS > now:
                break
            self._drop(connection)
        if self._is_resting(now):
            return []
        began = time.thread_time()
        callers = [key.data for key, _ in self._selector.select(0)]
        self._random.shuffle(callers)
        if None in callers:
            self._accept_some(now)
        proved = []
        for connection in _in_turns(caller for caller in callers if caller is not None):
            if connection in self._half_open and self._has_proved(connection):
                proved.append(connection)
                self._take_out(connection)
            if self._budget is not None and time.thread_time() - began >= TURN_SECONDS:
                break
        if self._budget is not None:
            self._budget.spend(time.thread_time() - began, now)
            self._rest(self._budget.has_at(TURN_SECONDS), now)
        return proved

    def _rest(self, until: float, now: float) -> None:
        if now < until and self._rests_until is None:
            self._rests_until = until
            self._server_selector.unregister(self._selector)

    def _is_resting(self, now: float) -> bool:
        if self._rests_until is not None and self._rests_until <= now:
            self._rests_until = None
            self._server_selector.register(self._selector, selectors.EVENT_READ)
        return self._rests_until is not None

    # Connections

    def _accept_some(self, now: float) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            if len(self._half_open) >= self._most_half_open:
                self._make_room()
            try:
                accepted, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # most likely no descriptor is left
                if self._half_open:
                    self._make_room()
                self._rest(now + 0.01, now)
                return
            with contextlib.suppress(OSError):  # it is closed already; reading will notice
                wire.tune(accepted)
            if self._encryption is not None:
                accepted = tls.Socket(accepted, self._encryption, server_side=True)
            self.admit(accepted, peer[0])

    def admit(self, accepted: socket.socket, host: str) -> None:
        """Begin the handshake of a caller from `host`."""
        accepted.setblocking(False)
        origin = host if host in self._hosts else _STRANGERS
        connection = Connection(accepted, host, time.monotonic(), origin)
        self._half_open[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _make_room(self) -> None:
        counts = Counter(connection.origin for connection in self._half_open)
        ((origin, _),) = counts.most_common(1)
        self._drop(self._random.choice([one for one in self._half_open if one.origin == origin]))

    def _take_out(self, connection: Connection) -> None:
        del self._half_open[connection]
        self._selector.unregister(connection.socket)

    def _drop(self, connection: Connection) -> None:
        self._take_out(connection)
        connection.socket.close()

    # The handshake

    def _has_proved(self, connection: Connection) -> bool:
        """Take what a caller has sent; True once it has proved the key. Drop it if it will not."""
        try:
            received = connection.socket.recv(4096)
        except BlockingIOError:
            return False
        except OSError as error:
            received = b""
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                _turn_away(connection)  # the client does not use TLS
        inbox = connection.inbox
        inbox += received
        if not connection.hello and inbox.startswith(tls.HANDSHAKE):
            _turn_away(connection)
            received = b""
        length = wire.MAC_BYTES if connection.hello else wire.HELLO.size
        if not received or len(inbox) > length:  # a client awaits the answer to each message
            self._drop(connection)
        elif len(inbox) == length:
            message = bytes(inbox)
            inbox.clear()
            if connection.hello and self._is_proof(connection, message):
                return True
            if connection.hello or not self._is_challenged(connection, message):
                self._drop(connection)
        return False

    def _is_proof(self, connection: Connection, message: bytes) -> bool:
        binding = tls.binding(connection.socket)
        hello, nonce = connection.hello, connection.nonce
        expected = wire.proof(self._key, b"client", hello, nonce, binding)
        return hmac.compare_digest(message, expected)

    def _is_challenged(self, connection: Connection, hello: bytes) -> bool:
        """Answer a hello; False if it is none, or the answer cannot be sent."""
        magic, kind, *_ = wire.HELLO.unpack(hello)
        if magic != wire.MAGIC or kind not in (wire.RANK, wire.MEMBER, wire.NODE):
            if magic != wire.MAGIC and magic.startswith(wire.MAGIC[:-1]):
                self.other_version = connection.host
            return False
        connection.hello = hello
        connection.nonce = secrets.token_bytes(wire.NONCE_BYTES)
        binding = tls.binding(connection.socket)
        proof = wire.proof(self._key, b"server", hello, connection.nonce, binding)
        try:
            connection.socket.sendall(wire.CHALLENGE.pack(connection.nonce, proof))
        except OSError:  # it does not block either: the buffer of a new connection is empty
            return False
        return True


def _in_turns(callers: Iterable[Connection]) -> list[Connection]:
    """Return the callers ordered such that one of each origin comes after the other."""
    by_origin: dict[str, list[Connection]] = defaultdict(list)
    for caller in callers:
        by_origin[caller.origin].append(caller)
    rounds = zip_longest(*by_origin.values())
    return [caller for round_ in rounds for caller in round_ if caller is not None]


def _turn_away(connection: Connection) -> None:
    """Tell a client whose TLS setting differs at once, in bytes that both kinds understand."""
    with contextlib.suppress(OSError):
        os.write(connection.socket.fileno(), tls.ALERT)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family)
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
