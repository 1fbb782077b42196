"""An environment variable of MALT that is empty counts as unset."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from jobs import run_job

ROOT = Path(__file__).parents[3]
SOURCES = [*ROOT.glob("python/malt/**/*.py"), *ROOT.glob("src/**/*.[ch]pp")]
NAMES = sorted({name for each in SOURCES for name in re.findall(r"MALT_[A-Z_]+", each.read_text())})
EMPTY = dict.fromkeys((name for name in NAMES if not name.endswith("_")), "")
# `malt run` gives these to its ranks.
OF_A_RANK = re.compile(
    r"MALT_(SIZE|RANK|LOCAL_RANK|N?NODE.*|RENDEZVOUS|JOB_KEY|SUCCESSORS|RECORD_FD)"
)

PROGRAM = """
import malt, numpy as np
malt.init()
v = malt.vector(np.ones(3))
v.allreduce(malt.SUM)
print("sum", malt.allreduce(malt.size()), v.array.sum(), malt.jobs.restarts())
malt.finalize()
"""


def test_the_settings_are_among_them() -> None:
    assert {"MALT_TIMEOUT", "MALT_LOG", "MALT_TLS", "MALT_SIMD", "MALT_RESTARTS"} <= EMPTY.keys()


def test_one_process_starts_with_all_variables_empty() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | EMPTY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("sum 1.0 3.0 0\n", 0), done.stderr


def test_ranks_start_with_all_settings_empty(tmp_path: Path) -> None:
    environ = {name: "" for name in EMPTY if not OF_A_RANK.fullmatch(name)}
    result = run_job(
        tmp_path,
        2,
        "malt.init(); tell(mean=malt.allreduce(rank), restarts=malt.jobs.restarts())",
        environ=environ,
    )
    assert result.each("mean") == [0.5, 0.5]
    assert result.each("restarts") == [0, 0]


def test_variables_are_read_by_one_function() -> None:
    """`environ.get(NAME, default)` takes an empty value for a setting."""
    wrong = re.compile(r'environ\.get\(f?"MALT_|"MALT_\w+" (not )?in (os\.)?env|getenv\("MALT_')
    has = {each.name for each in SOURCES if wrong.search(each.read_text())}
    assert has <= {"kernels.cpp"}  # which looks for the empty value itself
