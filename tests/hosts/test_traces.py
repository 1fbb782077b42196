"""The traces of several hosts become one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from host_jobs import HostJob
from traces import cut, put_clock_forward

from hosts import Hosts

LOOP = """
malt.init(timeout=60)
w = np.zeros(1000, np.float32)
v = malt.vector(w, graph=GRAPHS["RING"])
for round in range(20):
    v.scatter()
    v.gather(malt.AVG, staleness=0)
malt.barrier()
"""


def test_a_ring_of_hosts_aligns_all_clocks(hosts: Hosts) -> None:
    """Each host hears one neighbour: bounds in the other direction come from the whole ring."""
    job = HostJob(hosts, LOOP, "--trace", "t.json")
    job.finish()
    files = ["t.json", "t.node1.json", "t.node2.json"]
    cut(job.directory / "t.json", [job.directory / file for file in files])
    put_clock_forward(job.directory / files[1], -7)
    command = [sys.executable, "-m", "malt", "trace", "merge", *files, "-o", "all.json"]
    subprocess.run(command, cwd=job.directory, check=True, timeout=100, capture_output=True)
    trace = json.loads((job.directory / "all.json").read_text())
    shifts = trace["otherData"]["files"]
    for shift, true in zip(shifts, (0, 7e6, 0), strict=True):
        # The hosts have the machine's clock, which they read within 2 ms, unless it is busy.
        assert shift["shifted_us"] == pytest.approx(true, abs=shift["error_us"] + 2000)
    assert {one["tid"] for one in trace["traceEvents"]} == set(range(6))
