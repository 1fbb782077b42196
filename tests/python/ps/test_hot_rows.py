"""malt.ps.Table(hot=): rows that all ranks pull come through trees of servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import run_job, start_job

import malt
from malt.ps import Table


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_pulls_of_hot_rows_are_as_fresh_as_others(tmp_path: Path, transport: str) -> None:
    """BSP: exactly the pushes of earlier clocks. On one host (shm) there is no tree."""
    result = run_job(
        tmp_path,
        6,
        """
malt.init()
with malt.ps.Table(500, 3, staleness=0, hot=[7, 3, 3, 400]) as table:
    for step in range(20):
        table.push(None, 1.0)
        for keys in ([3, 7, 400], None, [2, 3, 4]):
            assert (table.pull(keys) == step * size).all()
        table.clock()
    answers = table.stats().hot_answers
tell(answers=answers)
""",
        environ={"MALT_TRANSPORT": transport},
    )
    answers = sum(result.each("answers"))
    assert answers >= 20 * 6 if transport == "tcp" else answers == 0


def test_wrong_rows_are_refused(alone: None) -> None:
    for hot, staleness, message in [
        ([3, 10], 0, "hot has 10, .* rows 0 to 9"),
        ([-1], 0, "hot has -1"),
        ([0.5], 0, "hot has dtype float64"),
        ([1], None, "hot rows need a staleness"),
    ]:
        with pytest.raises(malt.ConfigError, match=message):
            Table(10, hot=hot, staleness=staleness)
    with Table(10, hot=np.empty(0, np.int64)) as table:
        assert table.stats().hot_answers == 0


def test_ranks_with_different_hot_rows_are_told(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
tell(error=error_of(malt.ps.Table, 10, staleness=0, hot=[rank, 5]))
malt.barrier()
""",
    )
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert error.says("hot=2 rows (checksum ")


def test_they_stay_fresh_while_a_rank_dies_and_rejoins(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
hot = [1, 100, 700]
table = malt.ps.Table(1000, 2, staleness=0, replicas=1, hot=hot)
tell(pid=os.getpid(), restarts=malt.jobs.restarts())
while table.iteration < goal():
    table.push(None, 1.0)
    assert (table.pull(hot) == table.pull()[hot]).all()
    table.clock()
    tell(at=table.iteration, alive=malt.alive())
table.close()
"""
    environ = {"MALT_TRANSPORT": "tcp"}
    with start_job(tmp_path, 4, body, "--respawn=9", environ=environ) as job:
        job.kill_and_await_return(2)
        job.set_goal(10)
        result = job.finish()
    assert result.code == 0, result.output
