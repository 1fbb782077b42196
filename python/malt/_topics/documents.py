"""Documents as users give them, checked and converted to the arrays that the sampler reads."""

from __future__ import annotations

import itertools
import re
import sys
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
    if tokens == 0:
        raise ConfigError(
            "no document has a word: the topics are learnt from words; make X with a vectorizer "
            "that knows the words of these documents"
        )
    if tokens < topics:
        raise ConfigError(
            f"n_components is {topics}, and the documents have {tokens} words in all: there may "
            f"be no more topics than that; take n_components={max(1, tokens // 10)}, say, or more "
            "documents"
        )
    if tokens > MOST_TOKENS:
        raise ConfigError(
            f"the documents have {tokens} words in all; a model counts at most {MOST_TOKENS}: "
            "leave out frequent words, or documents"
        )


class Empty:
    """The documents without words among those that a rank has read."""

    def __init__(self) -> None:
        self._seen = self._count = 0
        self._first: int | None = None  # row

    def note(self, documents: Documents) -> None:
        """Note the documents that follow those of earlier calls."""
        ends = np.concatenate([[0], np.cumsum(documents.counts, dtype=np.int64)])[documents.starts]
        empty = np.flatnonzero(ends[1:] == ends[:-1])
        if self._first is None and len(empty):
            self._first = self._seen + int(empty[0])
        self._count += len(empty)
        self._seen += documents.size

    def warn(self, call: str) -> None:
        """Warn if there were any."""
        if self._count:
            have = "has" if self._count == 1 else "have"
            warn(
                f"{call}: {self._count} of {self._seen} documents {have} no words; the first is "
                f"row {self._first}. Nothing can be learnt from a document without words: leave it "
                "out, X = X[X.sum(axis=1) > 0]",
                UserWarning,
            )


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the line outside of malt and scikit-learn that made the call."""
    level, frame = 1, sys._getframe()
    ours = re.compile(r"(malt|sklearn)(\.|$)")
    while frame.f_back and ours.match(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
