"""Encryption of the rendezvous, when MALT_TLS names a folder.

`src/dstorm/remote/net/tls.hpp` says what the folder contains, and does the work: the ranks' own
connections use the same. Both ends prove that their certificate leads to ca.pem. The names in it do
not matter, because the job's key decides who belongs to the job.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from malt._arguments import variable
from malt._core_import import TlsContext
from malt._rendezvous.exposure import exposure

log = logging.getLogger("malt")


def context() -> TlsContext | None:
    """Return the context for connections; None if MALT_TLS names no folder.

    Raises:
        malt.ConfigError: a file in the folder, which the message names, cannot be used.
    """
    folder = _folder()
    return TlsContext(folder) if folder else None


def _folder() -> str:
    """Return the folder that MALT_TLS names; empty if it is not set, or "off"."""
    folder = variable("MALT_TLS")
    return "" if folder == "off" else folder


def warn_of_exposed_key() -> None:
    """Log a warning if others can read or write the private key in MALT_TLS."""
    if folder := _folder():
        with contextlib.suppress(OSError):  # context() reports a file that cannot be read
            if (warning := exposure(Path(folder, "key.pem"))) is not None:
                log.warning("MALT_TLS: %s", warning)
