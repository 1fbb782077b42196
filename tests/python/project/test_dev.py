"""`./dev`: how far a build is, tests that fail once, steps that a machine cannot run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# CMake's and ninja's output, as pip passes it on.
A_BUILD = """
  -- Configuring done (1.0s)
  [1/4], about ? left: Building CXX object a.o
  [2/4], about 0:40 left: Building CXX object b.o
  b.cpp:1: note: [7/9] is no count
  [3/4], about 0:20 left: Building CXX object c.o
  [4/4], about 0:00 left: Linking CXX shared module
"""

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


def bash(
    script: str, cwd: Path = ROOT, stdout: int = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script that may call what .ci/set_up.sh and .ci/steps.sh define."""
    parts = f"logs=.logs cores=1 && . {ROOT}/.ci/set_up.sh && . {ROOT}/.ci/steps.sh && {script}"
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", parts],
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, **variables},
    )


def test_a_log_has_a_line_of_the_build_every_half_minute() -> None:
    # Each line takes 12 s here.
    slowly = 'read() { SECONDS=$((SECONDS + 12)) && builtin read "$@"; }'
    done = bash(f'{slowly} && show_counts <<<"$A_BUILD"', A_BUILD=A_BUILD)
    assert done.stdout.split("\n") == [
        "    [1/4], about ? left",
        "    [3/4], about 0:20 left",
        "",
    ], done.stderr


def test_a_terminal_has_one_line_of_the_build() -> None:
    ours, terminal = os.openpty()
    done = bash('show_counts <<<"$A_BUILD"', stdout=terminal, A_BUILD=A_BUILD)
    os.close(terminal)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    lefts = ["[1/4], about ? left", "[2/4], about 0:40 left"]
    lefts += ["[3/4], about 0:20 left", "[4/4], about 0:00 left"]
    assert shown == "".join(f"\r    {left}\033[K" for left in lefts) + "\r\033[K", done.stderr


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({}, 77, "SKIPPED: no tree here; MALT_FRESH=required makes this a failure\n"),
        ({"MALT_FRESH": "required"}, 1, "no tree here\n"),
        ({"CI": "true"}, 1, "no tree here\n"),
    ],
    ids=["here", "required", "CI"],
)
def test_a_step_that_cannot_run_fails_where_it_must_run(
    variables: dict[str, str], code: int, said: str
) -> None:
    done = bash("cannot_run MALT_FRESH no tree here", **{"MALT_FRESH": "", **variables})
    assert (done.returncode, done.stdout) == (code, said), done.stderr


@pytest.mark.parametrize(
    ("count", "always", "code", "named"),
    [(1, False, 0, 1), (1, True, 1, 0), (4, False, 1, 0)],
    ids=["once", "twice", "many"],
)
def test_a_failed_test_is_run_once_more(
    tmp_path: Path, count: int, always: bool, code: int, named: int
) -> None:
    (tmp_path / "test_it.py").write_text(A_TEST.format(count=count, always=always))
    done = bash("pytests it python -m pytest --rootdir=. -c /dev/null .", tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.count("UNSTEADY: ") == named


def test_variants_that_are_left_out_are_of_tests_that_exist() -> None:
    tests = ROOT / "tests/python"
    for line in (tests / "long_variants.txt").read_text().splitlines():
        if not line.startswith("#"):
            file, _, test = line.partition("::")
            assert f"def {test.partition('[')[0]}(" in (tests / file).read_text(), line
