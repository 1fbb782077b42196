"""`malt train mf`: factorises ratings out of a file of lines, a user, an item and a rating each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt import _job, _local
from malt._errors import ConfigError
from malt._factorization import MatrixFactorization


class Ratings(NamedTuple):
    """Lines of a file; users and items as it names them."""

    users: npt.NDArray[Any]
    items: npt.NDArray[Any]
    values: npt.NDArray[np.float32]


def read(path: str, *, values_missing: float | None = None) -> Ratings:
    """Read lines of `user item rating`, parted by commas, tabs or spaces; what follows is left out.

    A first line whose rating is no number is a heading. Lines without a rating are taken if
    `values_missing` says what to take for it.

    Raises:
        ConfigError: there is no such file, or a line that is none of these.
    """
    try:
        with open(path, encoding="utf-8") as file:
            rows = [
                row
                for at, text in enumerate(file, 1)
                if text.strip()
                for row in _parse(path, at, text, values_missing)
            ]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as ratings: {error}") from error
    if not rows:
        raise ConfigError(f"{path} has no ratings: lines of a user, an item and a rating")
    users, items, values = zip(*rows, strict=True)
    return Ratings(np.array(users), np.array(items), np.array(values, np.float32))


def _parse(path: str, at: int, text: str, missing: float | None) -> list[tuple[str, str, float]]:
    fields = text.replace(",", " ").split()
    if len(fields) == 2 and missing is not None:
        return [(fields[0], fields[1], missing)]
    try:
        user, item, rating = fields[:3]
        return [(user, item, float(rating))]
    except ValueError:
        if at == 1:
            return []
        raise ConfigError(
            f"{path}, line {at}: {text.strip()[:60]!r} is not a user, an item and a rating"
        ) from None


def train(parsed: argparse.Namespace) -> None:
    """Train on ranks of this host; prints the error of each pass, and of the test file."""
    if _job.company() is not None:
        raise ConfigError("`malt train mf` starts its own ranks, with -n: start it by itself")
    ratings = read(parsed.data)
    users, user_ids = np.unique(ratings.users, return_inverse=True)
    items, item_ids = np.unique(ratings.items, return_inverse=True)
    ranks = parsed.ranks or 1

    def work() -> Mapping[str, Any]:
        rank = _job.rank() if ranks > 1 else 0
        own = user_ids % ranks == rank  # all of a user's ratings on one rank
        model = MatrixFactorization(
            parsed.factors, parsed.passes, every=parsed.every, shape=(len(users), len(items)),
            random_state=parsed.seed,
        )  # fmt: skip
        model.fit((user_ids[own], item_ids[own], ratings.values[own]))
        if rank == 0:
            _tell(parsed, model, users, items)
        return {}

    if ranks < 1:
        raise ConfigError(f"-n is {ranks}; it must be a whole number at least 1")
    if ranks == 1:
        work()
    else:
        _local.run(ranks, work)


def _tell(
    parsed: argparse.Namespace, model: Any, users: npt.NDArray[Any], items: npt.NDArray[Any]
) -> None:
    for epoch, error in enumerate(model.loss_curve_, 1):
        if not parsed.quiet and (epoch % 10 == 0 or epoch in (1, len(model.loss_curve_))):
            print(f"pass {epoch:4}: RMSE {error:.4f}", flush=True)
    if parsed.test is not None:
        test = read(parsed.test)
        known = np.isin(test.users, users) & np.isin(test.items, items)
        pairs = np.searchsorted(users, test.users[known]), np.searchsorted(items, test.items[known])
        error = model.rmse((*pairs, test.values[known]))
        unknown = f"; {(~known).sum():,} of users or items not seen" if not known.all() else ""
        print(f"RMSE on {known.sum():,} ratings of {parsed.test}: {error:.4f}{unknown}", flush=True)
    if parsed.out is not None:
        draft = f"{parsed.out}.draft"
        names = ("user_factors_", "item_factors_", "user_biases_", "item_biases_", "mean_")
        arrays = {name.rstrip("_"): getattr(model, name) for name in names}
        with open(draft, "wb") as file:
            kind = json.dumps({"estimator": "MatrixFactorization"})
            np.savez(file, allow_pickle=False, malt_model=kind, users=users, items=items, **arrays)
        Path(draft).rename(parsed.out)
        print(f"model: {parsed.out}", flush=True)


def predict(file: Mapping[str, npt.NDArray[Any]], path: str) -> tuple[Ratings, Any]:
    """The pairs of a file with their ratings, and what the model of `train` says of them.

    Raises:
        ConfigError: likewise as of read(), or a user or item that the model has not seen.
    """
    pairs = read(path, values_missing=np.nan)
    at = []
    for noun, names in (("user", pairs.users), ("item", pairs.items)):
        known = file[f"{noun}s"]
        strange = np.setdiff1d(names, known)
        if len(strange):
            raise ConfigError(
                f"{path} has {len(strange)} {noun}s of which the model knows nothing: "
                f"{', '.join(strange[:3])}{', ...' if len(strange) > 3 else ''}"
            )
        at.append(np.searchsorted(known, names))
    users, items = at
    values = (file["user_factors"][users] * file["item_factors"][items]).sum(1) + file["mean"]
    if len(file["user_biases"]):
        values += file["user_biases"][users] + file["item_biases"][items]
    return pairs, values
