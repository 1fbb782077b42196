"""Encryption of the rendezvous, when MALT_TLS names a folder; what is in it: `tcp/tls.hpp`.

The ranks' own connections use the same folder. Both ends prove that their certificate leads to
ca.pem; what names it bears does not matter, for the job's key says who belongs to the job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from pathlib import Path
from typing import Any

from malt._errors import ConfigError
from malt._files import exposure

log = logging.getLogger("malt")

# What a TLS connection begins with; and how one end tells the other, in plain bytes of TLS, that it
# does not speak as it does: a fatal alert, protocol_version.
HANDSHAKE = b"\x16\x03"
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"

# Of 1.2, what 1.3 has too: forward secrecy and authenticated encryption.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class _Socket(ssl.SSLSocket):
    """Says like a plain one that it would block; nothing is left where no selector looks."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            received = super().recv(buflen, flags)
            while self.pending():  # of a record that has been decrypted, at most 16 KB
                received += super().recv(self.pending(), flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        return received

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


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
    made.sslsocket_class = _Socket
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
