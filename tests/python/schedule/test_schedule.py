"""Rounds of a scheduled program: the same on all ranks, in flight as far as staleness allows."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job

import malt

# Least squares over four columns a rank, divided anew in each round. A log of the calls shows which
# state each push() saw.
PROGRAM = """
class Counting:
    def __init__(self, most, die_at=None):
        self.state, self.drawn, self.most, self.die_at = np.zeros(size * 4), 0, most, die_at
        self.pulled, self.seen, self.random = 0, [], np.random.default_rng(3)

    def schedule(self, ranks):
        if self.drawn == self.most:
            return None
        self.drawn += 1
        return np.array_split(self.random.permutation(len(self.state)), ranks)

    def push(self, part):
        self.seen.append(self.drawn - 1 - self.pulled)
        if self.drawn == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.cos(self.state[part] + part)

    def pull(self, results):
        self.pulled += 1
        assert [result.rank for result in results] == sorted(result.rank for result in results)
        for result in results:
            self.state[result.part] += result.values[: len(result.part)]
"""


def alone(ranks: int, rounds: int, staleness: int) -> Any:
    """The same rounds in one process."""
    random, state = np.random.default_rng(3), np.zeros(ranks * 4)
    flight: list[Any] = []
    for _ in range(rounds):
        part = random.permutation(len(state))
        flight.append((part, np.cos(state[part] + part)))
        if len(flight) > staleness:
            part, values = flight.pop(0)
            state[part] += values
    for part, values in flight:
        state[part] += values
    return state


@pytest.mark.parametrize(("ranks", "staleness"), [(1, 0), (1, 2), (2, 0), (3, 2), (2, 5)])
def test_each_push_sees_a_state_as_old_as_the_staleness(
    tmp_path: Path, ranks: int, staleness: int
) -> None:
    result = run_job(
        tmp_path,
        ranks,
        PROGRAM
        + f"""
program = Counting(12)
rounds = malt.optimize.schedule.run(program, length=8, staleness={staleness})
tell(rounds=rounds, state=program.state, seen=program.seen)
again = Counting(100)
limited = malt.optimize.schedule.run(again, length=8, rounds=4, staleness={staleness})
tell(limited=limited, drawn=again.drawn)
""",
    )
    assert result.code == 0, result.output
    for told in result.told:
        assert told["rounds"] == 12
        assert told["seen"] == [min(k, staleness) for k in range(12)]
        assert np.array_equal(told["state"], alone(ranks, 12, staleness))
        assert told["limited"] == told["drawn"] == 4


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_dead_rank_is_named_on_all_ranks_that_are_left_and_they_go_on(
    tmp_path: Path, staleness: int
) -> None:
    result = run_job(
        tmp_path,
        4,
        PROGRAM
        + f"""
program = Counting(50, die_at=9 if rank == 2 else None)
tell(error=error_of(malt.optimize.schedule.run, program, length=8, staleness={staleness}))
rest = Counting(50)
tell(rounds=malt.optimize.schedule.run(rest, length=8, staleness={staleness}), state=rest.state)
tell(pulled=program.pulled)
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
    )
    left = [result.told[rank] for rank in (0, 1, 3)]
    for told in left:
        assert told["error"].kind == "PeerError"
        assert told["error"].ranks == (2,)
        assert told["error"].says("rank 2 has died or left the job", "put back a state")
        assert told["error"].says(f"this rank has pulled {told['pulled']} rounds")
        assert told["pulled"] <= 9
        assert told["rounds"] == 50
        assert np.array_equal(told["state"], left[0]["state"])


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("call", ["schedule", "push", "pull"])
def test_an_exception_in_a_call_of_one_rank_is_raised_on_all_ranks(
    tmp_path: Path, call: str, staleness: int
) -> None:
    result = run_job(
        tmp_path,
        3,
        PROGRAM
        + f"""
class Failing(Counting):
    def count(self, call):
        self.calls[call] = self.calls.get(call, 0) + 1
        if rank == 1 and call == {call!r} and self.calls[call] == self.fail_at:
            raise ValueError("no such film")

    def schedule(self, ranks):
        self.count("schedule")
        return super().schedule(ranks)

    def push(self, part):
        self.count("push")
        return super().push(part)

    def pull(self, results):
        super().pull(results)
        self.count("pull")

errors = []
for at in (1, 7, 12):  # the last pull() comes after the last schedule()
    program = Failing(12)
    program.calls, program.fail_at = {{}}, at
    errors.append(error_of(malt.optimize.schedule.run, program, length=8, staleness={staleness}))
again = Counting(12)
tell(errors=errors, rounds=malt.optimize.schedule.run(again, length=8, staleness={staleness}))
tell(state=again.state)
""",
    )
    assert result.code == 0, result.output
    for told in result.told:
        for error in told["errors"]:
            assert error.kind == "ConfigError", error
            assert error.says("malt.optimize.schedule.run(): rank 1: ValueError: no such film")
            assert error.seconds < 20
        assert told["rounds"] == 12
        assert np.array_equal(told["state"], result.told[0]["state"])


def test_a_rank_whose_push_takes_too_long_is_named_and_no_rank_counts_as_dead(
    tmp_path: Path,
) -> None:
    result = run_job(
        tmp_path,
        2,
        """
meet("started")
malt.init(timeout=2)

class Slow:
    def schedule(self, ranks):
        return [None] * ranks

    def push(self, part):
        if rank == 1:
            await_flag("waited")
        return []

    def pull(self, results):
        pass

tell(error=error_of(malt.optimize.schedule.run, Slow(), length=1, rounds=1))
raise_flag("waited")
meet("ended")
tell(again=error_of(malt.optimize.schedule.run, Slow(), length=1, rounds=1))
""",
    )
    waited, late = result.each("error")
    assert waited.kind == "TimeoutError", waited
    assert waited.says(
        "malt.optimize.schedule.run(): rank 1 has not pushed round 1 within 2 s", "malt.init()"
    )
    assert waited.ranks == (1,)
    assert waited.seconds < 6
    assert late.kind == "ConfigError", late
    assert late.says("rank 0 has ended this call early", "at the time limit of a wait")
    assert result.each("again") == [None, None]


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_rank_that_is_interrupted_does_not_count_as_dead(tmp_path: Path, staleness: int) -> None:
    result = run_job(
        tmp_path,
        3,
        PROGRAM
        + f"""
class Interrupted(Counting):
    def __init__(self, at):
        super().__init__(12)
        self.at = at

    def push(self, part):
        if self.drawn == 7 and self.at == "push" and rank == 1:
            raise KeyboardInterrupt
        if self.drawn == 7 and self.at == "a wait" and rank == 0:
            await_flag(self.at)
        return super().push(part)

    def pull(self, results):
        super().pull(results)
        if self.pulled == 12 and self.at == "the end" and rank == 0:
            await_flag(self.at)

errors = []
for at in ("push", "a wait", "the end"):
    def run():
        malt.optimize.schedule.run(Interrupted(at), length=8, staleness={staleness})
    errors.append(interrupted(run) if rank == 1 and at != "push" else error_of(run))
    if rank == 1:
        raise_flag(at)
tell(errors=errors, alive=malt.alive())
tell(rounds=malt.optimize.schedule.run(Counting(12), length=8, staleness={staleness}))
""",
    )
    assert result.code == 0, result.output
    for rank, told in enumerate(result.told):
        for error in told["errors"]:
            if rank == 1:
                assert error.kind == "builtins.KeyboardInterrupt", error
            else:
                assert error.kind == "ConfigError", error
                assert error.says("malt.optimize.schedule.run(): rank 1 has ended this call early")
            assert error.seconds < 20
        assert told["alive"] == (0, 1, 2)
        assert told["rounds"] == 12


def test_a_rank_whose_schedule_ends_later_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        PROGRAM
        + """
malt.init(timeout=2)

class Longer(Counting):
    def push(self, part):
        while self.drawn == 6 and not flag_is_up("waited"):
            time.sleep(0.01)
        return super().push(part)

error = error_of(malt.optimize.schedule.run, Longer(5 + rank), length=8)
raise_flag("waited")
tell(error=error)
""",
        code=None,
    )
    error = result.told[0]["error"]
    assert error.kind == "TimeoutError"
    assert error.says("this rank ended after 5 rounds, and rank 1 has not ended within 2 s")


def test_arguments_that_are_wrong_on_one_rank_or_differ_are_refused_on_all(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        PROGRAM
        + """
malt.init(timeout=60)
errors = [
    error_of(malt.optimize.schedule.run, Counting(3), **{"length": 8, **options})
    for options in (
        {"length": rank},
        {"length": 8 + rank},
        {"staleness": rank},
        {"rounds": 3 + rank},
        {"dtype": np.float32 if rank else np.float64},
    )
]
tell(errors=errors, rounds=malt.optimize.schedule.run(Counting(3), length=8))
""",
    )
    assert result.code == 0, result.output
    for told in result.told:
        for error, what in zip(
            told["errors"],
            (
                "rank 0: length is 0; it must be a whole number at least 1",
                "length is 8 on rank 0, and 9 on rank 1; give all ranks the same",
                "staleness is 0 on rank 0, and 1 on rank 1",
                "rounds is 3 on rank 0, and 4 on rank 1",
                "dtype is float64 on rank 0, and float32 on rank 1",
            ),
            strict=True,
        ):
            assert error.kind == "ConfigError"
            assert error.says(f"malt.optimize.schedule.run(): {what}")
            assert error.seconds < 20
        assert told["rounds"] == 3


def test_a_rank_that_has_left_takes_no_part_and_is_not_told_of(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        PROGRAM
        + """
malt.init(timeout=60)
if rank == 1:
    malt.finalize()
else:
    while len(malt.alive()) == 2:
        time.sleep(0.01)
    tell(rounds=malt.optimize.schedule.run(Counting(3), length=8))
""",
    )
    assert result.told[0]["rounds"] == 3
    assert result.output == ""


def test_unfit_arguments_and_results_are_refused() -> None:
    class Wrong:
        def __init__(self, parts: Any) -> None:
            self.parts = parts

        def schedule(self, ranks: int) -> Any:
            return self.parts

        def push(self, part: Any) -> Any:
            return part

        def pull(self, results: Any) -> None:
            raise AssertionError("nothing was pushed")

    run = malt.optimize.schedule.run
    with pytest.raises(malt.ConfigError, match=r"schedule\(\) returned 2 parts for 1 ranks"):
        run(Wrong([1, 2]), length=1)
    with pytest.raises(malt.ConfigError, match=r"push\(\) returned 3 values; length=2 is the most"):
        run(Wrong([[1, 2, 3]]), length=2)
    with pytest.raises(malt.ConfigError, match=r"push\(\) returned None: it must return"):
        run(Wrong([None]), length=2)
    for dtype, values in (("int64", [0.9]), ("float32", ["1"]), ("float64", [1j])):
        with pytest.raises(malt.ConfigError, match=rf"push\(\) returned.* has dtype={dtype}"):
            run(Wrong([values]), length=2, dtype=dtype)
    for dtype, beyond in (("int32", 2**31), ("float32", 1e39), ("int64", np.uint64(2**63))):
        with pytest.raises(malt.ConfigError, match=f"push.* returned .*, which {dtype} does not"):
            run(Wrong([np.array([beyond])]), length=2, dtype=dtype)
    for options, message in (
        ({"length": 0}, "length is 0; it must be a whole number at least 1"),
        ({"length": 1, "staleness": -1}, "staleness is -1; it must be a whole number at least 0"),
        ({"length": 1, "rounds": -1}, "rounds is -1"),
        ({"length": 1, "dtype": "float16"}, "dtype is float16; it must be one of float32, float64"),
        ({"length": 1, "dtype": "x"}, "dtype is 'x'; it must be one of float32, float64"),
    ):
        with pytest.raises(malt.ConfigError, match=message):
            run(Wrong(None), **options)


def test_independent_picks_the_highest_priorities_that_do_not_disturb_one_another() -> None:
    correlations = np.eye(5)
    correlations[0, 1] = correlations[1, 0] = -0.9
    correlations[2, 3] = correlations[3, 2] = 0.2
    pick = malt.optimize.schedule.independent
    assert pick([5, 6, 1, 2, 0], correlations, bound=0.5, most=9).tolist() == [1, 3, 2, 4]
    assert pick([5, 6, 1, 2, 0], correlations, bound=0.1, most=9).tolist() == [1, 3, 4]
    assert pick([5, 6, 1, 2, 0], correlations, bound=1, most=2).tolist() == [1, 0]
    for bad, message in (
        (([1, 2], np.eye(3), 0.5, 1), "correlations"),
        (([1, 2], np.eye(2), 1.5, 1), "bound is 1.5; it must be a number at least 0"),
        (([1, 2], np.eye(2), 0.5, -1), "most is -1"),
        (([1, 2], np.eye(2), 0.5, 1.5), "most is 1.5; it must be a whole number at least 0"),
        (([1, np.nan], np.eye(2), 0.5, 1), "not finite; give constant columns 0"),
    ):
        with pytest.raises(malt.ConfigError, match=message):
            pick(*bad[:2], bound=bad[2], most=bad[3])
