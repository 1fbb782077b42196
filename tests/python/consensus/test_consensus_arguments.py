"""Arguments of malt.optimize.Consensus that are refused, and a consensus of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import PROMPT, refused, run_job

import malt

BAD: list[tuple[str, list[str]]] = [
    ("np.zeros(3), rho=0", ["rank 0: rho is 0; it must be a number above 0"]),
    ("np.zeros(3), rho=float('nan')", ["rho is nan"]),
    ("np.zeros(3), quorum=1.5", ["quorum is 1.5; it is a share of the other ranks"]),
    ("np.zeros(3), max_delay=-1", ["max_delay is -1; it must be a whole number at least 0"]),
    ("np.zeros(3), rtol=-1", ["rtol is -1; it must be a number at least 0"]),
    ("np.zeros(3), prox=3", ["prox is 3; it must be a function"]),
    ("np.zeros(3, int)", ["x has the dtype int64; it must be float32 or float64"]),
    ("np.zeros(())", ["x has the shape ()"]),
    ("np.full(3, np.inf)", ["not finite on ranks 0, 1"]),
    ("np.zeros(3 + rank)", ["the shape of x", "is [3] on rank 0, and [4] on rank 1"]),
    ("np.zeros(3), rho=1 + rank", ["rho is 1.0 on rank 0, and 2.0 on rank 1"]),
    ("np.zeros(3), prox=abs if rank else None", ["whether there is a prox is False on rank 0"]),
    ("np.zeros(3, 'f8' if rank else 'f4')", ["the dtype of x is float32 on rank 0"]),
    ("np.zeros(3), ids=[0, 1]", ["ids are int64 of the shape (2,)", "the 3 rows of x"]),
    ("np.zeros(3), ids=[0, 1, 1]", ["id 1 is given twice"]),
    ("np.zeros(3), ids=[0, 1, -1]", ["an id is -1; ids are from 0"]),
    ("np.zeros(3), ids=np.arange(3) + 3 * rank", ["no id is held by two ranks"]),
    ("np.zeros(3), ids=[0, 1, 2], prox=abs", ["prox and ids are both given"]),
    ("np.zeros(3) if rank else None", ["rank 0: x is None; it must be one array: of NumPy"]),
    ("[np.zeros(3)]", ["x is [array([0., 0., 0.])]; it must be one array"]),
]


def test_bad_arguments_are_refused_on_all_ranks(tmp_path: Path) -> None:
    calls = "".join(f"error_of(lambda: malt.optimize.Consensus({call})),\n" for call, _ in BAD)
    result = run_job(
        tmp_path, 2, f"malt.init(timeout=60)\ntell(errors=[{calls}], one=error_of(bool))\n"
    )
    for errors in result.each("errors"):
        for error, (call, parts) in zip(errors, BAD, strict=True):
            assert refused(error, *parts), call
            assert error.seconds < PROMPT


def test_a_prox_that_returns_no_z_is_refused() -> None:
    with malt.init():
        x = np.ones(3)
        c = malt.optimize.Consensus(x, prox=lambda v, step: v[:2])
        with pytest.raises(malt.ConfigError, match=r"returned an array of the shape \(2,\); z has"):
            c.exchange()
        c = malt.optimize.Consensus(x, prox=lambda v, step: v / 0)
        with np.errstate(all="ignore"), pytest.raises(malt.ConfigError, match="not finite"):
            c.exchange()


@pytest.mark.parametrize("options", [{}, {"max_delay": 1}])
def test_alone_a_process_finds_its_own_optimum(options: dict[str, Any]) -> None:
    with malt.init():
        x, goal = np.zeros(3), np.array([1.0, -2, 3])
        c = malt.optimize.Consensus(x, rtol=1e-9, atol=1e-9, **options)
        while not c.converged:
            x[:] = (goal + c.rho * c.target) / (1 + c.rho)
            c.exchange()
        assert np.allclose(c.z, goal)
        assert c.ranks == (0,)
        own = malt.optimize.Consensus(x, ids=[4, 2, 9], **options)
        assert not own.is_shared.any()
        while not own.converged:
            own.exchange()
        assert np.array_equal(own.z, x)
        assert repr(c) == f"<malt.optimize.Consensus {c._name!r}, {c.rounds} rounds>"


def test_a_wrong_timeout_is_refused_and_closing_after_the_job_is_quiet() -> None:
    with malt.init():
        consensuses = [
            malt.optimize.Consensus(np.ones(2)),
            malt.optimize.Consensus(np.ones(2), max_delay=1),
        ]
        for c in consensuses:
            for wrong in ("abc", -1, float("nan")):
                with pytest.raises(malt.ConfigError, match=r"timeout is .*; it must be a"):
                    c.exchange(timeout=wrong)
            c.exchange(timeout=float("inf"))
    for c in consensuses:
        c.close()
        assert c.is_closed


def test_multipliers_stay_as_they_are_when_rho_changes() -> None:
    with malt.init():
        x, changes = np.zeros(3), 0
        goal = np.array([1.0, -20, 300])
        c = malt.optimize.Consensus(x, rho=1e-4, prox=lambda v, step: v / (1 + step))
        while not c.converged:
            x[:] = (goal + c.rho * c.target) / (1 + c.rho)
            w, rho = x + c.u, c.rho
            c.exchange()
            assert np.allclose(c.rho * c.u, rho * (w - c.z))
            changes += c.rho != rho
        assert changes > 5
        assert np.allclose(c.z, goal / 2, rtol=1e-3)
