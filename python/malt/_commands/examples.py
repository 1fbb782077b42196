"""The files of examples that commands read, and a model's predictions for them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# The options that add_data_options() adds.
DATA_OPTIONS = ("format", "features", "label", "chunk_rows", "skip_bad_lines")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading files of examples: the arguments of malt.load_data()."""
    data = parser.add_argument_group("the files")
    data.add_argument("--format", help="svmlight, csv, npy, npz, parquet or arrow; else by suffix")
    data.add_argument("--features", type=int, help="columns, where the files do not say")
    data.add_argument("--label", help="the column with the target: of tables by name, or a number")
    data.add_argument(
        "--chunk-rows",
        type=int,
        metavar="N",
        help="keep only two chunks of N examples in memory, and read the files again in each pass: "
        "for files larger than memory",
    )
    data.add_argument(
        "--skip-bad-lines", action="store_true", help="skip bad lines, and count them"
    )


def load(url: str, parsed: argparse.Namespace, **more: Any) -> Any:
    """Return the examples of a file, as malt.data.Data, or (--chunk-rows) malt.data.Chunks."""
    from malt._data.load import load_data

    label = parsed.label
    return load_data(
        url,
        format=parsed.format,
        label=int(label) if label is not None and label.lstrip("-").isdecimal() else label,
        on_bad="count" if parsed.skip_bad_lines else "raise",
        **{"features": parsed.features, "chunk_rows": parsed.chunk_rows, **more},
    )


def check_columns(data: Any, where: str, columns: Sequence[str] | None) -> None:
    """Check that data, as returned by load(), has the columns of `where`, if both have names.

    Raises:
        ConfigError: the names differ, or their order.
    """
    if columns is not None and data.columns is not None:
        from malt._data.reader import Contents

        here = Contents(data.files[0], len(data.columns), data.columns, None)
        here.check_same(Contents(where, len(columns), tuple(columns), None))


class Trained(NamedTuple):
    """A model's training columns.

    Attributes:
        where: the file that says so, for messages.
        features: how many.
        columns: their names; None: not known.
        zero_based: of svmlight text; None: not known.
    """

    where: str
    features: int
    columns: Sequence[str] | None
    zero_based: bool | None


def predict(
    url: str, parsed: argparse.Namespace, model: Any, trained: Trained
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.float64] | None]]:
    """Yield the model's predictions for the examples of a file, in their order, and the targets.

    Args:
        url: the file's.
        parsed: the options for reading it.
        model: has a method predict().
        trained: a column, and an index of svmlight text, means the same here, even if no index
            happens to be 0.

    Raises:
        ConfigError: the file cannot be read, or its columns have other names than the model's.
    """
    _, features, columns, zero_based = trained
    begin = "auto" if zero_based is None else zero_based
    data = load(url, parsed, features=features, shard=False, zero_based=begin)
    check_columns(data, trained.where, columns)
    chunks = [data]
    if parsed.chunk_rows is not None:
        zero_based = data.survey("looking", labels=False).zero_based
        chunks = data.read(features, zero_based=zero_based)
    for chunk in chunks:
        yield model.predict(chunk.X), chunk.y


def score(
    predicted: npt.NDArray[Any], y: npt.NDArray[np.float64], *, of_labels: bool
) -> tuple[str, float]:
    """Return the score's name, and how well the predictions fit."""
    if of_labels:
        return "accuracy", float((predicted == y).mean())
    return "R squared", float(1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())
