"""`./dev test`: a test that fails and then passes is named in the summary, not a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Fails when it first runs; `always` fails every time.
A_TEST = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test(number):
    tried = Path(__file__).with_name(f"tried{{number}}")
    was_tried = tried.exists()
    tried.touch()
    assert was_tried and not {always}
"""


@pytest.mark.parametrize(
    ("count", "always", "code", "named"),
    [(1, False, 0, 1), (1, True, 1, 0), (4, False, 1, 0)],
    ids=["once", "twice", "many"],
)
def test_a_failed_test_is_run_once_more(
    tmp_path: Path, count: int, always: bool, code: int, named: int
) -> None:
    (tmp_path / "test_it.py").write_text(A_TEST.format(count=count, always=always))
    script = f". {ROOT}/.ci/steps.sh && pytests it python -m pytest --rootdir=. -c /dev/null ."
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"logs=.logs cores=1 && {script}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.count("UNSTEADY: ") == named
