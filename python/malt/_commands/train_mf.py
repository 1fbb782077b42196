"""`malt train mf`: factorises ratings from a file whose lines are a user, an item and a rating."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._commands import report
from malt._commands.model_file import check, save
from malt._commands.training import fit, graph_of, staleness_of, tell
from malt._errors import ConfigError
from malt._factorization.estimator import MatrixFactorization
from malt._job import joining


class NamedRatings(NamedTuple):
    """The ratings of a file, with users and items as the file names them."""

    users: npt.NDArray[Any]
    items: npt.NDArray[Any]
    values: npt.NDArray[np.float32]


def read(path: str, *, values_missing: float | None = None) -> NamedRatings:
    """Read lines of `user item rating`, separated by commas, tabs or spaces; ignore further fields.

    A first line whose rating is no number is a heading. Lines without a rating are accepted if
    `values_missing` gives a value for them.

    Raises:
        ConfigError: there is no such file, or it has a line of another form.
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
    return NamedRatings(np.array(users), np.array(items), np.array(values, np.float32))


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
    """Train on ranks of this host; print what they did, and the error on the test file."""
    if joining.company() is not None:
        raise ConfigError("`malt train mf` starts its own ranks, with -n: start it by itself")
    model = MatrixFactorization(
        parsed.factors,
        parsed.passes,
        every=parsed.every,
        ranks=parsed.ranks,
        graph=graph_of(parsed.graph),
        staleness=staleness_of(parsed.staleness),
        verbose=0 if parsed.quiet else 2,
        random_state=parsed.seed,
    )
    ratings = read(parsed.data)
    users, user_ids = np.unique(ratings.users, return_inverse=True)
    items, item_ids = np.unique(ratings.items, return_inverse=True)
    test = None if parsed.test is None else _read_known(parsed.test, users, items)
    fit(model, (user_ids, item_ids, ratings.values))
    if parsed.out is not None:
        names = ("user_factors_", "item_factors_", "user_biases_", "item_biases_", "mean_")
        arrays = {name.rstrip("_"): getattr(model, name) for name in names}
        save(parsed.out, model, {"users": users, "items": items, **arrays})
    tell(parsed, model, report.sums(model.history_))
    print(
        f"{model.n_iter_} passes over {len(ratings.values):,} ratings of {len(users):,} users and "
        f"{len(items):,} items: RMSE {model.loss_curve_[-1]:.4f}"
    )
    if test is not None:
        known, others = test
        error = model.rmse(tuple(known))
        print(
            f"RMSE on {len(known.values):,} ratings of {parsed.test}: {error:.4f}{not_seen(others)}"
        )


def not_seen(others: int) -> str:
    """Return the text that follows an error of ratings if `others` of them were left out."""
    return f"; {others:,} of users or items not seen" if others else ""


def _read_known(
    path: str, users: npt.NDArray[Any], items: npt.NDArray[Any]
) -> tuple[NamedRatings, int]:
    """Read the ratings of known users and items, by number; count the others.

    Raises:
        ConfigError: as read(), or none is known.
    """
    test = read(path)
    known = _known(path, test, users, items)
    numbers = np.searchsorted(users, test.users[known]), np.searchsorted(items, test.items[known])
    return NamedRatings(*numbers, test.values[known]), int((~known).sum())


def _known(
    path: str, pairs: NamedRatings, users: npt.NDArray[Any], items: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which of a file's pairs are of these users and items.

    Raises:
        ConfigError: none is.
    """
    known = np.isin(pairs.users, users) & np.isin(pairs.items, items)
    if not known.any():
        raise ConfigError(
            f"{path} has no line of known users and items: none of its {len(known):,} is of a "
            f"user, such as {users[0]!s}, and an item, such as {items[0]!s}, to be learnt from"
        )
    return known


def predict(
    model: str, arrays: dict[str, npt.NDArray[Any]], path: str
) -> tuple[NamedRatings, Any, npt.NDArray[np.bool_]]:
    """Predict a file's pairs; return them, the predictions, and whether the model knows each.

    For a user or an item that the model has not seen, the bias and the factors are 0.

    Args:
        model: its file, for messages.
        arrays: the arrays of that file.
        path: of the pairs.

    Raises:
        ConfigError: as read(), the model knows none of the pairs, or the arrays are not those of a
            model.
    """
    names = {noun: check(model, arrays, f"{noun}s", "U", (-1,)) for noun in ("user", "item")}
    for noun, listed in names.items():
        if not (listed[:-1] < listed[1:]).all():
            raise ConfigError(f"{model} is damaged: its {noun}s are not in order")
    users = check(model, arrays, "user_factors", "f", (len(names["user"]), -1))
    items = check(model, arrays, "item_factors", "f", (len(names["item"]), users.shape[1]))
    mean = check(model, arrays, "mean", "f", ())
    biases = None
    if arrays.get("user_biases", np.empty(1)).size:
        biases = {
            noun: check(model, arrays, f"{noun}_biases", "f", (len(listed),))
            for noun, listed in names.items()
        }
    pairs = read(path, values_missing=np.nan)
    known = _known(path, pairs, names["user"], names["item"])
    values = np.full(len(known), mean, np.float32)
    factors = []
    for noun, given, learnt in (("user", pairs.users, users), ("item", pairs.items, items)):
        seen = np.isin(given, names[noun])
        at = np.searchsorted(names[noun], given[seen])
        rows = np.zeros((len(given), learnt.shape[1]), np.float32)
        rows[seen] = learnt[at]
        factors.append(rows)
        if biases is not None:
            values[seen] += biases[noun][at]
    return pairs, values + (factors[0] * factors[1]).sum(1), known
