"""Ratings as users give them, checked and converted to the arrays that training reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._errors import ConfigError
from malt._partition import check_partition

_MOST_IDS = 2**31 - 1


class Ratings(NamedTuple):
    """User users[n] gave item items[n] values[n]: int32, int32, float32; at least one rating."""

    users: npt.NDArray[np.int32]
    items: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


def as_ratings(given: Any, values: Any = None) -> Ratings:
    """Convert a SciPy sparse matrix, (users, items, ratings), or pairs and their ratings.

    Raises:
        ConfigError: no ratings, lengths that differ, ids that are no integers or negative, ratings
            that are no finite numbers.
    """
    if hasattr(given, "tocoo"):
        if values is not None:
            raise ConfigError("a sparse matrix holds its ratings itself: leave y out")
        entries = given.tocoo()
        given = (entries.row, entries.col, entries.data)
    if values is None:
        if not isinstance(given, (tuple, list)) or len(given) != 3:
            raise ConfigError(
                f"ratings are a SciPy sparse matrix (users x items), three arrays (users, items, "
                f"ratings), or pairs of shape (n, 2) with y; this is a {type(given).__name__}"
            )
        users, items, values = given
    else:
        users, items = _columns(given)
    checked = Ratings(as_ids(users, "users"), as_ids(items, "items"), _as_values(values))
    lengths = {name: len(array) for name, array in checked._asdict().items()}
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"users, items and ratings have {list(lengths.values())} elements")
    if lengths["values"] == 0:
        raise ConfigError("there are no ratings; training needs one at least")
    return checked


def as_shape(ratings: Ratings, wanted: Any) -> tuple[int, int]:
    """Return the (users, items) that hold these ratings, or `wanted` if it is given.

    Raises:
        ConfigError: a rating's user or item is beyond `wanted`.
    """
    needed = int(ratings.users.max()) + 1, int(ratings.items.max()) + 1
    if wanted is None:
        return needed
    if len(wanted) != 2 or any(not 1 <= n <= _MOST_IDS for n in wanted):
        raise ConfigError(f"shape is {wanted!r}; it is (users, items), from 1 to {_MOST_IDS}")
    for name, id_limit, need in zip(("user", "item"), wanted, needed, strict=True):
        if need > id_limit:
            raise ConfigError(
                f"a rating has {name} {need - 1}, but the model has {id_limit} {name}s, counted "
                "from 0; give the constructor a shape=(users, items) that holds all there will be"
            )
    return int(wanted[0]), int(wanted[1])


def placed(ratings: Ratings, partition: Any, ranks: int, rank: int | None) -> Ratings:
    """Return the ratings of the users that a partition gives to a rank; None: all.

    Raises:
        ConfigError: it is no partition of the users among so many ranks, or a rank gets no ratings.
    """
    given = check_partition(partition, parts=ranks, exactly=True)
    if (last := int(ratings.users.max())) >= len(given.rows):
        raise ConfigError(
            f"a rating has user {last}, but the partition has {len(given.rows)} rows; make it of a "
            "matrix with a row for each user"
        )
    parts = given.rows[ratings.users]
    for part in range(ranks) if rank is None else [rank]:
        if not (parts == part).any():
            raise ConfigError(
                f"none of the {len(parts)} ratings is of a user of part {part}; give each rank "
                "ratings of its part's users (partition.rows_of), or all ratings to all"
            )
    if rank is None:
        return ratings
    return Ratings(*(array[parts == rank] for array in ratings))


def as_pairs(users: Any, items: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return users and items of equal length, from (n, 2) or two arrays; either may be one id."""
    if items is None:
        users, items = _columns(users)
    try:
        users, items = np.broadcast_arrays(np.atleast_1d(users), np.atleast_1d(items))
    except ValueError:
        raise ConfigError(
            f"{np.size(users)} users and {np.size(items)} items are no pairs"
        ) from None
    return as_ids(users, "users"), as_ids(items, "items")


def as_ids(given: Any, name: str) -> npt.NDArray[np.int32]:
    """Convert ids from 0 up to a vector of int32."""
    ids = np.asarray(given)
    if ids.ndim != 1:
        raise ConfigError(f"{name} have shape {ids.shape}; they are one id for each rating")
    if ids.dtype.kind not in "iu" and ids.size:
        raise ConfigError(
            f"{name} have dtype {ids.dtype}; they are integers counted from 0 (names "
            "become such by np.unique(names, return_inverse=True))"
        )
    if ids.size and (ids.min() < 0 or ids.max() >= _MOST_IDS):
        wrong = ids[(ids < 0) | (ids >= _MOST_IDS)][0]
        raise ConfigError(f"{name} has the id {wrong}; ids are from 0 to {_MOST_IDS - 1}")
    return np.ascontiguousarray(ids, dtype=np.int32)


def _columns(pairs: Any) -> tuple[Any, Any]:
    array = np.asarray(pairs)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ConfigError(f"pairs of user and item have shape (n, 2), not {array.shape}")
    return array[:, 0], array[:, 1]


def _as_values(given: Any) -> npt.NDArray[np.float32]:
    raw = np.asarray(given)
    if raw.ndim != 1:
        raise ConfigError(f"ratings have shape {raw.shape}; there is one number for each pair")
    if raw.dtype.kind not in "iufb" and raw.size:
        raise ConfigError(f"ratings have dtype {raw.dtype}; they are numbers")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(raw, dtype=np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.argmin(finite))
        raise ConfigError(
            f"Input ratings contain {raw[at]} (rating {at}); they must be finite numbers within "
            "float32: leave out pairs without a rating"
        )
    return values
