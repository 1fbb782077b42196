"""`malt train`: trains a model on a file of examples, by the estimators, on ranks of this host."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from malt._commands.examples import (
    DATA_OPTIONS,
    Trained,
    add_data_options,
    check_columns,
    load,
    predict,
    score,
)
from malt._commands.model_file import save
from malt._commands.option_names import named_as_typed
from malt._commands.training import fit, graph_of, staleness_of, tell
from malt._data.files import find_files
from malt._errors import ConfigError, Error

_DESCRIPTION = """\
Train a linear model on examples in files (svmlight, .npy, .npz, CSV, Parquet, Arrow; paths,
patterns or URLs), or factorise ratings (lines of a user, an item and a rating), by SGD on N ranks,
and save it:

  malt train svm rcv1_train.svm --test rcv1_test.svm -n 4 --out model.npz
  malt train logistic 's3://bucket/part-*.svm.gz' -n 4 --graph halton --staleness 4 --every 1000
  malt train svm huge.svm --chunk-rows 100000 -n 4 --out model.npz
  malt train regression houses.csv --label price --report houses.html
  malt train mf ratings.csv --test others.csv --factors 32 -n 2 --out factors.npz
  malt predict model.npz rcv1_test.svm --out labels.txt

The ranks are processes of this host, which share the examples in memory; with --chunk-rows each
reads its part of the files, once to look and then in every pass. Started by mpirun, srun or
`malt run`, without -n, each process is a rank, and reads its own part of the files; --report and
--trace are of rank 0 then.
"""

_EPILOG = """\
Ctrl-C ends training after the present pass, and what has been learnt is saved; twice: at once.
The exit code is 0, or 2 after an error.
"""

_PROBLEMS = ("svm", "logistic", "regression", "mf")
# Options that have no meaning for mf, and one that has none for the other problems.
_NOT_OF_MF = (
    *("exchange", "alpha", "penalty", "tol", "average", "lr"),
    *DATA_OPTIONS,
)
_OF_MF = ("factors",)


class _TrainParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)


# Errors that end a command with a message; any other is a fault of MALT.
FAILURES = (Error, ValueError, OSError, ImportError, MemoryError)


def fail(command: str, message: object) -> NoReturn:
    """End the command with an error message."""
    if isinstance(message, MemoryError):
        detail = f" ({message})" if str(message) else ""
        message = f"not enough memory{detail}: take a smaller --chunk-rows, or of mf --factors"
    shown = named_as_typed(str(message))
    print(f"{command}: error: {shown} ({command} --help)", file=sys.stderr)
    raise SystemExit(2)


def _parser() -> _TrainParser:
    parser = _TrainParser(
        prog="malt train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("problem", choices=_PROBLEMS)
    parser.add_argument("data", metavar="DATA", help="the examples to learn from")
    parser.add_argument("--test", metavar="DATA", help="others, to measure the model on")
    parser.add_argument("--out", metavar="FILE.npz", help="where to save the model")
    parser.add_argument("--report", metavar="FILE.html", help="loss, bytes and waits as a page")
    parser.add_argument("--trace", metavar="FILE.json", help="the same for ui.perfetto.dev")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    ranks = parser.add_argument_group("the ranks")
    ranks.add_argument("-n", "--ranks", type=int, metavar="N", help="how many; else one")
    ranks.add_argument(
        "--graph", help="halton, ring, exponential, one_peer, star or all; else all, at once"
    )
    ranks.add_argument(
        "--staleness", default="0", metavar="K", help="exchanges late an update may be, or none"
    )
    ranks.add_argument("--every", type=int, metavar="K", help="examples between two exchanges")
    ranks.add_argument("--exchange", default="model", help="model, difference, gradient or once")
    model = parser.add_argument_group("the model")
    model.add_argument("--alpha", type=float, default=1e-4, help="of the penalty: %(default)s")
    model.add_argument("--penalty", default="l2", help="l2, l1 or elasticnet")
    model.add_argument("--factors", type=int, default=32, help="of mf: %(default)s")
    model.add_argument("--passes", type=int, default=20, help="at most: %(default)s")
    model.add_argument("--tol", type=float, default=1e-3, help="the least gain: %(default)s")
    model.add_argument("--average", action="store_true", help="average the weights over the steps")
    model.add_argument(
        "--lr",
        metavar="LR[:ETA0]",
        help="optimal, constant:E, invscaling:E or adagrad:E; else the estimator's own",
    )  # fmt: skip
    model.add_argument("--seed", type=int, default=0, help="of the order of the examples")
    add_data_options(parser)
    return parser


def refuse_unused(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace, names: Sequence[str], model: str
) -> None:
    """Refuse the options `names` if they are given; they have no meaning for the model."""
    for name in names:
        if getattr(parsed, name) != parser.get_default(name):
            raise ConfigError(f"--{name.replace('_', '-')} means nothing to {model}")


def _estimator(parsed: argparse.Namespace) -> Any:
    from malt._linear.sgd_classifier import SGDClassifier
    from malt._linear.sgd_regressor import SGDRegressor

    settings = {
        "penalty": parsed.penalty,
        "alpha": parsed.alpha,
        "max_iter": parsed.passes,
        "tol": parsed.tol,
        "average": parsed.average,
        "random_state": parsed.seed,
        "verbose": 0 if parsed.quiet else 2,
        "ranks": parsed.ranks,
        "graph": graph_of(parsed.graph),
        "staleness": staleness_of(parsed.staleness),
        "every": parsed.every,
        "exchange": parsed.exchange,
    }
    if parsed.lr is not None:
        settings |= _learning_rate(parsed.lr)
    if parsed.problem == "regression":
        return SGDRegressor(**settings)
    return SGDClassifier("hinge" if parsed.problem == "svm" else "log_loss", **settings)


def _learning_rate(given: str) -> dict[str, Any]:
    """Return the settings that --lr stands for."""
    name, colon, eta0 = given.partition(":")
    if not colon:
        return {"learning_rate": name}
    if name == "optimal":
        raise ConfigError(f"--lr is {given!r}; optimal follows from --alpha, and takes no number")
    try:
        return {"learning_rate": name, "eta0": float(eta0)}
    except ValueError:
        raise ConfigError(
            f"--lr is {given!r}; behind the colon is a number, as in {name}:0.01"
        ) from None


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt train` with these arguments; return its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        unused = _NOT_OF_MF if parsed.problem == "mf" else _OF_MF
        refuse_unused(parser, parsed, unused, parsed.problem)
        _train(parsed)
    except FAILURES as error:
        fail("malt train", error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _train(parsed: argparse.Namespace) -> None:
    from malt._pool import starting

    # Checks that would otherwise fail only after hours of reading or training.
    starting.check_ranks(parsed.ranks or 1)
    for path in (parsed.out, parsed.report, parsed.trace):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"there is no folder for {path}: {Path(path).absolute().parent}")
        if path is not None and Path(path).is_dir():
            raise ConfigError(f"{path} is a folder; name a file")
    if parsed.problem == "mf":
        from malt._commands.train_mf import train

        train(parsed)
    else:
        _train_linear(parsed)


def _train_linear(parsed: argparse.Namespace) -> None:
    from malt._commands import report
    from malt._job import joining
    from malt._job.agreement import Together

    model = _estimator(parsed)
    test_files = [] if parsed.test is None else find_files(parsed.test, parsed.format)
    company = joining.company()
    data = load(parsed.data, parsed)
    if test_files and not any(file.is_read_once for file in test_files):
        check_columns(load(parsed.test, parsed, chunk_rows=1), data.files[0], data.columns)
    if parsed.chunk_rows is not None:
        fit(model, data)
    elif data.y is None:
        raise ConfigError(f"{parsed.data} has no targets: --label names the column that is one")
    else:
        fit(model, data.X, data.y)
    is_first = company is None or company.rank == 0
    if parsed.out is not None and is_first:
        save(parsed.out, model, _arrays(model, data))
    ranks = report.sums(model.history_)
    if company is not None:
        mine = ranks[0] | {"bad": data.bad}
        ranks = Together("malt train", None).step("telling what it did", lambda: (None, mine))[1]
    if not is_first:
        return
    tell(parsed, model, ranks)
    examples = sum(int(done["examples"]) for done in ranks.values()) // model.n_iter_
    print(f"{model.n_iter_} passes over {examples:,} examples of {model.n_features_in_:,} features")
    bad = data.bad if company is None else sum(int(done["bad"]) for done in ranks.values())
    if bad:
        print(f"{bad} bad lines skipped: {'; '.join(data.bad_lines) or 'by other ranks'}")
    if parsed.test is not None:
        trained = Trained(data.files[0], model.n_features_in_, data.columns, data.zero_based)
        _test(parsed, model, trained)


def _arrays(model: Any, data: Any) -> dict[str, Any]:
    """Return the arrays that `malt predict` needs."""
    arrays = {"coef": model.coef_, "intercept": model.intercept_}
    if hasattr(model, "classes_"):
        arrays["classes"] = model.classes_
    for name in ("zero_based", "columns"):
        if getattr(data, name) is not None:
            arrays[name] = getattr(data, name)
    return arrays


def _test(parsed: argparse.Namespace, model: Any, trained: Trained) -> None:
    import numpy as np

    predicted, y = [], []
    for values, targets in predict(parsed.test, parsed, model, trained):
        if targets is None:
            raise ConfigError(f"{parsed.test} has no targets: --label names the column that is one")
        predicted.append(values)
        y.append(targets)
    noun, value = score(
        np.concatenate(predicted), np.concatenate(y), of_labels=hasattr(model, "classes_")
    )
    print(f"{noun} on {sum(map(len, y)):,} examples of {parsed.test}: {value:.4f}")
