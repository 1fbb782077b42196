"""A job under mpirun: pytest runs on each rank, and the ranks go through the tests together.

mpirun -n 4 python -m pytest tests/mpi
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import malt

MPI = pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")

pytestmark = pytest.mark.timeout(90)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
OTHERS = tuple(r for r in range(SIZE) if r != RANK)


@pytest.fixture
def job() -> Iterator[malt.jobs.Job]:
    WORLD.Barrier()
    with malt.init(timeout=30) as job:
        yield job
        malt.barrier()  # nobody leaves while another still looks at it


def test_rank_and_size_are_those_of_mpi(job: malt.jobs.Job) -> None:
    assert (malt.rank(), malt.size()) == (RANK, SIZE)
    assert malt.alive() == tuple(range(SIZE))
    pids = WORLD.allgather(job.group.epoch)
    assert len(set(pids)) == 1


def test_init_is_idempotent_and_mpi_stays_the_users(job: malt.jobs.Job) -> None:
    assert malt.init() is job
    assert malt.init(timeout=30) is job
    with pytest.raises(malt.ConfigError, match="in a job already"):
        malt.init(timeout=31)
    assert not MPI.Is_finalized()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_vector_exchange_gives_what_mpi_gives(job: malt.jobs.Job, dtype: str) -> None:
    w = (np.arange(1, 1001) * (RANK + 1)).astype(dtype)
    summed = np.empty_like(w)
    WORLD.Allreduce(w, summed)
    v = malt.vector(w)
    assert v.scatter() == OTHERS
    gathered = v.gather(malt.SUM, staleness=0)
    assert (gathered.count, gathered.ranks) == (SIZE - 1, OTHERS)
    np.testing.assert_array_equal(w, summed)


@pytest.mark.parametrize("memory", ["own", "callers"])
def test_allreduce_gives_what_mpi_gives(job: malt.jobs.Job, memory: str) -> None:
    v = (
        malt.vector((333, 3), dtype="float64")
        if memory == "own"
        else malt.vector(np.empty((333, 3)))
    )
    for step in range(10):
        v.array[...] = np.arange(999).reshape(333, 3) * (RANK + 1) + step
        summed = np.empty((333, 3))
        WORLD.Allreduce(v.array, summed)
        v.allreduce(malt.SUM)
        np.testing.assert_array_equal(v.array, summed)


def test_barrier_holds_everyone_until_the_last_has_come(job: malt.jobs.Job) -> None:
    flags = malt.vector((1,), name="flags")
    for last in range(SIZE):
        malt.barrier()
        if last == RANK:
            flags.array[0] = last + 1
            flags.scatter()
        malt.barrier()
        gathered = flags.gather(malt.REPLACE)
        assert flags.array[0] == last + 1
        assert gathered.count == (last != RANK)


@pytest.mark.parametrize("graph", [malt.ALL, malt.HALTON, malt.RING, malt.ONE_PEER], ids=repr)
def test_averaging_over_a_graph_comes_to_the_mean(job: malt.jobs.Job, graph: malt.Graph) -> None:
    w = np.full(5, float(RANK))
    v = malt.vector(w, graph=graph)
    for _ in range(60):
        v.scatter()
        v.gather(malt.WEIGHTED, staleness=0)
    np.testing.assert_allclose(w, (SIZE - 1) / 2, atol=1e-6)


def test_error_of_one_rank_is_an_error_of_all(job: malt.jobs.Job) -> None:
    """The lengths differ, so none gets the vector; and all can make another one afterwards."""
    if SIZE == 1:
        with pytest.raises(malt.ConfigError, match="empty"):
            malt.vector(np.zeros(0))
    else:
        with pytest.raises(malt.ConfigError, match="not the same on all ranks") as info:
            malt.vector(np.zeros(10 + (RANK == SIZE - 1)))
        assert f"float64 x 11 on rank {SIZE - 1}" in str(info.value)
    w = np.full(3, 2.0)
    v = malt.vector(w)
    v.allreduce(malt.SUM)
    assert w.tolist() == [2.0 * SIZE] * 3


def test_a_communicator_of_the_users_makes_a_job_of_its_own() -> None:
    half = WORLD.Split(RANK % 2, key=-RANK)  # the order of ranks is the communicator's
    with malt.init(comm=half, timeout=30):
        assert (malt.rank(), malt.size()) == (half.Get_rank(), half.Get_size())
        w = np.array([float(RANK)])
        malt.vector(w).allreduce(malt.SUM)
        assert w[0] == sum(r for r in range(SIZE) if r % 2 == RANK % 2)
        malt.barrier()
    half.Free()


def test_jobs_follow_one_another_in_one_process() -> None:
    for turn in range(3):
        with malt.init(timeout=30):
            w = np.array([RANK + turn])
            malt.vector(w).allreduce(malt.SUM)
            assert w[0] == sum(r + turn for r in range(SIZE))
            malt.barrier()
        with pytest.raises(malt.ConfigError, match=r"malt.init\(\)"):
            malt.rank()


def test_objects_of_mpi4py_and_malt_do_not_meet(job: malt.jobs.Job) -> None:
    """MPI traffic goes on beside MALT's."""
    w = np.zeros(100)
    v = malt.vector(w)
    got: list[Any] = []
    for step in range(20):
        request = WORLD.isend((RANK, step), (RANK + 1) % SIZE, tag=7)
        w[:] = RANK + step
        v.scatter()
        got.append(WORLD.recv(source=(RANK - 1) % SIZE, tag=7))
        v.gather(malt.AVG, staleness=0)
        request.wait()
        np.testing.assert_allclose(w, step + (SIZE - 1) / 2)
    assert got == [((RANK - 1) % SIZE, step) for step in range(20)]
