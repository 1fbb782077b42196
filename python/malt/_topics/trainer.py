"""The sweeps of a topic model on one rank, and its exchange of counts with the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from malt._core_import import SUM, TopicTokens, Vector, sum_of_digamma_rises
from malt._errors import TimeoutError  # noqa: A004
from malt._job import job as jobs
from malt._job import joining
from malt._job.agreement import Report, Together
from malt._shared.shared import Shared
from malt._topics.documents import check_tokens
from malt._topics.sources import Source
from malt._vectors import vectors

Counts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Result = TypeVar("Result")

# The priors are learnt in each of the first sweeps, while the topics take shape (fewer steps then
# end with topics that predict worse), and later in each fifth one, because a step costs time.
_EARLY_SWEEPS, _STEP_EVERY = 50, 5
# A block is swept in shares of at least so many tokens; in between, changes go on to other ranks.
_STEP_TOKENS, _MOST_SHARES = 1 << 17, 16
_LEAST_PRIOR = 1e-5  # a topic that no document has keeps a chance
_EVEN = 1e9  # with such a beta all first topics are equally likely


class Priors(NamedTuple):
    """The Dirichlet priors."""

    alpha: Floats  # of a document's topics, by topic
    beta: float  # of a topic's words, for each word


class Plan(NamedTuple):
    """How to train.

    Attributes:
        sweeps: how often each token is sampled.
        seed: the same on all ranks.
        learns_priors: whether the priors are learnt.
        call: the name of the call, for messages.
    """

    sweeps: int
    seed: int
    learns_priors: bool
    call: str


class Trained(NamedTuple):
    """Result of the sweeps, the same on all ranks.

    Attributes:
        priors: as they were learnt.
        ranks: those whose last changes the counts have.
    """

    priors: Priors
    ranks: list[int]


def train(counts: Counts, priors: Priors, source: Source, plan: Plan) -> Trained:
    """Add the source's tokens to the counts, and sweep over them. Collective in a job.

    Args:
        counts: words x topics, changed in place; the same on all ranks, before and after.
        priors: the first ones; the same on all ranks.
        source: this rank's tokens.
        plan: the same on all ranks.

    Raises:
        ConfigError: on every rank: a rank cannot draw its tokens' first topics, or all ranks'
            tokens are too few or too many.
        TimeoutError: the other ranks sent no changes for longer than malt.init()'s timeout.
    """
    with contextlib.ExitStack() as stack:
        rank = _RankTrainer(stack, counts, priors, plan)
        rank.begin(source)
        for sweep in range(plan.sweeps):
            rank.sweep(source, sweep)
        return Trained(rank.priors, rank.drain())


def agreed(
    call: str, name: str, action: Callable[[], tuple[Result, Report]]
) -> tuple[Result, dict[int, Report]]:
    """Run a step of `call` on every rank of the job, or here alone, as Together.step() does."""
    if joining.company() is None:
        result, report = action()
        return result, {0: report}
    return Together(call, None).step(name, action)


def live_ranks() -> set[int]:
    """Return the live ranks of the job, or 0 for a process that is alone."""
    job = joining.company()
    return {0} if job is None else set(job.group.alive())


class _RankTrainer:
    def __init__(
        self, stack: contextlib.ExitStack, counts: Counts, priors: Priors, plan: Plan
    ) -> None:
        """Prepare the training. Collective in a job."""
        self.priors = priors
        self._counts, self._plan = counts, plan
        self._totals = counts.sum(axis=0, dtype=np.int64)
        self._shared: Shared | None = None
        self._sums: Vector | None = None
        self._rank = 0
        job = joining.company()
        if job is not None:
            self._rank = job.rank
            self._shared = stack.enter_context(contextlib.closing(Shared(counts)))
            if plan.learns_priors:
                made = vectors.vector((len(priors.alpha) + 3,), dtype=np.float64)
                self._sums = stack.enter_context(contextlib.closing(made))

    def begin(self, source: Source) -> None:
        """Draw all tokens' first topics; the counts are then those of all ranks' tokens."""
        blocks = 0
        earlier = int(self._totals.sum())
        is_new = earlier == 0

        def draw(block: TopicTokens) -> None:
            nonlocal blocks
            how = self._how(0, blocks) | ({"beta": _EVEN} if is_new else {})
            block.draw(self._counts, self._totals, **how)
            blocks += 1

        def draw_all() -> tuple[None, Report]:
            source.begin(draw)
            return None, {"tokens": source.tokens}

        _, reports = agreed(self._plan.call, "drawing the first topics", draw_all)
        check_tokens(
            len(self._totals), earlier + sum(report["tokens"] for report in reports.values())
        )
        self.drain()

    def sweep(self, source: Source, sweep: int) -> None:
        is_step = self._plan.learns_priors and (sweep < _EARLY_SWEEPS or sweep % _STEP_EVERY == 0)
        sums = np.zeros(len(self.priors.alpha) + 3)
        for number, block in enumerate(source.blocks()):
            steps = 2 * min(max(len(block) // _STEP_TOKENS, 1), _MOST_SHARES)
            added = 0
            for step in range(steps):
                how = self._how(sweep + 1, number, step)
                block.sweep(self._counts, self._totals, step=step, steps=steps, **how)
                if self._shared is not None and step + 1 < steps:
                    added += self._shared.poll()
            if is_step:
                terms = sums[:-3]
                sums[-3] += block.add_to_fixed_point(self.priors.alpha.tolist(), terms)
            if self._shared is not None:
                added += self._shared.exchange()
            # Only now do the rows count all that the totals do: a sweep's first pass moves tokens
            # in the totals, and its second one in the rows.
            if added > 0:
                self._recount()
        if is_step:
            sums[-2:] = _terms_of_beta(self._counts, self._totals, self.priors.beta)
            self.priors = _stepped(self.priors, self._of_all(sums))

    def drain(self) -> list[int]:
        """Make the counts those of all ranks; return which ranks these are. Collective."""
        shared = self._shared
        if shared is None:
            return [self._rank]
        ranks = _wait(lambda limit: shared.drain(timeout=limit), lambda: shared.iterations)
        self._recount()
        return ranks

    def _recount(self) -> None:
        self._counts.sum(axis=0, dtype=np.int64, out=self._totals)

    def _how(self, *at: int) -> dict[str, Any]:
        mixed = np.random.SeedSequence([self._plan.seed, self._rank, *at])
        seed = int(mixed.generate_state(1, np.uint64)[0])
        return {"alpha": self.priors.alpha.tolist(), "beta": self.priors.beta, "seed": seed}

    def _of_all(self, sums: Floats) -> Floats:
        shared, vector = self._shared, self._sums
        if shared is None or vector is None:
            return sums

        def received() -> int:
            if shared.poll() > 0:
                self._recount()
            return shared.stats().bytes_in

        vector.array[:] = sums
        _wait(lambda limit: vector.allreduce(SUM, timeout=limit), received)
        total: Floats = vector.array.copy()
        return total


def _wait(step: Callable[[float], Result], progress: Callable[[], object]) -> Result:
    """Make a step that waits for all ranks, of which some may have more to sweep than others.

    Args:
        step: takes a limit in seconds, and can be made again after a TimeoutError.
        progress: returns a value that changes whenever another rank that sweeps has sent changes.

    Raises:
        TimeoutError: there was no progress for as long as malt.init()'s timeout.
    """
    limit = jobs.current().settings.timeout
    last, deadline = progress(), time.monotonic() + limit
    while True:
        try:
            return step(max(0.0, deadline - time.monotonic()))
        except TimeoutError:  # also where another rank's limit has ended the step on all ranks
            now = progress()
            if now != last:
                last, deadline = now, time.monotonic() + limit
            elif time.monotonic() >= deadline:
                raise


def _stepped(priors: Priors, sums: Floats) -> Priors:
    """Return the priors after a step of Minka's fixed point (2000, equation 55)."""
    terms, lengths, of_counts, of_totals = sums[:-3], sums[-3], sums[-2], sums[-1]
    if lengths == 0:  # no live rank has a token that could teach anything
        return priors
    alpha = np.maximum(priors.alpha * terms / lengths, _LEAST_PRIOR)
    if of_totals == 0:
        return Priors(alpha, priors.beta)
    return Priors(alpha, max(priors.beta * of_counts / of_totals, _LEAST_PRIOR))


def _terms_of_beta(counts: Counts, totals: npt.NDArray[np.int64], beta: float) -> Floats:
    """Return what a step multiplies beta by, as a numerator and a denominator."""
    words = len(counts)
    of_counts = sum_of_digamma_rises(counts, beta)
    return np.array([of_counts, words * sum_of_digamma_rises(totals, words * beta)])
