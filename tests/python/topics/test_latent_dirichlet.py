"""malt.learn.LatentDirichletAllocation: what it learns, alone, on ranks and from files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file
from sklearn.utils.estimator_checks import check_estimator

import malt
from malt._topics import trainer
from malt._topics.documents import as_documents
from malt._topics.held_out import log_likelihood
from malt._topics.trainer import Priors

TOPICS, OF_TOPIC = 4, 10  # words that only one topic has

Counts = npt.NDArray[np.int32]


def documents(count: int, seed: int = 0, shares: Any = None) -> Counts:
    """Each document has 40 tokens of two topics, which are drawn by their shares."""
    random = np.random.default_rng(seed)
    X = np.zeros((count, TOPICS * OF_TOPIC), np.int32)
    for row in X:
        topics = random.choice(TOPICS, 2, p=shares)[random.integers(2, size=40)]
        np.add.at(row, topics * OF_TOPIC + random.integers(OF_TOPIC, size=40), 1)
    return X


def purity(counts: Counts) -> float:
    """Return the share of tokens whose topic is the one of most tokens with their true topic.

    It is about 0.3 for random topics, and 0.75 if two topics are taken for one. With several ranks
    that happens now and then, since the moments of their exchanges are no two times the same.
    """
    by_truth = counts.reshape(TOPICS, OF_TOPIC, -1).sum(axis=1)
    return float(by_truth.max(axis=1).sum() / counts.sum())


X = documents(300)
HELD_OUT = documents(50, seed=1)
CHUNKS = malt.load_data(__file__, format="csv", chunk_rows=1)  # is not read
DATA = malt.data.Data(X, None, ("documents.npy",), None, 0, ())


def model(**settings: Any) -> malt.learn.LatentDirichletAllocation:
    return malt.learn.LatentDirichletAllocation(TOPICS, **{"random_state": 0} | settings)


@pytest.mark.filterwarnings("ignore:.* no words:UserWarning")
def test_scikit_learns_checks_pass() -> None:
    results = check_estimator(malt.learn.LatentDirichletAllocation(max_iter=5), on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix, sp.csr_array])
def test_finds_the_topics_and_counts_every_token(ranks: int | None, kind: Any) -> None:
    found = model(ranks=ranks).fit(kind(X))
    assert found.word_topic_counts_.sum(axis=1).tolist() == X.sum(axis=0).tolist()
    assert purity(found.word_topic_counts_) > (0.6 if ranks else 0.9)
    np.testing.assert_allclose(
        found.components_, found.word_topic_counts_.T + found.topic_word_prior_
    )
    assert found.n_iter_ == 100


def test_the_same_seed_gives_the_same_topics() -> None:
    one, two, other = (model(random_state=seed, max_iter=5).fit(X) for seed in (3, 3, 4))
    assert (one.word_topic_counts_ == two.word_topic_counts_).all()
    assert (one.word_topic_counts_ != other.word_topic_counts_).any()


def test_exchanges_within_a_sweep_learn_as_well() -> None:
    found = model(ranks=2, every=500).fit(X)
    assert found.word_topic_counts_.sum() == X.sum()
    assert purity(found.word_topic_counts_) > 0.6


def test_transform_gives_shares_of_topics() -> None:
    found = model().fit(X)
    shares = found.transform(HELD_OUT)
    assert shares.shape == (50, TOPICS)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    true = HELD_OUT.reshape(50, TOPICS, OF_TOPIC).sum(axis=2) / 40
    topic_of = found.word_topic_counts_.reshape(TOPICS, OF_TOPIC, -1).sum(axis=1).argmax(axis=1)
    assert np.abs(shares[:, topic_of] - true).mean() < 0.05
    again = pickle.loads(pickle.dumps(found)).transform(HELD_OUT[:3])
    np.testing.assert_array_equal(again, shares[:3])
    empty = found.transform(np.zeros((1, X.shape[1])))[0]
    np.testing.assert_allclose(empty, found.doc_topic_prior_ / found.doc_topic_prior_.sum(), 1e-5)


def test_perplexity_is_about_the_number_of_words_among_which_a_document_chooses() -> None:
    found = model().fit(X)
    assert OF_TOPIC < found.perplexity(HELD_OUT) < 2.5 * OF_TOPIC
    assert found.score(HELD_OUT) == pytest.approx(-np.log(found.perplexity(HELD_OUT)))
    assert model(max_iter=1, learn_priors=False).fit(X).perplexity(HELD_OUT) > 3 * OF_TOPIC


def test_log_likelihood_predicts_half_of_the_tokens() -> None:
    shares = np.array([[0.5, 0.1], [0.5, 0.9]], np.float32)  # words x topics
    total, count = log_likelihood(
        as_documents(np.array([[3, 2], [1, 0]]), "test"), shares, np.array([1e6, 1e6])
    )
    # The tokens are 0 0 0 1 1, and 0: the first, third and fifth are predicted, by a mean of 1 to 1
    assert count == 4
    assert total == pytest.approx(3 * np.log(0.3) + np.log(0.7), rel=1e-3)


def test_partial_fit_adds_documents() -> None:
    found = model(max_iter=30)
    for part in np.split(X, 3):
        found.partial_fit(part)
    assert found.word_topic_counts_.sum(axis=1).tolist() == X.sum(axis=0).tolist()
    assert purity(found.word_topic_counts_) > 0.85


def test_learns_which_topics_are_frequent() -> None:
    given = documents(300, shares=[0.7, 0.1, 0.1, 0.1])
    found = model().fit(given)
    frequent = found.word_topic_counts_[:OF_TOPIC].sum(axis=0).argmax()
    assert found.doc_topic_prior_.argmax() == frequent
    assert found.doc_topic_prior_[frequent] > 2 * np.median(found.doc_topic_prior_)
    fixed = model(learn_priors=False, doc_topic_prior=[1, 2, 3, 4], topic_word_prior=0.5).fit(X)
    assert fixed.doc_topic_prior_.tolist() == [1, 2, 3, 4]
    assert fixed.topic_word_prior_ == 0.5


@pytest.mark.parametrize("ranks", [None, 2])
def test_files_are_read_for_each_sweep(tmp_path: Path, ranks: int | None) -> None:
    file = tmp_path / "documents.svm"
    dump_svmlight_file(X, np.zeros(len(X)), str(file), zero_based=True)
    chunks = malt.load_data(file, chunk_rows=70, zero_based=True)
    found = model(ranks=ranks).fit(chunks)
    assert found.word_topic_counts_.sum(axis=1).tolist() == X.sum(axis=0).tolist()
    assert purity(found.word_topic_counts_) > 0.6
    assert found.n_features_in_ == X.shape[1]


def changed(at: tuple[int, int], to: float) -> npt.NDArray[Any]:
    given = X.astype(float)
    given[at] = to
    return given


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({}, changed((2, 5), -3), r"Negative values .*: X\[2, 5\] is -3\. .*whole numbers from 0"),
        ({}, changed((7, 0), 0.5), r"Fractional values .*: X\[7, 0\] is 0\.5\. .*CountVectorizer"),
        ({}, changed((1, 1), 2.0**40), r"Values above 2147483647 .*: X\[1, 1\] is"),
        ({}, changed((1, 1), np.nan), "NaN"),
        ({"n_components": 9}, np.eye(3), "n_components is 9, and the documents have 3 words"),
        ({}, DATA, "malt.data.Data: give its .X"),
        ({"n_components": 0}, X, "n_components is 0; it must be a whole number from 1 to 65536"),
        ({"n_components": 10**6}, X, "n_components is 1000000; it must be .* from 1 to 65536"),
        ({"max_iter": 1.5}, X, "max_iter is 1.5; it must be a whole number"),
        ({"every": 0}, X, "every is 0; it must be a whole number from 1"),
        ({"ranks": 0}, X, "ranks is 0; it must be a whole number at least 1"),
        ({"ranks": 10**6}, X, "1000000 ranks are too many"),
        ({"doc_topic_prior": 0}, X, "doc_topic_prior is 0; it is a finite number above 0"),
        ({"doc_topic_prior": [1, 2]}, X, r"doc_topic_prior has shape \(2,\).*of the 4 topics"),
        ({"doc_topic_prior": "high"}, X, "doc_topic_prior is 'high'; it is a number above 0"),
        ({"topic_word_prior": [1, 2]}, X, r"topic_word_prior has shape \(2,\); it is one number"),
        ({"topic_word_prior": np.inf}, X, "topic_word_prior is inf; it is a finite number"),
        ({"doc_topic_prior": 1e-50}, X, r"doc_topic_prior is 1e-50; .* 1\.18e-38 to 3\.4e\+38"),
        (
            {"doc_topic_prior": [1, 1, 1, 1e39]},
            X,
            r"doc_topic_prior is 1e\+39; it is a number from",
        ),
        ({"doc_topic_prior": 3e38}, X, r"the sum of doc_topic_prior .* is 1\.2e\+39"),
        ({"topic_word_prior": 1e-50}, X, "topic_word_prior is 1e-50; it is a number from"),
        ({"topic_word_prior": 3e37}, X, r"topic_word_prior times 40 words is 1\.2e\+39"),
        ({"learn_priors": "yes"}, X, "learn_priors is 'yes'; it is True or False"),
    ],
)
def test_refuses_wrong_input(settings: dict[str, Any], given: Any, words: str) -> None:
    asked = malt.learn.LatentDirichletAllocation(**{"n_components": TOPICS} | settings)
    with pytest.raises(ValueError, match=words):
        asked.fit(given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.transform(X[:, :5]), "X has 5 features, but .* is expecting 40 features"),
        (lambda m: m.partial_fit(X[:, :5]), "X has 5 features, but .* is expecting 40 features"),
        (lambda m: m.transform(changed((0, 1), -1)), r"Negative values in .*transform: X\[0, 1\]"),
        (lambda m: m.perplexity(0 * X), "none of the 300 documents has a word of the model"),
        (lambda m: m.partial_fit(CHUNKS), r"partial_fit\(\) takes documents .*: give .* to fit"),
        (
            lambda m: m.fit_transform(CHUNKS),
            r"call fit\(chunks\), and then transform\(data.X\) for",
        ),
        (lambda m: m.transform(CHUNKS), r"call transform\(data.X\) for each data in chunks"),
        (lambda m: m.perplexity(CHUNKS), r"call perplexity\(data.X\) for each data in chunks"),
        (lambda m: m.transform(DATA), r"transform\(\) takes .* no malt.data.Data: give its .X"),
    ],
)
def test_refuses_what_the_model_does_not_know(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(model(max_iter=1).fit(X))


def test_counts_that_do_not_fit_into_memory_are_refused() -> None:
    wide = sp.csr_matrix(([70000], ([0], [0])), shape=(1, 2**31 - 1), dtype=np.int32)
    with pytest.raises(malt.ConfigError, match=r"words x 65536 topics need .* GB are free; take"):
        malt.learn.LatentDirichletAllocation(65536).fit(wide)


@pytest.mark.parametrize("alpha", [1.2e-38, 8e37])
def test_a_document_of_one_token_takes_any_prior_that_is_allowed(alpha: float) -> None:
    found = model(doc_topic_prior=alpha, learn_priors=False, max_iter=20).fit(np.eye(20))
    assert found.word_topic_counts_.sum(axis=1).tolist() == [1] * 20


@pytest.mark.filterwarnings("ignore:.* no words:UserWarning")
def test_without_tokens_the_priors_stay() -> None:
    with pytest.raises(malt.ConfigError, match="no document has a word"):
        model().fit(0 * X)
    found = model(max_iter=20).fit(X)
    alpha, beta = found.doc_topic_prior_, found.topic_word_prior_
    found.partial_fit(0 * X)
    np.testing.assert_array_equal(found.doc_topic_prior_, alpha)
    assert found.topic_word_prior_ == beta
    priors = Priors(alpha, beta)
    assert trainer._stepped(priors, np.zeros(TOPICS + 3)) is priors
    alpha, beta = trainer._stepped(priors, np.array([1, 1, 1, 1, 2, 1, 0]))
    np.testing.assert_array_equal(alpha, found.doc_topic_prior_ / 2)
    assert beta == found.topic_word_prior_


def test_a_beta_far_above_the_counts_is_learnt() -> None:
    counts = np.array([[10**6, 0], [0, 10**6]], np.int32)
    of_counts, of_totals = trainer._terms_of_beta(counts, counts.sum(axis=0, dtype=np.int64), 1e18)
    assert of_counts == pytest.approx(2e-12)
    assert of_totals == pytest.approx(2e-12)


def test_files_with_too_few_or_too_many_words_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "documents.npy", np.eye(3))
    chunks = malt.load_data(tmp_path / "documents.npy", chunk_rows=2)
    with pytest.raises(malt.ConfigError, match="n_components is 4, and the documents have 3 words"):
        model().fit(chunks)
    with pytest.raises(malt.ConfigError, match="max_iter is 0"):  # before the files are read
        model(max_iter=0).fit(malt.load_data(tmp_path / "documents.npy", chunk_rows=2, features=9))
    np.save(tmp_path / "more.npy", X)
    monkeypatch.setattr("malt._topics.documents.MOST_TOKENS", 11999)
    with pytest.raises(malt.ConfigError, match="have 12000 words in all; a model counts at most"):
        model().fit(malt.load_data(tmp_path / "more.npy", chunk_rows=200))


@pytest.mark.parametrize("call", ["fit", "fit_transform", "of a file"])
def test_documents_without_words_are_named(tmp_path: Path, call: str) -> None:
    given: Any = X.copy()
    given[[3, 8]] = 0
    tokens = given.sum()
    np.save(tmp_path / "documents.npy", given)
    asked = model(max_iter=2)
    if call == "of a file":
        given, call = malt.load_data(tmp_path / "documents.npy", chunk_rows=7), "fit"
    words = r"fit: 2 of 300 documents have no words; the first is row 3\."
    with pytest.warns(UserWarning, match=words) as warned:
        getattr(asked, call)(given)
    assert [warning.filename for warning in warned] == [__file__]
    assert asked.word_topic_counts_.sum() == tokens
    with pytest.warns(UserWarning, match="1 of 2 documents has no words; the first is row 1"):
        asked.fit(X[:2] * [[1], [0]])


@pytest.mark.parametrize("chunk", [0, 2])
def test_files_that_change_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    file = tmp_path / "documents.npy"
    np.save(file, X)
    chunks = malt.load_data(file, chunk_rows=100)
    sweep = trainer._RankTrainer.sweep
    given = X.copy()
    given[100 * chunk] = np.roll(given[100 * chunk], 1)  # as many words, but others

    def change_and_sweep(self: Any, source: Any, number: int) -> None:
        if number == 1:
            np.save(file, given)
        sweep(self, source, number)

    monkeypatch.setattr(trainer._RankTrainer, "sweep", change_and_sweep)
    with pytest.raises(malt.ConfigError, match=r"the files have changed since .* 12000 words"):
        model().fit(chunks)


def test_a_refused_call_leaves_the_earlier_model() -> None:
    names = [f"word{place}" for place in range(X.shape[1])]
    found = model(max_iter=2).fit(pd.DataFrame(X, columns=names))
    shares = found.transform(pd.DataFrame(HELD_OUT, columns=names))
    with pytest.raises(malt.ConfigError, match="Negative"):
        found.fit(-X[:, :5])
    assert found.n_features_in_ == X.shape[1]
    assert found.feature_names_in_.tolist() == names
    again = found.transform(pd.DataFrame(HELD_OUT, columns=names))
    np.testing.assert_array_equal(again, shares)
    fresh = model()
    with pytest.raises(malt.ConfigError, match="Negative"):
        fresh.fit(-X)
    assert not hasattr(fresh, "n_features_in_")
