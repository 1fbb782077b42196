"""Processes of launchers that MALT does not know are refused, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from malt._errors import ConfigError
from malt._job.find_bootstrap import find

TORCH = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
TORCHRUN = TORCH | {"TORCHELASTIC_RUN_ID": "none"}
HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "2"}


@pytest.mark.parametrize(
    ("env", "launcher"), [(TORCHRUN, "torchrun"), (TORCH, "deepspeed"), (HOROVOD, "horovodrun")]
)
def test_ranks_of_other_launchers_are_told_what_to_do(
    env: Mapping[str, str], launcher: str
) -> None:
    with pytest.raises(ConfigError, match=f"{launcher}.*one of 2 .*`malt run -n 2 "):
        find(environ=env)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, id="torchrun with one process"),
        pytest.param(TORCHRUN | {"LOCAL_RANK": ""}, id="a user who wants jobs of one rank"),
        pytest.param(
            {"WORLD_SIZE": "8", "MASTER_ADDR": "node1", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"},
            id="a notebook in a Slurm allocation whose script sets some for torch",
        ),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "pod-0"},
            id="a notebook in a pod of Kubernetes",
        ),
        pytest.param({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, id="mpirun -n 1"),
    ],
)
def test_a_process_by_itself_is_a_job_of_one_rank(env: Mapping[str, str]) -> None:
    with find(environ=env) as bootstrap:
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


def test_torchrun_itself_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text("import malt; malt.init()")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        timeout=100,
        text=True,
    )
    assert done.returncode != 0
    assert "ConfigError: torchrun" in done.stderr
