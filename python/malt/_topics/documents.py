"""Documents as users give them, checked and converted to the arrays that the sampler reads."""

from __future__ import annotations

import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from malt._errors import ConfigError

Array = npt.NDArray[Any]

MOST_TOKENS = 2**31 - 1  # of a model: what a count can hold


class Documents(NamedTuple):
    """Document d has word words[n] counts[n] times, for n from starts[d] to starts[d + 1] - 1."""

    starts: npt.NDArray[np.int64]
    words: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    vocabulary: int

    @property
    def size(self) -> int:
        """How many documents there are."""
        return len(self.starts) - 1

    @property
    def tokens(self) -> int:
        """How many words there are, each as often as it occurs."""
        return int(self.counts.sum(dtype=np.int64))

    def rows(self, first: int, last: int) -> Documents:
        """Return documents `first` to `last` - 1; words and counts are not copied."""
        begin, end = self.starts[first], self.starts[last]
        starts = self.starts[first : last + 1] - begin
        return self._replace(
            starts=starts, words=self.words[begin:end], counts=self.counts[begin:end]
        )

    def cut(self, pieces: int) -> list[Documents]:
        """Cut into at most `pieces` runs of documents with about equally many tokens each."""
        before = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])[self.starts]
        at = np.searchsorted(before, before[-1] * np.arange(1, pieces) / pieces)
        edges = np.unique([0, *np.clip(at, 1, self.size), self.size])
        return [self.rows(*edge) for edge in itertools.pairwise(edges)]


def as_documents(X: Any, call: str, first: int = 0) -> Documents:
    """Convert a 2-D array or a CSR matrix of counts that scikit-learn has checked.

    Args:
        X: documents x words.
        call: the name of the call, for messages.
        first: the number of X's first row, for messages.

    Raises:
        ConfigError: a count is negative or fractional, or too large.
    """
    matrix = sparse.csr_matrix(X)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    values = matrix.data
    for wrong, why in (
        (values < 0, f"Negative values in data passed to {call}"),
        (values != np.floor(values), f"Fractional values in data passed to {call}"),
        (values > MOST_TOKENS, f"Values above {MOST_TOKENS} in data passed to {call}"),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
            raise ConfigError(
                f"{why}: X[{row + first}, {matrix.indices[at]}] is {values[at]:g}. X counts how "
                "often each document (row) has each word (column), in whole numbers from 0 on, as "
                "CountVectorizer does; weights such as TfidfVectorizer's are no counts"
            )
    return Documents(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32, copy=False),
        values.astype(np.int32),
        matrix.shape[1],
    )


def check_tokens(topics: int, tokens: int) -> None:
    """Raise ConfigError if so many tokens, of all ranks, are no model of so many topics."""
    if tokens < topics:
        raise ConfigError(
            f"n_components is {topics}, and the documents have {tokens} words in all: there may "
            f"be at most one topic a word; take n_components={max(1, tokens // 10)}, say, or more "
            "documents"
        )
    if tokens > MOST_TOKENS:
        raise ConfigError(
            f"the documents have {tokens} words in all; a model counts at most {MOST_TOKENS}: "
            "leave out frequent words, or documents"
        )


def warn_of_empty(documents: Documents, call: str, first: int = 0) -> None:
    """Warn if a document has no words; `first` is the number of the first row, for the message."""
    ends = np.concatenate([[0], np.cumsum(documents.counts, dtype=np.int64)])[documents.starts]
    empty = np.flatnonzero(ends[1:] == ends[:-1])
    if len(empty):
        warnings.warn(
            f"{call}: document {empty[0] + first} (row of X) has no words, and so have "
            f"{len(empty) - 1} others of {documents.size}; nothing can be learnt from them: "
            "leave them out, X = X[X.sum(axis=1) > 0]",
            stacklevel=4,  # the caller of fit()
        )
