"""Jobs over two hosts that Open MPI's mpirun starts from a third, with an agent in place of ssh."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from told import PREAMBLE, told_in

from hosts import Hosts, ipv4

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
pytestmark = pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None,
    reason="needs mpirun and mpi4py (pip install malt-sgd[mpi])",
)

ON, LOGIN = (0, 1), 2  # two ranks each; and where mpirun runs


def mpirun(hosts: Hosts, body: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run four ranks; returns the exit code, what they told and what was written besides."""
    script, agent = hosts.directory / "script.py", hosts.directory / "agent"
    script.write_text(PREAMBLE + body)
    # Open MPI's daemons name their folders by their process ids, which two hosts have alike: these
    # must be where each host has files of its own.
    entered = {h: shlex.join(hosts.command_on(h, "env", "TMPDIR=/dev/shm")) for h in ON}
    # As ssh does, it joins its arguments and has a shell of the host run that.
    cases = [f'{ipv4(h)}) shift; exec {entered[h]} sh -c "$*";;' for h in ON]
    agent.write_text("\n".join(["#!/bin/sh", "case $1 in", *cases, "esac", "exit 1"]))
    agent.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [str(MPIRUN), "--prtemca", "plm_ssh_agent", str(agent), *options, "--bind-to", "none"]
    command += ["--host", ",".join(f"{ipv4(h)}:2" for h in ON), sys.executable, str(script)]
    done = subprocess.run(
        # Of the host the network alone: from within, the agent could not enter another.
        ["nsenter", f"--net=/proc/{hosts.pid_of_namespaces(LOGIN)}/ns/net", *command],
        cwd=hosts.directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    return done.returncode, told_in(done.stdout), done.stderr


def test_ranks_of_one_host_share_memory_and_hosts_exchange_exactly_over_tcp(hosts: Hosts) -> None:
    code, told, errors = mpirun(
        hosts,
        """
wrong = 0
for t in range(50):
    w[:] = 1000 * t + rank + np.arange(1000) / 1024
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    wrong += not np.array_equal(w, sum(1000 * t + r + np.arange(1000) / 1024 for r in range(size)))
w[:] = rank
v.allreduce(malt.SUM)
routes = {peer: route.transport for peer, route in v.stats().routes.items()}
tell(rank=rank, wrong=wrong, sum=w[0], routes=routes)
""",
    )
    assert (code, len(told)) == (0, 4), errors
    for rank, values in enumerate(told):
        assert (values["wrong"], values["sum"]) == (0, 6)
        mate = rank ^ 1
        assert values["routes"] == {
            str(peer): "shm" if peer == mate else "tcp" for peer in range(4) if peer != rank
        }


DYING = """
malt.barrier()
if rank == 3: os.kill(os.getpid(), signal.SIGKILL)
while len(malt.alive()) == size: time.sleep(0.01)
alive = malt.alive()  # before another is through and leaves
w[:] = rank
v.allreduce(malt.SUM)
tell(rank=rank, sum=w[0], alive=alive)
"""


def test_with_recovery_the_others_finish_without_a_rank_that_is_killed(hosts: Hosts) -> None:
    code, told, errors = mpirun(hosts, DYING, "--enable-recovery")
    assert [values["rank"] for values in told] == [0, 1, 2], errors
    assert all(values["sum"] == 3 and values["alive"] == [0, 1, 2] for values in told)
    assert code == 0  # Open MPI 5 counts exit codes here, and signals not


def test_without_recovery_mpirun_ends_the_job_and_tells_by_what_the_rank_ended(
    hosts: Hosts,
) -> None:
    code, _, errors = mpirun(hosts, DYING + "time.sleep(60)")
    assert "signal 9" in errors
    assert code == 128 + 9
