"""malt.allreduce and malt.broadcast: numbers and settings, without a vector."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from jobs import run_job

import malt
from malt._job.collective import _plain, _restored


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_rank_gets_the_same(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
tell(
    mean=malt.allreduce(rank), sum=malt.allreduce(2**70 * rank, malt.SUM),
    worst=malt.allreduce(rank / 10, max), all=malt.allreduce(rank, list),
    array=malt.allreduce(np.array([rank, 10.0], np.float32)),
    long=malt.allreduce(np.arange(1000) * rank, malt.SUM),
    setting=malt.broadcast({"lr": 0.1, ("a", 1): [b"x", None]} if rank == 1 else object(), root=1),
)
""",
        environ={"MALT_TRANSPORT": transport},
    )
    for told in result.told:
        assert (told["mean"], type(told["mean"])) == (1.0, float)
        assert told["sum"] == 3 * 2**70
        assert told["worst"] == 0.2
        assert told["all"] == [0, 1, 2]
        assert (told["array"].tolist(), told["array"].dtype) == ([1.0, 10.0], np.float32)
        assert told["long"].tolist() == (3 * np.arange(1000)).tolist()
        assert told["setting"] == {"lr": 0.1, ("a", 1): [b"x", None]}


def test_what_cannot_be_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
tell(
    shapes=error_of(malt.allreduce, np.zeros(1 + rank)),
    object=error_of(malt.broadcast, object()),
    long=error_of(malt.broadcast, "x" * 2**20),
    fold=error_of(malt.allreduce, 1.0, malt.MEDIAN),
    root=error_of(malt.broadcast, 1, root=2),
    word=error_of(malt.allreduce, "x" if rank == 0 else 1.0),
    after=malt.allreduce(rank),
)
""",
    )
    for told in result.told:
        assert told["shapes"].says("rank 0: an array of float64 [1]; rank 1: ", "[2]")
        assert told["object"].says("malt.broadcast: rank 0: 'object' objects cannot be told")
        assert told["long"].says("at most 1048576", "malt.vector")
        assert told["fold"].says("malt.AVG, malt.SUM, or a function")
        assert told["root"].says("root is 2; the job has ranks from 0 to 1")
        assert told["word"].says("rank 0: ")
        assert told["after"] == 0.5
        assert {told[name].kind for name in told if name != "after"} == {"ConfigError"}


def test_one_process_is_a_job_of_one_rank() -> None:
    with malt.init():
        assert malt.allreduce(3) == 3.0
        assert malt.broadcast("x") == "x"


def test_the_dead_do_not_count_and_a_dead_root_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
malt.barrier()
if rank == 2:
    os.kill(os.getpid(), 9)
tell(mean=malt.allreduce(rank), root=error_of(malt.broadcast, 1, root=2))
""",
        "--keep-going",
        code=None,
    )
    for told in result.told[:2]:
        assert told["mean"] == 0.5
        assert told["root"].kind == "PeerError"
        assert told["root"].ranks == (2,)


@pytest.mark.parametrize(
    "value",
    [None, True, 7, 2**80, -0.0, math.inf, "ü", b"\x00", [], (), {}, (1, [2, {"a": (3,)}]), {1: 2}],
)
def test_a_value_comes_as_it_was(value: object) -> None:
    restored = _restored(_plain(value))
    assert repr(restored) == repr(value)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u8", "?", "c8", ">f4"])
def test_an_array_comes_as_it_was(dtype: str) -> None:
    for array in (np.ones((2, 3), dtype), np.zeros((0, 4), dtype), np.asarray(np.ones((), dtype))):
        restored = _restored(_plain(array))
        assert (restored.dtype, restored.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(restored, array)
        restored += np.ones((), dtype)  # the copy may be written
    scalar = np.ones((), dtype)[()]
    assert type(_restored(_plain(scalar))) is type(scalar)
