"""Encryption of the rendezvous, when MALT_TLS names a folder; what is in it: `src/dstorm/remote/tcp/tls.hpp`.

The ranks' own connections use the same folder. Both ends prove that their certificate leads to
ca.pem; what names it bears does not matter, for the job's key says who belongs to the job.

The proofs of the key hold for one connection alone (`Socket.binding`), so that nobody who has a
certificate can pass them on from one connection to another. Python's `ssl` gives no value for this
in TLS 1.3, but with its memory BIOs every byte on the way passes through here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from malt._errors import ConfigError
from malt._rendezvous.exposure import exposure

Result = TypeVar("Result")

log = logging.getLogger("malt")

# What a TLS connection begins with; and how one end tells the other, in plain bytes of TLS, that it
# does not speak as it does: a fatal alert, protocol_version.
HANDSHAKE = b"\x16\x03"
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"

# Of 1.2, what 1.3 has too: forward secrecy and authenticated encryption.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


# What a record begins with: its type, version, length. Those of type 22 are handshake messages: in
# TLS 1.3 the hellos, in 1.2 all. The others of 1.3 are encrypted, and bear the type of data.
_RECORD = struct.Struct("!BHH")
_HANDSHAKE_TYPE = 22
_RECORD_DATA = 16384  # the most that one carries


class Socket(socket.socket):
    """A connection over TLS: says like a plain one that it would block.

    It takes one record at a time from the system, so that nothing whole is left where no selector
    looks, but for what `recv_into` has no room for.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        """Take over the descriptor of `plain`; the first of the other calls shakes hands."""
        timeout = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, plain.detach())
        self.settimeout(timeout)
        self._came, self._leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._came, self._leaves, server_side=server_side)
        self._is_server = server_side
        self._is_open = False  # hands have been shaken
        self._heard, self._said = hashlib.sha256(), hashlib.sha256()  # of the handshake
        self._record = bytearray()  # what has come of the next
        self._unsent = b""
        self._taken = 0  # bytes of the caller's in it

    def shake_hands(self) -> None:
        if not self._is_open:
            self._go_on(self._session.do_handshake)
            self._flush()
            self._is_open = True

    def binding(self) -> bytes:
        """What the two ends of this very connection alone agree on; after `shake_hands`.

        The hash of the handshake messages that both have seen. The hellos of TLS 1.3, like the key
        exchange of 1.2, hold each end's part of a fresh Diffie-Hellman exchange: somebody in
        between who replaces none of them does not know the keys that follow, and who replaces one
        makes the hashes differ. (RFC 5929 binds to certificates instead, which several
        connections share.)
        """
        both = (self._heard, self._said) if self._is_server else (self._said, self._heard)
        return hashlib.sha256(b"".join(one.digest() for one in both)).digest()

    def recv(self, buflen: int = 1024, _flags: int = 0, /) -> bytes:
        self.shake_hands()
        received = self._go_on(lambda: self._session.read(buflen), at_end=b"")
        while self._session.pending():  # of a record that has been decrypted, at most 16 KB
            received += self._session.read(self._session.pending())
        return received

    def recv_into(self, buffer: Any, nbytes: int = 0, _flags: int = 0, /) -> int:
        self.shake_hands()
        # Of which typeshed knows the other form alone.
        read = cast("Callable[[int, Any], int]", self._session.read)
        return self._go_on(lambda: read(nbytes or len(buffer), buffer), at_end=0)

    def send(self, data: Any, _flags: int = 0, /) -> int:
        """Send one record of `data`. After BlockingIOError call again with the same."""
        self.shake_hands()
        if not self._taken:
            self._taken = self._session.write(memoryview(data)[:_RECORD_DATA])
        self._flush()
        sent, self._taken = self._taken, 0
        return sent

    def sendall(self, data: Any, _flags: int = 0, /) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def _go_on(self, step: Callable[[], Result], at_end: Result | None = None) -> Result:
        """The result of a step of the session's, once enough has come.

        `at_end` is that of a connection which the peer has closed; None: it is an error.
        """
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                if at_end is None:
                    raise
                return at_end
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert that says why
                raise

    def _fill(self) -> None:
        length = _RECORD.size
        if len(self._record) >= length:
            length += _RECORD.unpack_from(self._record)[2]
        data = super().recv(length - len(self._record))
        if not data:
            self._came.write_eof()
            return
        self._came.write(data)  # what is no record is found at its first bytes
        self._record += data
        if len(self._record) == length > _RECORD.size:
            self._note(self._heard, self._record)
            self._record.clear()

    def _flush(self) -> None:
        written = self._leaves.read()
        self._unsent += written
        while written:
            length = _RECORD.size + _RECORD.unpack_from(written)[2]
            self._note(self._said, written[:length])
            written = written[length:]
        while self._unsent:
            self._unsent = self._unsent[super().send(self._unsent) :]

    def _note(self, digest: Any, record: bytes | bytearray) -> None:
        if not self._is_open and record[0] == _HANDSHAKE_TYPE:
            digest.update(record)


def binding(connection: socket.socket) -> bytes:
    """What proofs of the job's key on a connection hold for; nothing if it is plain."""
    return connection.binding() if isinstance(connection, Socket) else b""


def context(*, server_side: bool) -> ssl.SSLContext | None:
    """What the connections of one end share; None: MALT_TLS is not set, and they are plain.

    Raises:
        malt.ConfigError: a file in the folder cannot be used; it is named.
    """
    folder = os.environ.get("MALT_TLS")
    if not folder:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers(_CIPHERS)
    made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    certificate, key, authorities = (
        Path(folder, name) for name in ("cert.pem", "key.pem", "ca.pem")
    )
    for file in (certificate, key, authorities):
        try:
            file.open("rb").close()
        except OSError as error:
            raise ConfigError(
                f"MALT_TLS: {file}: {error.strerror}; the folder must have cert.pem, key.pem and "
                "ca.pem"
            ) from error
    for file in (authorities, certificate):
        try:
            # Whether the second has a certificate at all, before it is tried with its key.
            scratch = made if file is authorities else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            scratch.load_verify_locations(file)
        except ssl.SSLError as error:
            raise ConfigError(f"MALT_TLS: {file}: {_reason(error)}; it must be in PEM") from error
    try:
        made.load_cert_chain(certificate, key, password="")  # nobody is there to be asked for one
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"MALT_TLS: {key}: {_reason(error)}; it must be the private key of cert.pem in PEM, "
            "without a passphrase"
        ) from error
    return made


def explain(error: ssl.SSLError) -> str:
    """Why a client's connection did not come about, and what to look at."""
    folder = Path(os.environ["MALT_TLS"])
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid by {folder / 'ca.pem'}: {error.verify_message}"
    reason = _reason(error)
    if "alert protocol version" in reason:
        return "it uses none; set MALT_TLS for each `malt run` and all its ranks, or for none"
    if "alert" in reason:
        return f"it does not accept {folder / 'cert.pem'}: {reason}"
    return reason


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")


def warn_of_exposed_key() -> None:
    """Log a warning if others can read or write the private key in MALT_TLS."""
    if folder := os.environ.get("MALT_TLS"):
        with contextlib.suppress(OSError):  # context() names a file that cannot be read
            if (warning := exposure(Path(folder, "key.pem"))) is not None:
                log.warning("MALT_TLS: %s", warning)
