"""The examples of examples/pool, each run as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pool"


def output(example: str, *launcher: str) -> str:
    done = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / f"{example}.py"],
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f'"{example.stem}"' in text


@pytest.mark.parametrize(
    ("example", "line"),
    [
        ("autoencoder", r"cost 15\.49\d\d -> 0\.5[67]\d\d in 50 iterations"),
        ("kmeans", r"inertia \d+\.\d{4} a row, clusters of \[.*\] rows"),
        ("logistic_regression", r"loss 0\.324\d in \d+ iterations, accuracy 0\.85\d"),
        ("naive_bayes", r"20,000 documents, [\d,]+ words, accuracy 0\.[6-9]\d\d"),
        ("pca", r"3 of 30 components explain 99\.\d% of the variance"),
    ],
)
def test_example(example: str, line: str) -> None:
    assert re.fullmatch(line, output(example).strip())


def test_example_of_a_job() -> None:
    line = r"\[0\] 2 ranks, off by at most 0\.0[01]\d\d"
    assert re.fullmatch(line, output("over_job", "-m", "malt", "run", "-n", "2").strip())
