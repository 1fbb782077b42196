"""MovieLens-100K: 100,000 ratings from 1 to 5 that 943 people gave 1,682 films.

    python examples/movielens.py                     # fetch it, show what it is

The ratings come inside a wheel on PyPI (2 MB), fetched once and kept: see pypi_data.py. GroupLens'
terms of use hold for them: https://files.grouplens.org/datasets/movielens/ml-100k-README.txt.
"""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pypi_data import DataError, cached

# The package to fetch. A file with another hash is refused.
PACKAGE = "recbole==1.2.1"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"

# Bump when any of the above changes, so that an older cache is not taken for this data.
CACHE_NAME = "movielens-100k-1.npz"

SHAPE = (943, 1682)  # people, films


@dataclass(frozen=True)
class Ratings:
    users: np.ndarray  # int32, 0 to 942
    items: np.ndarray  # int32, 0 to 1681
    values: np.ndarray  # float32, 1 to 5

    def __getitem__(self, part: slice | np.ndarray) -> Ratings:
        return Ratings(self.users[part], self.items[part], self.values[part])


def load() -> Ratings:
    """The ratings, from the cache or else from PyPI. Raises DataError if neither works."""
    with np.load(cached(CACHE_NAME, PACKAGE, SHA256, arrays_of)) as z:
        return Ratings(z["users"], z["items"], z["values"])


def split(ratings: Ratings, held_out: float = 0.1, seed: int = 0) -> tuple[Ratings, Ratings]:
    """Split at random into ratings to train on and ratings that are held out."""
    order = np.random.default_rng(seed).permutation(len(ratings.values))
    count = round(held_out * len(order))
    return ratings[order[count:]], ratings[order[:count]]


def arrays_of(wheel: Path) -> dict[str, np.ndarray]:
    """Read lines `user TAB film TAB rating TAB time` after a heading; ids count from 1."""
    with zipfile.ZipFile(wheel) as z:
        lines = z.read(MEMBER).decode("ascii").splitlines()[1:]
    table = np.array([line.split("\t")[:3] for line in lines]).astype(float)
    return {
        "users": table[:, 0].astype(np.int32) - 1,
        "items": table[:, 1].astype(np.int32) - 1,
        "values": table[:, 2].astype(np.float32),
    }


def main() -> None:
    try:
        ratings = load()
    except DataError as error:
        sys.exit(str(error))
    count = len(ratings.values)
    print(
        f"{count:,} ratings of {len(np.unique(ratings.items)):,} films by "
        f"{len(np.unique(ratings.users))} people, {ratings.values.mean():.3f} on average"
    )


if __name__ == "__main__":
    main()
