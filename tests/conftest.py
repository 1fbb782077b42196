"""Rules for all Python tests, those under mpirun included, and a fixture of many: `alone`.

A skip is loud: with MALT_NO_SKIPS=1 (`./dev test` sets it) a skipped test fails unless
ALLOWED_SKIPS names it. And signals do what they do by default, also where the tests were started
with some ignored, which programs inherit (nohup; a shell's background jobs).
"""

from __future__ import annotations

import fnmatch
import os
import re
import signal
from collections.abc import Generator, Iterator

import pytest

import malt

# Test id pattern -> what the test needs that a machine may rightly lack.
ALLOWED_SKIPS: dict[str, str] = {
    "tests/hosts/test_srun.py*": "Slurm needs root, where a user namespace will do for the hosts",
    "tests/python/torch/test_backend.py*other_devices*": "PyTorch 2.6 lacks what takes the tensors",
    "tests/python/launch/test_elastic.py*another_user*": "being another user takes root",
}


signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank, in this process."""
    with malt.init():
        yield


_NO_ENGINE = re.compile(
    "could not import '(malt.)?(dask|distributed|jax|kubernetes|optax|(py)?spark|ray)"
)


def forbidden(nodeid: str, reason: str) -> bool:
    allowed = any(fnmatch.fnmatch(nodeid, pattern) for pattern in ALLOWED_SKIPS)
    # `./dev test pythons` says in its summary that it found no PyTorch.
    if os.environ.get("MALT_WITHOUT_TORCH") == "1" and "could not import 'torch'" in reason:
        allowed = True
    # Those steps leave out the engines.
    if os.environ.get("MALT_WITHOUT_ENGINES") == "1" and _NO_ENGINE.search(reason):
        allowed = True
    # Ubuntu's apt has no Chromium.
    if os.environ.get("MALT_WITHOUT_BROWSER") == "1" and "needs chromium" in reason:
        allowed = True
    # With MALT_TEST_GPU=1 the tests use a real GPU instead of tests/fake_cuda.
    allowed = allowed or "a real GPU's driver cannot be controlled" in reason
    # `./dev test pythons` and `./dev test torches` also run with older ones than the newest.
    allowed = allowed or "the backend is for PyTorch 2.6 and later" in reason
    allowed = allowed or "windows need a newer PyTorch" in reason
    return os.environ.get("MALT_NO_SKIPS") == "1" and not allowed


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if report.skipped and not hasattr(report, "wasxfail") and forbidden(report.nodeid, reason):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and may not be here: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report)
    return report
