"""Misuse of a job: a clear error of the right kind, on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from jobs import PROMPT, refused, run_job, start_job

import malt


@pytest.fixture
def in_no_job() -> Iterator[None]:
    malt.finalize()
    yield
    malt.finalize()


# Every kind of error


def test_malts_errors_are_what_python_programs_catch() -> None:
    assert issubclass(malt.ConfigError, malt.Error)
    assert issubclass(malt.ConfigError, ValueError)
    assert issubclass(malt.TimeoutError, malt.Error)
    assert issubclass(malt.TimeoutError, TimeoutError)
    assert issubclass(malt.PeerError, malt.Error)
    assert issubclass(malt.PeerError, ConnectionError)


# Init and finalize


def test_without_init_every_call_says_what_to_do(in_no_job: None) -> None:
    for call in (
        malt.rank,
        malt.size,
        malt.alive,
        malt.epoch,
        malt.barrier,
        lambda: malt.vector(np.zeros(3)),
        lambda: malt.sparse_vector(5, capacity=2),
        lambda: malt.shard([1, 2, 3]),
        lambda: malt.shard([1, 2, 3], chunk=1),
    ):
        with pytest.raises(malt.ConfigError, match=r"call malt\.init\(\) first"):
            call()


def test_a_number_in_place_of_a_function_is_named(alone: None) -> None:
    with pytest.raises(malt.ConfigError, match="callback is 3; it must be a function"):
        malt.jobs.on_change(3)  # type: ignore[arg-type]
    with pytest.raises(malt.ConfigError, match=r"the program's schedule\(\) is None; it must be a"):
        malt.optimize.schedule.run(3, length=1)  # type: ignore[arg-type]
    with malt.Pool(1) as pool:
        data = pool.share(np.zeros((2, 1)))
        for call in (lambda: pool.run(3), lambda: pool.sum(3, 0, data)):  # type: ignore[arg-type]
            with pytest.raises(malt.ConfigError, match=r"'s function is 3; it must be a function"):
                call()


def test_after_finalize_vectors_refuse_to_work_and_memory_stays(in_no_job: None) -> None:
    malt.init()
    v, own, s = malt.vector(np.ones(3)), malt.vector(3), malt.sparse_vector(5, capacity=2)
    own.array[:] = 5
    malt.finalize()
    malt.finalize()
    for call in (v.scatter, v.gather, v.allreduce, own.scatter, own.allreduce, s.scatter, s.gather):
        with pytest.raises(malt.ConfigError, match="has left the job"):
            call()
    assert (v.array.tolist(), own.array.tolist()) == ([1, 1, 1], [5, 5, 5])
    assert v.stats().sent == 0
    malt.init()  # another job: the vectors are still those of the first
    with pytest.raises(malt.ConfigError, match="has left the job"):
        v.scatter()
    assert malt.vector(v.array).gather().count == 0


def test_after_finalize_nothing_waits_for_the_ranks_that_go_on(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v, own, s = malt.vector(np.ones(3)), malt.vector((3,)), malt.sparse_vector(5, capacity=2)
if rank == 1:
    v.scatter()
    malt.finalize()
    calls = (v.scatter, v.gather, lambda: v.gather(staleness=0), v.allreduce,
             own.scatter, own.gather, own.allreduce, s.scatter, s.gather)
    tell(errors=[error_of(call) for call in calls])
    raise_flag("done")
else:
    await_flag("done")
    assert v.gather(malt.SUM).ranks == (1,)  # what was sent before is there
    malt.barrier()
""",
    )
    for error in result.told[1]["errors"]:
        assert refused(error, "has left the job")


def test_a_closed_vector_says_so(alone: None) -> None:
    v = malt.vector(np.zeros(3), name="w")
    v.close()
    v.close()
    for call in (v.scatter, v.gather, v.allreduce):
        with pytest.raises(malt.ConfigError, match="'w' has been closed"):
            call()


def test_init_twice_is_one_job_unless_the_settings_differ(in_no_job: None) -> None:
    job = malt.init(timeout=20, transport="shm")
    assert malt.init() is malt.init(timeout=20.0) is malt.init(transport="shm", timeout=20) is job
    with pytest.raises(malt.ConfigError) as info:
        malt.init(timeout=21)
    for part in ("timeout=21", "in a job already", "timeout=20.0", "malt.finalize()"):
        assert part in str(info.value)
    with pytest.raises(malt.ConfigError, match="in a job already, with transport='shm'"):
        malt.init(transport="auto")
    malt.finalize()
    assert malt.init(timeout=21) is not job


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_timeout_of_nothing_is_refused(in_no_job: None, timeout: float) -> None:
    with pytest.raises(malt.ConfigError, match=r"timeout .* a number of seconds above 0"):
        malt.init(timeout=timeout)


def test_an_unknown_transport_is_refused_with_those_there_are(in_no_job: None) -> None:
    with pytest.raises(malt.ConfigError, match=r"no transport 'carrier pigeon'.*'auto', 'shm'"):
        malt.init(transport="carrier pigeon")
    malt.init(transport="shm")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("MALT_TIMEOUT", "soon", "MALT_TIMEOUT.* is 'soon'; it is a number of seconds above 0"),
        ("MALT_TIMEOUT", "-1", "'-1'"),
        ("MALT_TRANSPORT", "fax", "no transport 'fax'"),
        ("MALT_LOG", "loud", "MALT_LOG is 'LOUD'; it is DEBUG, INFO, WARNING or ERROR"),
    ],
)
def test_settings_from_outside_are_checked(
    in_no_job: None, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(malt.ConfigError, match=expected):
        malt.init()


# Between ranks


def test_vectors_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    """One rank's vector is another than the others'; after each error the job goes on."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
odd = rank == 1
attempts = {
    "length": lambda: malt.vector(np.zeros(10 + odd)),
    "dtype": lambda: malt.vector(np.zeros(10, dtype="int64" if odd else "float64")),
    "graph": lambda: malt.vector(np.zeros(10), graph=malt.RING if odd else malt.ALL),
    "edges": lambda: malt.vector(np.zeros(10), graph=malt.Graph(
        [(0, 1), (1, 2), (2, 0), (1, 0) if odd else (0, 2)])),
    "seed": lambda: malt.vector(np.zeros(10), graph=malt.RANDOM(1, seed=5 + odd)),
    "policy": lambda: malt.vector(np.zeros(10), policy="queue" if odd else "latest"),
    "depth": lambda: malt.vector(np.zeros(10), depth=3 if odd else 2),
    "memory": lambda: malt.vector((10,)) if odd else malt.vector(np.zeros(10, dtype="float32")),
    "kind": lambda: malt.sparse_vector(10, capacity=5) if odd else malt.vector((10,)),
    "capacity": lambda: malt.sparse_vector(10, capacity=5 + odd),
    "name": lambda: malt.vector((10,), name="mine" if odd else "theirs"),
    "order": lambda: malt.barrier() if odd else malt.vector((10,)),
}
tell(errors={name: error_of(attempt) for name, attempt in attempts.items()})
w = np.full(2, rank + 1.0)
malt.vector(w, name="last").allreduce(malt.SUM)
tell(w=w)
malt.barrier()
""",
    )
    for told in result.told:
        errors = told["errors"]
        for name, one, two in (
            ("length", "dense float64 x 10 on ranks 0, 2", "dense float64 x 11 on rank 1"),
            ("dtype", "dense float64 x 10 on ranks 0, 2", "dense int64 x 10 on rank 1"),
            ("graph", "ALL on ranks 0, 2", "RING on rank 1"),
            ("edges", "on ranks 0, 2", "on rank 1"),
            ("seed", "seed=5) on ranks 0, 2", "seed=6) on rank 1"),
            ("policy", "latest on ranks 0, 2", "queue on rank 1"),
            ("depth", "2 on ranks 0, 2", "3 on rank 1"),
            ("memory", "on ranks 0, 2", "on rank 1"),
            (
                "kind",
                "dense float32 x 10 on ranks 0, 2",
                "sparse float32 x 10, capacity 5 on rank 1",
            ),
            ("capacity", "capacity 5 on ranks 0, 2", "capacity 6 on rank 1"),
        ):
            way_out = "every rank must make its vectors in the same order with the same options"
            assert refused(errors[name], "is not the same on all ranks", one, two, way_out)
            assert errors[name].says("vector 'vector-")
            assert "segment" not in errors[name].text
        for name, one, two in (
            ("name", "ranks 0, 2: vector 'theirs'", "rank 1: vector 'mine'"),
            ("order", "ranks 0, 2: vector 'vector-", "rank 1: malt.barrier"),
        ):
            assert refused(errors[name], "different collective calls at once", one, two)
        assert told["w"].tolist() == [6, 6]


def test_a_vector_that_one_rank_cannot_make_ends_on_the_others_too(tmp_path: Path) -> None:
    """Rank 1's array is refused before the others hear of it; all can try again, without names."""
    result = run_job(
        tmp_path,
        3,
        """
meet("here")
malt.init(timeout=1)
w = np.full(4, rank + 1.0)
tell(first=error_of(malt.vector, np.zeros(8)[::2] if rank == 1 else w))
if rank == 1:
    await_flag(0), await_flag(2)
raise_flag(rank)
v = malt.vector(w)
v.allreduce(malt.SUM, timeout=30)
tell(w=w)
malt.barrier(30)
""",
    )
    assert refused(result.told[1]["first"], "not contiguous")
    for rank in (0, 2):
        error = result.told[rank]["first"]
        assert error.kind in ("TimeoutError", "ConfigError", "PeerError")
        assert error.says("rank 1")
        assert error.seconds < PROMPT
    assert [told["w"].tolist() for told in result.told] == [[6.0] * 4] * 3


def test_graph_for_another_size_or_without_a_way_is_refused_on_every_rank(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(3))
three = malt.Graph([(0, 1), (1, 2), (2, 0)])
five = malt.Graph([(i, (i + 1) % 5) for i in range(5)])
apart = malt.Graph([(0, 1), (1, 0), (2, 3), (3, 2)])
oneway = malt.Graph([(0, 1), (1, 2), (2, 0), (2, 3)])
errors = [error_of(malt.vector, np.zeros(3), graph=g) for g in (three, five, apart, oneway)]
tell(errors=errors, once=[error_of(v.scatter, g) for g in (three, five, apart, oneway)])
malt.barrier()
v.allreduce()
""",
    )
    for told in result.told:
        for errors in (told["errors"], told["once"]):
            three, five, apart, oneway = errors
            assert refused(three, "0..2", "start 3 ranks")
            assert refused(five, "4", "start 5 ranks")
            assert refused(apart, "2, 3")
            assert refused(oneway, "3")


def test_two_jobs_with_the_same_names_do_not_meet(tmp_path: Path) -> None:
    script = """
malt.init(timeout=60)
w = np.ones(10)
v = malt.vector(w, name="w")
tell(joined=True)
await_flag("both are there")
for step in range(50):
    v.scatter()
    v.gather(malt.SUM, staleness=0)
tell(w=w)
malt.barrier()
"""
    with start_job(tmp_path / "a", 2, script) as a, start_job(tmp_path / "b", 3, script) as b:
        for job in (a, b):
            job.await_told("joined")
        for job in (a, b):
            job.raise_flag("both are there")
        results = a.finish(), b.finish()
    for result, factor in zip(results, (2, 3), strict=True):
        assert result.code == 0, result.output
        assert [w.tolist() for w in result.each("w")] == [[float(factor) ** 50] * 10] * factor
