"""Faults of the graph and the network, as `malt doctor` finds them."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import start_job

import malt
from malt._watching.mixing import slow_graph
from malt._watching.sources import Look
from malt._watching.trace import GATHER, SCATTER
from malt._watching.unanswered import _address_of, failing_calls, unanswered


def events(*ranks: int) -> Any:
    """A rank's events: a scatter to each of these sets, and a gather from rank 0."""
    found = np.zeros(len(ranks) + 1, [("kind", np.int64), ("ranks", np.int64)])
    found["kind"] = SCATTER
    found["ranks"][:-1] = ranks
    found[-1] = GATHER, 1
    return found


def sends(graph: malt.Graph, size: int) -> list[Any]:
    sets = [sum(1 << other for other in graph.out(rank, size)) for rank in range(size)]
    return [events(one, one) for one in sets]


def test_a_graph_that_mixes_slowly_is_found() -> None:
    (problem,) = slow_graph(12, sends(malt.RING, 12))
    assert "its spectral gap is 0.09 on 12 ranks, that of malt.HALTON is 0.34" in problem
    assert "halved in 7 rounds, with malt.HALTON in 1.7" in problem


@pytest.mark.parametrize("graph", [malt.HALTON, malt.ALL, malt.EXPONENTIAL])
def test_a_graph_that_mixes_well_is_not(graph: malt.Graph) -> None:
    assert slow_graph(12, sends(graph, 12)) == []


def test_sends_that_show_no_fixed_graph_give_no_advice() -> None:
    ring = sends(malt.RING, 12)
    assert slow_graph(13, ring) == []  # one rank is on another host
    assert slow_graph(12, [*ring[:-1], events(1, 2)]) == []  # it varies
    assert slow_graph(12, [*ring[:-1], events()]) == []  # no scatter
    assert slow_graph(12, [*ring[:-1], events(0, 0)]) == []  # it sends to nobody


LOOP = """
malt.init(timeout=60)
w = np.zeros(100, np.float32)
chain = [(i, j) for i in range(5) for j in (i - 1, i + 1) if 0 <= j < 5]
v = malt.vector(w, graph=malt.Graph(chain))
tell(ready=True)
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    tell(at=v.iteration)
"""


def test_doctor_finds_the_slow_graph_of_a_job(tmp_path: Path) -> None:
    with start_job(tmp_path, 5, LOOP, "--record") as job:
        job.await_told("at")
        command = [
            sys.executable,
            "-m",
            "malt",
            "doctor",
            str(job.launcher.pid),
            "--seconds",
            "0.5",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        job.set_goal(5)
        job.finish()
    assert done.returncode == 1
    assert "The graph mixes slowly: its spectral gap is 0.13 on 5 ranks" in done.stdout


def test_addresses_are_shown_as_people_write_them() -> None:
    def shown(address: str, family: int, port: int) -> str:
        raw = socket.inet_pton(family, address)
        words = (raw[at : at + 4] for at in range(0, len(raw), 4))
        text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
        return _address_of(f"{text}:{port:04X}")

    assert shown("10.91.0.2", socket.AF_INET, 40000) == "10.91.0.2:40000"
    assert shown("fd91::2", socket.AF_INET6, 80) == "[fd91::2]:80"


def look(*calls: tuple[int, int, int]) -> Look:
    """At rank 0, whose calls to each rank failed so often, with this error, at this port."""
    peers = np.zeros((len(calls), 6), np.uint64)
    peers[:, 3:] = calls
    return Look(0, len(calls), 100, 0, "runs", {}, peers, {})


def test_calls_that_go_on_failing_are_reported_by_reason() -> None:
    refused, cut = errno.ECONNREFUSED, errno.EHOSTUNREACH
    before = [look((0, 0, 0), (2, refused, 7000), (0, 0, 0), (40, refused, 7003))]
    now = [look((0, 0, 0), (9, refused, 7000), (3, cut, 7002), (40, refused, 7003))]
    first, second = failing_calls([before, now])
    assert "Rank 0 cannot reach port 7000 of rank 1. Its calls are refused" in first
    assert "Rank 0 cannot reach port 7002 of rank 2. Its calls fail: No route to host" in second
    assert failing_calls([now, now]) == []
    assert failing_calls([now, [look(*[(0, 0, 0)] * 4)]]) == []  # all have been reached


def test_a_connection_that_is_answered_is_not_reported() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        assert list(unanswered(os.getpid())) == []
