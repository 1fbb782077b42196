"""How well a topic model predicts words of documents: document completion.

Half of a document's tokens, every second one in the order of their words' numbers, tell the
document's topics; the others are predicted from these (Wallach, Murray, Salakhutdinov, Mimno,
"Evaluation methods for topic models", ICML 2009, section 5.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import infer_topics
from malt._topics.documents import Documents

Floats = npt.NDArray[np.float32]

_MOST_STEPS, _TOLERANCE = 200, 1e-3
_ELEMENTS = 1 << 22  # of documents x topics that are in memory at a time


def shares_of(counts: npt.NDArray[Any], beta: float) -> Floats:
    """Return of each topic the share of each word, words x topics."""
    totals = counts.sum(axis=0, dtype=np.float64) + len(counts) * beta
    shares: Floats = np.zeros(counts.shape, np.float32)
    shares += counts
    shares += np.float32(beta)
    shares /= totals.astype(np.float32)
    return shares


def expected_topics(documents: Documents, shares: Floats, alpha: npt.NDArray[Any]) -> Floats:
    """Return alpha plus the expected number of each document's tokens in each topic."""
    starts, words, counts, _ = documents
    used, places = np.unique(words, return_inverse=True)
    topics: Floats = infer_topics(
        starts,
        places.astype(np.int32),
        counts,
        shares=np.ascontiguousarray(shares[used]),
        alpha=alpha.astype(np.float32),
        most_steps=_MOST_STEPS,
        tolerance=_TOLERANCE,
    )
    return topics


def log_likelihood(
    documents: Documents, shares: Floats, alpha: npt.NDArray[Any]
) -> tuple[float, int]:
    """Return the sum of the logarithms of the predicted words' probabilities, and their number."""
    pieces = max(1, documents.size * len(alpha) // _ELEMENTS)
    total, count = 0.0, 0
    for piece in documents.cut(pieces):
        told, scored = _halves(piece)
        topics = expected_topics(piece._replace(counts=told), shares, alpha)
        topics /= topics.sum(axis=1, keepdims=True)
        document = np.repeat(np.arange(piece.size), np.diff(piece.starts))
        used = np.flatnonzero(scored)
        for some in np.array_split(used, max(1, len(used) * len(alpha) // _ELEMENTS)):
            of_topics = topics[document[some]], shares[piece.words[some]]
            chances = np.einsum("nk,nk->n", *of_topics, dtype=np.float64)
            total += float(np.log(chances) @ scored[some])
        count += int(scored.sum())
    return total, count


def _halves(documents: Documents) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return how often each entry's word tells topics, and how often it is predicted."""
    ends = np.cumsum(documents.counts, dtype=np.int64)
    before = np.concatenate([[0], ends])[documents.starts[:-1]]
    ends -= np.repeat(before, np.diff(documents.starts))
    scored = ((ends + 1) // 2 - (ends - documents.counts + 1) // 2).astype(np.int32)
    return documents.counts - scored, scored
