"""Made documents, many more than 20 Newsgroups has, for svm.py --demo.

Words are drawn by Zipf's law, as in text, and rows are TF-IDF. A hidden linear model over a tenth
of the words gives the labels. Then 5% of them are turned, so no model errs less. One row in 25 is
for testing. The documents are made once, and kept in $MALT_DATA (or ~/.cache/malt).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from newsgroups import Newsgroups
from pypi_data import cache_folder, locked

WORDS = 50_000
MEAN_LENGTH = 60  # words drawn for a document
TURNED = 0.05

# Bump when any of the above changes, so that older files are not taken for this data.
CACHE_NAME = "made-text-1"


def load(rows: int) -> Newsgroups:
    """So many documents, in memory that all processes of a host share."""
    kept = cache_folder() / f"{CACHE_NAME}-{rows}"
    cache_folder().mkdir(parents=True, exist_ok=True)
    with locked(cache_folder()):
        if not kept.is_dir():
            keep(kept, rows)
    arrays = (np.load(kept / f"{n}.npy", mmap_mode="r") for n in ("values", "words", "starts"))
    x = sp.csr_matrix(tuple(arrays), (rows, WORDS), copy=False)
    y = np.load(kept / "labels.npy")
    train = rows - rows // 25
    return Newsgroups(x[:train], y[:train], x[train:], y[train:])


def keep(folder: Path, rows: int) -> None:
    print(f"making {rows:,} documents in {folder.parent} ...", file=sys.stderr, flush=True)
    partial = folder.with_suffix(".partial")  # a process that died may have left it
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name, array in make(rows).items():
        np.save(partial / f"{name}.npy", array)
    partial.rename(folder)


def make(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    edges = np.cumsum(1 / (np.arange(WORDS) + 10.0))
    lengths = 1 + rng.poisson(MEAN_LENGTH - 1, rows)
    drawn = np.searchsorted(edges, rng.random(lengths.sum()) * edges[-1])
    cells, counts = np.unique(
        np.repeat(np.arange(rows), lengths) * WORDS + drawn, return_counts=True
    )
    row, words = np.divmod(cells, WORDS)
    idf = np.log((1 + rows) / (1 + np.bincount(words, minlength=WORDS))) + 1
    values = (1 + np.log(counts)) * idf[words]
    values /= np.sqrt(np.bincount(row, values**2))[row]
    hidden = rng.standard_normal(WORDS) * (rng.random(WORDS) < 0.1)
    labels = np.where(np.bincount(row, values * hidden[words]) >= 0, 1, -1)
    labels[rng.random(rows) < TURNED] *= -1
    return {
        "values": values.astype(np.float32),
        "words": words.astype(np.int32),
        "starts": np.concatenate([[0], np.cumsum(np.bincount(row))]).astype(np.int32),
        "labels": labels.astype(np.float32),
    }
