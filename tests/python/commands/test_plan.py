"""`malt plan` says what a job then takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import run_job

import malt
from malt._commands import main, plan

SIZE = 1 << 20


@pytest.mark.parametrize("graph", ["ALL", "HALTON", "RING", "ONE_PEER"])
def test_memory_is_what_a_job_takes(tmp_path: Path, graph: str) -> None:
    """Each rank is a host."""
    ranks = 7
    result = run_job(
        tmp_path,
        ranks,
        f"""
malt.init(transport="tcp", timeout=40)
v = malt.vector(np.zeros({SIZE // 4}, np.float32), graph=malt.{graph}, depth=3)
tell(memory=v.stats().memory_bytes)
malt.barrier()
""",
    )
    load = plan.plan(getattr(malt, graph), ranks=ranks, hosts=ranks, size=SIZE, depth=3)
    assert max(told["memory"] for told in result.told) == load.memory
    assert load.memory > 3 * SIZE


def test_memory_of_one_host_is_what_a_job_takes(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        f"""
malt.init(timeout=40)
v = malt.vector(np.zeros({SIZE // 4}, np.float32))
tell(memory=v.stats().memory_bytes)
malt.barrier()
""",
    )
    load = plan.plan(malt.ALL, ranks=3, hosts=1, size=SIZE, depth=2)
    assert {told["memory"] for told in result.told} == {load.memory}
    assert (load.updates_out, load.updates_in) == (0, 0)


def test_an_update_goes_to_a_host_once() -> None:
    load = plan.plan(malt.ALL, ranks=12, hosts=4, size=8, depth=2)
    assert (load.updates_out, load.updates_in) == (3 * 3, 9)
    one = plan.plan(malt.RING, ranks=12, hosts=12, size=8, depth=2)
    assert (one.updates_out, one.updates_in) == (2, 2)
    star = plan.plan(malt.STAR, ranks=12, hosts=12, size=8, depth=2)
    assert (star.updates_out, star.updates_in) == (11, 11)


def test_growth_of_halton_is_that_of_the_logarithm() -> None:
    """4 MB slots, depth 2, a rank a host."""
    memory = {
        ranks: plan.plan(malt.HALTON, ranks=ranks, hosts=ranks, size=4_000_000, depth=2).memory
        for ranks in (24, 64, 256)
    }
    for ranks, bytes_taken in memory.items():
        neighbours = len(malt.HALTON.in_(0, ranks)) + 1
        assert bytes_taken == pytest.approx(neighbours * 8_000_000, rel=0.1)


@pytest.mark.parametrize(
    ("typed", "size"),
    [("4096", 4096), ("16MiB", 16 << 20), ("1.5 gb", 1_500_000_000), ("3kB", 3000), ("1B", 1)],
)
def test_sizes(typed: str, size: int) -> None:
    assert plan.bytes_of(typed) == size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 64 --hosts 15 --size 1MB", "must divide the 64 ranks"),
        ("--ranks 0 --size 1MB", "--ranks is 0"),
        ("--ranks 4 --size 0", "from 1 byte"),
        ("--ranks 4 --size lots", "such as 4096 or 16MiB"),
        ("--ranks 4 --size 1MB --graph web", "--graph is 'web'"),
        ("--ranks 4 --size 1MB --depth 0", "--depth is 0"),
    ],
)
def test_refusals(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_shows_what_a_host_needs(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --ranks 24 --hosts 24 --size 4MB --graph halton"
    assert main.main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "memory of the vector, a host    40.1 MB" in shown
    assert "heartbeats of a rank            with 8 hosts" in shown


def test_plans_of_large_jobs_take_no_memory() -> None:
    load = plan.plan(malt.HALTON, ranks=512, hosts=32, size=1 << 33, depth=2)
    assert load.memory > np.int64(1) << 38
