"""Encryption of the rendezvous, when MALT_TLS names a folder.

`src/dstorm/remote/net/tls.hpp` says what the folder contains. The ranks' own connections use the
same folder. Both ends prove that their certificate leads to ca.pem. The names in it do not matter,
because the job's key decides who belongs to the job.

A proof of the key holds for one connection alone (`Socket.binding`), so nobody who has a
certificate can pass it on from one connection to another. Python's `ssl` gives no value for this in
TLS 1.3, but with its memory BIOs every byte on the way passes through this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from malt._arguments import variable
from malt._errors import ConfigError
from malt._rendezvous.exposure import exposure

Result = TypeVar("Result")

log = logging.getLogger("malt")

# A TLS connection begins with HANDSHAKE. With ALERT, plain bytes of TLS (a fatal alert,
# protocol_version), one end tells the other that only one of them uses TLS.
HANDSHAKE = b"\x16\x03"
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"

# For TLS 1.2, the ciphers that have what 1.3 has: forward secrecy, authenticated encryption.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


# The head of a record: its type, version, length. Records of type 22 are handshake messages: in TLS
# 1.3 only the hellos, in 1.2 all of them. The others of 1.3 are encrypted, and have the data type.
_RECORD = struct.Struct("!BHH")
_HANDSHAKE_TYPE = 22
_RECORD_DATA = 16384  # the most bytes that one record carries


class Socket(socket.socket):
    """A connection over TLS that raises BlockingIOError like a plain one.

    It takes one record at a time from the system. So it never holds a whole record that no selector
    sees, except for data for which `recv_into` had no room.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        """Take over the descriptor of `plain`; the first other call does the TLS handshake."""
        timeout = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, plain.detach())
        self.settimeout(timeout)
        self._came, self._leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._came, self._leaves, server_side=server_side)
        self._is_server = server_side
        self._is_open = False  # whether the handshake is complete
        self._heard, self._said = hashlib.sha256(), hashlib.sha256()  # of the handshake
        self._record = bytearray()  # the bytes of the next record that have arrived
        self._unsent = b""
        self._taken = 0  # how many of the caller's bytes are in _unsent

    def shake_hands(self) -> None:
        if not self._is_open:
            self._go_on(self._session.do_handshake)
            self._flush()
            self._is_open = True

    def binding(self) -> bytes:
        """Return a value on which only the two ends of this connection agree.

        Call it after `shake_hands`. The value is the hash of the handshake messages that both ends
        have seen. The hellos of TLS 1.3, like the key exchange of 1.2, hold each end's part of a
        fresh Diffie-Hellman exchange. An attacker in between who replaces none of them does not
        know the keys that follow; one who replaces any makes the hashes differ. (RFC 5929 binds to
        certificates instead, which several connections share.)
        """
        both = (self._heard, self._said) if self._is_server else (self._said, self._heard)
        return hashlib.sha256(b"".join(one.digest() for one in both)).digest()

    def recv(self, buflen: int = 1024, _flags: int = 0, /) -> bytes:
        self.shake_hands()
        received = self._go_on(lambda: self._session.read(buflen), at_end=b"")
        while self._session.pending():  # the rest of a decrypted record, at most 16 KB
            received += self._session.read(self._session.pending())
        return received

    def recv_into(self, buffer: Any, nbytes: int = 0, _flags: int = 0, /) -> int:
        self.shake_hands()
        # typeshed knows only the other form of read().
        read = cast("Callable[[int, Any], int]", self._session.read)
        return self._go_on(lambda: read(nbytes or len(buffer), buffer), at_end=0)

    def send(self, data: Any, _flags: int = 0, /) -> int:
        """Send one record of `data`. After BlockingIOError call again with the same data."""
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
        """Return the result of a step of the session, once enough bytes have come.

        `at_end` is the result if the other end has closed the connection; None: that is an error.
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
                    self._flush()  # sends the alert that says why
                raise

    def _fill(self) -> None:
        length = _RECORD.size
        if len(self._record) >= length:
            length += _RECORD.unpack_from(self._record)[2]
        data = super().recv(length - len(self._record))
        if not data:
            self._came.write_eof()
            return
        self._came.write(data)  # OpenSSL detects at its first bytes that data are no record
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
    """Return the value to which proofs of the job's key are bound; empty for a plain connection."""
    return connection.binding() if isinstance(connection, Socket) else b""


def context(*, server_side: bool) -> ssl.SSLContext | None:
    """Return the context for the connections of one end; None if MALT_TLS names no folder.

    Raises:
        malt.ConfigError: a file in the folder, which the message names, cannot be used.
    """
    folder = folder_of_tls()
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
            # Checks that the second file holds a certificate, before it is tried with its key.
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


def folder_of_tls() -> str:
    """Return the folder that MALT_TLS names; empty if it is not set, or "off"."""
    folder = variable("MALT_TLS")
    return "" if folder == "off" else folder


def explain(error: ssl.SSLError) -> str:
    """Say why a client's connection failed, and what to check."""
    folder = Path(folder_of_tls())
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
    if folder := folder_of_tls():
        with contextlib.suppress(OSError):  # context() reports a file that cannot be read
            if (warning := exposure(Path(folder, "key.pem"))) is not None:
                log.warning("MALT_TLS: %s", warning)
