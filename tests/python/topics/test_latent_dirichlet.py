"""malt.LatentDirichletAllocation: what it learns, alone, on ranks and from files."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from jobs import run_job
from sklearn.datasets import dump_svmlight_file
from sklearn.utils.estimator_checks import check_estimator

import malt
from malt._core_import import TopicTokens
from malt._topics import trainer
from malt._topics.documents import as_documents
from malt._topics.held_out import log_likelihood
from malt._topics.sources import InMemory
from malt._topics.trainer import Plan, Priors

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


def model(**settings: Any) -> malt.LatentDirichletAllocation:
    return malt.LatentDirichletAllocation(TOPICS, **{"random_state": 0} | settings)


@pytest.mark.filterwarnings("ignore:.*has no words:UserWarning")
def test_scikit_learns_checks_pass() -> None:
    results = check_estimator(malt.LatentDirichletAllocation(max_iter=5), on_skip=None)
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


def test_ranks_of_a_job_give_their_own_documents(tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        3,
        """
malt.init()
rng = np.random.default_rng(rank)
X = rng.poisson(0.5, (60, 30))
X[:, 0] += 1
model = malt.LatentDirichletAllocation(5, max_iter=20, random_state=rank).fit(X)
model.partial_fit(X[:10])
tell(
    tokens=int(X.sum() + X[:10].sum()),
    counted=int(model.word_topic_counts_.sum()),
    counts=model.word_topic_counts_,
    alpha=model.doc_topic_prior_,
    beta=model.topic_word_prior_,
)
error = error_of(malt.LatentDirichletAllocation(5 + (rank == 2)).fit, X)
tell(settings=str(error))
error = error_of(malt.LatentDirichletAllocation(5).fit, X[:, : 30 - rank])
tell(words=str(error))
error = error_of(malt.LatentDirichletAllocation(5).fit, X - (rank == 1))
tell(negative=str(error))
""",
    )
    assert len(set(job.each("counted"))) == 1
    assert job.each("counted")[0] == sum(job.each("tokens"))
    for name in ("counts", "alpha", "beta"):
        for other in job.each(name)[1:]:
            np.testing.assert_array_equal(other, job.each(name)[0])
    for rank in range(3):
        assert "n_components is" in job.each("settings")[rank]
        assert (
            "the number of words of the documents is 30 on rank 0, and 29 on rank 1"
            in job.each("words")[rank]
        )
        assert re.search("rank 1: Negative values in data.*is -1", job.each("negative")[rank])


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    given = X.copy()
    given[-1, 0] = -1
    np.save(tmp_path / "wrong.npy", given)
    np.save(tmp_path / "right.npy", X)
    job = run_job(
        tmp_path,
        2,
        """
from malt._topics import settings
malt.init()
fit = lambda name, **changes: str(error_of(
    malt.LatentDirichletAllocation(**{"n_components": 4, "max_iter": 2} | changes).fit,
    malt.load_data(name + ".npy", chunk_rows=20),
))
tell(file=fit("wrong"))
tell(parameter=fit("right", max_iter=2 - 2 * rank))
alpha = np.ones(40)
alpha[20] += 1e-12 * rank
tell(differ=fit("right", n_components=40, doc_topic_prior=alpha))
tell(few=fit("right", n_components=12001))
if rank == 1:
    settings.available_bytes = lambda: 10
tell(memory=fit("right"))
""",
    )
    for rank in range(2):
        assert re.search("rank 1: Negative values .* is -1", job.each("file")[rank])
        assert "rank 1: max_iter is 0" in job.each("parameter")[rank]
        assert "doc_topic_prior is" in job.each("differ")[rank]
        assert "12001, and the documents have 12000 words in all" in job.each("few")[rank]
        assert "rank 1: 40 words x 4 topics need" in job.each("memory")[rank]


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
    asked = malt.LatentDirichletAllocation(**{"n_components": TOPICS} | settings)
    with pytest.raises(ValueError, match=words):
        asked.fit(given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.transform(X[:, :5]), "X has 5 features, but .* is expecting 40 features"),
        (lambda m: m.partial_fit(X[:, :5]), "X has 5 features, but .* is expecting 40 features"),
        (lambda m: m.transform(changed((0, 1), -1)), r"Negative values in .*transform: X\[0, 1\]"),
        (lambda m: m.perplexity(0 * X), "none of the 300 documents has a word of the model"),
        (lambda m: m.partial_fit(malt.load_data(__file__, format="csv", chunk_rows=1)), "to fit"),
    ],
)
def test_refuses_what_the_model_does_not_know(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(model(max_iter=1).fit(X))


def test_counts_that_do_not_fit_into_memory_are_refused() -> None:
    wide = sp.csr_matrix(([70000], ([0], [0])), shape=(1, 2**31 - 1), dtype=np.int32)
    with pytest.raises(malt.ConfigError, match=r"words x 65536 topics need .* GB are free; take"):
        malt.LatentDirichletAllocation(65536).fit(wide)


@pytest.mark.parametrize("alpha", [1.2e-38, 8e37])
def test_a_document_of_one_token_takes_any_prior_that_is_allowed(alpha: float) -> None:
    found = model(doc_topic_prior=alpha, learn_priors=False, max_iter=20).fit(np.eye(20))
    assert found.word_topic_counts_.sum(axis=1).tolist() == [1] * 20


@pytest.mark.filterwarnings("ignore:.*has no words:UserWarning")
def test_without_tokens_the_priors_stay() -> None:
    found = model(max_iter=20).fit(X)
    alpha, beta = found.doc_topic_prior_, found.topic_word_prior_
    found.partial_fit(0 * X)
    np.testing.assert_array_equal(found.doc_topic_prior_, alpha)
    assert found.topic_word_prior_ == beta
    priors = Priors(alpha, beta)
    assert trainer._stepped(priors, np.zeros(TOPICS + 3)) is priors


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


class Arriving:
    """In place of malt.Shared: changes of others, which come in the middle of a sweep."""

    def __init__(self, counts: Counts) -> None:
        self.array, self.polls = counts, 0

    def poll(self) -> int:
        self.array[self.polls % len(self.array)] += 1
        self.polls += 1
        return 1

    def exchange(self) -> int:
        return 0


def test_totals_count_what_arrives_within_a_sweep() -> None:
    counts = np.zeros((X.shape[1], TOPICS), np.int32)
    priors = Priors(np.full(TOPICS, 0.1), 0.01)
    source = InMemory(as_documents(X, "test"), TOPICS, every=5000)

    class Watched:
        tokens = source.tokens
        begin = source.begin

        def blocks(self) -> Iterator[TopicTokens]:
            for block in source.blocks():
                yield block
                assert rank._totals.tolist() == counts.sum(axis=0).tolist()

    with contextlib.ExitStack() as stack:
        rank = trainer._RankTrainer(stack, counts, priors, Plan(5, 0, False, "test"))
        rank.begin(source)
        arriving = Arriving(counts)
        rank._shared = cast(Any, arriving)
        for sweep in range(5):
            rank.sweep(Watched(), sweep)
    assert arriving.polls == 5 * 3
    assert counts.sum() == X.sum() + 5 * 3 * TOPICS


def test_documents_without_words_are_named() -> None:
    given = X.copy()
    given[[3, 8]] = 0
    with pytest.warns(UserWarning, match=r"document 3 \(row of X\) has no words.* 1 others of 300"):
        found = model(max_iter=2).fit(given)
    assert found.word_topic_counts_.sum() == given.sum()


def test_a_file_that_changes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "documents.npy"
    np.save(file, X.astype(np.float32))
    chunks = malt.load_data(file, chunk_rows=100)
    begin = trainer._RankTrainer.begin

    def begin_and_change(self: Any, source: Any) -> None:
        begin(self, source)
        np.save(file, 2 * X.astype(np.float32))

    monkeypatch.setattr(trainer._RankTrainer, "begin", begin_and_change)
    with pytest.raises(malt.ConfigError, match="the files have changed: at first they had 12000"):
        model().fit(chunks)
