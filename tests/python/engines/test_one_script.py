"""README.md's first loop, unchanged, under every launcher and engine.

`tests/hosts/test_srun.py` has a real Slurm; here its variables are set as srun sets them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    block = re.search(r"```python file=loop.py\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block is not None
    path = tmp_path / "loop.py"
    path.write_text(block[1])
    return path


def run_loop(path: str) -> str:
    """Run the script in this process; return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(path, run_name="__main__")
    return output.getvalue()


def program(loop: Path, *launcher: str) -> str:
    done = subprocess.run(
        [*launcher, loop.name], cwd=loop.parent, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(loop: Path, _: pytest.FixtureRequest) -> str:
    return program(loop, sys.executable)


def malt_run(loop: Path, _: pytest.FixtureRequest) -> str:
    return program(loop, sys.executable, "-m", "malt", "run", "-n", "2", "--no-prefix")


def mpirun(loop: Path, _: pytest.FixtureRequest) -> str:
    command = str(Path(sys.executable).parent / "mpirun")
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    return program(loop, command, *options, sys.executable)


def srun(loop: Path, _: pytest.FixtureRequest) -> str:
    environ = os.environ | {
        "HOME": str(loop.parent),
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(loop)],
            env=environ | {"SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return "".join(rank.communicate(timeout=100)[0] for rank in ranks)


def torchrun(loop: Path, _: pytest.FixtureRequest) -> str:
    pytest.importorskip("torch")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return program(loop, *launcher, "--nproc-per-node=2")


def by_dask(loop: Path, request: pytest.FixtureRequest) -> str:
    client: Any = request.getfixturevalue("dask_client")
    from malt import dask

    return "".join(dask.run(client, run_loop, str(loop), ranks=2))


def by_ray(loop: Path, request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("ray_cluster")
    from malt import ray

    return "".join(ray.run(run_loop, str(loop), ranks=2))


def by_spark(loop: Path, request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("spark_session")
    from malt import spark

    return "".join(spark.Distributor(2).run(run_loop, str(loop)))


def grouped(launch: Any, engine: str) -> Any:
    marks = [pytest.mark.xdist_group(engine), pytest.mark.filterwarnings("ignore")]
    return pytest.param(launch, 2, marks=marks, id=engine)


@pytest.mark.parametrize(
    ("launch", "size"),
    [
        pytest.param(python, 1, id="python"),
        pytest.param(malt_run, 2, id="malt run"),
        pytest.param(mpirun, 2, id="mpirun"),
        pytest.param(srun, 2, id="srun"),
        pytest.param(torchrun, 2, id="torchrun"),
        grouped(by_dask, "dask"),
        grouped(by_ray, "ray"),
        grouped(by_spark, "spark"),
    ],
)
def test_the_readmes_loop_runs_unchanged(
    launch: Any, size: int, loop: Path, request: pytest.FixtureRequest
) -> None:
    said = re.findall(r"rank (\d) of \d: ([0-9.]+)% right", launch(loop, request))
    assert sorted(int(rank) for rank, _ in said) == list(range(size))
    assert all(float(right) > 85 for _, right in said)
