"""Topic models: tokens a second and held-out perplexity, beside tomotopy and scikit-learn.

    . .venv/bin/activate                                  # after ./dev test
    pip install tomotopy==0.14.0
    python benchmarks/topics.py --part speed --tokens 1e8 --output docs/performance.md
    python benchmarks/topics.py --part ranks --tokens 1e8 --output docs/performance.md
    python benchmarks/topics.py --part newsgroups --output docs/performance.md
    python benchmarks/topics.py --part synthetic --output docs/performance.md

The synthetic documents come from 100 topics over 50,000 words, whose frequencies follow Zipf's law.
Rates are of whole sweeps, without the set-up: the time of some sweeps less that of fewer. On one
core the processor's time counts, so that what else runs on the machine shows less; on two ranks the
clock's. Each round times one library after the other, and the median counts. Perplexity is of every
second token of documents that no library has seen, given the others: of all libraries it is
computed by the same function, from the topics' words and the prior that the library has learnt.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import sklearn.decomposition

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import newsgroups  # after the path
import report
import tomotopy
from report import parser_with_output, table, times

import malt
from malt._topics.documents import as_documents
from malt._topics.held_out import log_likelihood

WORDS, TOPICS, LENGTH = 50_000, 100, 200
ALPHA, BETA = 0.1, 0.01  # at first
# Until perplexity is compared. MALT's take less than half of tomotopy's time; scikit-learn's are of
# variational Bayes.
PASSES = {"tomotopy": 200, "MALT": 400, "scikit-learn": 10}
TARGET_RATE, TARGET_RANKS, TARGET_PERPLEXITY = 1.0, 1.9, 1.01


def synthetic(tokens, seed=0):
    """Documents of about 200 tokens, as a CSR matrix of int32."""
    random = np.random.default_rng(0)
    base = (np.arange(WORDS) + 10.0) ** -1.07
    topics = np.cumsum(base * random.gamma(0.2, size=(TOPICS, WORDS)), axis=1)
    random = np.random.default_rng([1, seed])
    parts = []
    for first in range(0, int(tokens) // LENGTH, 50_000):
        lengths = random.poisson(LENGTH, min(50_000, int(tokens) // LENGTH - first)) + 1
        document = np.repeat(np.arange(len(lengths)), lengths)
        shares = np.cumsum(random.dirichlet(np.full(TOPICS, ALPHA), len(lengths)), axis=1)
        ends = (shares + np.arange(len(lengths))[:, None]).ravel()
        topic = np.searchsorted(ends, document + random.random(len(document))) % TOPICS
        word = np.empty(len(document), np.int32)
        for k in range(TOPICS):
            at = np.flatnonzero(topic == k)
            drawn = np.searchsorted(topics[k], random.random(len(at)) * topics[k][-1])
            word[at] = np.minimum(drawn, WORDS - 1)
        ones = np.ones(len(word), np.int32)
        rows = sp.coo_matrix((ones, (document, word)), shape=(len(lengths), WORDS))
        parts.append(rows.tocsr())
    return sp.vstack(parts, format="csr")


class Malt:
    name = "MALT"

    def __init__(self, X, topics, ranks=None):
        self.X, self.topics, self.ranks = X, topics, ranks

    def fit(self, sweeps):
        self.model = malt.learn.LatentDirichletAllocation(
            self.topics, max_iter=sweeps, ranks=self.ranks, random_state=0
        ).fit(self.X)

    def sweep_seconds(self, sweeps):
        """Return the seconds of a sweep."""
        clock = time.process_time if self.ranks is None else time.perf_counter
        seconds = []
        for n in (2, 2 + sweeps):
            began = clock()
            self.fit(n)
            seconds.append(clock() - began)
        return (seconds[1] - seconds[0]) / sweeps

    def learnt(self):
        return self.model.components_, self.model.doc_topic_prior_


class Tomotopy:
    name = "tomotopy"

    def __init__(self, X, topics):
        self.topics, self.words = topics, X.shape[1]
        self.model = tomotopy.LDAModel(k=topics, alpha=ALPHA, eta=BETA, seed=1)
        names = np.array([str(word) for word in range(X.shape[1])], object)
        for row in range(X.shape[0]):
            entries = slice(X.indptr[row], X.indptr[row + 1])
            words = np.repeat(X.indices[entries], X.data[entries])
            self.model.add_doc(names[words].tolist())
        self.model.train(0)

    def fit(self, sweeps):
        self.model.train(sweeps, workers=1)

    def sweep_seconds(self, sweeps):
        began = time.process_time()
        self.fit(sweeps)
        return (time.process_time() - began) / sweeps

    def learnt(self):
        components = np.full((self.topics, self.words), BETA)
        known = [int(name) for name in self.model.used_vocabs]
        for k in range(self.topics):
            components[k, known] = self.model.get_topic_word_dist(k, normalize=False)
        return components, np.asarray(self.model.alpha)


class ScikitLearn:
    name = "scikit-learn"

    def __init__(self, X, topics):
        self.X, self.topics = X, topics

    def fit(self, sweeps):
        kind = sklearn.decomposition.LatentDirichletAllocation
        self.model = kind(self.topics, max_iter=sweeps, random_state=0).fit(self.X)

    def learnt(self):
        return self.model.components_, np.full(self.topics, self.model.doc_topic_prior_)


def perplexity(library, X):
    components, alpha = library.learnt()
    shares = components / components.sum(axis=1, keepdims=True)
    documents = as_documents(X, "perplexity")
    total, count = log_likelihood(
        documents, np.ascontiguousarray(shares.T, np.float32), np.asarray(alpha, np.float64)
    )
    return float(np.exp(-total / count))


def rates_of(kinds, X, rounds, sweeps):
    """Return the median tokens a second of each; they are timed in turn."""
    seconds = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, library in kinds.items():
            report.say(f"{name}, {library.topics} topics")
            seconds[name].append(library.sweep_seconds(sweeps))
    return [int(X.sum()) / statistics.median(of_one) for of_one in seconds.values()]


class Report(report.Report):
    def rates(self, X, rounds, sweeps):
        rows = []
        for topics in (100, 1000):
            libraries = {"MALT": Malt(X, topics), "tomotopy": Tomotopy(X, topics)}
            ours, theirs = rates_of(libraries, X, rounds, sweeps)
            missed = None if ours >= TARGET_RATE * theirs else times(ours / theirs)
            verdict = self._verdict(f"{topics} topics on one core", missed)
            figures = [f"{rate / 1e6:.1f}" for rate in (ours, theirs)]
            rows.append(
                [f"{topics:,}", *figures, times(ours / theirs), f"{TARGET_RATE:g}", verdict]
            )
        header = ["topics", "MALT", "tomotopy", "x tomotopy", "at least", ""]
        self._sections.append(
            f"10^6 tokens per second of the processor, on one core; {X.shape[0]:,} synthetic "
            f"documents with {int(X.sum()):,} tokens; tomotopy {tomotopy.__version__} with "
            f"workers=1:\n\n{table(header, rows)}"
        )

    def ranks(self, X, rounds, sweeps):
        rows = []
        for topics in (100, 1000):
            alone, both = rates_of(
                {f"{ranks} ranks": Malt(X, topics, ranks) for ranks in (1, 2)}, X, rounds, sweeps
            )
            missed = None if both >= TARGET_RANKS * alone else times(both / alone)
            verdict = self._verdict(f"{topics} topics on 2 ranks", missed)
            figures = [f"{rate / 1e6:.1f}" for rate in (alone, both)]
            rows.append(
                [f"{topics:,}", *figures, times(both / alone), f"{TARGET_RANKS:g}", verdict]
            )
        header = ["topics", "1 rank", "2 ranks", "x 1 rank", "at least", ""]
        self._sections.append(
            f"10^6 tokens a second; {X.shape[0]:,} synthetic documents with {int(X.sum()):,} "
            f"tokens; two ranks need two idle cores:\n\n{table(header, rows)}"
        )

    def perplexities(self, train, test, kinds):
        rows, best = [], None
        for kind in kinds:
            for ranks in (None, 2) if kind is Malt else (None,):
                library = kind(train, TOPICS, ranks) if ranks else kind(train, TOPICS)
                label = f"{kind.name}, 2 ranks" if ranks else kind.name
                report.say(label)
                began = time.perf_counter()
                library.fit(PASSES[kind.name])
                seconds = time.perf_counter() - began
                found = perplexity(library, test)
                best = best or found  # tomotopy's, which is the first
                missed = None if found <= TARGET_PERPLEXITY * best else f"{found / best:.3f}"
                verdict = self._verdict(label, missed) if kind is Malt else ""
                row = [label, f"{PASSES[kind.name]}", f"{seconds:.0f}", f"{found:,.0f}"]
                rows.append([*row, f"{found / best:.3f}", verdict])
        header = ["library", "passes", "s", "perplexity", "x tomotopy", ""]
        self._sections.append(
            f"{int(train.sum()):,} tokens of {train.shape[0]:,} documents, {TOPICS} topics, "
            f"{test.shape[0]:,} documents held out; MALT's perplexity is to be at most "
            f"{TARGET_PERPLEXITY} times tomotopy's; scikit-learn {sklearn.__version__}, tomotopy "
            f"{tomotopy.__version__}:\n\n{table(header, rows)}"
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument(
        "--part", choices=("speed", "ranks", "newsgroups", "synthetic"), required=True
    )
    parser.add_argument("--tokens", type=float, default=1e7, help="of the synthetic documents")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--sweeps", type=int, default=5, help="timed at a time")
    options = parser.parse_args()
    program = f"topics.py --part {options.part}"
    if options.part == "speed":
        made = Report(program, "Topic models", f"{options.rounds} rounds")
        X = synthetic(options.tokens)
        made.rates(X, options.rounds, options.sweeps)
    elif options.part == "ranks":
        made = Report(program, "Topic models on two ranks", f"{options.rounds} rounds")
        made.ranks(synthetic(options.tokens), options.rounds, options.sweeps)
    elif options.part == "newsgroups":
        made = Report(program, "Perplexity of topic models of 20 Newsgroups", "one run")
        train, test, _ = newsgroups.count_words()
        made.perplexities(train, test, [Tomotopy, Malt, ScikitLearn])
    else:
        made = Report(program, "Perplexity of topic models of synthetic documents", "one run")
        made.perplexities(synthetic(2e6), synthetic(2e5, seed=1), [Tomotopy, Malt])
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
