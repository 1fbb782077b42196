"""A client's side of the rendezvous of `malt run`, and that of a rank; see `wire.py`."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import socket
import time
from collections.abc import MutableMapping, Sequence
from typing import TypeVar

from malt import _errors as errors
from malt._arguments import variable
from malt._core_import import TlsContext
from malt._errors import ConfigError, Error, PeerError, describe_ranks
from malt._rendezvous import channel, tls, wire
from malt._rendezvous.channel import Channel
from malt._rendezvous.wire import ToClient, ToServer

Joined = TypeVar("Joined", bound="RankSession")

# A client waits so much longer than the server, whose answer, with names, thus comes first.
GRACE_SECONDS = 1.0
# How long a launcher that may have taken over is asked until it answers. It must itself have lost
# the last one: if that one's host has failed, this takes 30 s.
REACH_SECONDS = 40.0
_RETRY_SECONDS = 0.05

# Job keys in hexadecimal, by MALT_RENDEZVOUS. They are kept because they are removed from the
# environment, and a rank that has called malt.finalize() may call malt.init() again.
_taken_keys: dict[str, str] = {}


class NobodyError(ConfigError):
    """No launcher listens at the address, or it cannot be reached."""


class RefusedError(ConfigError):
    """The launcher of this job has refused."""


class Session:
    """A client's connection to the launcher that has the server. Used by one thread."""

    # These differ between a rank's session and a launcher's.
    _kind: bytes
    _source: str  # of the address, for messages
    _awaits_server = False
    _awaits_name = False  # the name in the address may come to be known only later
    _nobody: str  # the message if nobody listens
    _way_out: str  # advice if the two are not of one job

    def __init__(self, address: str, key: bytes, number: int, count: int) -> None:
        """The session of rank or node `number` of `count`, still to be opened."""
        self.address = address
        self._key = key
        self._number = number
        self._count = count
        self._socket: Channel | socket.socket | None = None
        self._own_host = ""  # as the server's host sees it

    def abort(self) -> None:
        """Leave at once; the clients that wait for this rank are told that it left. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, timeout: float) -> None:
        address = self.address
        where = wire.parse_address(address, self._source)
        encryption = tls.context()
        deadline = time.monotonic() + min(timeout, wire.MAX_SECONDS)
        while True:
            try:
                self._shake_hands(where, deadline, encryption)
                return
            except (
                ConnectionResetError,
                BrokenPipeError,
                ConnectionRefusedError,
            ) as error:
                self.abort()
                is_nobody = isinstance(error, ConnectionRefusedError)
                nobody = self._nobody.format(address=address, timeout=timeout)
                if is_nobody and not self._awaits_server:
                    raise NobodyError(nobody) from None
                if time.monotonic() + _RETRY_SECONDS < deadline:
                    time.sleep(_RETRY_SECONDS)
                    continue
                raise errors.TimeoutError(
                    nobody
                    if is_nobody
                    else f"the launcher at {address} accepts no connection (tried for {timeout:g} "
                    "s): too many come at once"
                ) from None
            except builtins.TimeoutError:
                self.abort()
                raise errors.TimeoutError(
                    f"the launcher at {address} did not answer within {timeout:g} s"
                ) from None
            except OSError as error:
                self.abort()
                is_unnamed = isinstance(error, socket.gaierror) and self._awaits_name
                if is_unnamed and time.monotonic() + _RETRY_SECONDS < deadline:
                    time.sleep(_RETRY_SECONDS)
                    continue
                hint = "raise ulimit -n" if error.errno == errno.EMFILE else f"see {self._source}"
                raise NobodyError(
                    f"the launcher at {address} cannot be reached: {error}; {hint}"
                ) from error
            except BaseException:
                self.abort()
                raise

    def _introduction(self) -> wire.Introduction:
        return wire.Introduction(self._kind, self._number, self._count, os.getpid())

    def _shake_hands(
        self, where: tuple[str, int], deadline: float, encryption: TlsContext | None
    ) -> None:
        self._deadline = deadline
        left = max(1e-3, deadline - time.monotonic())
        connected = socket.create_connection(where, left)
        own = connected.getsockname()
        self._own_host = own[0]
        if own == connected.getpeername():
            # Nobody listens, but the system gave this end the port that it connects to.
            connected.close()
            raise ConnectionRefusedError
        connection = channel.call(connected, self._key, self._introduction(), encryption)
        self._socket = connection
        connection.settimeout(left)
        try:
            session_key = connection.shake_hands()
        except ConfigError as error:
            raise ConfigError(
                f"the launcher at {self.address} cannot be joined: {error}; {self._way_out}"
            ) from None
        self._sealer, self._opener = wire.sealers(session_key)
        self._be_welcomed()

    def _be_welcomed(self) -> None:
        welcome = self._receive()
        if welcome[:1] != ToClient.WELCOME:
            raise RefusedError(f"the launcher refuses: {welcome[1:].decode(errors='replace')}")
        self._greeting = welcome[1:]

    def _send(self, payload: bytes) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(1e-3, self._deadline - time.monotonic()))
        self._socket.sendall(self._sealer.seal(payload))

    def _receive(self) -> bytes:
        (length,) = wire.LENGTH.unpack(self._read(wire.LENGTH.size))
        if not 0 < length <= wire.MAX_FRAME:
            raise ConnectionError("a frame of impossible length")
        payload = self._read(length)
        if not self._opener.is_genuine(payload, self._read(wire.MAC_BYTES)):
            raise ConnectionError("a frame that is not the launcher's")
        return payload

    def _read(self, length: int) -> bytes:
        buffer = bytearray(length)
        view = memoryview(buffer)
        while view:
            count = self._in_time().recv_into(view)
            if count == 0:
                raise ConnectionResetError("the launcher has closed the connection")
            view = view[count:]
        return bytes(buffer)

    def _in_time(self) -> Channel | socket.socket:
        """Return the socket, whose next call may take what is left: the limit is on all calls."""
        assert self._socket is not None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise builtins.TimeoutError
        self._socket.settimeout(left)
        return self._socket


class RankSession(Session):
    """A rank's session of any kind."""

    _source = "MALT_RENDEZVOUS"
    _nobody = (
        "no launcher listens at {address} (MALT_RENDEZVOUS): the `malt run` that set it has ended; "
        "unset it, or start through `malt run`"
    )
    _way_out = "start through `malt run`, which sets MALT_RENDEZVOUS, MALT_JOB_KEY and MALT_TLS"

    def __init__(
        self,
        address: str,
        key: bytes,
        rank: int,
        size: int,
        timeout: float,
        successors: Sequence[str] = (),
    ) -> None:
        """Join the job; `successors` are addresses of launchers that may have taken over.

        Raises:
            malt.ConfigError: no launcher of this job listens, or it refuses.
            malt.TimeoutError: the launcher does not answer within `timeout` seconds.
        """
        super().__init__(address, key, rank, size)
        self.rank = rank
        self.size = size
        self.key = key
        self.host = wire.parse_address(address, self._source)[0]
        self._successors = list(successors)
        try:
            self._reach(timeout)
        except (NobodyError, RefusedError) as error:
            raise ConfigError(str(error)) from error.__cause__

    def _reach(self, timeout: float) -> None:
        """Open the session with the launcher, or with the first one that has taken over."""
        try:
            self._connect(min(timeout, REACH_SECONDS) if self._successors else timeout)
        except (NobodyError, errors.TimeoutError):
            if not self._reach_successor():
                raise

    def _reach_successor(self) -> bool:
        """Open the session anew, with the first launcher that has taken over; if there is one."""
        while self._successors:
            self.address = self._successors.pop(0)
            with contextlib.suppress(NobodyError, errors.TimeoutError):
                self._connect(REACH_SECONDS)
                return True
        return False

    @classmethod
    def from_environ(
        cls: type[Joined], environ: MutableMapping[str, str], timeout: float
    ) -> Joined:
        """Join the job that `malt run` has described in the environment.

        The key is removed from the environment, so that processes which the rank starts do not
        inherit it.
        """

        def get(name: str) -> str:
            if not environ.get(name):
                raise ConfigError(
                    f"MALT_RENDEZVOUS is set, but {name} is not: `malt run` sets both; unset the "
                    "first, or start through `malt run`"
                )
            return environ[name]

        def take_key(address: str) -> bytes:
            if address not in _taken_keys or variable("MALT_JOB_KEY", env=environ):
                wire.parse_key(get("MALT_JOB_KEY"), "MALT_JOB_KEY")
                _taken_keys[address] = environ.pop("MALT_JOB_KEY")
            return bytes.fromhex(_taken_keys[address])

        def number(name: str) -> int:
            if not get(name).isdecimal():
                raise ConfigError(f"{name} is not a number: {get(name)!r}")
            return int(get(name))

        rank, size = number("MALT_RANK"), number("MALT_SIZE")
        if not 0 <= rank < size <= wire.MAX_RANKS:
            raise ConfigError(f"MALT_RANK={rank} is not a rank of a job of MALT_SIZE={size}")
        address = get("MALT_RENDEZVOUS")
        successors = variable("MALT_SUCCESSORS", env=environ)
        return cls(
            address,
            take_key(address),
            rank,
            size,
            timeout,
            successors.split(",") if successors else (),
        )


class Client(RankSession):
    """A rank's session at start."""

    _kind = wire.RANK
    _round = 0

    def allgather(self, data: bytes, timeout: float) -> list[bytes]:
        """Return every rank's bytes, by rank; blocks for at most `timeout` seconds and a second.

        Raises:
            malt.TimeoutError: names the ranks that did not come.
            malt.PeerError: names the ranks that are dead or have left.
            malt.ConfigError: `data` is longer than a frame may be.
        """
        if self._socket is None:
            raise Error("the rendezvous is closed, or was left after an error")
        if len(data) > wire.MAX_PART:
            raise ConfigError(
                f"{len(data)} bytes to exchange at start; at most {wire.MAX_PART} can be"
            )
        seconds = min(max(timeout, 0.0), wire.MAX_SECONDS)
        self._deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            self._send(wire.PART_HEAD.pack(ToServer.PART, self._round, seconds) + data)
            self._round += 1
            answer = self._receive()
            if answer[:1] == ToClient.COMPLETE:
                return self._receive_parts()
            failure = self._failure(answer, timeout)
        except builtins.TimeoutError:
            self.abort()
            raise errors.TimeoutError(
                f"the launcher (malt run) did not answer within {timeout:g} s"
            ) from None
        except OSError as error:
            self.abort()
            raise PeerError(
                f"the connection to the launcher (malt run) is lost: {error}"
            ) from error
        except BaseException:
            self.abort()
            raise
        self.abort()
        raise failure

    def _receive_parts(self) -> list[bytes]:
        """Return all ranks' bytes: many short frames that come together."""
        parts: list[bytes] = []
        inbox = bytearray()
        while len(parts) < self.size:
            if (frame := wire.take_frame(inbox, self._opener)) is not None:
                parts.append(frame[1:])
                continue
            if not (received := self._in_time().recv(1 << 16)):
                raise ConnectionResetError("the launcher has closed the connection")
            inbox += received
        if inbox:
            raise ConnectionError("a frame that nothing has asked for")
        return parts

    def close(self) -> None:
        """Leave in good order; idempotent."""
        if self._socket is not None:
            self._deadline = time.monotonic() + GRACE_SECONDS
            with contextlib.suppress(OSError):
                self._send(ToServer.BYE)
            self.abort()

    def _failure(self, answer: bytes, timeout: float) -> Exception:
        ranks, text = wire.unpack_ranks(answer)
        if answer[:1] == ToClient.LATE:
            return errors.TimeoutError(
                f"{describe_ranks(ranks)} did not come within {timeout:g} s; a longer limit: "
                "malt.init(timeout=...) or MALT_TIMEOUT",
                ranks,
            )
        return PeerError(f"{describe_ranks(ranks)} {text or 'left or died'} during start-up", ranks)
