"""malt.learn.MatrixFactorization: what it learns, alone and in a job, and what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from jobs import Err, run_job
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold

import malt

SHAPE = (400, 60)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def low_rank(seed: int = 0, share: float = 0.3) -> Arrays:
    """Ratings about 3 of a matrix of rank 2 with biases, and a little noise."""
    random = np.random.default_rng(seed)
    p, q = random.normal(0, 0.7, (SHAPE[0], 2)), random.normal(0, 0.7, (SHAPE[1], 2))
    full = 3 + p @ q.T + random.normal(0, 0.5, SHAPE[0])[:, None] + random.normal(0, 0.3, SHAPE)
    users, items = np.nonzero(random.random(SHAPE) < share)
    return users, items, full[users, items]


RATINGS = low_rank()


def held_out() -> tuple[Arrays, Arrays]:
    test = np.arange(len(RATINGS[0])) % 10 == 0
    users, items, values = RATINGS
    return (users[~test], items[~test], values[~test]), (users[test], items[test], values[test])


def model(**parameters: Any) -> Any:
    given = {"n_factors": 8, "passes": 40, "lr": 0.05, "reg": 0.01, "random_state": 0}
    return malt.learn.MatrixFactorization(**{**given, "shape": SHAPE, **parameters})


def same(a: Any, b: Any) -> bool:
    names = ("user_factors_", "item_factors_", "user_biases_", "item_biases_")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_predicts_ratings_that_it_has_not_seen() -> None:
    train, test = held_out()
    fitted = model().fit(train)

    assert fitted.rmse(test) < 0.4  # the ratings spread by 0.9, their noise by 0.3
    assert fitted.score(test) == -fitted.rmse(test)
    assert fitted.user_factors_.shape == (SHAPE[0], 8)
    assert fitted.loss_curve_[-1] < 0.4 * fitted.loss_curve_[0]
    assert (fitted.n_iter_, len(fitted.loss_curve_)) == (40, 40)
    assert model(biased=False).fit(train).rmse(test) < 0.6


def test_ratings_may_come_in_three_forms() -> None:
    users, items, values = RATINGS
    matrix = sp.csr_matrix((values, (users, items)), shape=SHAPE)
    pairs = np.stack([users, items], axis=1)
    fitted = model(passes=2).fit(RATINGS)

    assert same(model(passes=2).fit(pairs, values), fitted)
    assert same(model(passes=2, shape=None).fit(matrix), fitted)
    assert np.array_equal(fitted.predict(pairs), fitted.predict(users, items))
    assert np.array_equal(fitted.predict(3, [1, 2]), fitted.predict([3, 3], [1, 2]))


def test_threads_and_pieces_give_the_same_bits() -> None:
    fitted = model(passes=3).fit(RATINGS)
    in_pieces = model()
    for _ in range(3):
        in_pieces.partial_fit(RATINGS)

    assert same(model(passes=3, threads=3).fit(RATINGS), fitted)
    assert same(in_pieces, fitted)
    assert in_pieces.n_iter_ == 3
    assert not same(model(passes=3, random_state=1).fit(RATINGS), fitted)


def test_is_an_estimator_to_scikit_learn() -> None:
    fitted = model(passes=2).fit(RATINGS)
    copy = pickle.loads(pickle.dumps(fitted))
    search = GridSearchCV(model(passes=5), {"lr": [1e-5, 0.05]}, cv=KFold(2, shuffle=True))
    search.fit(np.stack(RATINGS[:2], axis=1), RATINGS[2])

    assert same(copy, fitted)
    assert same(copy.partial_fit(RATINGS), fitted.partial_fit(RATINGS))
    assert clone(fitted).get_params() == fitted.get_params()
    assert not hasattr(clone(fitted), "user_factors_")
    assert fitted.set_params(lr=0.5).lr == 0.5
    assert search.best_params_ == {"lr": 0.05}


def test_user_without_ratings_gets_the_mean_and_the_item_bias() -> None:
    fitted = model(shape=(SHAPE[0] + 5, SHAPE[1])).fit(RATINGS)

    assert not fitted.user_factors_[-5:].any()
    expected = np.float32(fitted.mean_) + fitted.item_biases_[:3]
    assert np.allclose(fitted.predict(SHAPE[0] + 4, [0, 1, 2]), expected)
    newcomer = fitted.partial_fit(([SHAPE[0] + 4] * 3, [0, 1, 2], [5, 5, 5]))
    assert newcomer.user_factors_[-1].any()


def test_choices_alone_tell_what_is_preferred() -> None:
    random = np.random.default_rng(0)
    users, items = np.nonzero(random.random(SHAPE) < 0.3)
    own_kind = users % 2 == items % 2
    users, items = users[own_kind], items[own_kind]
    fitted = model(implicit=True, negatives=3, passes=20).fit((users, items, 1 + users % 3))
    everything = np.stack(np.indices(SHAPE), axis=-1).reshape(-1, 2)
    liked = everything[:, 0] % 2 == everything[:, 1] % 2
    preferences = fitted.predict(everything)

    assert np.mean(preferences[liked]) > np.mean(preferences[~liked]) + 0.3
    assert fitted.mean_ == 0
    with pytest.raises(malt.ConfigError, match="measure how it ranks"):
        fitted.score((users, items, np.ones(len(users))))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([], [], []), "there are no ratings"),
        (([0], [0], [np.nan]), r"Input ratings contain nan \(rating 0\)"),
        (([0, 1], [0, 1], [1, 1e300]), r"contain 1e\+300 \(rating 1\)"),
        (([0, -1], [0, 0], [1, 1]), "users has the id -1; ids are from 0"),
        (([0], [2**31], [1]), "items has the id 2147483648; ids are from 0 to 2147483646"),
        (([0], [60], [1]), r"a rating has item 60, but the model has 60 items.*shape=\("),
        (([0.5], [0], [1]), "users have dtype float64; they are integers"),
        ((["a"], [0], [1]), "np.unique"),
        (([0], [0], ["x"]), "they are numbers"),
        (([0, 1], [0], [1]), "have [2, 1, 1] elements"),
        (([[0]], [0], [1]), r"users have shape \(1, 1\)"),
        (np.ones((3, 3)), "three arrays .users, items, ratings."),
    ],
)
def test_refuses_ratings_that_cannot_be(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("[2, 1, 1]", r"\[2, 1, 1\]")):
        model().fit(given)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_factors": 0}, "n_factors is 0; it must be a whole number at least 1"),
        ({"passes": 1.5}, "passes is 1.5"),
        ({"threads": 0}, "threads is 0"),
        ({"every": 0}, "every is 0"),
        ({"ranks": 0}, "ranks is 0; it must be a whole number at least 1"),
        ({"graph": "ring"}, "graph is 'ring'; it is None, malt.ALL, HALTON"),
        ({"staleness": "ssp"}, "staleness is 'ssp'; it must be a whole number"),
        ({"ranks": 2, "lr": 30.0}, "the factors grew without bound"),
        ({"lr": 0}, "lr is 0"),
        ({"reg": -1}, "reg is -1; it is a finite number of at least 0"),
        ({"decay": float("inf")}, "decay is inf"),
        ({"shape": (0, 5)}, r"shape is \(0, 5\)"),
        ({"lr": 30.0}, "grew without bound in pass 0: lr=30.0 is too large"),
        ({"implicit": True}, "above 0"),
        ({"biased": "no"}, "biased is 'no'; it is True or False"),
        ({"shape": (2**31 - 1, 60)}, "users and 60 items with 8 factors need 292.1 GB"),
    ],
)
def test_refuses_parameters_that_cannot_be(parameters: dict[str, Any], words: str) -> None:
    users, items, values = RATINGS
    with pytest.raises(malt.ConfigError, match=words):
        model(**parameters).fit((users, items, values - 3))


def test_refuses_to_predict_for_whom_it_does_not_know() -> None:
    fitted = model(passes=1).fit(RATINGS)

    with pytest.raises(
        malt.ConfigError, match="pair 1 has user 400, which the model does not know"
    ):
        fitted.predict([0, 400], [0, 0])
    with pytest.raises(malt.ConfigError, match="it has items 0 to 59"):
        fitted.predict(0, 60)
    with pytest.raises(malt.ConfigError, match="users has the id -1"):
        fitted.predict(-1, 0)
    with pytest.raises(malt.ConfigError, match="2 users and 3 items are no pairs"):
        fitted.predict([0, 1], [0, 1, 2])
    with pytest.raises(malt.ConfigError, match="a rating has user 400"):
        fitted.partial_fit(([400], [0], [1]))
    with pytest.raises(ValueError, match="not fitted"):
        model().predict(0, 0)


def test_ranks_learn_together_what_one_learns_alone(tmp_path: Path) -> None:
    train, test = held_out()
    np.savez(tmp_path / "train.npz", *train)
    alone = model(passes=30).fit(train).rmse(test)
    job = run_job(
        tmp_path,
        2,
        """
malt.init()
users, items, values = np.load("train.npz").values()
make = lambda **more: malt.learn.MatrixFactorization(**{**parameters, **more})
by_rating = slice(rank, None, size)
by_user = users % size == rank
for name, mine in (("by_rating", by_rating), ("by_user", by_user)):
    fitted = make(random_state=rank).fit((users[mine], items[mine], values[mine]))
    tell(**{name: fitted})
mine = by_user
fitted.partial_fit((users[mine], items[mine], values[mine]))
tell(passes=fitted.n_iter_, loss=fitted.loss_curve_[-1])
bad = values[mine].copy()
bad[3:] = np.nan if rank == 1 else 1
tell(bad=error_of(make().fit, (users[mine], items[mine], bad)))
none = slice(0, None if rank == 0 else 0)
tell(none=error_of(make().fit, (users[none], items[none], values[none])))
tell(differ=error_of(make(passes=1 + rank).fit, (users[mine], items[mine], values[mine])))
tell(ranks=error_of(make(ranks=2).fit, (users[mine], items[mine], values[mine])))
tell(wild=error_of(make(lr=30.0).fit, (users[mine], items[mine], values[mine])))
""",
        parameters={
            **model(passes=30).get_params(),
            "every": len(train[0]) // 8,
        },
    )

    for name in ("by_rating", "by_user"):
        first, second = job.each(name)
        assert same(first, second), name
        assert first.rmse(test) < 1.01 * alone, name
    assert job.each("passes") == [31, 31]
    assert len(set(job.each("loss"))) == 1

    def each_says(name: str, *parts: object) -> bool:
        errors: list[Err] = job.each(name)
        return all(error.kind == "ConfigError" and error.says(*parts) for error in errors)

    assert each_says("bad", "MatrixFactorization.fit: rank 1: Input ratings contain nan (rating 3)")
    assert each_says("none", "rank 1: there are no ratings")
    assert each_says("differ", "passes is 1.0 on rank 0, and 2.0 on rank 1")
    assert each_says("ranks", "ranks=2", "one of 2 ranks already", "leave `ranks` out")
    assert each_says("wild", "grew without bound in pass 0")


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"graph": malt.ALL},
        {"graph": malt.RING, "staleness": 1},
        {"graph": malt.ONE_PEER},
        {"staleness": None},
    ],
    ids=["all at once", "all", "ring, late", "one peer", "asynchronous"],
)
def test_forked_ranks_learn_as_well_as_one_over_any_graph(way: dict[str, Any]) -> None:
    train, test = held_out()
    alone = model(passes=30).fit(train)
    many = model(passes=30, ranks=4, every=len(train[0]) // 16, **way).fit(train)

    assert many.rmse(test) < (1.3 if way.get("staleness", 0) is None else 1.1) * alone.rmse(test)
    assert many.user_factors_[train[0]].any(axis=1).all()
    assert np.bincount(many.history_["rank"]).tolist() == 4 * [30 * 4]
    last = [many.history_[many.history_["rank"] == rank][-1] for rank in range(4)]
    assert sum(step["examples"] for step in last) == 30 * len(train[0])
    with pytest.raises(malt.ConfigError, match="in no job"):
        malt.rank()


def test_forked_ranks_repeat_themselves_and_go_on() -> None:
    one, other = (model(passes=2, ranks=3, graph=malt.RING).fit(RATINGS) for _ in range(2))

    assert same(one, other)
    assert same(one.partial_fit(RATINGS), other.partial_fit(RATINGS))
    assert (one.n_iter_, len(one.loss_curve_)) == (3, 3)
    few = tuple(array[RATINGS[0] < 2] for array in RATINGS)
    assert set(model(passes=1, ranks=4).fit(few).history_["rank"]) == {0, 1}  # users


def test_the_losses_of_pieces_make_that_of_the_pass() -> None:
    fitted = model(passes=2, every=len(RATINGS[0]) // 4).fit(RATINGS)
    steps = fitted.history_[4:]
    counts = np.diff(fitted.history_["examples"], prepend=0)[4:]

    assert len(steps) == 4
    assert counts.sum() == len(RATINGS[0])
    whole = np.sqrt((counts * steps["loss"] ** 2).sum() / counts.sum())
    assert whole == pytest.approx(fitted.loss_curve_[1])


def test_scikit_learn_is_needed_by_the_estimators_alone() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import malt
assert "learn" in dir(malt)
try:
    malt.learn.MatrixFactorization
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'needs sklearn, which is not installed: pip install "malt-sgd[learn]"' in done.stdout
