"""The base of the models that are solved to a known gap: their parameters, and ranks."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from malt._arguments import number, whole
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job import joining
from malt._linear import dual, dual_input, lbfgs, softmax
from malt._linear.agreed_data import All
from malt._linear.dual_input import part_of
from malt._linear.input import LARGEST, LinearInput
from malt._linear.newton_products import awkward_column
from malt._linear.problems import Look, Problem, Solution, Stopping, below_rounding
from malt._linear.row_sources import Source, examples_of
from malt._linear.rows_in_memory import Given
from malt._pool import forked, starting

Array = npt.NDArray[Any]

# Starting a rank takes as long as a few passes over so many values; fewer are not worth a rank.
LEAST_VALUES = 2_000_000
_HISTORY = np.dtype(
    [
        ("output", np.int64),
        ("passes", np.float64),
        ("objective", np.float64),
        ("gap", np.float64),
        ("time", np.float64),
    ]
)


def check_penalty(name: str, value: Any, slight: str) -> None:
    """Check C or alpha; `slight` is a value that makes the penalty slight."""
    instead = f"; there is always a penalty, and {name}={slight} makes it slight"
    number(name, value, 1 / LARGEST, most=LARGEST, instead=instead)


class Output(NamedTuple):
    """The rows' targets for one of a model's outputs, and the weights of their losses, or None."""

    targets: Array
    weights: Array | None


class ExactModel(LinearInput):
    """The base of the models that are solved to a known gap."""

    _easier = "lower C"  # makes the problem easier
    n_iter_: Any
    dual_gap_: float
    objective_: float
    history_: Array
    _alphas: Array | None = None  # (rows, outputs), of the last fit() with warm_start
    _last_c: float

    def _problem(self) -> Problem:
        raise NotImplementedError

    @property
    def _unit(self) -> float:
        """The user's objective is the problem's times this."""
        return 1.0

    def _check_exact(self) -> None:
        number("tol", self.tol, 0)
        whole("max_iter", self.max_iter, 1)
        if self.ranks is not None:
            whole("ranks", self.ranks, 1)
            starting.check_ranks(int(self.ranks))

    # Solving

    def _take_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Given, All]:
        """Return the given rows. Those of a process alone may have values that are not finite.

        The ascent finds these, on all ranks at once.
        """
        is_alone = joining.company() is None
        given, _, _, everywhere = self._take(
            "fit", X, y, sample_weight, reset=True, finite=not is_alone
        )
        return given, everywhere

    def _solve_dual(self, X: Any, outputs: int, output: Callable[[int], Output]) -> None:
        """Solve each output's problem over rows in memory, with one weight vector an output."""
        ranks = self._rank_count(X, outputs)
        by_output = ranks > 1 and outputs >= ranks
        examples = examples_of(X, check=False)
        seed = self._seed()
        starts = self._starts(X.shape[0], outputs)
        alphas = self._new_alphas(X.shape[0], outputs)
        dealt = None
        if ranks > 1 and not by_output:
            dealt = [dual_input.Dealt.of(X.shape[0], ranks, X.dtype) for _ in range(outputs)]

        def of(k: int) -> dual_input.Output:
            targets, weights = output(k)
            rows = dual_input.Rows(
                examples,
                np.ascontiguousarray(targets, X.dtype),
                None if weights is None else np.ascontiguousarray(weights, X.dtype),
                None if dealt is None else dealt[k],
                X,
            )
            start = None
            if starts is not None:
                column = np.ascontiguousarray(starts[:, k], X.dtype)
                start = dual_input.Start(column, float(self._weights(np.float64)[-1, k]))
            return dual_input.Output(rows, start, self._watch(k, outputs))

        def solve(rank: int) -> list[Solution | None]:
            mine = range(rank, outputs, ranks) if by_output else range(outputs)
            found = dual.solve(
                [partial(of, k) for k in mine],
                self._problem(),
                self._stopping(),
                seed=seed,
                alone=by_output,
                keeps_alphas=alphas is not None,
            )
            solved: list[Solution | None] = [None] * outputs
            for k, one in zip(mine, found, strict=True):
                if alphas is not None:
                    part = slice(None) if dealt is None else part_of(X.shape[0], rank, ranks)
                    alphas[part, k] = one.alphas
                solved[k] = one._replace(alphas=None, weights=one.weights[:, np.newaxis])
            return solved

        try:
            self._finish(self._on_ranks(ranks, solve), X)
        except ConfigError:
            self._insist_on_finite(X)
            raise
        if alphas is not None:
            self._alphas = np.array(alphas)
            self._last_c = self._problem().c

    def _solve_softmax(self, X: Any, output: Output, outputs: int) -> None:
        """Solve one problem of all outputs over rows in memory; the targets are class numbers."""
        ranks = self._rank_count(X, outputs)
        weights = 1.0 if output.weights is None else output.weights
        costs = np.broadcast_to(self._problem().c * weights, len(output.targets))
        start = self._start_of(outputs)

        def solve(rank: int) -> list[Solution | None]:
            part = part_of(X.shape[0], rank, ranks)
            rows, classes = X, softmax.Classes(output.targets, costs)
            if ranks > 1:
                rows, classes = X[part], softmax.Classes(output.targets[part], costs[part])
            watch, intercept = self._watch(0, 1), bool(self.fit_intercept)
            stopping = self._stopping()
            return [softmax.solve(rows, classes, stopping, start, watch, intercept=intercept)]

        self._finish(self._on_ranks(ranks, solve), X)

    def _solve_streamed(
        self,
        sources: Sequence[Source],
        outputs: int,
        dtype: Any,
        class_weights: Sequence[float] = (),
    ) -> None:
        """Solve one problem of all outputs, over the files that the ranks trained here read."""
        start = self._start_of(outputs)

        def solve(rank: int) -> list[Solution | None]:
            return [
                lbfgs.solve(
                    sources[rank],
                    self._problem(),
                    self._stopping(),
                    dtype=dtype,
                    class_weights=class_weights,
                    start=start,
                    watch=self._watch(0, 1),
                )
            ]

        self._finish(self._on_ranks(len(sources), solve), None)

    def _start_of(self, outputs: int) -> Array:
        """Return the weights to start from: (features + 1, outputs)."""
        start = np.zeros((self.n_features_in_ + 1, outputs))
        if self.warm_start and hasattr(self, "coef_"):
            last = self._weights(np.float64)
            return last if last.shape == start.shape else start
        return start

    def _rank_count(self, X: Any, outputs: int) -> int:
        """Return how many ranks solve the problem here: at most `ranks`."""
        if self.ranks is None or joining.company() is not None:
            return 1 if self.ranks is None else int(self.ranks)
        values = outputs * int(X.nnz if sparse.issparse(X) else X.size)
        return min(int(self.ranks), int(X.shape[0]), max(1, values // LEAST_VALUES))

    def _stopping(self) -> Stopping:
        return Stopping(float(self.tol), int(self.max_iter))

    def _seed(self) -> int:
        """Return the seed of the order of rows; without a random_state, always the same."""
        if self.random_state is None:
            return 0
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _starts(self, rows: int, outputs: int) -> Array | None:
        """Return the alphas to start from, or None."""
        alphas = self._alphas
        if not self.warm_start or alphas is None or alphas.shape != (rows, outputs):
            return None
        return alphas * (self._problem().c / self._last_c)

    def _new_alphas(self, rows: int, outputs: int) -> Array | None:
        if not self.warm_start:
            self._alphas = None
            return None
        return forked.shared_zeros((rows, outputs), np.float64)

    def _on_ranks(
        self,
        ranks: int,
        solve: Callable[[int], list[Solution | None]],
    ) -> list[Solution]:
        """Solve here, or on ranks forked here; return each problem's solution."""
        if ranks == 1:
            return [one for one in solve(0) if one is not None]

        def work() -> list[Solution | None]:
            rank = jobs.rank()
            found = [one if one is None else one._replace(alphas=None) for one in solve(rank)]
            is_mine_alone = None in found  # each rank has solved problems of its own
            return found if rank == 0 or is_mine_alone else [None] * len(found)

        by_rank = forked.run(ranks, work)
        return [next(one for one in each if one is not None) for each in zip(*by_rank, strict=True)]

    def _watch(self, output: int, outputs: int) -> Callable[[Look], object]:
        company = joining.company()
        if not self.verbose or (company is not None and company.rank != 0):
            return lambda _: None
        name = type(self).__name__ + (f", output {output} of {outputs}" if outputs > 1 else "")

        def show(look: Look) -> None:
            print(
                f"{name}: {look.passes:.1f} passes, objective {look.primal:.8g}, gap "
                f"{look.gap:.2g} ({look.share:.1e} of it)",
                file=sys.stderr,
                flush=True,
            )

        return show

    def _finish(self, solutions: list[Solution], X: Any) -> None:
        """Set the attributes, and warn if a problem is not solved; X: the rows in memory."""
        weights = np.hstack([one.weights for one in solutions])
        self.coef_ = np.ascontiguousarray(weights[:-1].T)
        self.intercept_ = weights[-1].copy()
        last = [one.looks[-1] for one in solutions]
        self.n_iter_ = math.ceil(max(look.passes for look in last))
        self.objective_ = self._unit * sum(look.primal for look in last)
        self.dual_gap_ = self._unit * sum(look.gap for look in last)
        self.history_ = np.array(
            [
                (k, look.passes, self._unit * look.primal, self._unit * look.gap, look.time)
                for k, one in enumerate(solutions)
                for look in one.looks
            ],
            _HISTORY,
        )
        short = [k for k, one in enumerate(solutions) if not one.has_converged]
        if short:
            worst = max(short, key=lambda k: last[k].share)
            look = last[worst]
            which = f" of output {worst}" if len(solutions) > 1 else ""
            is_out_of_passes = look.passes >= self.max_iter
            warnings.warn(
                f"after {look.passes:.0f} passes the gap{which} is "
                f"{look.share:.1e} of the objective; tol asks for {self.tol:g}: "
                + (
                    f"raise max_iter, scale the features, or {self._easier}"
                    if is_out_of_passes
                    else below_rounding(weights.dtype, self._easier)
                )
                + ("" if X is None else awkward_column(X)),
                ConvergenceWarning,
                stacklevel=5,
            )
