"""Jobs that a real Slurm starts on two nodes, with the commands of docs/launching.md.

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
    page = (Path(__file__).parents[2] / "docs/launching.md").read_text()
    block = re.search(rf"\n{heading}.*?```bash\n(.*?)```", page, re.DOTALL)
    assert block, heading
    return block[1]


BATCH = documented("Under Slurm")
PLAIN, SURVIVING = documented("### srun").splitlines()

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


def test_others_finish_without_a_rank_that_is_killed_and_srun_tells_of_it(slurm: Slurm) -> None:
    code, told, errors = run(
        slurm,
        SURVIVING,
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
    job = slurm.start(SURVIVING)
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


def test_srun_without_pmix_is_refused_with_the_option_that_helps(slurm: Slurm) -> None:
    code, told, errors = run(slurm, "srun -n 4 --kill-on-bad-exit=0 python train.py", SUM)
    assert (code, told) == (1, []), errors
    assert errors.count("ConfigError: Slurm's srun started 4 processes, but mpi4py's MPI ") == 4
    assert errors.count("would train alone; start it with `srun --mpi=pmix` (Open MPI)") == 4


def test_srun_starts_one_malt_run_on_each_node_however_many_tasks_there_are(slurm: Slurm) -> None:
    slurm.write("batch", BATCH)
    code, told, errors = run(slurm, "salloc -N 2 --ntasks-per-node=2 bash batch", SUM)
    assert (code, len(told)) == (0, 4), errors
    check_sums_and_routes(told)
