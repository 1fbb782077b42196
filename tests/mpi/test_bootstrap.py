"""The bootstrap over MPI, when the user's program has initialised it; pytest runs on each rank.

mpirun -n 4 python -m pytest tests/mpi
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from malt import _errors as errors
from malt._bootstrap import mpi
from malt._bootstrap.find_bootstrap import find
from malt._errors import ConfigError, Error

MPI = pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")

pytestmark = pytest.mark.timeout(60)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.fixture
def comm() -> Iterator[Any]:
    """A communicator of the test's own, so that what one leaves behind meets no other."""
    comm = WORLD.Dup()
    yield comm
    WORLD.Barrier()


def test_world_is_as_large_as_the_launcher_says() -> None:
    launch = mpi.find_launch(os.environ)
    expected = 1 if launch is None or launch.size is None else launch.size
    assert expected == SIZE


def test_find_uses_the_world_and_leaves_mpi_alone() -> None:
    with find() as bootstrap:
        assert (bootstrap.rank, bootstrap.size) == (RANK, SIZE)
        assert bootstrap.launcher == ("mpi" if mpi.find_launch(os.environ) else "none")
        assert bootstrap.allgather(b"%d" % RANK, 20) == [b"%d" % r for r in range(SIZE)]
    assert not MPI.Is_finalized()


def test_lengths_may_differ(comm: Any) -> None:
    bootstrap = find(comm)
    for length in (0, 1, 5000, 3_000_000):
        parts = bootstrap.allgather(bytes([RANK]) * (length * RANK), 20)
        assert parts == [bytes([r]) * (length * r) for r in range(SIZE)]
    bootstrap.close()


def test_fast_rank_does_not_disturb_the_round_of_a_slow_one(comm: Any) -> None:
    bootstrap = find(comm)
    for turn in range(30):
        if turn % SIZE == RANK:
            time.sleep(0.005)
        parts = bootstrap.allgather(b"%d %d" % (turn, RANK), 20)
        assert parts == [b"%d %d" % (turn, r) for r in range(SIZE)]


def test_ranks_are_those_of_the_given_communicator(comm: Any) -> None:
    reverse = comm.Split(0, -RANK)
    bootstrap = find(reverse)
    assert bootstrap.rank == SIZE - 1 - RANK
    assert bootstrap.allgather(b"%d" % RANK, 20) == [b"%d" % r for r in reversed(range(SIZE))]
    alone = find(MPI.COMM_SELF)
    assert (alone.size, alone.allgather(b"x", 1)) == (1, [b"x"])


def test_missing_rank_is_named_at_the_time_limit(comm: Any) -> None:
    if SIZE == 1:  # nobody can be missing
        return
    if RANK != SIZE - 1:
        bootstrap = find(comm)
        start = time.monotonic()
        with pytest.raises(errors.TimeoutError, match=f"rank {SIZE - 1} ") as info:
            bootstrap.allgather(b"x" * 2_000_000, 0.5)
        assert info.value.ranks == (SIZE - 1,)
        assert time.monotonic() - start < 5
        with pytest.raises(Error, match="after an error"):
            bootstrap.allgather(b"", 1)
        bootstrap.close()
    else:
        time.sleep(1)


def test_invalid_communicator_is_refused() -> None:
    for wrong, match in (
        (object(), "not builtins.object"),
        (3, "not builtins.int"),
        (MPI.COMM_NULL, "COMM_NULL"),
    ):
        with pytest.raises(ConfigError, match=match):
            find(wrong)


def test_intercommunicator_is_refused(comm: Any) -> None:
    if SIZE == 1:  # there is nobody on the other side
        return
    half = comm.Split(RANK % 2, RANK)
    between = half.Create_intercomm(0, comm, 1 - RANK % 2)
    with pytest.raises(ConfigError, match="an intercommunicator"):
        find(between)


def test_world_of_another_size_than_the_launcher_says_is_refused() -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": str(SIZE + 1), "OMPI_COMM_WORLD_RANK": str(RANK)}
    with pytest.raises(ConfigError, match=f"sees a world of {SIZE}") as info:
        find(environ=environ)
    message = str(info.value)
    assert f"started {SIZE + 1} processes" in message
    assert MPI.get_vendor()[0] in message
    assert f"malt run -n {SIZE + 1}" in message


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}, ("Open MPI", 2, 4)),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, ("Open MPI", 0, 1)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, ("MPICH", 3, 4)),
        ({"PMI_SIZE": "4"}, None),
        ({"PMIX_RANK": "1"}, ("PMIx", 1, None)),
        (
            {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_PROCID": "1"},
            ("Slurm", 1, 4),
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "PMIX_RANK": "1"},
            ("Slurm", 1, 4),
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "PMI_RANK": "1", "PMI_SIZE": "4"},
            ("Slurm", 1, 4),
        ),
        # A batch script is in no step; an interactive shell is in one of a single task.
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
        (
            {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
            None,
        ),
        # MPICH's mpirun starts its proxies, one a node, through srun.
        (
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "PMI_RANK": "5", "PMI_SIZE": "8"},
            ("MPICH", 5, 8),
        ),
    ],
)
def test_launchers_are_told_apart(
    environ: dict[str, str], expected: tuple[str, int, int | None] | None
) -> None:
    launch = mpi.find_launch(environ)
    assert (launch and (launch.family, launch.rank, launch.size)) == expected
