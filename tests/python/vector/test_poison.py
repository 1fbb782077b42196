"""A rank that sends nonsense does not spoil the others' training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import Result, run_job

# Data-parallel gradient descent on a linear model; rank 3 spoils what it sends in every round.
TRAIN = """
malt.init()
random = np.random.default_rng(7)
truth = random.standard_normal(20)
x = random.standard_normal((4, 1000, 20))
y = x @ truth + random.standard_normal((4, 1000))
w = np.zeros(20)
gradient = np.zeros(20)
v = malt.vector(gradient, **options)
clipped, rejected = set(), set()
for step in range(150):
    own = x[rank].T @ (x[rank] @ w - y[rank]) / 1000
    own *= min(1, 0.2 / np.linalg.norm(own))  # as max_norm does with the others'
    gradient[:] = own
    if rank == 3 and poison:
        gradient[:] = {"nan": np.nan, "inf": -np.inf, "1000-fold": 1000 * own}[poison]
    v.scatter()
    gradient[:] = own
    g = v.gather(FOLDS[fold], staleness=0)
    clipped.update(g.clipped), rejected.update(g.rejected)
    w -= 0.3 * gradient
tell(w=w, loss=np.mean((x @ w - y) ** 2), clipped=clipped, rejected=rejected,
     counts=(v.stats().clipped_from, v.stats().rejected_from))
malt.barrier()
"""
DEFENCES = {
    "reject_nonfinite": ("AVG", {"reject_nonfinite": True}, ("nan", "inf")),
    "max_norm": ("AVG", {"max_norm": 0.2}, ("nan", "inf", "1000-fold")),
    "median": ("MEDIAN", {}, ("nan", "inf", "1000-fold")),
    "trimmed mean": ("TRIMMED_MEAN", {}, ("nan", "inf", "1000-fold")),
}


def train(directory: Path, fold: str, options: dict[str, object], poison: str) -> Result:
    return run_job(directory, 4, TRAIN, fold=fold, options=options, poison=poison)


@pytest.fixture(scope="module")
def limit(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Of the loss, for whoever trains on as if all were well."""
    well = train(tmp_path_factory.mktemp("well"), "AVG", {}, "")
    return float(1.02 * max(well.each("loss")))


@pytest.mark.parametrize("defence", DEFENCES)
def test_the_others_train_on_as_if_a_rank_that_sends_nonsense_were_well(
    tmp_path: Path, defence: str, limit: float
) -> None:
    fold, options, poisons = DEFENCES[defence]
    for poison in poisons:
        told = train(tmp_path / poison, fold, options, poison).told[:3]
        for one in told:
            assert np.isfinite(one["w"]).all(), poison
            assert one["loss"] < limit, poison
            refused = bool(options) and poison != "1000-fold"
            assert one["rejected"] == ({3} if refused else set())
            assert one["counts"][1] == ({3: 150} if refused else {})
        if defence == "max_norm" and poison == "1000-fold":
            assert all(3 in one["clipped"] and one["counts"][0][3] == 150 for one in told)


def test_without_a_defence_nonsense_spoils_the_others(tmp_path: Path, limit: float) -> None:
    """Else the test above would show nothing."""
    for poison in ("nan", "inf", "1000-fold"):
        loss = train(tmp_path / poison, "AVG", {}, poison).told[0]["loss"]
        assert not loss < limit, poison


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_fold_of_the_users_own_sees_clipped_values(tmp_path: Path, kind: str) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
if kind == "dense":
    v = malt.vector(np.array([30.0, 40.0]) * (1 + rank), max_norm=10)
else:
    v = malt.sparse_vector(9, capacity=5, dtype="float64", max_norm=10)
    v.set([2, 7], np.array([30.0, 40.0]) * (1 + rank))
seen = []
def fold(mine, updates):
    seen.append(updates[0].values.tolist())
    return mine if kind == "dense" else (mine.indices, mine.values)
v.scatter()
g = v.gather(fold, staleness=0)
tell(seen=seen, clipped=g.clipped, ranks=g.ranks, errors=[
    error_of(malt.vector, np.zeros(3, dtype), max_norm=norm)
    for dtype, norm in (("float32", 0), ("float32", np.nan), ("int32", 1.0))])
malt.barrier()
""",
        kind=kind,
    )
    for rank, told in enumerate(result.told):
        np.testing.assert_allclose(told["seen"], [[6.0, 8.0]], rtol=1e-12)
        assert told["clipped"] == told["ranks"] == (1 - rank,)
        zero, nan, integers = told["errors"]
        assert {error.kind for error in told["errors"]} == {"ConfigError"}
        assert zero.says("max_norm is 0", "above 0")
        assert nan.says("max_norm is nan")
        assert integers.says("int32", "float32 or float64")
