"""Which launcher a process finds by its variables, and jobs that the real torchrun starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from launches import is_alive, wait_until

from malt._bootstrap import launchers
from malt._bootstrap.find_bootstrap import find
from malt._errors import ConfigError

TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = TORCH | {"TORCHELASTIC_RUN_ID": "none"}
HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
PMIX = SLURM | {"PMIX_RANK": "1"}
MALT = {"MALT_RENDEZVOUS": "127.0.0.1:1", "MALT_RANK": "1", "MALT_SIZE": "2"}
OTHER_TORCH = TORCH | {"WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("env", "way"),
    [
        pytest.param(MALT, "malt", id="malt run"),
        pytest.param(TORCHRUN, "torch", id="torchrun"),
        pytest.param(TORCH, "torch", id="deepspeed, Kubeflow and others that set torch's"),
        pytest.param(OPEN_MPI, "mpi", id="mpirun"),
        pytest.param(SLURM, "slurm", id="srun without PMI"),
        pytest.param(PMIX, "mpi", id="srun with PMIx, and mpi4py is installed"),
        pytest.param(
            MALT | {"RANK": "9"} | TORCHRUN, "malt", id="malt run, and torch's of another"
        ),
        pytest.param(MALT | OTHER_TORCH | SLURM, "malt", id="malt run inside all others"),
        pytest.param(SLURM | OTHER_TORCH | TORCHRUN, "torch", id="torchrun inside srun"),
        pytest.param(PMIX | OTHER_TORCH | TORCHRUN, "torch", id="torchrun inside srun with PMIx"),
        pytest.param(OPEN_MPI | TORCH, "mpi", id="mpirun, whose script sets torch's for each rank"),
        pytest.param(SLURM | TORCH, "slurm", id="srun, whose script sets torch's for each rank"),
        pytest.param(OPEN_MPI | TORCH | {"MALT_BOOTSTRAP": "torch"}, "torch", id="chosen"),
        pytest.param(PMIX | {"MALT_BOOTSTRAP": "slurm"}, "slurm", id="Slurm in place of its MPI"),
        pytest.param(SLURM | {"MALT_BOOTSTRAP": "mpi"}, "mpi", id="MPI in place of Slurm"),
    ],
)
def test_launcher_is_found_by_its_variables(env: Mapping[str, str], way: str) -> None:
    found = launchers.choose(env)
    assert found is not None
    assert (found.way, found.rank) == (way, 1)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        pytest.param(
            OPEN_MPI | OTHER_TORCH, "MALT_BOOTSTRAP=mpi or MALT_BOOTSTRAP=torch", id="MPI"
        ),
        pytest.param(OPEN_MPI | OTHER_TORCH | TORCHRUN | {"WORLD_SIZE": "4"}, "contradict", id="2"),
        pytest.param(SLURM | OTHER_TORCH, "Slurm's srun, rank 1 of 2, and a launcher", id="Slurm"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "4"}, "MASTER_ADDR and MASTER_PORT", id="half"),
        pytest.param(TORCH | {"RANK": "2"}, "RANK=2 is not a rank of WORLD_SIZE=2", id="no rank"),
        pytest.param({"MALT_RANK": "0", "MALT_SIZE": "2"}, "MALT_RENDEZVOUS is not", id="malt"),
        pytest.param(HOROVOD, "horovodrun.*one of 2.*`malt run -n 2 ", id="horovodrun"),
        pytest.param({"MALT_BOOTSTRAP": "ray"}, "'ray'; it is one of auto, none, malt", id="name"),
        pytest.param(TORCH | {"MALT_BOOTSTRAP": "malt"}, "MALT_RENDEZVOUS are not set", id="other"),
        pytest.param({"MALT_BOOTSTRAP": "torch", "RANK": "0"}, "MASTER_PORT are not", id="unset"),
    ],
)
def test_contradictions_and_half_set_variables_are_refused(
    env: Mapping[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        find(environ=dict(env))


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, id="torchrun with one process"),
        pytest.param(TORCHRUN | {"MALT_BOOTSTRAP": "none"}, id="a user who wants jobs of one rank"),
        pytest.param(
            {"WORLD_SIZE": "8", "MASTER_ADDR": "node1", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"},
            id="a notebook in a Slurm allocation whose script sets some for torch",
        ),
        pytest.param({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, id="mpirun -n 1"),
    ],
)
def test_a_process_by_itself_is_a_job_of_one_rank(env: Mapping[str, str]) -> None:
    with find(environ=dict(env)) as bootstrap:
        assert bootstrap.size == 1


def test_ranks_of_malt_run_may_have_torchs_variables(tmp_path: Path) -> None:
    """As scripts do that use torch.distributed beside MALT."""
    (tmp_path / "program.py").write_text("import malt; malt.init(); print('of', malt.size())")
    done = subprocess.run(
        [sys.executable, "-m", "malt", "run", "-n", "2", "--no-prefix", "program.py"],
        cwd=tmp_path,
        env=os.environ | TORCHRUN,
        capture_output=True,
        timeout=100,
        text=True,
    )
    assert done.stdout == "of 2\nof 2\n", done.stderr


# Jobs of the real torchrun

TWICE = """
import os, sys, malt, numpy as np
sums = []
for _ in range(2):
    with malt.init(timeout=60):
        v = malt.vector(np.full(3, malt.rank() + 1.0))
        v.allreduce(malt.SUM)
        sums.append(float(v.array[0]))
        malt.barrier()
with open(f"sums-{os.environ['RANK']}", "w") as file:
    file.write(f"{sums} {os.environ['WORLD_SIZE']}")
"""


def torchrun(tmp_path: Path, body: str, *options: str) -> subprocess.Popen[str]:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(body)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def sums(tmp_path: Path) -> list[str]:
    return [file.read_text() for file in sorted(tmp_path.glob("sums-*"))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_ranks_of_two_agents_of_torchrun_join_and_join_again(tmp_path: Path) -> None:
    port = free_port()
    agents = [
        torchrun(
            tmp_path,
            TWICE,
            *("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2"),
            *("--master-addr=127.0.0.1", f"--master-port={port}"),
        )
        for node in range(2)
    ]
    for agent in agents:
        output, _ = agent.communicate(timeout=100)
        assert agent.returncode == 0, output
    assert sums(tmp_path) == ["[10.0, 10.0] 4"] * 4


def test_ranks_join_again_after_torchrun_has_restarted_them(tmp_path: Path) -> None:
    """By two agents, which count the restarts differently: the ranks of one do not fail."""
    body = TWICE.replace(
        "sums = []",
        """sums = []; malt.init(); malt.barrier()
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and not os.path.exists('failed'):
    try:
        open('fails', 'x').close()
    except FileExistsError:
        time.sleep(100)
    time.sleep(1)
    open('failed', 'x').close()
    os._exit(3)
malt.finalize()""",
    ).replace("import ", "import time, ", 1)
    body += "print('restart', os.environ['TORCHELASTIC_RESTART_COUNT'])"
    place = f"127.0.0.1:{free_port()}"
    agents = [
        torchrun(
            tmp_path,
            body,
            *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=1"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={place}", "--rdzv-id=job"),
            "--local-addr=127.0.0.1",
        )
        for _ in range(2)
    ]
    outputs = []
    for agent in agents:
        output, _ = agent.communicate(timeout=100)
        assert agent.returncode == 0, output
        outputs.append(output)
    assert sums(tmp_path) == ["[3.0, 3.0] 2"] * 2
    assert "restart 0" in "".join(outputs)
    assert "restart 1" in "".join(outputs)


# Each rank's process, and how often the ranks have averaged since.
BEATS = """
import os, malt, numpy as np
malt.init(timeout=60)
v = malt.vector(np.zeros(8))
malt.barrier()
beats = 0
while not os.path.exists("over"):
    v.allreduce(malt.AVG)
    beats += 1
    with open(f"part-{os.environ['RANK']}", "w") as file:
        file.write(f"{os.getpid()} {beats} {len(malt.alive())}")
    os.replace(file.name, f"beats-{os.environ['RANK']}")
"""


def beats(tmp_path: Path) -> list[list[int]]:
    """(process, beats, living ranks) of each rank that has begun."""
    return [
        [int(word) for word in file.read_text().split()]
        for file in sorted(tmp_path.glob("beats-*"))
    ]


@pytest.mark.parametrize("agent", [0, 1])
def test_ranks_go_on_without_an_agent_of_torchrun(tmp_path: Path, agent: int) -> None:
    """One that is killed, with the store that it may have; its own ranks go on as well."""
    port = free_port()
    agents = [
        torchrun(
            tmp_path,
            BEATS,
            *("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"),
            *("--master-addr=127.0.0.1", f"--master-port={port}"),
        )
        for node in range(2)
    ]
    try:
        assert wait_until(lambda: len(beats(tmp_path)) == 2)
        agents[agent].kill()
        agents[agent].wait()
        before = beats(tmp_path)
        assert wait_until(
            lambda: all(
                now[1] >= then[1] + 50 for now, then in zip(beats(tmp_path), before, strict=True)
            )
        )
        assert [alive for _, _, alive in beats(tmp_path)] == [2, 2]
    finally:
        (tmp_path / "over").touch()
        ranks = [process for process, _, _ in beats(tmp_path)]
        assert wait_until(lambda: not any(is_alive(process) for process in ranks))
        for each in agents:
            each.kill()  # the other agent would wait for this one, for minutes
            each.communicate()


def test_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    body = """
import os, time, malt
if os.environ["RANK"] == "1": time.sleep(60)
malt.init(timeout=1)
"""
    job = torchrun(tmp_path, body, "--standalone", "--nproc-per-node=2")
    output, _ = job.communicate(timeout=50)
    assert job.returncode != 0
    assert "TimeoutError: rank 1 did not come within 1 s" in output


def test_rank_0_serves_the_store_where_no_agent_does_and_torch_shares_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = TWICE.replace("sums = []", "sums = []; import torch.distributed as dist") + (
        "dist.init_process_group('gloo'); dist.barrier(); dist.destroy_process_group()\n"
    )
    (tmp_path / "program.py").write_text(body)
    env = os.environ | TORCH | {"MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "program.py"], cwd=tmp_path, env=env | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [rank.wait(100) for rank in ranks] == [0, 0]
    assert sums(tmp_path) == ["[3.0, 3.0] 2"] * 2
