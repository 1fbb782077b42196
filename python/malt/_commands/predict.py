"""`malt predict`: the predictions of a model of `malt train` for examples in files."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from malt._commands import train
from malt._commands.examples import DATA_OPTIONS, Trained, add_data_options, predict, score
from malt._commands.model_file import check, load
from malt._drafted import drafted

if TYPE_CHECKING:
    import numpy.typing as npt

_DESCRIPTION = """\
Write what a model of `malt train` predicts, a line for each example: its label, or its value. If
the examples have labels, the accuracy (of a regression R squared, of ratings the RMSE) is said on
standard error.
"""


class SavedModel(NamedTuple):
    """A linear model, read from its file.

    Attributes:
        coef: (outputs, features); for a regression (features,).
        intercept: (outputs,).
        classes: None for a regression.
        trained: the data that it was trained on.
    """

    coef: npt.NDArray[Any]
    intercept: npt.NDArray[Any]
    classes: npt.NDArray[Any] | None
    trained: Trained

    @classmethod
    def of(cls, path: str, arrays: dict[str, npt.NDArray[Any]]) -> SavedModel:
        """Make a model from the arrays of its file.

        Raises:
            ConfigError: they are not those of a model.
        """
        is_regression = "classes" not in arrays
        coef = check(path, arrays, "coef", "f", (-1,) if is_regression else (-1, -1))
        outputs = 1 if is_regression else len(coef)
        intercept = check(path, arrays, "intercept", "f", (outputs,))
        classes = None
        if not is_regression:
            classes = check(path, arrays, "classes", "fiu", (max(outputs, 2),))
        zero_based = None
        if "zero_based" in arrays:
            zero_based = bool(check(path, arrays, "zero_based", "b", ()))
        columns = None
        if "columns" in arrays:
            columns = check(path, arrays, "columns", "U", coef.shape[-1:]).tolist()
        return cls(
            coef, intercept, classes, Trained(path, int(coef.shape[-1]), columns, zero_based)
        )

    def predict(self, X: Any) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = X @ self.coef.T + self.intercept
        if self.classes is None:
            return values.ravel()
        if values.ndim == 1 or values.shape[1] == 1:
            return self.classes[(values.ravel() > 0).astype(int)]  # type: ignore[no-any-return]
        return self.classes[values.argmax(1)]  # type: ignore[no-any-return]


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt predict` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(prog="malt predict", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL.npz")
    parser.add_argument("data", metavar="DATA", help="the examples, as for `malt train`")
    parser.add_argument("--out", metavar="FILE", help="where to write; else to standard output")
    add_data_options(parser)
    parsed = parser.parse_args(arguments)
    try:
        _predict(parser, parsed)
    except BrokenPipeError:  # the reader has read enough
        sys.stderr.close()
        return 1
    except train.FAILURES as error:
        train.fail("malt predict", error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _predict(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    import numpy as np

    arrays = load(parsed.model)
    if "user_factors" in arrays:
        from malt._commands import train_mf

        train.refuse_unused(parser, parsed, DATA_OPTIONS, f"{parsed.model}, a model of mf")
        ratings, predicted, known = train_mf.predict(parsed.model, arrays, parsed.data)
        with _output(parsed) as file:
            np.savetxt(file, predicted, fmt="%.9g")
        others = train_mf.not_seen(int((~known).sum()))
        errors = (predicted - ratings.values)[known & ~np.isnan(ratings.values)]
        if len(errors):
            rmse = float(np.sqrt((errors**2).mean()))
            print(f"RMSE {rmse:.4f} of {len(errors):,} ratings{others}", file=sys.stderr)
        elif others:
            print(f"{len(known):,} pairs{others}", file=sys.stderr)
        return
    model = SavedModel.of(parsed.model, arrays)
    of_labels = model.classes is not None
    whole = model.classes is not None and bool((model.classes == np.round(model.classes)).all())
    said: list[tuple[Any, Any]] = []
    with _output(parsed) as file:
        for predicted, y in predict(parsed.data, parsed, model, model.trained):
            np.savetxt(file, predicted, fmt="%d" if whole else "%.9g")
            if y is not None:
                said.append((predicted, y))
    if said:
        predicted, y = (np.concatenate(parts) for parts in zip(*said, strict=True))
        noun, value = score(predicted, y, of_labels=of_labels)
        print(f"{noun} {value:.4f} of {len(y):,} examples", file=sys.stderr)


@contextmanager
def _output(parsed: argparse.Namespace) -> Iterator[Any]:
    """Open the output."""
    if parsed.out is None:
        yield sys.stdout
    else:
        with drafted(parsed.out, "w") as file:
            yield file
