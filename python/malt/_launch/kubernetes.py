"""`malt run --rendezvous auto`: a pod of a Kubernetes job finds its number and node 0's name."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from malt._errors import ConfigError
from malt._rendezvous import wire

PORT = 29500


def find_node(value: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return this node's number, and the address of node 0 for --rendezvous.

    A pod of an Indexed Job has its number in JOB_COMPLETION_INDEX, and at the end of its host's
    name. The job's headless service gives the pods names in DNS, which differ in that number.

    Args:
        value: of the option, "auto" or "auto:PORT".
        environ: the environment.

    Raises:
        malt.ConfigError: this is not such a pod, or the port is none.
    """
    port = value.partition(":")[2] or str(PORT)
    index = environ.get("JOB_COMPLETION_INDEX", "")
    if not index.isdecimal():
        raise ConfigError(
            "--rendezvous auto is for pods of an Indexed Job of Kubernetes, which have "
            "JOB_COMPLETION_INDEX in their environment; it is not set: give HOST:PORT of node 0"
        )
    full = _full_name(socket.gethostname())
    name, dot, domain = full.partition(".")
    stem = re.fullmatch(f"(.+-){index}", name)
    if stem is None or not domain:
        raise ConfigError(
            f"--rendezvous auto: this host is {full}, and the pod's number {index}; its name "
            "should be NAME-NUMBER.SERVICE..., as it is with completionMode: Indexed, a headless "
            "service and `subdomain:` in the pod's template"
        )
    address = f"{stem[1]}0{dot}{domain}:{port}"
    wire.parse_address(address, "--rendezvous")
    return int(index), address


def _full_name(host: str) -> str:
    """Return the host's name with its domain, by /etc/hosts or DNS; without one: its name."""
    try:
        _, names, _ = socket.gethostbyaddr(host)
        first = socket.getfqdn(host)
    except OSError:
        return host
    return next((name for name in (first, *names) if name.startswith(f"{host}.")), host)
