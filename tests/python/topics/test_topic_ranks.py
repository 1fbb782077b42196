"""malt.learn.LatentDirichletAllocation in a job: what its ranks share, and how they wait."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from jobs import run_job

import malt
from malt._core_import import TopicTokens
from malt._topics import trainer
from malt._topics.documents import as_documents
from malt._topics.sources import InMemory
from malt._topics.trainer import Plan, Priors

TOPICS = 4
X = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), 300).astype(np.int32)

Counts = npt.NDArray[np.int32]

# A sweep of a trainer, with other code around it.
AROUND_SWEEPS = """
from malt._topics import trainer
sweep = trainer._RankTrainer.sweep

def around(self, source, number):
    before(self, number)
    sweep(self, source, number)
    after(self, number)

trainer._RankTrainer.sweep = around
before = after = lambda self, number: None
malt.init(timeout=60)
"""


def test_ranks_of_a_job_give_their_own_documents(tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        3,
        """
malt.init()
rng = np.random.default_rng(rank)
X = rng.poisson(0.5, (60, 30))
X[:, 0] += 1
model = malt.learn.LatentDirichletAllocation(5, max_iter=20, random_state=rank).fit(X)
model.partial_fit(X[:10])
tell(
    tokens=int(X.sum() + X[:10].sum()),
    counted=int(model.word_topic_counts_.sum()),
    counts=model.word_topic_counts_,
    alpha=model.doc_topic_prior_,
    beta=model.topic_word_prior_,
)
error = error_of(malt.learn.LatentDirichletAllocation(5 + (rank == 2)).fit, X)
tell(settings=str(error))
error = error_of(malt.learn.LatentDirichletAllocation(5).fit, X[:, : 30 - rank])
tell(words=str(error))
error = error_of(malt.learn.LatentDirichletAllocation(5).fit, X - (rank == 1))
tell(negative=str(error))
model.doc_topic_prior_ = model.doc_topic_prior_ * (1 + (rank == 2))
tell(priors=str(error_of(model.partial_fit, X)))
if rank == 1:
    model = malt.learn.LatentDirichletAllocation(5, max_iter=20)
tell(lost=str(error_of(model.partial_fit, X)))
""",
    )
    assert len(set(job.each("counted"))) == 1
    assert job.each("counted")[0] == sum(job.each("tokens"))
    for name in ("counts", "alpha", "beta"):
        for other in job.each(name)[1:]:
            np.testing.assert_array_equal(other, job.each(name)[0])
    for rank in range(3):
        assert "n_components is" in job.each("settings")[rank]
        assert (
            "the number of words of the documents is 30 on rank 0, and 29 on rank 1"
            in job.each("words")[rank]
        )
        assert re.search("rank 1: Negative values in data.*is -1", job.each("negative")[rank])
        priors, lost = job.each("priors")[rank], job.each("lost")[rank]
        assert re.search("the model so far is one of .* on rank 0, and .* on rank 2;", priors)
        assert re.search("the model so far is one of .* on rank 0, and none on rank 1;", lost)


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    given = X.copy()
    given[-1, 0] = -1
    np.save(tmp_path / "wrong.npy", given)
    np.save(tmp_path / "right.npy", X)
    job = run_job(
        tmp_path,
        2,
        """
from malt._topics import settings
malt.init()
fit = lambda name, **changes: str(error_of(
    malt.learn.LatentDirichletAllocation(**{"n_components": 4, "max_iter": 2} | changes).fit,
    malt.load_data(name + ".npy", chunk_rows=20),
))
tell(file=fit("wrong"))
tell(parameter=fit("right", max_iter=2 - 2 * rank))
alpha = np.ones(40)
alpha[20] += 1e-12 * rank
tell(differ=fit("right", n_components=40, doc_topic_prior=alpha))
tell(few=fit("right", n_components=12001))
if rank == 1:
    settings.available_bytes = lambda: 10
tell(memory=fit("right"))
""",
    )
    for rank in range(2):
        assert re.search("rank 1: Negative values .* is -1", job.each("file")[rank])
        assert "rank 1: max_iter is 0" in job.each("parameter")[rank]
        assert "doc_topic_prior is" in job.each("differ")[rank]
        assert "12001, and the documents have 12000 words in all" in job.each("few")[rank]
        assert "rank 1: 40 words x 4 topics need" in job.each("memory")[rank]


def test_a_rank_with_more_to_sweep_is_waited_for(tmp_path: Path) -> None:
    """Rank 0 sweeps while a step of the priors, and a drain, end early on rank 1 for lack of it."""
    job = run_job(
        tmp_path,
        2,
        AROUND_SWEEPS
        + """
trainer._EARLY_SWEEPS, trainer._STEP_EVERY = 0, 2   # a step in sweeps 0 and 2
seen = []

def wait(step, progress, wait=trainer._wait):
    seen.append([])

    def note():
        seen[-1].append(str(progress()))
        if len(seen[-1]) == 2:
            raise_flag(f"{len(seen)} is late")
        if seen[-1][-1] != seen[-1][0]:
            raise_flag(f"{len(seen)} has seen progress")

    def step_soon(limit):
        is_late = rank == 1 and len(seen) > 2 and len(set(seen[-1])) == 1
        return step(0.05 if is_late else limit)

    return wait(step_soon, note)

def before(self, number):
    if rank == 0 and number % 2 == 1:
        await_flag(f"{(number + 1) // 2 + 2} is late")  # rank 1's waits after sweeps 2 and 3

def after(self, number):
    if rank == 0 and number % 2 == 1:
        await_flag(f"{(number + 1) // 2 + 2} has seen progress")

trainer._wait = wait
X = np.ones((4, 5), int)
model = malt.learn.LatentDirichletAllocation(2, max_iter=4, random_state=0).fit(X)
tell(counts=model.word_topic_counts_)
""",
    )
    for counts in job.each("counts"):
        assert counts.sum(axis=1).tolist() == [8] * 5


def test_a_rank_that_no_longer_sweeps_is_named(tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        3,
        AROUND_SWEEPS
        + """
def before(self, number):
    if number == 1 and rank == 2:
        await_flag(0), await_flag(1)
    elif number == 1:
        job = trainer.jobs.current()
        job.settings = job.settings._replace(timeout=0.5)

model = malt.learn.LatentDirichletAllocation(2, max_iter=3, learn_priors=False, random_state=0)
tell(error=error_of(model.fit, np.ones((4, 5), int)))
raise_flag(rank)
""",
    )
    for rank in (0, 1):
        error = job.told[rank]["error"]
        assert error.kind == "TimeoutError", error
        assert 2 in error.ranks


def test_a_wait_ends_when_there_was_no_progress_for_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, progress = 0.0, 0
    limits = []

    def step(limit: float) -> str:
        nonlocal now, progress
        limits.append(limit)
        now += min(limit, 6.0)  # another rank's limit ends it
        progress += len(limits) in (2, 3)
        raise malt.TimeoutError("late", [1])

    monkeypatch.setattr(trainer.time, "monotonic", lambda: now)
    job = SimpleNamespace(settings=SimpleNamespace(timeout=10.0))
    monkeypatch.setattr(trainer.jobs, "current", lambda: job)
    with pytest.raises(malt.TimeoutError, match="late"):
        trainer._wait(step, lambda: progress)
    assert limits == [10, 4, 10, 10, 4]


def test_ranks_whose_changes_are_missing_are_named(tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        3,
        AROUND_SWEEPS
        + """
import warnings

def before(self, number):
    if number == 2 and rank > 0:
        raise ValueError("no more")

X = np.ones((4, 5), int)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    error = error_of(malt.learn.LatentDirichletAllocation(2, max_iter=5, random_state=0).fit, X)
tell(error=error, warned=[(each.category.__name__, str(each.message)) for each in warned])
malt.barrier()
""",
    )
    [(category, text)] = job.told[0]["warned"]
    assert category == "RuntimeWarning"
    assert re.search("fit: ranks 1, 2 died or left the job .* lacks the last changes", text), text
    assert [error is None for error in job.each("error")] == [True, False, False]


class Arriving:
    """In place of malt.ps.Shared: changes of others, which come in the middle of a sweep."""

    def __init__(self, counts: Counts) -> None:
        self.array, self.polls = counts, 0

    def poll(self) -> int:
        self.array[self.polls % len(self.array)] += 1
        self.polls += 1
        return 1

    def exchange(self) -> int:
        return 0


def test_totals_count_what_arrives_within_a_sweep() -> None:
    counts = np.zeros((X.shape[1], TOPICS), np.int32)
    priors = Priors(np.full(TOPICS, 0.1), 0.01)
    source = InMemory(as_documents(X, "test"), TOPICS, every=5000)

    class Watched:
        tokens = source.tokens
        begin = source.begin

        def blocks(self) -> Iterator[TopicTokens]:
            for block in source.blocks():
                yield block
                assert rank._totals.tolist() == counts.sum(axis=0).tolist()

    with contextlib.ExitStack() as stack:
        rank = trainer._RankTrainer(stack, counts, priors, Plan(5, 0, False, "test"))
        rank.begin(source)
        arriving = Arriving(counts)
        rank._shared = cast(Any, arriving)
        for sweep in range(5):
            rank.sweep(Watched(), sweep)
    assert arriving.polls == 5 * 3
    assert counts.sum() == X.sum() + 5 * 3 * TOPICS
