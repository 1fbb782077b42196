"""malt.dask with workers on two hosts, and the scheduler and the driver on a third one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from hosts import Hosts, ipv4

pytest.importorskip("distributed")

SCHEDULER = f"tcp://{ipv4(2)}:8786"
DRIVER = f"""
import os, signal, time
import numpy as np
from distributed import Client
import malt, malt.dask

def sums(dies):
    with malt.init():
        v = malt.vector(np.array([malt.rank() + 1.0]))
        v.allreduce(malt.SUM)
        if dies and malt.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
        while dies: time.sleep(0.01)
        routes = {{route.transport for route in v.stats().routes.values()}}
        malt.barrier()
        return float(v.array[0]), os.uname().nodename, routes

with Client("{SCHEDULER}") as client:
    client.wait_for_workers(2)
    print(sorted(malt.dask.run(client, sums, False)))
    try: malt.dask.run(client, sums, True)
    except malt.PeerError as error: print("error", error.ranks)
    client.wait_for_workers(2)
    print(len(malt.dask.run(client, sums, False)))
"""


@pytest.mark.filterwarnings("ignore")
def test_ranks_of_workers_on_two_hosts_join_and_a_death_is_seen(hosts: Hosts) -> None:
    environ = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    local = {"env": environ, "cwd": hosts.directory}
    dask = [sys.executable, "-m", "distributed.cli"]
    scheduler = [f"{dask[0]}", "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    others = [hosts.start(2, [*scheduler, "--host", SCHEDULER], **local)]
    worker = [f"{dask[0]}", "-m", "distributed.cli.dask_worker", SCHEDULER, "--nthreads", "1"]
    for host in (0, 1):
        own = ["--no-dashboard", "--host", ipv4(host), "--local-directory", f"worker-{host}"]
        others.append(hosts.start(host, [*worker, *own], **local))
    driver = hosts.start(2, [sys.executable, "-c", DRIVER], **local)
    deadline = time.monotonic() + 80
    code = driver.wait(deadline - time.monotonic())
    assert code == 0, driver.output + "".join(each.output for each in others)
    expected = "[(3.0, 'host0', {'tcp'}), (3.0, 'host1', {'tcp'})]\nerror (1,)\n2\n"
    assert driver.output.endswith(expected), driver.output
