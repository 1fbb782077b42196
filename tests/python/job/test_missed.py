"""Exchanges that had nobody to wait for, or were never made, are told at the end of the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

LOOP = """
malt.init(timeout=20)
w = np.zeros(3)
v = malt.vector(w)
for step in range(10 + rank * MORE):
    w += 1
    v.scatter()
    v.gather(malt.AVG, staleness=STALENESS)
"""
SPARSE_LOOP = LOOP.replace("malt.vector(w)", "malt.sparse_vector(9, capacity=2)").replace(
    "w += 1", "v.set([1], [1.0])"
)


@pytest.mark.parametrize("loop", [LOOP, SPARSE_LOOP], ids=["dense", "sparse"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_steps_that_a_rank_makes_without_another_are_told_in_a_line(
    tmp_path: Path, transport: str, loop: str
) -> None:
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(tmp_path, 2, loop, MORE=2, STALENESS=0, environ=environ)
    said = (
        "[1] vector 'vector-1': rank 0 left the job after 10 scatters, so later "
        "gather(staleness=0) calls folded nothing from there: give all ranks equally many steps\n"
    )
    assert result.output == said


def test_allreduces_that_a_rank_makes_without_another_are_told_in_a_line(tmp_path: Path) -> None:
    loop = LOOP[: LOOP.index("    v.scatter()")] + "    v.allreduce(malt.AVG)\n"
    result = run_job(tmp_path, 2, loop, MORE=1)
    assert result.output == (
        "[1] vector 'vector-1': rank 0 left the job before this rank's last allreduce(), so its "
        "result has nothing from there. Unless the job was being stopped, give all ranks equally "
        "many calls, or each malt.shard(..., even=True)\n"
    )
    assert run_job(tmp_path, 2, loop, MORE=0).output == ""


def test_of_several_ranks_that_are_left_one_tells(tmp_path: Path) -> None:
    loop = LOOP.replace("rank * MORE", "MORE * (rank > 0)")
    result = run_job(tmp_path, 3, loop, MORE=2, STALENESS=0)
    assert result.output.count("\n") == 1
    assert result.output.startswith("[1] vector 'vector-1': rank 0 left the job after 10 scatters")


@pytest.mark.parametrize(
    ("more", "staleness"), [(0, 0), (2, None), (2, 4)], ids=["equal steps", "asp", "ssp"]
)
def test_loops_that_may_be_as_they_are_end_without_a_word(
    tmp_path: Path, more: int, staleness: int | None
) -> None:
    assert run_job(tmp_path, 3, LOOP, MORE=more, STALENESS=staleness).output == ""


def test_a_rank_that_dies_is_the_launchers_to_tell_of(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        LOOP.replace("    w += 1\n", "    w += 1\n    if step == 5 and rank == 0: os.abort()\n"),
        "--keep-going",
        code=None,
        MORE=0,
        STALENESS=0,
    )
    assert "rank 0 died of SIGABRT" in result.output
    assert "vector-1" not in result.output


@pytest.mark.parametrize("kind", ["vector((3,)", "sparse_vector(3, capacity=1"])
def test_gathers_before_any_scatter_are_told_in_a_line(tmp_path: Path, kind: str) -> None:
    result = run_job(
        tmp_path,
        2,
        f"""
malt.init(timeout=20)
v = malt.{kind}, name="w")
for step in range(3 if rank == 0 else 1):
    v.gather(malt.AVG, staleness=0)  # a loop may begin with one
malt.barrier()
v.scatter()
v.gather(malt.AVG, staleness=0)
""",
    )
    assert result.output.count("\n") == 1
    assert result.output.startswith(
        "[0] vector 'w': gather(staleness=...) was called twice before any"
    )


# ---- Vectors that are made and never exchanged ---------------------------------------------------
UNEXCHANGED = (
    "[0] rank 0 made {} and exchanged none, so it worked by itself: call scatter() and gather(), "
    "or allreduce(), in the loop (of malt.torch and malt.learn.wrap: step() or partial_fit(), "
    "perhaps with a smaller every=)\n"
)
MAKE = "malt.init(timeout=20); w = np.ones(3); v = malt.vector(w)\n"
TRAIN_TORCH = """
import torch, malt.torch
malt.init(timeout=20)
average = malt.torch.average(torch.nn.Linear(2, 1), every=EVERY)
for _ in range(4):
    average.step()
"""


@pytest.mark.parametrize(
    ("program", "made"),
    [
        (MAKE + "w += 1", "1 vector"),
        (MAKE + "malt.barrier(); malt.finalize()", "1 vector"),
        (MAKE + "s = malt.sparse_vector(9, capacity=2); s.set([1], [1.0])", "2 vectors"),
        (MAKE + "for rows in malt.shard(np.arange(8), chunk=2): w += 1", "1 vector"),
        ("with malt.init(timeout=20): v = malt.vector(3)", "1 vector"),
        (TRAIN_TORCH.replace("EVERY", "5") + "del average", "1 vector"),
    ],
    ids=["end", "finalize", "two", "chunks", "with", "torch"],
)
def test_vectors_that_are_never_exchanged_are_told_in_a_line(
    tmp_path: Path, program: str, made: str
) -> None:
    assert run_job(tmp_path, 2, program).output == UNEXCHANGED.format(made)


ESTIMATOR = """
malt.init(timeout=20)
x = np.random.default_rng(0).normal(size=(400, 3))
model = CLASSIFIER.fit(malt.shard(x), malt.shard(x[:, 0] > 0))
model.predict(x)
"""


@pytest.mark.parametrize(
    "program",
    [
        MAKE + "v.scatter()",
        MAKE + "v.gather()",
        MAKE + "v.allreduce()",
        MAKE + "other = malt.vector(2); other.allreduce()",
        MAKE + "v.allreduce(); del v; v = malt.vector(w)",
        MAKE + "malt.save('c', {'w': v})",
        MAKE + "malt.restore('none', {'w': v})",
        "malt.init(timeout=20); malt.save('c', {'w': np.ones(3)}); malt.barrier()",
        "malt.init(timeout=20); malt.shard(np.ones(8)); malt.allreduce(1)",
        "malt.init(timeout=20); chunks = malt.shard(np.ones(8), chunk=2)",
        "malt.init(timeout=20)\nfor rows in malt.shard(np.ones(8), chunk=2): pass",
        ESTIMATOR.replace("CLASSIFIER", "malt.learn.SGDClassifier()"),
        "from sklearn.linear_model import SGDClassifier"
        + ESTIMATOR.replace("CLASSIFIER", "malt.learn.wrap(SGDClassifier())"),
        TRAIN_TORCH.replace("EVERY", "4") + "del average",
        TRAIN_TORCH.replace("EVERY", "5") + "average.allreduce()",
    ],
)
def test_jobs_that_exchange_or_have_nothing_to_exchange_end_without_a_word(
    tmp_path: Path, program: str
) -> None:
    assert "exchanged none" not in run_job(tmp_path, 2, program).output


@pytest.mark.parametrize("made", ["malt.vector(np.ones(3))", "malt.vector(torch.ones(3))"])
def test_a_vector_that_is_freed_before_it_is_exchanged_is_told_in_a_line(
    tmp_path: Path, made: str
) -> None:
    pytest.importorskip("torch")
    program = f"import torch\nmalt.init(timeout=20); {made}\n"
    assert run_job(tmp_path, 2, program).output == UNEXCHANGED.format("1 vector")
    program += "v = malt.vector(2); v.allreduce()\n"
    assert run_job(tmp_path, 2, program).output == (
        "[0] vector 'vector-1' was freed before it was exchanged: keep it (v = malt.vector(w)), "
        "and call scatter() and gather(), or allreduce(), in the loop\n"
    )


def test_one_vector_of_several_that_is_never_exchanged_is_told_in_a_line(tmp_path: Path) -> None:
    program = MAKE + "other = malt.vector(2, name='b'); v.allreduce()\n"
    assert run_job(tmp_path, 2, program).output == (
        "[0] vector 'b' was never exchanged on rank 0: call its scatter() and gather(), or "
        "allreduce(), in the loop, or do not make it\n"
    )
    for silent in ("malt.save('c', {'b': other})", "other.allreduce()"):
        assert run_job(tmp_path, 2, program + silent).output == ""


# ---- Vectors that one rank alone exchanges -------------------------------------------------------
@pytest.mark.parametrize("kind", ["vector(3,", "sparse_vector(3, capacity=1,"])
@pytest.mark.parametrize("one", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_rounds_of_one_rank_alone_are_told_in_a_line(
    tmp_path: Path, kind: str, one: int, last: int
) -> None:
    result = run_job(
        tmp_path,
        2,
        f"""
malt.init(timeout=20)
v = malt.{kind} name="w")
if rank == last:
    await_flag("first"); time.sleep(0.3)
for _ in range(200):
    if rank == one: v.scatter(), v.gather(malt.AVG)
if rank != last:
    malt.finalize(); raise_flag("first")
""",
        one=one,
        last=last,
    )
    alone = f"rank {one} scattered it 200 times and gathered it 200 times, and rank {1 - one} ended"
    idle = "rank 0 scattered it, and rank 1 called neither its scatter() nor its gather()"
    said = alone if last == one else idle if one == 0 else "rank 0 made 1 vector and exchanged none"
    assert said in result.output
    # Rank 0 tells also if rank 1 has told already.
    assert result.output.count("\n") == 1 + (one == last == 1)


@pytest.mark.parametrize("late", [0, 1])
def test_ranks_that_do_not_wait_for_one_another_end_without_a_word(
    tmp_path: Path, late: int
) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v = malt.vector(3)
if rank == late: await_flag("over")
for _ in range(10): v.scatter(), v.gather()
if rank != late:
    malt.finalize(); raise_flag("over")
""",
        late=late,
    )
    assert result.output == ""


# ---- Updates that are refused --------------------------------------------------------------------
NAN = """
malt.init(timeout=20)
def train():
    w = np.zeros(8)
    v = malt.vector(w, name="w", graph=malt.GRAPH, SCREEN)
    for step in range(20):
        w += 1
        if rank == 1 and step > 5 and IS_WRONG: w[0] = np.nan
        v.scatter(), v.gather(staleness=0)
train()
"""


@pytest.mark.parametrize("graph", ["ALL", "RING", "HALTON"])
@pytest.mark.parametrize("screen", ["reject_nonfinite=True", "max_norm=100.0"])
def test_a_rank_whose_updates_are_refused_is_told_once(
    tmp_path: Path, graph: str, screen: str
) -> None:
    program = NAN.replace("GRAPH", graph).replace("SCREEN", screen)
    result = run_job(tmp_path, 3, program, IS_WRONG=True)
    assert result.output.count("\n") == 1, result.output
    assert "malt: vector 'w': updates of rank 1 are rejected as not finite" in result.output
    assert run_job(tmp_path, 3, program, IS_WRONG=False).output == ""


def test_an_update_that_is_refused_last_is_told_at_the_end(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v = malt.sparse_vector(9, capacity=2, reject_nonfinite=True)
for step in range(40):
    v.set([1], [np.inf if rank == 0 and step == 39 else 1.0])
    v.scatter(), v.gather(staleness=0)
""",
    )
    assert result.output.startswith(
        "[1] malt: vector 'vector-1': updates of rank 0 are rejected as not finite"
    )
    assert result.output.count("\n") == 1


# ---- Vectors that are scattered only, or gathered only -------------------------------------------
KINDS = pytest.mark.parametrize("kind", ["vector(3,", "sparse_vector(3, capacity=1,"])


@KINDS
def test_gathers_without_any_scatter_are_told_in_a_line(tmp_path: Path, kind: str) -> None:
    program = f"malt.init(timeout=20)\nv = malt.{kind} name='w')\nfor _ in range(5): v.gather()\n"
    said = (
        "[0] vector 'w': rank 0 gathered it 5 times, and no rank scattered it, so nothing was "
        "folded: each round is scatter(), then gather()\n"
    )
    assert run_job(tmp_path, 2, program).output == said
    assert run_job(tmp_path, 2, program + "del v").output == said


@KINDS
def test_scatters_without_any_gather_are_told_in_a_line(tmp_path: Path, kind: str) -> None:
    program = f"malt.init(timeout=20)\nv = malt.{kind} name='w')\nfor _ in range(5): v.scatter()\n"
    said = (
        "[0] vector 'w': rank 0 scattered it 5 times, and no rank gathered it, so nothing was "
        "folded: each round is scatter(), then gather()\n"
    )
    assert run_job(tmp_path, 2, program).output == said
    assert run_job(tmp_path, 2, program + "v.close()").output == said


@pytest.mark.parametrize("sender", [0, 1])
def test_a_rank_may_only_scatter_or_only_gather(tmp_path: Path, sender: int) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v = malt.vector(3)
for _ in range(5):
    if rank == sender: v.scatter()
    malt.barrier()
    if rank != sender: v.gather()
    malt.barrier()
""",
        sender=sender,
    )
    assert result.output == ""


def test_a_rank_alone_has_nobody_to_exchange_with(tmp_path: Path) -> None:
    assert run_job(tmp_path, 1, MAKE).output == ""


@pytest.mark.parametrize(
    "program",
    [
        MAKE + "raise ValueError('bad rows')",
        "with malt.init(timeout=20):\n    v = malt.vector(3)\n    raise ValueError('bad rows')",
    ],
    ids=["end", "with"],
)
def test_an_error_that_ends_the_program_is_told_alone(tmp_path: Path, program: str) -> None:
    result = run_job(tmp_path, 2, program, code=None)
    assert "bad rows" in result.output
    assert "exchanged none" not in result.output
