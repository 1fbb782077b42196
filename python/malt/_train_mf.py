"""`malt train mf`: factorises ratings out of a file of lines, a user, an item and a rating each."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt import _job, _report, _train
from malt._errors import ConfigError
from malt._factorization import MatrixFactorization
from malt._model_file import check, save


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
    """Train on ranks of this host; prints what they did, and the error on the test file."""
    if _job.company() is not None:
        raise ConfigError("`malt train mf` starts its own ranks, with -n: start it by itself")
    model = MatrixFactorization(
        parsed.factors,
        parsed.passes,
        every=parsed.every,
        ranks=parsed.ranks,
        graph=_train.graph_of(parsed.graph),
        sync=parsed.sync,
        verbose=0 if parsed.quiet else 2,
        random_state=parsed.seed,
    )
    ratings = read(parsed.data)
    users, user_ids = np.unique(ratings.users, return_inverse=True)
    items, item_ids = np.unique(ratings.items, return_inverse=True)
    test = None if parsed.test is None else _read_known(parsed.test, users, items)
    _train.fit(model, (user_ids, item_ids, ratings.values))
    if parsed.out is not None:
        names = ("user_factors_", "item_factors_", "user_biases_", "item_biases_", "mean_")
        arrays = {name.rstrip("_"): getattr(model, name) for name in names}
        save(parsed.out, model, {"users": users, "items": items, **arrays})
    _train.tell(parsed, model, _report.sums(model.history_))
    print(
        f"{model.n_iter_} passes over {len(ratings.values):,} ratings of {len(users):,} users and "
        f"{len(items):,} items: RMSE {model.loss_curve_[-1]:.4f}"
    )
    if test is not None:
        known, others = test
        unknown = f"; {others:,} of users or items not seen" if others else ""
        error = model.rmse(tuple(known))
        print(f"RMSE on {len(known.values):,} ratings of {parsed.test}: {error:.4f}{unknown}")


def _read_known(path: str, users: npt.NDArray[Any], items: npt.NDArray[Any]) -> tuple[Ratings, int]:
    """The ratings of these users and items, which it numbers, and how many others there are.

    Raises:
        ConfigError: as of read(), or there are none.
    """
    test = read(path)
    known = np.isin(test.users, users) & np.isin(test.items, items)
    if not known.any():
        raise ConfigError(
            f"{path} has no rating of known users and items: none of its {len(known):,} is of a "
            f"user, such as {users[0]!s}, and an item, such as {items[0]!s}, to be learnt from"
        )
    numbers = np.searchsorted(users, test.users[known]), np.searchsorted(items, test.items[known])
    return Ratings(*numbers, test.values[known]), int((~known).sum())


def predict(model: str, arrays: dict[str, npt.NDArray[Any]], path: str) -> tuple[Ratings, Any]:
    """The pairs of a file with their ratings, and what the model of `train` says of them.

    Args:
        model: its file, for messages.
        arrays: what is in it.
        path: of the pairs.

    Raises:
        ConfigError: likewise as of read(), or a user or item that the model has not seen, or the
            arrays are not those of a model.
    """
    known = {noun: check(model, arrays, f"{noun}s", "U", (-1,)) for noun in ("user", "item")}
    for noun, names in known.items():
        if not (names[:-1] < names[1:]).all():
            raise ConfigError(f"{model} is damaged: its {noun}s are not in order")
    factors = check(model, arrays, "user_factors", "f", (len(known["user"]), -1))
    others = check(model, arrays, "item_factors", "f", (len(known["item"]), factors.shape[1]))
    mean = check(model, arrays, "mean", "f", ())
    biases = None
    if arrays.get("user_biases", np.empty(1)).size:
        biases = [
            check(model, arrays, f"{noun}_biases", "f", (len(names),))
            for noun, names in known.items()
        ]
    pairs = read(path, values_missing=np.nan)
    at = []
    for noun, names in (("user", pairs.users), ("item", pairs.items)):
        strange = np.setdiff1d(names, known[noun])
        if len(strange):
            raise ConfigError(
                f"{path} has {len(strange)} {noun}s of which the model knows nothing: "
                f"{', '.join(strange[:3])}{', ...' if len(strange) > 3 else ''}"
            )
        at.append(np.searchsorted(known[noun], names))
    users, items = at
    values = (factors[users] * others[items]).sum(1) + mean
    if biases is not None:
        values += biases[0][users] + biases[1][items]
    return pairs, values
