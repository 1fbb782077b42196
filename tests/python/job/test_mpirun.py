"""Programs that mpirun starts, in which MALT initialises MPI itself and finalises it.

Runs mpirun; needs mpi4py and an Open MPI, best those of `pip install malt-sgd[mpi]`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
UNDER_MPI = any(name.startswith(("OMPI_COMM_", "PMI_")) for name in os.environ)
needs_mpi = pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None or UNDER_MPI,
    reason="needs mpirun and mpi4py (pip install malt-sgd[mpi]), and not to be under mpirun itself",
)

PREAMBLE = """
import os, sys, time
from malt._bootstrap import find_bootstrap
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", -1)))
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def mpirun(tmp_path: Path, size: int, body: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PREAMBLE + body)
    options = ["--enable-recovery", "--oversubscribe", "--bind-to", "none"]
    environ = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_btl_sm_backing_directory": str(tmp_path),  # its files, not those of others
    }
    command = [str(MPIRUN), *options, "-n", str(size), sys.executable, str(program)]
    return subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
        stdin=subprocess.DEVNULL,
    )


def python(body: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + body],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environ},
    )


FIND = """
try: find_bootstrap.find(timeout=10); say("joined")
except Exception as error: say(type(error).__name__, error)
"""


@needs_mpi
def test_mpi_is_finalised_at_close_and_the_job_survives_a_death(tmp_path: Path) -> None:
    done = mpirun(
        tmp_path,
        3,
        """
with find_bootstrap.find() as b:
    parts = b.allgather(b"%d" % b.rank, 20)
from mpi4py import MPI
say("rank", b.rank, "of", b.size, b.launcher, parts, MPI.Is_finalized())
if rank == 1: os.kill(os.getpid(), 9)
time.sleep(1)
say("survivor", rank)
""",
    )
    lines = sorted(done.stdout.splitlines())
    parts = "[b'0', b'1', b'2']"
    assert lines == [
        *(f"rank {r} of 3 mpi {parts} True" for r in range(3)),
        "survivor 0",
        "survivor 2",
    ], done.stderr


@needs_mpi
def test_single_rank_needs_no_mpi(tmp_path: Path) -> None:
    done = mpirun(
        tmp_path,
        1,
        """
sys.modules["mpi4py"] = None
with find_bootstrap.find() as b: say(b.rank, b.size, b.launcher)
""",
    )
    assert done.stdout == "0 1 mpi\n", done.stderr


@needs_mpi
def test_rank_that_never_joins_is_named_before_mpi_waits_for_it(tmp_path: Path) -> None:
    done = mpirun(
        tmp_path,
        3,
        """
def meet(name):
    open(f"{name}-{rank}", "w").close()
    while not all(os.path.exists(f"{name}-{other}") for other in range(3)): time.sleep(0.01)
meet("up")
if rank != 1:
    try: find_bootstrap.find(timeout=1)
    except TimeoutError as error: say(rank, error.ranks, error)
meet("over")
""",
    )
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == 2, done.stderr
    for line, rank in zip(lines, (0, 2), strict=True):
        assert line.startswith(f"{rank} (1,) rank 1 did not come to malt.init() within 1 s")


@needs_mpi
def test_error_in_one_rank_keeps_none_waiting_and_leaves_no_files(tmp_path: Path) -> None:
    start = time.monotonic()
    done = mpirun(
        tmp_path,
        2,
        """
try:
    with find_bootstrap.find() as b:
        if rank == 1: raise ValueError("mine")
        b.allgather(b"", 1)
except (TimeoutError, ValueError) as error: say(rank, type(error).__name__, error)
time.sleep(2)
""",
    )
    assert time.monotonic() - start < 30
    first, second = sorted(done.stdout.splitlines())
    assert first.startswith("0 TimeoutError rank 1 did not come within 1 s")
    assert second == "1 ValueError mine"
    assert not list(tmp_path.glob("sm_segment*"))


@needs_mpi
def test_second_join_after_mpi_was_finalised_is_explained(tmp_path: Path) -> None:
    done = mpirun(
        tmp_path,
        2,
        """
find_bootstrap.find().close()
try: find_bootstrap.find()
except ValueError as error: say(error)
""",
    )
    assert done.stdout.count("from mpi4py import MPI") == 2, done.stderr


def test_launcher_without_mpi4py_is_explained() -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
    done = python("sys.modules['mpi4py'] = None\n" + FIND, environ)
    assert done.stdout.startswith("ConfigError Open MPI's mpirun started this process, but mpi4py ")
    assert 'pip install "malt-sgd[mpi]"' in done.stdout
    assert "malt run -n 4" in done.stdout


@needs_mpi
def test_worlds_of_size_1_are_noticed_and_explained(tmp_path: Path) -> None:
    # As under a launcher whose settings this MPI library does not read. Without a launcher Open
    # MPI 5 leaves a file behind even after MPI_Finalize.
    files = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    done = python(FIND, {"PMI_SIZE": "3", "PMI_RANK": "1", **files})
    assert done.stdout.startswith("ConfigError MPICH's mpirun started 3 processes, but "), done
    assert "sees a world of 1, so that each would train alone" in done.stdout
    assert 'pip install "malt-sgd[mpi]"' in done.stdout
    assert "RuntimeWarning" not in done.stderr


@needs_mpi
def test_pair_that_cannot_start_is_refused_before_it_aborts() -> None:
    body = """
import mpi4py; mpi4py.rc.initialize = False
from mpi4py import MPI
MPI.get_vendor = lambda: ("MPICH", (5, 0, 2))
"""
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    done = python(body + FIND, environ)
    assert "MPICH 5.0.2, cannot start under it; launcher and library must be" in done.stdout


@needs_mpi
def test_an_mpi_program_under_malt_run_is_told_to_use_mpirun(tmp_path: Path) -> None:
    """Each of its processes has an MPI of its own there, and would be a job of one rank."""
    compiler = shutil.which("mpicxx", path=str(Path(str(MPIRUN)).parent))
    if compiler is None:
        pytest.skip("needs mpicxx")
    (tmp_path / "program.cpp").write_text(
        """
#include <cstdio>
#include "dstorm/mpi.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const dstorm::MpiBootstrap bootstrap(MPI_COMM_WORLD);
    std::printf("alone\\n");
  } catch (const dstorm::ConfigError& error) {
    std::printf("%s\\n", error.what());
  }
  MPI_Finalize();
}
"""
    )
    source = Path(__file__).parents[3] / "src"
    command = [compiler, "-std=c++20", f"-I{source}", "program.cpp", source / "dstorm/errors.cpp"]
    subprocess.run([*command, "-o", "program"], cwd=tmp_path, check=True, timeout=100)
    done = subprocess.run(
        [sys.executable, "-m", "malt", "run", "-n", "2", "--no-prefix", "--", "./program"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.count("`malt run` started this process as one of 2") == 2, done
    assert "mpirun -n 2" in done.stdout
