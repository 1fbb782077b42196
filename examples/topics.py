"""A topic model (LDA) by Gibbs sampling, whose word counts all ranks share.

    malt run -n 4 examples/topics.py
    python examples/topics.py              # one process: the serial program

Each rank samples the topics of its own documents. The counts of words by topic belong to all ranks:
`malt.ps.Shared` sends what a rank has changed and adds what others have changed, without a wait.
The documents are made here: each has the words of 2 of 8 topics, and a topic has 25 words of its
own.

Source: Smola & Narayanamurthy, An Architecture for Parallel Topic Models (VLDB 2010).
"""

from __future__ import annotations

import numpy as np

import malt

WORDS, TOPICS, WORDS_OF_TOPIC = 200, 8, 25
DOCUMENTS, LENGTH = 160, 40
ALPHA, BETA = 0.1, 0.01
SWEEPS = 30


def make_documents() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(DOCUMENTS):
        topics = rng.choice(TOPICS, size=2)[rng.integers(2, size=LENGTH)]
        documents.append(topics * WORDS_OF_TOPIC + rng.integers(WORDS_OF_TOPIC, size=LENGTH))
    return documents


def purity(counts: np.ndarray) -> float:
    """Return the share of words that are in the topic which most of their true topic are in."""
    by_true_topic = counts.reshape(TOPICS, WORDS_OF_TOPIC, TOPICS).sum(axis=1)
    return float(by_true_topic.max(axis=1).sum() / counts.sum())


malt.init()
rng = np.random.default_rng([1, malt.rank()])
documents = make_documents()[malt.rank() :: malt.size()]  # this rank's

counts = np.zeros((WORDS, TOPICS), dtype=np.int32)  # of all ranks
shared = malt.ps.Shared(counts)

topic_of = [rng.integers(TOPICS, size=LENGTH) for _ in documents]
for words, topics in zip(documents, topic_of, strict=True):
    np.add.at(counts, (words, topics), 1)
shared.drain()  # all ranks begin with all counts

for _ in range(SWEEPS):
    for words, topics in zip(documents, topic_of, strict=True):
        in_document = np.bincount(topics, minlength=TOPICS)
        totals = counts.sum(axis=0)
        for place, word in enumerate(words):
            old = topics[place]
            in_document[old] -= 1
            counts[word, old] -= 1
            totals[old] -= 1
            weights = (counts[word] + BETA) * (in_document + ALPHA) / (totals + WORDS * BETA)
            new = rng.choice(TOPICS, p=weights / weights.sum())
            topics[place] = new
            in_document[new] += 1
            counts[word, new] += 1
            totals[new] += 1
        shared.exchange()  # after each document; never waits

shared.drain()  # all ranks have the same counts
if malt.rank() == 0:
    print(f"{counts.sum()} words in {TOPICS} topics, purity {purity(counts):.2f}")
