"""This host's address, as other hosts of a network see it."""

from __future__ import annotations

import socket


def own_address(toward: str) -> str:
    """Return the address from which this host reaches the host `toward`. Sends nothing.

    Raises:
        OSError: `toward` has no address, or no network leads there.
    """
    family, _, _, _, address = socket.getaddrinfo(toward, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
