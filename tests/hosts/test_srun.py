"""Jobs that a real Slurm starts on two nodes, with the commands of docs/launching.md.

Needs root, and Debian's slurm-wlm, mpi4py and an Open MPI that mpi4py finds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hosts import Hosts
from slurm import Slurm, why_not

pytestmark = pytest.mark.timeout(120)

FOUR = "srun -N 2 --ntasks-per-node=2"
SURVIVING = "--kill-on-bad-exit=0 --no-kill"

PREAMBLE = """
import json, os, signal, sys, time, numpy as np, malt
malt.init(timeout=30)
rank, size = malt.rank(), malt.size()
w = np.zeros(1000)
v = malt.vector(w)
def tell(**values): os.write(1, (json.dumps(values) + "\\n").encode())
"""

SUM = """
w[:] = rank
v.allreduce(malt.SUM)
routes = {peer: route.transport for peer, route in v.stats().routes.items()}
tell(rank=rank, sum=w[0], host=os.uname().nodename, routes=routes)
"""

# A rank is killed, and the others sum until well after Slurm has seen it.
DYING = """
malt.barrier()
if rank == 3: os.kill(os.getpid(), signal.SIGKILL)
while len(malt.alive()) == size: time.sleep(0.01)
alive = malt.alive()  # before another is through and leaves
time.sleep(1)
w[:] = rank
v.allreduce(malt.SUM)
tell(rank=rank, sum=w[0], alive=alive)
"""


@pytest.fixture
def slurm(hosts: Hosts) -> Slurm:
    if reason := why_not():
        pytest.fail(reason)
    return Slurm(hosts)


def srun(slurm: Slurm, command: str, body: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run the command with the script; returns the exit code, what was told by rank, and errors."""
    slurm.write("train.py", PREAMBLE + body)
    code, output, errors = slurm.run(command)
    lines = [line[line.index("{") :] for line in output.splitlines() if "{" in line]
    return code, sorted(map(json.loads, lines), key=lambda values: values["rank"]), errors


def check_sums_and_routes(told: list[dict[str, Any]]) -> None:
    """Of four ranks, two on each node: exact, by shared memory within a node and TCP between."""
    for rank, values in enumerate(told):
        assert (values["sum"], values["host"]) == (6, f"host{rank // 2}")
        mate = rank ^ 1
        assert values["routes"] == {
            str(peer): "shm" if peer == mate else "tcp" for peer in range(4) if peer != rank
        }


def test_srun_with_pmix_joins_the_ranks_of_two_nodes(slurm: Slurm) -> None:
    code, told, errors = srun(slurm, f"{FOUR} --mpi=pmix python train.py", SUM)
    assert (code, len(told)) == (0, 4), errors
    check_sums_and_routes(told)


def test_others_finish_without_a_rank_that_is_killed_and_srun_tells_of_it(slurm: Slurm) -> None:
    code, told, errors = srun(slurm, f"{FOUR} --mpi=pmix {SURVIVING} python train.py", DYING)
    assert [values["rank"] for values in told] == [0, 1, 2], errors
    assert all(values["sum"] == 3 and values["alive"] == [0, 1, 2] for values in told)
    assert code == 128 + 9


def test_exit_code_of_srun_is_that_of_the_rank_that_failed(slurm: Slurm) -> None:
    code, _, errors = srun(
        slurm, f"{FOUR} --mpi=pmix python train.py", "malt.barrier(); sys.exit(7 * (rank == 1))"
    )
    assert "host0: task 1: Exited with exit code 7" in errors
    assert code == 7


@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_srun_without_pmix_is_refused_with_the_option_that_helps(slurm: Slurm, plugin: str) -> None:
    code, told, errors = srun(slurm, f"srun -n 4 --mpi={plugin} python train.py", SUM)
    assert (code, told) == (1, [])
    assert errors.count("Slurm's srun started 4 processes, but mpi4py's MPI library, Open MPI") == 4
    assert "sees a world of 1, so that each would train alone; start it with `srun --mpi=pmix`" in (
        errors
    )


BATCH = """
export MALT_JOB_KEY=$(openssl rand -hex 32)
export HOST0=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun -n "$SLURM_NNODES" --ntasks-per-node=1 bash -c \
  'malt run --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --rendezvous $HOST0:29500 -n 2 train.py'
"""


# However many tasks a node the job was allocated for.
@pytest.mark.parametrize("allocation", ["-N 2", "-N 2 --ntasks-per-node=2"])
def test_srun_starts_malt_run_on_each_node(slurm: Slurm, allocation: str) -> None:
    slurm.write("batch", BATCH)
    code, told, errors = srun(slurm, f"salloc {allocation} sh batch", SUM)
    assert (code, len(told)) == (0, 4), errors
    check_sums_and_routes(told)
