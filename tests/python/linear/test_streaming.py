"""Training on files that are read a few rows at a time."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_digits, make_classification

import malt
from malt._commands import main
from malt._pool import forked

X, Y = load_digits(return_X_y=True)
X /= 16


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("digits") / "digits.svm")
    dump_svmlight_file(X, Y, path, zero_based=False)
    return path


def test_chunks_in_order_give_the_bits_of_rows_in_memory(digits: str) -> None:
    settings: dict[str, Any] = {"max_iter": 3, "tol": None, "shuffle": False, "average": True}
    whole = malt.load_data(digits)
    in_memory = malt.learn.SGDClassifier(**settings).fit(whole.X, whole.y)
    chunks = malt.load_data(digits, chunk_rows=100)
    streamed = malt.learn.SGDClassifier(**settings).fit(chunks)

    assert np.array_equal(streamed.coef_, in_memory.coef_)
    assert np.array_equal(streamed.classes_, np.arange(10))
    assert (streamed.n_features_in_, streamed.n_iter_, streamed.t_) == (64, 3, in_memory.t_)

    def work() -> Mapping[str, Any]:
        part = malt.load_data(digits)
        in_memory = malt.learn.SGDClassifier(**settings).fit(part.X, part.y)
        streamed = malt.learn.SGDClassifier(**settings).fit(chunks)
        return {"same": np.array_equal(streamed.coef_, in_memory.coef_)}

    assert forked.run(2, work) == [{"same": True}, {"same": True}]


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"ranks": 3},
        {"ranks": 2, "staleness": None, "every": 100},
        {
            "ranks": 2,
            "exchange": "gradient",
            "every": 20,
            "learning_rate": "adagrad",
            "eta0": 0.5,
        },
    ],
    ids=["alone", "ranks", "async", "gradient"],
)
def test_streaming_learns_as_well_as_from_memory(digits: str, way: dict[str, Any]) -> None:
    model = malt.learn.SGDClassifier(max_iter=10, tol=None, random_state=0, average=True, **way)
    in_memory = model.fit(X, Y).score(X, Y)
    streamed = model.fit(malt.load_data(digits, chunk_rows=150)).score(X, Y)

    assert streamed > in_memory - 0.01
    assert set(model.history_["rank"]) == set(range(way.get("ranks", 1)))
    each = [model.history_[model.history_["rank"] == rank] for rank in set(model.history_["rank"])]
    assert sum(int(steps["examples"].max()) for steps in each) == 10 * len(Y)


@pytest.mark.parametrize(
    "make",
    [
        malt.learn.LogisticRegression,
        pytest.param(malt.learn.LinearSVC, marks=pytest.mark.long),
        malt.learn.Ridge,
        functools.partial(malt.learn.LinearSVR, loss="squared_epsilon_insensitive"),
    ],
    ids=["LogisticRegression", "LinearSVC", "Ridge", "LinearSVR"],
)
def test_solved_models_find_the_same_optimum_from_chunks(digits: str, make: Any) -> None:
    in_memory = make(tol=1e-4).fit(X, Y)
    least = in_memory.objective_ - in_memory.dual_gap_

    def solve(**settings: Any) -> Mapping[str, Any]:
        model = make(tol=1e-4, **settings).fit(malt.load_data(digits, chunk_rows=500))
        assert model.dual_gap_ <= 1e-4 * model.objective_
        return {"objective": model.objective_, "score": model.score(X, Y)}

    for found in (solve(), solve(ranks=2), *forked.run(2, solve)):
        assert least * (1 - 1e-6) <= found["objective"] <= in_memory.objective_ * (1 + 1e-3)
        assert found["score"] == pytest.approx(in_memory.score(X, Y), abs=0.005)


def test_a_regression_of_a_table_is_streamed_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 3))
    table = np.column_stack([rows, rows @ [1, -2, 3] + 5])
    np.savetxt("houses.csv", table, delimiter=",", header="a,b,c,price", comments="")
    with open("houses.csv", "a") as file:
        file.write("1,2,3\n")
    said = []
    for command in (
        "train regression houses.csv --test houses.csv -n 2 -q --out m.npz",
        "predict m.npz houses.csv",
    ):
        words = f"{command} --label price --chunk-rows 64 --skip-bad-lines"
        assert main.main(words.split()) == 0
        said.append(capfd.readouterr())
    assert "passes over 1,000 examples of 3 features" in said[0].out
    assert re.search("1 bad lines skipped: houses.csv, .*3 cells, where there are 4", said[0].out)
    assert float(re.findall(r"R squared on 1,000 .*: (\S+)", said[0].out)[0]) > 0.99
    np.testing.assert_allclose(np.array(said[1].out.split(), float), table[:, 3], atol=0.3)
    assert "of 1,000 examples" in said[1].err


def peak_growth(work: Any) -> int:
    """By how many bytes this process grows at most, above what it has now."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(rf"{name}:\s+(\d+) kB", status)[0])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    features, labels = make_classification(1000, 50, random_state=0)
    dump_svmlight_file(features, labels, str(tmp_path / "some.svm"))
    some = (tmp_path / "some.svm").read_bytes()
    paths = [tmp_path / f"{times}.svm" for times in (10, 60)]
    for path, times in zip(paths, (10, 60), strict=True):
        path.write_bytes(times * some)
    model = malt.learn.SGDClassifier(max_iter=1, tol=None)
    small, large = (
        peak_growth(lambda path=path: model.fit(malt.load_data(path, chunk_rows=1000)))
        for path in paths
    )
    data: list[Any] = []
    whole = peak_growth(lambda: data.append(malt.load_data(paths[1])))

    assert model.history_["examples"].max() == 60_000
    assert whole > 20e6  # of 3 million values
    assert large < small + whole / 2  # not by five sixths of the whole


def test_ranks_of_a_job_read_their_own_parts(digits: str) -> None:
    def work() -> Mapping[str, Any]:
        model = malt.learn.SGDClassifier(max_iter=5, tol=None, random_state=0, average=True)
        model.fit(malt.load_data(digits, chunk_rows=200))
        rows = int(model.history_["examples"].max()) // 5
        return {"coef": model.coef_.tolist(), "rows": rows, "score": model.score(X, Y)}

    def narrow() -> Mapping[str, Any]:
        malt.learn.SGDClassifier().fit(malt.load_data(digits, chunk_rows=200, features=3))
        return {}

    def nested() -> Mapping[str, Any]:
        malt.learn.SGDClassifier(ranks=2).fit(malt.load_data(digits, chunk_rows=200))
        return {}

    first, second = forked.run(2, work)
    assert first["coef"] == second["coef"]
    assert first["rows"] + second["rows"] == len(Y)
    assert min(first["rows"], second["rows"]) > 0.45 * len(Y)
    assert first["score"] > 0.9
    with pytest.raises(malt.ConfigError, match=r"SGDClassifier.fit\(\): .*not from 0 to 3"):
        forked.run(2, narrow)
    with pytest.raises(malt.ConfigError, match="ranks=2 in a process that is one of 2 ranks"):
        forked.run(2, nested)


def test_a_loop_of_partial_fit_over_chunks(digits: str) -> None:
    # As in docs/estimators.md
    model = malt.learn.SGDClassifier(random_state=0)
    chunks = malt.load_data(digits, chunk_rows=500, features=64, zero_based=False)
    for _ in range(3):
        for data in chunks:
            model.partial_fit(data.X, data.y, classes=range(10))
    assert model.score(X, Y) > 0.9

    others = malt.learn.SGDClassifier()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        others.partial_fit(data.X, data.y)
    with pytest.raises(ValueError, match=r"labels \[.* 9\.\], which are not in \[0 1 2\]"):
        others.partial_fit(data.X, data.y, classes=[0, 1, 2])


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"early_stopping": True}, {}, "early_stopping=True holds rows out of X"),
        ({"class_weight": "balanced"}, {}, "'balanced' takes all of y; for malt.data.Chunks"),
        ({}, {"y": Y}, "y is given beside malt.data.Chunks"),
        ({}, {"sample_weight": Y}, "sample_weight is given beside malt.data.Chunks"),
    ],
)
def test_fit_of_chunks_refuses_settings_that_cannot_be_streamed(
    digits: str, settings: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        malt.learn.SGDClassifier(**settings).fit(malt.load_data(digits, chunk_rows=500), **given)


@pytest.mark.parametrize("ranks", [None, 2])
def test_targets_that_are_no_labels_are_refused(tmp_path: Path, ranks: int | None) -> None:
    prices = np.arange(20_002)
    for name, targets, words in (
        ("broken", prices / 4, r"Unknown label type: continuous.* 0\.25 is .*SGDRegressor"),
        ("whole", prices, r"rows have [12]\d,\d{3} different labels.* 10,000; .*train regression"),
    ):
        path = tmp_path / f"{name}.csv"
        np.savetxt(path, np.column_stack([targets, targets]), delimiter=",", fmt="%g")
        chunks = malt.load_data(path, label=0, chunk_rows=100)
        with pytest.raises(malt.ConfigError, match=words):
            malt.learn.SGDClassifier(ranks=ranks).fit(chunks)


def test_files_that_shrink_meanwhile_and_tables_without_targets_are_refused(
    tmp_path: Path, digits: str
) -> None:
    path = tmp_path / "x.svm"
    path.write_bytes(Path(digits).read_bytes())
    np.save(tmp_path / "x.npy", X)

    class Shrinks(malt.learn.SGDClassifier):  # type: ignore[misc]
        def _start(self, *arguments: Any) -> None:
            super()._start(*arguments)
            text = path.read_bytes()
            rows = text[:-5000].rpartition(b"\n")[0]
            path.write_bytes(rows + (len(text) - len(rows)) * b"\n")

    shrunk = r"x\.svm or files beside it have changed: at first they had 1797 rows .*, and now 17"
    with pytest.raises(malt.ConfigError, match=shrunk):
        Shrinks(max_iter=2).fit(malt.load_data(path, chunk_rows=500))
    with pytest.raises(malt.ConfigError, match="no targets: label= names the column"):
        malt.learn.SGDRegressor().fit(malt.load_data(tmp_path / "x.npy", chunk_rows=500))
