"""Gathers that wait for a share of the ranks, or until a deadline, and fold who is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import PROMPT, run_job


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_goes_on_when_the_quorum_is_there(tmp_path: Path, policy: str) -> None:
    """Rank 3 scatters only when the others have gathered; its update is in their next gather."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
w = np.full(2, 10.0 ** rank)
v = malt.vector(w, policy=policy, depth=4)
if rank == 3:
    [await_flag(each) for each in range(3)]
    v.scatter()
    raise_flag("late")
    malt.barrier()
else:
    v.scatter()
    # Two of three: those of ranks 0, 1 and 2.
    first = v.gather(malt.SUM, quorum=0.6)
    tell(first=first.ranks, sum=w[0])
    raise_flag(rank)
    await_flag("late")
    then = v.gather(malt.SUM, quorum=1.0)
    tell(then=then.ranks, all=w[0])
    malt.barrier()
""",
        policy=policy,
    )
    for rank in range(3):
        told = result.told[rank]
        others = tuple(each for each in range(3) if each != rank)
        assert told["first"] == others
        assert told["sum"] == 111
        assert told["then"] == (3,)
        assert told["all"] == 1111


def test_goes_on_at_the_deadline(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
w = np.full(2, 10.0 ** rank)
v = malt.vector(w)
if rank == 2:
    await_flag(0), await_flag(1)
else:
    v.scatter()
    first = v.gather(malt.SUM, quorum=0.5).ranks  # the other has come
    v.scatter()
    begin = time.monotonic()
    some = v.gather(malt.SUM, deadline=0.3)
    lasted = time.monotonic() - begin
    tell(waited=lasted, some=some.ranks, first=first)
    tell(none=error_of(v.gather, malt.SUM, quorum=1, timeout=0.3))
    raise_flag(rank)
malt.barrier()
""",
    )
    for rank in (0, 1):
        told = result.told[rank]
        assert told["first"] == (1 - rank,)
        assert told["some"] in ((1 - rank,), ())  # the first gather may have found its second
        assert 0.3 <= told["waited"] < PROMPT
        assert told["none"].kind == "TimeoutError"
        assert told["none"].ranks == (2,)
        assert told["none"].says("did not scatter iteration 2", "0.3 s")


def test_an_automatic_deadline_follows_what_gathers_took(tmp_path: Path) -> None:
    """Rank 1 comes at once in 20 rounds, and then not at all: no wait grows into an error."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=2)
v = malt.vector(np.zeros(2))
for _ in range(20):
    v.scatter()
    v.gather(malt.SUM, deadline="auto", timeout=60)
malt.barrier(60)
if rank == 0:
    v.gather(malt.SUM)
    v.scatter()
    tell(counts=[v.gather(malt.SUM, deadline="auto").count for _ in range(60)])
    raise_flag("done")
await_flag("done")
malt.barrier(60)
""",
    )
    assert result.told[0]["counts"] == [0] * 60


def test_a_deadline_beyond_the_timeout_is_no_error(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(2))
if rank == 0:
    v.scatter()
    tell(counts=[v.gather(malt.SUM, deadline=each, timeout=0.2).count for each in (0.2, 5, 0)])
malt.barrier()
""",
    )
    assert result.told[0]["counts"] == [0, 0, 0]


def test_a_rank_far_behind_finds_slots_again(tmp_path: Path) -> None:
    """Rank 1 is more iterations behind than it has slots, and rank 0 then waits for it."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.ones(1), policy="queue", depth=2)
if rank == 0:
    folded = 0
    for _ in range(5):
        v.scatter()
        folded += v.gather(malt.SUM, deadline=0.01).count
    tell(folded=folded + v.gather(malt.SUM, quorum=1).count)
else:
    folded = 0
    while folded < 5:
        folded += v.gather(malt.SUM).count
    for _ in range(5):
        v.scatter()
malt.barrier()
""",
    )
    assert result.told[0]["folded"] == 5


@pytest.mark.parametrize("stop", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_ends_or_stops_meanwhile(tmp_path: Path, stop: str) -> None:
    """A dead rank is not waited for; a stopped one no longer than the deadline."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(2))
if rank == 1:
    raise_flag(os.getpid())
    tell(pid=os.getpid())
    os.kill(os.getpid(), getattr(signal, stop))
    time.sleep(100)
while not os.path.exists("told-1"): time.sleep(0.01)
v.scatter()
begin = time.monotonic()
gathered = v.gather(malt.SUM, quorum=1, deadline=None if stop == "SIGKILL" else 0.3)
tell(count=gathered.count, waited=time.monotonic() - begin)
import pickle
pid = pickle.loads(open("told-1", "rb").read())["pid"]
if stop == "SIGSTOP":
    os.kill(pid, signal.SIGKILL)
""",
        "--keep-going",
        code=None,
        stop=stop,
    )
    assert result.told[0]["count"] == 0
    assert result.told[0]["waited"] < PROMPT


def test_a_quorum_counts_the_live_ranks_and_bounds_the_others(tmp_path: Path) -> None:
    """Rank 3 has left; rank 2 is as far behind as staleness allows, and then further."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(2))
if rank == 3:
    raise SystemExit
while len(malt.alive()) > 3:
    time.sleep(0.01)
if rank == 2:
    await_flag(0), await_flag(1)
else:
    for _ in range(2):
        v.scatter()
        v.gather(malt.SUM, staleness=2, quorum=0.5)
    tell(bounded=[error_of(v.gather, malt.SUM, staleness=1, quorum=0.5, timeout=0.3)])
    raise_flag(rank)
malt.barrier()
""",
    )
    for rank in (0, 1):
        (error,) = result.told[rank]["bounded"]
        assert error.kind == "TimeoutError"
        assert error.ranks == (2,)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        1,
        """
malt.init(timeout=60)
vectors = [malt.vector(np.zeros(2)), malt.sparse_vector(5, capacity=5)]
tell(errors=[[
    error_of(v.gather, quorum=0),
    error_of(v.gather, quorum=1.5),
    error_of(v.gather, quorum="x"),
    error_of(v.gather, quorum=True),
    error_of(v.gather, deadline=-1),
    error_of(v.gather, deadline="soon"),
    error_of(v.gather, deadline=[1]),
    error_of(v.gather, staleness=0, quorum=0.5),
] for v in vectors])
""",
    )
    for errors in result.told[0]["errors"]:
        quorums = [f"quorum is {each}; it is a share" for each in ("0", "1.5", "'x'", "True")]
        words = ["deadline is -1", "'soon'", "[1]", "staleness 0"]
        for error, word in zip(errors, [*quorums, *words], strict=True):
            assert error.kind == "ConfigError"
            assert error.says(word)
