"""`malt plan`: what a job will need on each host, before it is started."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from malt._commands.training import graph_of
from malt._errors import ConfigError

_DESCRIPTION = """\
Say what a job will need on each host: the memory of a vector, the messages and bytes of a round
(a scatter of each rank), and connections. Nothing is started. Hosts have as many ranks each, with
neighbouring numbers, and reach one another over TCP.

  malt plan --ranks 64 --hosts 16 --size 16MiB --graph halton
"""
_UNITS = {"": 1, "B": 1}
for _at, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}B": 1000**_at, f"{_letter}IB": 1 << 10 * _at}
_MOST_ROUNDS = 64  # of a graph that are looked at
_WATCHED = 8  # hosts with which a host exchanges heartbeats, at most


@dataclass(frozen=True)
class Load:
    """What one host has to do and to hold, in bytes where the name says no other unit.

    Attributes:
        memory: of one vector, for all ranks of the host.
        updates_out: that leave the host in a round, on average; one to several ranks of another
            host counts once, as it goes there once.
        updates_in: that come to the host, counted in the same way.
    """

    memory: int
    updates_out: float
    updates_in: float


def bytes_of(typed: str) -> int:
    """Return the number of bytes that "16MiB", "1.5 GB" or "4096" says.

    Raises:
        malt.ConfigError: it says none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", typed.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigError(f"--size is {typed!r}; it is a number of bytes, such as 4096 or 16MiB")
    size = math.ceil(float(match[1]) * _UNITS[match[2].upper()])
    if not 1 <= size <= 1 << 48:
        raise ConfigError(f"--size is {typed!r}; it must be from 1 byte to 256 TiB")
    return size


def plan(graph: Any, *, ranks: int, hosts: int, size: int, depth: int) -> Load:
    """Return the load of the host that has the most of each.

    Args:
        graph: a `malt.Graph`.
        ranks: of the job.
        hosts: on which they are; a divisor of `ranks`.
        size: of an update.
        depth: slots of each sender.
    """
    from malt import _core

    each = ranks // hosts
    rounds = min(graph.period(ranks), _MOST_ROUNDS)
    out = [0] * hosts
    come = [0] * hosts
    for sender, number in itertools.product(range(ranks), range(rounds)):
        home = sender // each
        for host in {receiver // each for receiver in graph.out(sender, ranks, number)} - {home}:
            out[home] += 1
            come[host] += 1
    alone = hosts == 1
    memory = max(
        _core.memory_of(
            graph,
            slot_bytes=size,
            depth=depth,
            result_bytes=size if alone and ranks > 1 else 0,
            ranks=ranks,
            locals=list(range(host * each, (host + 1) * each)),
        )
        for host in range(hosts)
    )
    return Load(memory, max(out) / rounds, max(come) / rounds)


def main(arguments: Sequence[str]) -> int:
    """Run `malt plan`; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt plan",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks of the job")
    parser.add_argument("--hosts", type=int, default=1, metavar="H", help="default: 1")
    parser.add_argument(
        "--size", required=True, metavar="BYTES", help="of the vector: 4096, 16MiB, 1.5GB"
    )
    parser.add_argument(
        "--graph",
        default="all",
        metavar="G",
        help="all (the default), halton, ring, exponential, one_peer or star",
    )
    parser.add_argument("--depth", type=int, default=2, metavar="D", help="default: 2")
    given = parser.parse_args(arguments)
    try:
        graph = graph_of(given.graph)
        size = bytes_of(given.size)
        _check(given)
        load = plan(graph, ranks=given.ranks, hosts=given.hosts, size=size, depth=given.depth)
    except ConfigError as error:
        print(f"malt plan: {error}", file=sys.stderr)
        return 2
    for label, text in _rows(load, given, size):
        print(f"{label:32}{text}")
    return 0


def _check(given: argparse.Namespace) -> None:
    if not 1 <= given.ranks <= 1 << 16:
        raise ConfigError(f"--ranks is {given.ranks}; it must be from 1 to 65536")
    if not 1 <= given.hosts <= given.ranks or given.ranks % given.hosts:
        raise ConfigError(
            f"--hosts is {given.hosts}; it must divide the {given.ranks} ranks into equal parts"
        )
    if not 1 <= given.depth <= 1024:
        raise ConfigError(f"--depth is {given.depth}; it must be from 1 to 1024")


def _rows(load: Load, given: argparse.Namespace, size: int) -> list[tuple[str, str]]:
    from malt._watching.table import size_text

    others = given.hosts - 1
    watched = min(others, _WATCHED)
    return [
        ("memory of the vector, a host", size_text(load.memory)),
        ("messages out of a host a round", f"{load.updates_out:.3g}"),
        ("bytes out of a host a round", size_text(load.updates_out * size)),
        ("messages into a host a round", f"{load.updates_in:.3g}"),
        ("bytes into a host a round", size_text(load.updates_in * size)),
        ("connections of a rank", f"{others} or a few more: to each other host"),
        ("heartbeats of a rank", f"with {watched} hosts at most" if others else "within its host"),
    ]
