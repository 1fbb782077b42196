"""Training a linear model by SGD in pieces, alone or with the other ranks of a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import (
    AVG,
    SUM,
    LinearFloat32,
    LinearFloat64,
)
from malt._errors import ConfigError, describe_ranks
from malt._job import job as jobs
from malt._job import joining
from malt._linear.minibatch import BatchModel
from malt._linear.row_sources import Pass, Source
from malt._training.company import check_company
from malt._training.steps import Step
from malt._vectors import vectors
from malt._vectors.averaging import Averaging

Array = npt.NDArray[Any]

# The default for `every`: a tenth of a pass. This is short enough for averaging to be as good as
# one long run, and long enough for an exchange to cost little in comparison.
_EXCHANGES_A_PASS = 10


class DivergedError(ValueError):
    """Weights are no longer finite."""


class ExchangePlan(NamedTuple):
    """The exchange between ranks: over which graph, how often, and of which data.

    Attributes:
        every: examples of a rank between two exchanges; None: a tenth of its pass.
        what: "model": models are averaged (MLlib*: Zhang et al., ICDE 2019); "difference": the
            differences to the model of the last exchange are summed (Petuum, Xing et al., KDD
            2015); "gradient": all ranks take one step by the mean of the batch's gradients;
            or "once": each rank trains and stops alone, and the models are averaged at the end.
    """

    averaging: Averaging
    every: int | None = None
    what: str = "model"


class Stopping(NamedTuple):
    """When training ends: after `passes`, or once `patience` passes in turn gained under `tol`."""

    passes: int
    tol: float | None = None
    patience: int = 5
    by_score: bool = False  # judge by the score on held-out rows (it should grow), not by the loss
    is_asked: Callable[[], bool] = lambda: False  # whether to end after this pass, on any rank


class Arrays(NamedTuple):
    """The arrays that are trained: each (features + 1, outputs), its last row the intercepts."""

    weights: Array
    average: Array | None = None
    squares: Array | None = None

    def map(self, change: Callable[[Array], Array]) -> Arrays:
        """Return the arrays that exist, each changed."""
        rest = [None if array is None else change(array) for array in self[1:]]
        return Arrays(change(self.weights), *rest)


class Trained(NamedTuple):
    """How a training ended; JSON can express it."""

    passes: int
    steps: int
    has_converged: bool | None  # None: nothing has checked it
    history: list[Step]


class Trainer:
    """One rank's part of a training."""

    def __init__(
        self,
        source: Source,
        arrays: Arrays,
        kernel: dict[str, Any],
        *,
        steps: int,
        seed: int | None,
        exchange: ExchangePlan,
        score: Callable[[Array], float] | None = None,
        watch: Callable[[Step], object] = lambda _: None,
    ) -> None:
        """Prepare a training. Collective, in a job of several ranks.

        `kernel` holds the arguments of _core.Linear except arrays and steps. `seed` sets the order
        of rows in each block and pass (None: the order in memory). `score` scores weights on the
        rows that this rank has held out.
        """
        self._source = source
        self._seed = seed
        self._score = score
        self._watch = watch
        self._arrays = arrays
        self._average_from: int = kernel["average_from"]
        self._alpha: float = kernel["alpha"]
        self._l1_ratio: float = kernel["l1_ratio"]
        self._every = exchange.every
        self._history: list[Step] = []
        self._batches: BatchModel | None = None
        self._model: Any
        of_arrays: dict[str, Any] = {"average": arrays.average, "squares": arrays.squares}
        if exchange.what == "gradient":
            self._model = self._batches = BatchModel(
                arrays.weights, steps=steps, **of_arrays, **kernel
            )
            sent = self._batches.gradient
        else:
            kind: Any = LinearFloat32 if arrays.weights.dtype == np.float32 else LinearFloat64
            features = arrays.weights.shape[0] - 1
            self._model = kind(
                arrays.weights, features=features, steps=steps, **of_arrays, **kernel
            )
            sent = None
        job = joining.company()
        self._company = None if job is None else _Company(job, arrays, exchange, source.rows, sent)

    def run(self, stopping: Stopping) -> Trained:
        """Train until it is time to stop; all ranks stop together, unless they exchange "once".

        Asynchronous ranks make all passes.

        Raises:
            DivergedError: the weights of a rank are no longer finite; raised on all ranks that
                stop together.
        """
        if self._company is not None and not self._company.may_stop_early:
            stopping = stopping._replace(tol=None)
        progress = _Progress(stopping)
        passes = 0
        try:
            while passes < stopping.passes and not progress.stopped_early:
                losses, weight = self._make_pass(passes)
                passes += 1
                progress.add(self._agree(losses, weight, passes, stopping))
                if self._is_asked_to_stop:
                    break
            if self._arrays.average is not None:
                self._arrays.average[:] = self._best()
            if self._company is not None:
                self._company.unite()
        finally:
            if self._company is not None:
                self._company.leave()
        is_known = stopping.tol is not None and not self._is_asked_to_stop
        converged = progress.stopped_early if is_known else None
        return Trained(passes, self._model.steps, converged, self._history)

    def _make_pass(self, passes_before: int) -> tuple[float, float]:
        """Make a pass; return the sum of the losses, and that of their weights."""
        company, rows = self._company, self._source.rows
        pieces = company.pieces if company is not None else self._pieces_alone(rows)
        blocks = self._ordered(passes_before)
        losses = 0.0
        for piece in range(pieces):
            began = time.time()
            start, end = (rows * i // pieces for i in (piece, piece + 1))
            loss = blocks.train(self._model, end)
            self._is_finite = self._model.finish()
            trained = time.time()
            staleness, sent = (0, 0) if company is None else company.exchange()
            if self._batches is not None:
                self._batches.take_step()
            losses += loss
            done = passes_before * rows + end
            mean = loss / max(1, end - start)
            step = Step(done, mean, staleness, sent, began, trained, time.time())
            self._history.append(step)
            self._watch(step)
        return losses, blocks.weight

    def _ordered(self, passes_before: int) -> Pass:
        seed = self._seed
        if seed is not None:
            seed += (passes_before << 16) + (0 if self._company is None else self._company.rank)
        return Pass(self._source.blocks(), seed)

    def _pieces_alone(self, rows: int) -> int:
        return 1 if self._batches is None else _pieces(rows, self._every)

    def _agree(self, losses: float, weight: float, passes: int, stopping: Stopping) -> float:
        """Return the value that should fall (see _Progress); of all ranks if they stop together."""
        if stopping.by_score and self._score is not None:
            weight = self._source.rows
            losses = -self._score(self._best()) * weight
        elif stopping.tol is not None:
            losses += self._penalty() * weight
        mine = np.array([losses, weight, not self._is_finite, stopping.is_asked()])
        if self._company is not None:
            mine = self._company.add_up(mine)
        losses, weight, diverged, self._is_asked_to_stop = mine
        if diverged:
            raise DivergedError(
                f"Floating-point under-/overflow occurred at epoch #{passes}. Scaling input data "
                "with StandardScaler or MinMaxScaler might help."
            )
        return float(losses / weight) if weight > 0 else 0.0

    def _penalty(self) -> float:
        alpha, l1_ratio = self._alpha, self._l1_ratio
        body = self._arrays.weights[:-1]
        l1 = float(np.abs(body).sum()) if l1_ratio > 0 else 0.0
        return alpha * ((1 - l1_ratio) * float(np.vdot(body, body)) / 2 + l1_ratio * l1)

    def _best(self) -> Array:
        """Return the average if it has begun, else the weights."""
        weights, average, _ = self._arrays
        return weights if average is None or self._model.steps < self._average_from else average


def add_up(counts: Array) -> None:
    """Add `counts` up over this job's ranks, in place. Collective; does nothing in one process."""
    if joining.company() is not None:
        vector = vectors.vector(counts)
        vector.allreduce(SUM)
        vector.close()


def _pieces(rows: int, every: int | None) -> int:
    """Return how many exchanges a pass of so many rows has."""
    pieces = _EXCHANGES_A_PASS if every is None else -(-rows // every)
    return max(1, min(pieces, rows))


class _Progress:
    """Judges whether passes still gain anything, as scikit-learn's SGD does.

    The value that should fall is the mean loss of a pass plus the penalty, or minus the score on
    held-out rows. Three things differ from scikit-learn's: a row's loss counts by its weight; the
    outputs of one-vs-rest are added up and stop together; and the penalty is that at the end of the
    pass, not its mean over the pass.
    """

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._best = np.inf
        self._in_vain = 0
        self.stopped_early = False

    def add(self, loss: float) -> None:
        tol = self._stopping.tol
        if tol is None:
            return
        self._in_vain = self._in_vain + 1 if loss > self._best - tol else 0
        self._best = min(self._best, loss)
        self.stopped_early = self._in_vain >= self._stopping.patience


class _Company:
    """The other ranks of the job, and this rank's exchanges with them."""

    def __init__(
        self,
        job: jobs.Job,
        arrays: Arrays,
        exchange: ExchangePlan,
        rows: int,
        gradient: Array | None,
    ) -> None:
        self.rank = job.rank
        self._weights = arrays.weights
        self._averaging, every, what = exchange
        self._is_once = what == "once"
        self._agreed = np.zeros(4)
        self._agreement = vectors.vector(self._agreed)
        # All ranks make the same number of exchanges a pass, each over its own share of rows.
        counts = np.zeros(job.size)
        counts[job.rank] = 1 + rows  # stays 0 for a rank that is dead or has left
        add_up(counts)
        if (counts == 1).any():
            empty = describe_ranks(int(r) for r in np.flatnonzero(counts == 1))
            raise ConfigError(f"{empty} got no rows; give every rank some, or take fewer ranks")
        self.pieces = _pieces(int(counts.max()) - 1, every)
        self._sums = what in ("difference", "gradient")
        self._sent = self._weights
        self._before: Array | None = None
        if gradient is not None:
            self._sent = gradient
        elif self._sums:
            self._sent, self._before = np.empty_like(self._weights), self._weights.copy()
        self._vector = vectors.vector(
            self._sent, graph=self._averaging.graph, policy="queue" if self._sums else "latest"
        )
        self._average = None if arrays.average is None else vectors.vector(arrays.average)

    @property
    def agrees(self) -> bool:
        """Whether the ranks stop together."""
        return self._averaging.staleness is not None and not self._is_once

    @property
    def may_stop_early(self) -> bool:
        """Whether a rank may stop before `max_iter` passes: not if others expect its updates."""
        return self.agrees or self._is_once

    def exchange(self) -> tuple[int, int]:
        """Exchange; return the oldest update's age, in exchanges, and the bytes sent so far."""
        if self._is_once:
            return 0, self._vector.stats().bytes_out
        fold = SUM if self._sums else AVG
        if self._before is not None:
            np.subtract(self._weights, self._before, out=self._sent)
        oldest = self._averaging.exchange(self._vector, fold)
        if self._before is not None:
            self._before += self._sent
            self._weights[:] = self._before
        return oldest, self._vector.stats().bytes_out

    def add_up(self, mine: Array) -> Array:
        """Add `mine` up over the ranks that stop together; other ranks return their own."""
        if not self.agrees:
            return mine
        self._agreed[:] = mine
        check_company(self._agreement.allreduce(SUM).ranks)
        return self._agreed

    def unite(self) -> None:
        """Give all ranks the same model."""
        if self._is_once or not self._averaging.is_exact:
            final = vectors.vector(self._weights)
            gathered = final.allreduce(AVG)
            final.close()
        else:
            gathered = self._agreement.allreduce(SUM)
        if self._average is not None:
            gathered = self._average.allreduce(AVG)
        check_company(gathered.ranks)

    def leave(self) -> None:
        for vector in (self._vector, self._agreement, self._average):
            if vector is not None:
                vector.close()
