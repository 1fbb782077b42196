"""The lasso and the elastic net, solved to a known gap by coordinate descent on a schedule."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from malt._arguments import choose, number, whole
from malt._data.chunks import Chunks
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job import joining
from malt._linear import descent
from malt._linear.agreed_data import Here, Same, agree, digest
from malt._linear.input import LinearInput
from malt._linear.newton_products import Rows
from malt._linear.problems import Look, Stopping, below_rounding
from malt._linear.row_sources import canonical, examples_of
from malt._linear.rows_in_memory import Given
from malt._pool import forked, starting
from malt._training.all_or_nothing import all_or_nothing

Array = npt.NDArray[Any]

# Starting and ending a rank takes as long as one rank takes for so many values, where columns are
# correlated; fewer are not worth a rank.
LEAST_VALUES = 4_000_000
_MOST_ROWS = 2**31 - 1  # for any type of a sparse matrix's indices
_GIVE_ALL_ROWS = (
    "a lasso divides the columns, so give each rank all rows (malt.load_data: shard=False), in the "
    "same format"
)
_HISTORY = np.dtype(
    [
        ("output", np.int64),
        ("passes", np.float64),
        ("objective", np.float64),
        ("gap", np.float64),
        ("time", np.float64),
    ]
)


class _Descended(RegressorMixin, LinearInput):
    """A regression whose weights are mostly 0."""

    intercept_: Any
    n_iter_: Any
    n_updates_: int
    dual_gap_: Any
    objective_: Any
    history_: Array

    _instead: ClassVar[dict[str, str]] = {
        "copy_X": "leave it out; X is never changed",
        "precompute": "leave it out; no Gram matrix is used",
        "selection": "`schedule` is dynamic or random",
    }

    @property
    def _ratio(self) -> float:
        raise NotImplementedError

    def _check_parameters(self) -> None:
        number("alpha", self.alpha, 0, above=True)
        number("tol", self.tol, 0)
        whole("max_iter", self.max_iter, 1)
        choose("schedule", self.schedule, ("dynamic", "random"))
        if self.ranks is not None:
            whole("ranks", self.ranks, 1)
            starting.check_ranks(int(self.ranks))

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Find the minimum; with warm_start, start from the last one. In a job: collective.

        Args:
            X: (rows, features), a NumPy array or a SciPy sparse matrix of float64 or float32. CSC
                matrices and arrays in Fortran order are read in place, others are converted. In a
                job every rank gives the same X and y, that is all rows. Not malt.data.Chunks.
            y: (rows,) or (rows, targets), numbers. Each target is a problem of its own.
            sample_weight: (rows,), the weight of each row's square, or None. Only their ratios
                count. X is copied.

        Raises:
            ValueError: a parameter or the data cannot be used.
            malt.ConfigError: this happened on another rank of the job, which the message names, or
                the ranks' data differ.
        """
        self._check_parameters()
        given = self._agree(X, y, sample_weight)
        starts = self._starts(given)
        X, targets, roots = _weighted(given)
        ranks = self._rank_count(X)
        columns = examples_of(X.T, check=False)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        penalty = descent.Penalty(
            float(self.alpha), self._ratio, bool(self.fit_intercept), bool(self.positive)
        )
        stopping = Stopping(float(self.tol), int(self.max_iter))

        def solve(target: int) -> descent.Descended:
            return descent.solve(
                joining.company(),
                columns,
                np.ascontiguousarray(targets[:, target]),
                penalty,
                stopping,
                dynamic=self.schedule == "dynamic",
                seed=seed,
                start=None if starts is None else starts[target],
                roots=roots,
                watch=self._watch(),
            )

        try:
            found = [
                solve(target) if ranks == 1 else _on_ranks(ranks, partial(solve, target))
                for target in range(targets.shape[1])
            ]
        except ConfigError:
            self._insist_on_finite(X)
            raise
        if X.dtype == np.float32:
            rows = Rows(given.X, None)
            costs = np.ones(X.shape[0])
            if given.weights is not None:
                costs = given.weights * (len(costs) / given.weights.sum())
            found = [
                descent.measured(one, rows, of_one, costs, penalty, stopping)
                for one, of_one in zip(found, given.y.reshape(len(given.y), -1).T, strict=True)
            ]
        self._finish(found, is_flat=given.y.ndim == 1)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _agree(self, X: Any, y: Any, sample_weight: Any) -> Given:
        """Return X, y and weights, checked and alike on all ranks, X by columns."""
        is_alone = joining.company() is None

        def take() -> tuple[Given, Here]:
            if isinstance(X, Chunks):
                raise ValueError(
                    f"X is malt.data.Chunks, a few rows at a time; {type(self).__name__} reads "
                    "columns, of all rows: load them all (malt.load_data without chunk_rows), or "
                    "take malt.learn.Ridge or malt.learn.SGDRegressor(penalty='l1')"
                )
            rows, targets = validate_data(
                self,
                X,
                y,
                reset=True,
                y_numeric=True,
                multi_output=True,
                accept_sparse="csc",
                dtype=[np.float64, np.float32],
                order="F",
                ensure_all_finite=not is_alone,  # alone, the descent finds them in passing
            )
            if rows.shape[0] > _MOST_ROWS:
                raise ValueError(
                    f"X has {rows.shape[0]} rows; a lasso takes at most {_MOST_ROWS}: draw fewer"
                )
            weights = None
            if sample_weight is not None:
                weights = _check_sample_weight(
                    sample_weight, rows, dtype=np.float64, ensure_non_negative=True
                )
                if not weights.any():
                    raise ValueError("all sample_weight are 0: no row is left to train on")
            given = Given(canonical(rows), targets, weights)
            return given, Here(
                rows.shape[0],
                rows.shape[1],
                rows.dtype.name,
                None,
                self._common_settings(),
                () if is_alone else self._same(given),
            )

        taken, _ = agree(f"{type(self).__name__}.fit()", take)
        return taken

    def _same(self, given: Given) -> tuple[Same, ...]:
        """Return digests of the data, and of the weights to start from."""
        X = given.X
        parts: tuple[Array, ...] = (X.T,)
        if sparse.issparse(X):  # SciPy's indices are of 32 or of 64 bits
            parts = X.indptr.astype(np.int64), X.indices.astype(np.int32), X.data
        return (
            Same("X and y", digest(given.y, *parts), _GIVE_ALL_ROWS),
            Same("sample_weight", digest(given.weights), _GIVE_ALL_ROWS),
            Same(
                "coef_ of the last fit (warm_start)",
                digest(self._starts(given)),
                "each rank must start from the same weights: fit the same data on all ranks before",
            ),
        )

    def _rank_count(self, X: Any) -> int:
        """Return how many ranks solve the problem here: at most `ranks`."""
        if self.ranks is None:
            return 1
        if joining.company() is not None:
            if self.ranks == 1:
                return 1
            raise ConfigError(
                f"ranks={self.ranks} in a process that is a rank already: leave `ranks` out, and "
                "the ranks of the job divide the columns"
            )
        values = int(X.nnz if sparse.issparse(X) else X.size)
        return min(int(self.ranks), int(X.shape[1]), max(1, values // LEAST_VALUES))

    def _starts(self, given: Given) -> Array | None:
        """Return the weights to start from, (targets, features), or None."""
        coef = getattr(self, "coef_", None)
        targets = 1 if given.y.ndim == 1 else given.y.shape[1]
        if not self.warm_start or coef is None or coef.size != targets * given.X.shape[1]:
            return None
        return np.ascontiguousarray(coef, given.X.dtype).reshape(targets, -1)

    def _watch(self) -> Callable[[Look], object]:
        if not self.verbose:
            return lambda _: None
        name = type(self).__name__

        def show(look: Look) -> None:
            company = joining.company()
            if company is None or company.rank == 0:
                print(
                    f"{name}: {look.passes:.1f} passes, objective {look.primal:.8g}, gap "
                    f"{look.gap:.2g} ({look.gap / max(look.primal, 1e-300):.1e} of it)",
                    file=sys.stderr,
                    flush=True,
                )

        return show

    def _finish(self, found: list[descent.Descended], *, is_flat: bool) -> None:
        """Set the attributes, in scikit-learn's shapes, and warn if a problem is not solved."""
        last = [one.looks[-1] for one in found]
        passes = [math.ceil(look.passes) for look in last]
        if len(found) == 1:
            self.coef_, self.n_iter_ = found[0].weights, passes[0]
            self.objective_, self.dual_gap_ = last[0].primal, last[0].gap
        else:
            self.coef_, self.n_iter_ = np.array([one.weights for one in found]), passes
            self.objective_, self.dual_gap_ = np.array([(look.primal, look.gap) for look in last]).T
        self.intercept_ = 0.0
        if self.fit_intercept:
            self.intercept_ = np.array([one.intercept for one in found])
            self.intercept_ = self.intercept_[0] if is_flat else self.intercept_
        self.n_updates_ = sum(one.updates for one in found)
        self.history_ = np.array(
            [
                (k, look.passes, look.primal, look.gap, look.time)
                for k, one in enumerate(found)
                for look in one.looks
            ],
            _HISTORY,
        )
        short = [look for look, one in zip(last, found, strict=True) if not one.has_converged]
        if not short:
            return
        worst = max(short, key=lambda look: look.gap / look.primal)
        warnings.warn(
            f"after {worst.passes:.0f} passes the gap is {worst.gap / worst.primal:.1e} of the "
            f"objective; tol asks for {self.tol:g}: "
            + (
                "raise max_iter, scale the features, or raise alpha"
                if worst.passes >= self.max_iter
                else below_rounding(self.coef_.dtype, "raise alpha")
            ),
            ConvergenceWarning,
            stacklevel=4,
        )

    @property
    def sparse_coef_(self) -> Any:
        """coef_ as a sparse matrix; made anew by each use."""
        return sparse.csr_matrix(self.coef_)

    def predict(self, X: Any) -> Array:
        """Return X @ coef_.T + intercept_: (rows,), or (rows, targets)."""
        return self._decide(X)


def _weighted(given: Given) -> tuple[Any, Array, Array | None]:
    """Return X and (rows, targets) multiplied by the roots of the rows' weights, and these."""
    X, y, weights = given
    targets = y.reshape(len(y), -1).astype(X.dtype)
    if weights is None:
        return X, targets, None
    roots = np.sqrt(weights * (len(weights) / weights.sum())).astype(X.dtype)
    if sparse.issparse(X):
        X = X.copy()
        X.data *= roots[X.indices]
    else:
        X = np.asfortranarray(X * roots[:, np.newaxis])
    return X, targets * roots[:, np.newaxis], roots


def _on_ranks(ranks: int, solve: Callable[[], descent.Descended]) -> descent.Descended:
    """Solve on ranks forked here."""

    def work() -> descent.Descended | None:
        found = solve()
        return found if jobs.rank() == 0 else None

    found = forked.run(ranks, work)[0]
    assert found is not None
    return found


class Lasso(_Descended):
    """The lasso: |y - X w - b|^2 / (2 rows) + alpha * |w|_1."""

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        tol: float = 1e-6,
        fit_intercept: bool = True,
        positive: bool = False,
        schedule: str = "dynamic",
        random_state: Any = None,
        max_iter: int = 1000,
        verbose: int | bool = False,
        warm_start: bool = False,
        ranks: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.positive = positive
        self.schedule = schedule
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.ranks = ranks

    @property
    def _ratio(self) -> float:
        return 1.0


class ElasticNet(_Descended):
    """The elastic net: the lasso with alpha * (l1_ratio |w|_1 + (1 - l1_ratio) |w|^2 / 2)."""

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        tol: float = 1e-6,
        fit_intercept: bool = True,
        positive: bool = False,
        schedule: str = "dynamic",
        random_state: Any = None,
        max_iter: int = 1000,
        verbose: int | bool = False,
        warm_start: bool = False,
        ranks: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.positive = positive
        self.schedule = schedule
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.ranks = ranks

    @property
    def _ratio(self) -> float:
        return float(self.l1_ratio)

    def _check_parameters(self) -> None:
        number("l1_ratio", self.l1_ratio, 0, most=1)
        super()._check_parameters()


_DOC = """

    The minimum is found by coordinate descent (src/learn/coordinate_descent.hpp) until the
    objective is known to be within `tol` times itself of the minimum. It is the same on any number
    of ranks, which divide the columns. Constant columns get the weight 0. The intercept is not
    penalised.

    Args:
        alpha: the weight of the penalty; above 0.
{own}        tol: the largest gap, as a share of the objective; at least 0.
        fit_intercept: whether the model has an intercept.
        positive: whether no weight may be below 0.
        schedule: "dynamic" picks the columns by which the objective would fall most; "random" takes
            all that may have a weight, in a random order, and is there to compare.
        random_state: a seed or numpy.random.RandomState, for the random schedule.
        max_iter: about the most passes: fit() ends at the first look after so many. A pass reads as
            many columns as there are, for steps or to look.
        verbose: whether to print each measured gap to standard error.
        warm_start: whether fit() starts from the last weights.
        ranks: how many ranks to start, which share X and divide its columns; or None: this process,
            or the ranks of its job, all of which give the same X and y. Small data get fewer.

    Attributes:
        coef_: (features,); of several targets (targets, features).
        intercept_: a number; of several targets (targets,).
        n_iter_: passes made, of all ranks together, rounded up; of several targets a list.
        n_updates_: coordinate steps made, of all ranks and targets together.
        objective_: the value of the objective; of several targets (targets,).
        dual_gap_: the objective is at most this far above the minimum; as objective_.
        history_: a record array of each measured gap: output, passes, objective, gap, time (seconds
            since 1970)."""

for _kind, _text in (
    (Lasso, ""),
    (ElasticNet, "        l1_ratio: the share of the L1 penalty, from 0 to 1.\n"),
):
    _kind.__doc__ = f"{_kind.__doc__}{_DOC.format(own=_text)}"
