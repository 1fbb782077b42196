"""Jobs that a real Slurm starts on two nodes, with the commands of docs/tutorials/slurm.md.

Needs root (that of a user namespace may not set groups, as Slurm does), Debian's slurm-wlm, and
mpi4py with an Open MPI.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from slurm import Slurm, missing
from told import PREAMBLE, told_in

from hosts import Hosts


def documented(heading: str) -> str:
    """The first block of commands after these words."""
    page = (Path(__file__).parents[2] / "docs/tutorials/slurm.md").read_text()
    block = re.search(rf"\n{heading}.*?```bash norun\n(.*?)```", page, re.DOTALL)
    assert block, heading
    return block[1]


BATCH = documented("In a batch script")
WITHOUT_MPI, SURVIVING = documented("## srun").splitlines()
PLAIN, SURVIVING_MPI = documented("With MPI:").splitlines()

SUM = """
w[:] = rank
v.allreduce(malt.SUM)
routes = {peer: route.transport for peer, route in v.stats().routes.items()}
tell(rank=rank, sum=w[0], host=os.uname().nodename, routes=routes)
"""


@pytest.fixture
def slurm(hosts: Hosts) -> Slurm:
    if names := missing():
        pytest.fail(f"{', '.join(names)} missing: install slurm-wlm")
    if Path("/proc/self/setgroups").read_text() == "deny\n":
        pytest.skip("Slurm needs root, and not that of a user namespace, which may not set groups")
    return Slurm(hosts)


def run(slurm: Slurm, command: str, body: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run the script; returns the exit code, what the ranks told, and errors."""
    slurm.write("train.py", PREAMBLE + body)
    code, output, errors = slurm.run(command)
    return code, told_in(output), errors


def check_sums_and_routes(told: list[dict[str, Any]]) -> None:
    """Of four ranks, two on each node: exact, by shared memory within a node and TCP between."""
    for rank, values in enumerate(told):
        assert (values["sum"], values["host"]) == (6, f"host{rank // 2}")
        mate = rank ^ 1
        assert values["routes"] == {
            str(peer): "shm" if peer == mate else "tcp" for peer in range(4) if peer != rank
        }


def test_srun_joins_the_ranks_of_two_nodes(slurm: Slurm) -> None:
    code, told, errors = run(slurm, PLAIN, SUM)
    assert (code, len(told)) == (0, 4), errors
    check_sums_and_routes(told)


@pytest.mark.parametrize("command", [SURVIVING, SURVIVING_MPI], ids=["no MPI", "MPI"])
def test_others_finish_without_a_rank_that_is_killed_and_srun_tells_of_it(
    slurm: Slurm, command: str
) -> None:
    code, told, errors = run(
        slurm,
        command,
        """
malt.barrier()
if rank == 3: os.kill(os.getpid(), signal.SIGKILL)
while len(malt.alive()) == size: time.sleep(0.01)
alive = malt.alive()  # before another is through and leaves
time.sleep(1)  # Slurm has seen it
w[:] = rank
v.allreduce(malt.SUM)
tell(rank=rank, sum=w[0], alive=alive)
""",
    )
    assert [values["rank"] for values in told] == [0, 1, 2], errors
    assert all(values["sum"] == 3 and values["alive"] == [0, 1, 2] for values in told)
    assert code == 128 + 9, errors


def test_others_finish_without_a_node_that_fails(hosts: Hosts, slurm: Slurm) -> None:
    slurm.write(
        "train.py",
        PREAMBLE
        + """
malt.barrier()
tell(rank=rank, ready=True)
while not os.path.exists("down"): time.sleep(0.01)
time.sleep(1)  # Slurm has told srun
w[:] = rank
v.allreduce(malt.SUM)
tell(rank=rank, sum=w[0])
""",
    )
    job = slurm.start(SURVIVING_MPI)
    while job.output.count("ready") < 4:
        assert job.poll() is None, job.output
        time.sleep(0.05)
    hosts.kill(1)
    # At once what Slurm does by itself only when it has missed the node for long.
    code, _, errors = slurm.run("scontrol update nodename=host1 state=down reason=failed")
    assert code == 0, errors
    slurm.write("down", "")
    assert job.wait(40) == 0, job.output
    assert "Node failure on host1" in job.output
    told = [values for values in told_in(job.output) if "sum" in values]
    assert told == [{"rank": rank, "sum": 1} for rank in (0, 1)]


def test_srun_without_pmi_joins_the_ranks_and_leaves_no_file(hosts: Hosts, slurm: Slurm) -> None:
    code, told, errors = run(
        slurm, WITHOUT_MPI, SUM + "malt.finalize(); malt.init(); malt.barrier()\n"
    )
    assert (code, len(told)) == (0, 4), errors
    check_sums_and_routes(told)
    assert list((hosts.directory / ".cache/malt").iterdir()) == []


def test_the_readmes_loop_runs_unchanged_under_a_real_srun(slurm: Slurm) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    block = re.search(r"```python file=loop.py\n(.*?)```", page, re.DOTALL)
    assert block
    slurm.write("train.py", block[1])
    code, output, errors = slurm.run(WITHOUT_MPI)
    assert code == 0, errors
    assert sorted(re.findall(r"rank (\d) of \d: [0-9.]+% right", output)) == list("0123")


def test_srun_without_pmi_names_the_rank_that_does_not_come(slurm: Slurm) -> None:
    slurm.write(
        "train.py",
        """
import os, time, malt
if os.environ["SLURM_PROCID"] == "3": time.sleep(9)
malt.init(timeout=2)
""",
    )
    code, _, errors = slurm.run("srun -N 2 --ntasks-per-node=2 python train.py")
    assert code != 0
    assert "TimeoutError: rank 3 did not come within 2 s" in errors


def test_mpi_that_is_asked_for_where_srun_has_none_is_refused(slurm: Slurm) -> None:
    command = "MALT_BOOTSTRAP=mpi srun -n 4 --kill-on-bad-exit=0 python train.py"
    code, told, errors = run(slurm, command, SUM)
    assert (code, told) == (1, []), errors
    assert errors.count("ConfigError: Slurm's srun started 4 processes, but mpi4py's MPI ") == 4
    assert errors.count("would train alone; start it with `srun --mpi=pmix` (Open MPI)") == 4


def test_srun_starts_one_malt_run_on_each_node_however_many_tasks_there_are(slurm: Slurm) -> None:
    slurm.write("batch", BATCH)
    code, told, errors = run(slurm, "salloc -N 2 --ntasks-per-node=2 bash batch", SUM)
    assert (code, len(told)) == (0, 4), errors
    check_sums_and_routes(told)
