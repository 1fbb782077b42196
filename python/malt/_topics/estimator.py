"""malt.learn.LatentDirichletAllocation, an estimator in the manner of scikit-learn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from malt._alike import check_alike
from malt._arguments import whole
from malt._core_import import checksum
from malt._data.chunks import Chunks, Data, Survey
from malt._errors import ConfigError, describe_ranks
from malt._job import job as jobs
from malt._job.agreement import Report
from malt._pool import forked, starting
from malt._topics.documents import Documents, Empty, as_documents, check_tokens, warn
from malt._topics.held_out import expected_topics, log_likelihood, shares_of
from malt._topics.settings import TopicSettings, check_memory
from malt._topics.sources import InMemory, Source, Streamed
from malt._topics.trainer import Counts, Plan, Priors, Trained, agreed, live_ranks, train
from malt._training.all_or_nothing import all_or_nothing
from malt._training.estimator import Estimator

_NO_STEPS = "leave it out; topics are sampled, not fitted by variational steps"
_MOST_EVERY = 1 << 26  # tokens from one exchange to the next: some seconds of sampling

Floats = npt.NDArray[np.float64]


class LatentDirichletAllocation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Topics of documents, by sampling a topic for each word of each document.

    A document's topics come from Dirichlet(alpha), a topic's words from Dirichlet(beta) (Blei, Ng,
    Jordan, JMLR 2003). Each sweep gives every token, that is every occurrence of a word, a new
    topic, given the topics of all others (collapsed Gibbs sampling: Griffiths, Steyvers, PNAS
    2004). It does so by Metropolis-Hastings steps, whose cost does not depend on the number of
    topics (WarpLDA: Chen, Li, Zhu, Chen, VLDB 2016). Ranks share the counts of words by topic: each
    sends the differences that it has made, without waiting (Smola, Narayanamurthy, VLDB 2010).

    In a job fit() and partial_fit() are collective: each rank gives documents of its own, with the
    same words, and all get the same model.

    Args:
        n_components: the number of topics, at most 65536.
        doc_topic_prior: alpha before it is learnt: a number, or one for each topic; None: 0.1.
        topic_word_prior: beta before it is learnt; None: 0.01.
        max_iter: sweeps of a call.
        learn_priors: whether alpha, by topic, and beta are learnt (Minka, 2000).
        every: tokens that a rank samples from one exchange with the others to the next; None: all
            of its own, and at most 2^26. For malt.data.Chunks it is a chunk.
        ranks: processes that fit() and partial_fit() start and end, which share the documents;
            None: one. In a job of several ranks leave it out: each gives its own documents.
        random_state: for the sampling; a job uses rank 0's.

    Attributes:
        components_: float64, of shape (n_components, words): how many tokens of each word a topic
            has, plus beta. Divided by its sum, a row is the topic's distribution over words.
        word_topic_counts_: int32, of shape (words, n_components), without beta. Its sum is the
            number of tokens of all ranks.
        doc_topic_prior_: alpha, by topic: how frequent the topics are.
        topic_word_prior_: beta.
        n_iter_: sweeps of the last call.
    """

    _instead: ClassVar[dict[str, str]] = {
        "batch_size": "malt.load_data(chunk_rows=...) sets how many documents are in memory",
        "evaluate_every": "leave it out; perplexity() measures documents that were held out",
        "learning_decay": _NO_STEPS,
        "learning_method": "leave it out; fit() sweeps over all documents, partial_fit() over new",
        "learning_offset": _NO_STEPS,
        "max_doc_update_iter": _NO_STEPS,
        "mean_change_tol": _NO_STEPS,
        "n_jobs": "`ranks` is the number of processes",
        "perp_tol": "leave it out; `max_iter` sweeps are made",
        "total_samples": _NO_STEPS,
        "verbose": "leave it out; nothing is printed",
    }

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: Any = None,
        topic_word_prior: Any = None,
        max_iter: int = 100,
        learn_priors: bool = True,
        every: int | None = None,
        ranks: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.max_iter = max_iter
        self.learn_priors = learn_priors
        self.every = every
        self.ranks = ranks
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> LatentDirichletAllocation:  # noqa: ARG002
        """Learn topics from the start. Collective in a job.

        After an error the estimator has the model that it had before the call, if any.

        Args:
            X: documents x words: how often each document has each word, as CountVectorizer gives
                it; an array or a sparse matrix. Or malt.data.Chunks: documents that stay in their
                files and are read again for each sweep.
            y: is not used.

        Raises:
            ConfigError: (a ValueError) a count is negative or fractional, there are more topics
                than words in all documents, the counts do not fit into memory, or a parameter is
                wrong. In a job it is raised on every rank, and names the rank concerned. Files
                whose documents change between sweeps raise it on the ranks that read them; the
                others go on without these ranks.
            TimeoutError: the ranks that it names did not come to this call, or no rank sent changes
                for as long as malt.init()'s timeout: a rank is stopped, or needs longer than that
                from one exchange to the next, or to draw the first topics.

        Warns:
            UserWarning: a document has no words. It teaches nothing.
            RuntimeWarning: ranks have died or left the job during the call. The model lacks their
                last changes, or all of their tokens.
        """
        self._learn("fit", X, is_first=True)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> LatentDirichletAllocation:  # noqa: ARG002
        """Learn from further documents. Collective in a job.

        Earlier documents' results stay: only the new ones' topics are sampled. A document that is
        given twice counts twice.

        Args:
            X: as for fit(), with the words of the first call, but no malt.data.Chunks.
            y: is not used.

        Raises:
            ConfigError: as fit(); or the ranks' models differ.
            TimeoutError: as fit().
        """
        self._learn("partial_fit", X, is_first=not hasattr(self, "word_topic_counts_"))
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Learn topics from the start, and return each document's shares of them.

        Raises:
            ConfigError: as fit(), or X is malt.data.Chunks.
        """
        _check_in_memory("fit_transform", X)
        return super().fit_transform(X, y, **fit_params)

    def transform(self, X: Any) -> Floats:
        """Return each document's shares of the topics, of shape (documents, n_components).

        The same document gets the same shares in any company. A document without words gets those
        that are expected of any.

        Raises:
            ConfigError: X has other words than the model, or is no matrix of counts. Of
                malt.data.Chunks give the X of one chunk after the other.
        """
        documents = self._known(X, "transform")
        topics = expected_topics(documents, self._shares(), self.doc_topic_prior_)
        shares = topics.astype(np.float64)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def perplexity(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the perplexity of these documents, which fit() should not have seen.

        Every second token of a document tells its topics, and the others are predicted: it is the
        exponential of minus the mean of the logarithms of their probabilities. Lower is better.

        Raises:
            ConfigError: as transform(), or no document has words.
        """
        documents = self._known(X, "perplexity")
        total, count = log_likelihood(documents, self._shares(), self.doc_topic_prior_)
        if count == 0:
            raise ConfigError(
                f"perplexity: none of the {documents.size} documents has a word of the model; "
                "make X with the vectorizer with which fit()'s documents were made"
            )
        return math.exp(-total / count)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return -log(perplexity(X)): higher is better, as scikit-learn's searches expect."""
        return -math.log(self.perplexity(X))

    @property
    def components_(self) -> Floats:
        """How many tokens of each word a topic has, plus beta; made anew by each use."""
        check_is_fitted(self, "word_topic_counts_")
        components: Floats = self.word_topic_counts_.T + self.topic_word_prior_
        return components

    @property
    def _n_features_out(self) -> int:
        return len(self.doc_topic_prior_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "word_topic_counts_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # whole numbers: scikit-learn's checks then give such
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _digest(self) -> str:
        arrays = self.word_topic_counts_, self.doc_topic_prior_, np.array(self.topic_word_prior_)
        return "one of checksum " + " ".join(f"{checksum(array):016x}" for array in arrays)

    def _shares(self) -> npt.NDArray[np.float32]:
        return shares_of(self.word_topic_counts_, self.topic_word_prior_)

    def _known(self, X: Any, call: str) -> Documents:
        check_is_fitted(self)
        _check_in_memory(call, X)
        return as_documents(self._checked(X, reset=False), f"{type(self).__name__}.{call}")

    def _checked(self, X: Any, *, reset: bool) -> Any:
        return validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32, np.int64, np.int32],
            reset=reset,
        )

    @all_or_nothing
    def _learn(self, call: str, X: Any, *, is_first: bool) -> None:
        named = f"{type(self).__name__}.{call}"
        settings = TopicSettings(*(getattr(self, name) for name in TopicSettings._fields))
        if not is_first:
            settings = settings._replace(n_components=self.word_topic_counts_.shape[1])

        def check() -> tuple[None, Report]:
            settings.check()
            self._check_ranks()
            _check_in_memory(call, X)
            return None, {}

        def look() -> tuple[Documents | None, Report]:
            documents = None
            if survey is None:
                documents = as_documents(self._checked(X, reset=is_first), named)
                empty = Empty()
                empty.note(documents)
                empty.warn(named)
                words, tokens = documents.vocabulary, documents.tokens
            else:
                words, tokens = survey.features, settings.n_components  # train() counts them
            settings.check_words(words)
            check_memory(words, settings.n_components, copies=1 + 2 * ranks)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            alike = {
                "the model so far": "none" if is_first else self._digest(),
                "the number of words of the documents": words,
                **settings.described(),
            }
            return documents, {"words": words, "tokens": tokens, "seed": seed, "alike": alike}

        began = live_ranks()
        agreed(named, "checking the parameters", check)
        ranks = 1 if self.ranks is None else self.ranks
        survey = self._survey(named, X) if isinstance(X, Chunks) else None
        documents, reports = agreed(named, "look", look)
        check_alike(named, {rank: report["alike"] for rank, report in reports.items()})
        first = next(iter(reports.values()))
        tokens = sum(report["tokens"] for report in reports.values())
        shape = first["words"], settings.n_components
        if not is_first:
            tokens += int(self.word_topic_counts_.sum(dtype=np.int64))
        check_tokens(settings.n_components, tokens)
        if is_first:
            start: Counts = np.zeros(shape, np.int32)
            priors = settings.priors()
        else:
            start = self.word_topic_counts_.copy()
            priors = Priors(self.doc_topic_prior_, self.topic_word_prior_)
        plan = Plan(settings.max_iter, first["seed"], bool(settings.learn_priors), named)
        maker = _Sources(X, documents, survey, settings, named)
        counts, (priors, last) = _train(start, priors, maker, plan, ranks)
        _warn_of_dead(named, sorted(began - set(last)))
        self.word_topic_counts_: Counts = counts
        self.doc_topic_prior_: Floats = priors.alpha
        self.topic_word_prior_: float = priors.beta
        self.n_iter_ = plan.sweeps
        if survey is not None:
            self.n_features_in_ = survey.features
            self.__dict__.pop("feature_names_in_", None)

    def _survey(self, call: str, chunks: Chunks) -> Survey:
        survey = chunks.survey(call, labels=False)
        chunks.zero_based = survey.zero_based
        chunks.bad, chunks.bad_lines = survey.bad, tuple(survey.bad_lines)
        return survey

    def _check_ranks(self) -> None:
        if self.ranks is None:
            return
        whole("ranks", self.ranks, 1)
        starting.check_ranks(self.ranks)


class _Sources:
    """Makes the source of a rank's tokens."""

    def __init__(
        self,
        X: Any,
        documents: Documents | None,
        survey: Survey | None,
        settings: TopicSettings,
        call: str,
    ) -> None:
        self._chunks = X
        self.documents = documents
        self._survey = survey
        self._settings = settings
        self._call = call

    @contextlib.contextmanager
    def open(self, documents: Documents | None) -> Iterator[Source]:
        """Give the source of these documents, or of this rank's part of the files."""
        topics = self._settings.n_components
        if documents is not None:
            yield InMemory(documents, topics, self._settings.every or _MOST_EVERY)
            return
        assert self._survey is not None
        streamed = Streamed(self._chunks, self._survey, topics, self._call)
        with contextlib.closing(streamed):
            yield streamed


def _check_in_memory(call: str, X: Any) -> None:
    if isinstance(X, Chunks) and call != "fit":
        way = {
            "partial_fit": "give malt.data.Chunks to fit()",
            "fit_transform": "call fit(chunks), and then transform(data.X) for each data in chunks",
        }.get(call, f"call {call}(data.X) for each data in chunks")
        raise ConfigError(f"{call}() takes documents in memory, no malt.data.Chunks: {way}")
    if isinstance(X, Data):
        raise ConfigError(f"{call}() takes a matrix of documents, no malt.data.Data: give its .X")


def _train(
    counts: Counts, priors: Priors, sources: _Sources, plan: Plan, ranks: int
) -> tuple[Counts, Trained]:
    """Train here, or by ranks forked here, which read the documents in place."""
    documents = sources.documents
    parts = [documents] * ranks if documents is None else documents.cut(ranks)
    if len(parts) == 1:
        with sources.open(documents) as source:
            return counts, train(counts, priors, source, plan)

    def work() -> tuple[Counts, Trained] | None:
        rank = jobs.rank()
        with sources.open(parts[rank]) as source:
            trained = train(counts, priors, source, plan)
        return (counts, trained) if rank == 0 else None

    found = forked.run(len(parts), work)[0]
    assert found is not None
    return found


def _warn_of_dead(call: str, ranks: list[int]) -> None:
    if ranks:
        warn(
            f"{call}: {describe_ranks(ranks)} died or left the job during the call: the model "
            "lacks the last changes, or all tokens, of the documents there; to learn from all "
            "documents, call it again with the ranks that are left",
            RuntimeWarning,
        )
