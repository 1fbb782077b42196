"""A fit in a job that ends early on one rank is an error on the others, which names that rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

FITS = {
    "sgd": "SGDClassifier(max_iter=10**6, tol=None).fit(X, y)",
    "sgd-async": "SGDClassifier(max_iter=10_000, tol=None, staleness=None).fit(X, y)",
    "svc": "[LinearSVC(tol=1e-12, C=100).fit(X, y) for _ in range(10**4)]",  # one is short
    "mf": "MatrixFactorization(passes=10**6).fit((users, items, y))",
}


@pytest.mark.parametrize(
    "fit",
    [pytest.param(fit, marks=pytest.mark.long) if fit == "sgd-async" else fit for fit in FITS],
)
def test_interrupt_of_one_rank_is_an_error_of_the_others(tmp_path: Path, fit: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
import warnings
from malt.learn import *
warnings.simplefilter("ignore")
malt.init(timeout=5)
random = np.random.default_rng(rank)
X = random.normal(size=(2000, 20))
y = np.sign(X[:, 0] + random.normal(size=2000))
users, items = random.integers(0, 50, 2000), random.integers(0, 60, 2000)
def interrupt(*_):
    raise KeyboardInterrupt
if rank == 0:
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.4)
error = error_of(lambda: eval(fit))
signal.setitimer(signal.ITIMER_REAL, 0)
tell(error=error)
raise_flag(str(rank))
for other in range(size): await_flag(str(other))
""",
        fit=FITS[fit],
    )
    first, *others = result.each("error")
    assert first.kind == "builtins.KeyboardInterrupt", first
    for error in others:
        assert error is not None
        assert error.kind in ("PeerError", "TimeoutError"), error
        assert error.ranks == (0,), error
