"""Jobs whose ranks come back, simulated: see tests/model/rejoining/jobs.py.

pytest tests/python/job/test_rejoining.py                       1,000 seeds
MALT_SEEDS=100000 pytest tests/python/job/test_rejoining.py     so many
MALT_SEED=1234 pytest -s tests/python/job/test_rejoining.py     this one, step by step
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rejoining.jobs import Job

_MODEL = Path(__file__).parents[2] / "model"
_CHUNK = 200  # seeds of one process
_SEEDS = int(os.environ.get("MALT_SEEDS", 400))


def _run(first: int) -> list[str]:
    """What is wrong with so many seeds from this one on, a line each; and how many came back."""
    last = min(first + _CHUNK, _SEEDS + 1)
    command = [sys.executable, "-m", "rejoining", str(first), str(last)]
    done = subprocess.run(command, cwd=_MODEL, capture_output=True, text=True, check=False)
    return (done.stderr + done.stdout).splitlines()


@pytest.mark.timeout(0 if _SEEDS > 10_000 else 300)
def test_ranks_that_come_back_keep_the_promises_of_membership_md() -> None:
    if seed := os.environ.get("MALT_SEED"):
        assert Job(int(seed), print).run() == ""
        return
    with ThreadPoolExecutor(int(os.environ.get("MALT_JOBS", os.cpu_count() or 1))) as pool:
        said = list(pool.map(_run, range(1, _SEEDS + 1, _CHUNK)))
    wrong = [line for *lines, _ in said for line in lines]
    assert not wrong, "MALT_SEED=... shows how:\n" + "\n".join(wrong)
    assert sum(int(come_back) for *_, come_back in said) > _SEEDS / 10
