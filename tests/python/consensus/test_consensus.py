"""malt.optimize.Consensus between real ranks: optima, deaths, waits and errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Result, refused, run_job

# Least squares with rows on each rank. `total` is the optimum of the functions of some ranks.
SQUARES = """
random = np.random.default_rng(5)
A = [random.standard_normal((12, 8)) * (1 + each) for each in range(size)]
b = [each @ np.arange(8.0) + 3 * random.standard_normal(12) for each in A]

def total(ranks):
    return np.linalg.solve(sum(A[i].T @ A[i] for i in ranks), sum(A[i].T @ b[i] for i in ranks))

def solve(c, x):
    x[:] = np.linalg.solve(A[rank].T @ A[rank] + c.rho * np.eye(8),
                           A[rank].T @ b[rank] + c.rho * c.target)

def agree(c, x, most=20000):
    while not c.converged and c.rounds < most:
        solve(c, x)
        c.exchange()
"""
ASYNCHRONOUS: list[dict[str, Any]] = [
    {"quorum": 0.5},
    {"quorum": 1},
    {"max_delay": 0},
    {"max_delay": 7},
    {"quorum": 0.3, "max_delay": 3},
]


def run(directory: Path, size: int, body: str, *arguments: str, **given: Any) -> Result:
    return run_job(directory, size, "malt.init(timeout=60)\n" + body, *arguments, **given)


def test_synchronous_rounds_find_the_optimum_with_the_same_bits_in_each_run(tmp_path: Path) -> None:
    script = (
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, rho=rho, rtol=1e-9, atol=1e-9)
agree(c, x)
tell(z=c.z, total=total(range(size)), rounds=c.rounds, ranks=c.ranks, y=c.rho * c.u, x=x)
tell(residuals=(c.primal_residual, c.dual_residual), shared=c.is_shared)
"""
    )
    found = []
    for turn, rho in enumerate((1e-3, 1e-3, 1e4)):
        (tmp_path / str(turn)).mkdir()
        found.append(run(tmp_path / str(turn), 3, script, rho=rho))
        for told in found[-1].told:
            assert np.allclose(told["z"], told["total"], rtol=1e-7)
            assert np.array_equal(told["z"], found[-1].told[0]["z"])
            assert np.allclose(told["x"], told["z"], rtol=1e-6)
            assert told["ranks"] == (0, 1, 2)
            assert told["rounds"] < 500
            assert max(told["residuals"]) < 1e-4
            assert told["shared"].all()
        multipliers = np.array(found[-1].each("y"))
        assert np.abs(multipliers.sum(0)).max() < 1e-6 * np.abs(multipliers).max()
    assert np.array_equal(found[0].told[0]["z"], found[1].told[0]["z"])
    assert found[0].told[0]["rounds"] == found[1].told[0]["rounds"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("options", ASYNCHRONOUS)
def test_asynchronous_rounds_find_the_same_optimum_and_all_ranks_stop(
    tmp_path: Path, options: dict[str, Any], transport: str
) -> None:
    result = run(
        tmp_path,
        4,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, rtol=1e-7, atol=1e-9, **options)
while not c.converged:
    if rank == 2:
        time.sleep(0.002)
    solve(c, x)
    c.exchange()
tell(z=c.z, total=total(range(size)), y=c.rho * c.u)
b[rank] += 5                                # another problem, from where the ranks are
solve(c, x)
c.exchange()
tell(again=c.converged)
agree(c, x, most=10**6)
tell(more=c.z, both=sum(A[i].T @ b[i] for i in [rank]))
""",
        options=options,
        environ={"MALT_TRANSPORT": transport},
    )
    assert result.each("again") == [False] * 4
    random = np.random.default_rng(5)
    parts = [random.standard_normal((12, 8)) * (1 + each) for each in range(4)]
    squares = sum(each.T @ each for each in parts)
    second = np.linalg.solve(squares, np.sum(result.each("both"), axis=0))
    for told in result.told:
        assert np.allclose(told["z"], told["total"], rtol=1e-4, atol=1e-4)
        assert np.array_equal(told["z"], result.told[0]["z"])
        assert np.allclose(told["more"], second, rtol=1e-4, atol=1e-4)
    multipliers = np.array(result.each("y"))
    assert np.abs(multipliers.sum(0)).max() < 1e-2 * np.abs(multipliers).max()


@pytest.mark.parametrize("options", [{}, {"max_delay": 4}])
def test_a_prox_gives_the_optimum_of_a_lasso(tmp_path: Path, options: dict[str, Any]) -> None:
    result = run(
        tmp_path,
        3,
        SQUARES
        + """
def soft(v, step):
    return np.sign(v) * np.maximum(0, np.abs(v) - 400 * step)

x = np.zeros(8)
c = malt.optimize.Consensus(x, prox=soft, rtol=1e-9, atol=1e-9, **options)
agree(c, x)
gradient = sum(A[i].T @ (A[i] @ c.z - b[i]) for i in range(size))
tell(z=c.z, gradient=gradient)
""",
        options=options,
    )
    for told in result.told:
        is_zero = told["z"] == 0
        assert 0 < is_zero.sum() < 8
        assert np.abs(told["gradient"][is_zero]).max() <= 400
        ends = -400 * np.sign(told["z"][~is_zero])
        assert np.allclose(told["gradient"][~is_zero], ends, atol=1e-2)


# Rank i holds the rows i, ..., i + 2 of a ring of as many rows as ranks, and draws the sum of their
# elements to something.
RING = """
ids = (rank + np.arange(3)) % (size + 1)
x = np.zeros((3, 2), dtype)
c = malt.optimize.Consensus(x, ids=ids, rtol=1e-5, atol=1e-7, **options)
while not c.converged and c.rounds < 5000:
    for column in range(2):
        H = np.ones((3, 3)) + 0.1 * np.eye(3) + c.rho * np.diag(c.is_shared)
        near = 0.1 * ids + c.rho * c.is_shared * c.target[:, column]
        x[:, column] = np.linalg.solve(H, (rank + column) + near)
    c.exchange()
tell(z=c.z, ids=ids, shared=c.is_shared, rounds=c.rounds)
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"quorum": 0.5}])
def test_ranks_agree_on_the_rows_that_several_of_them_hold(
    tmp_path: Path, dtype: str, options: dict[str, Any]
) -> None:
    result = run(tmp_path, 4, RING, dtype=dtype, options=options)
    h, g = np.zeros((5, 5)), np.zeros((5, 2))
    for rank, ids in enumerate(result.each("ids")):
        h[np.ix_(ids, ids)] += np.ones((3, 3)) + 0.1 * np.eye(3)
        g[ids] += rank + np.arange(2) + 0.1 * ids[:, None]
    optimum = np.linalg.solve(h, g)
    for told in result.told:
        assert told["z"].dtype == dtype
        assert np.allclose(told["z"], optimum[told["ids"]], atol=2e-2)
        assert told["shared"].all()


@pytest.mark.parametrize("options", [{}, {"quorum": 0.5}, {"max_delay": 3}])
def test_a_dead_rank_leaves_the_sum(tmp_path: Path, options: dict[str, Any]) -> None:
    result = run(
        tmp_path,
        4,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, rtol=1e-8, atol=1e-9, **options)
while not c.converged:
    if rank == 1 and c.rounds == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    solve(c, x)
    c.exchange()
tell(z=c.z, left=total([0, 2, 3]), ranks=c.ranks)
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        options=options,
    )
    for rank in (0, 2, 3):
        told = result.told[rank]
        assert told["ranks"] == (0, 2, 3)
        assert np.allclose(told["z"], told["left"], rtol=1e-5)


def test_a_row_whose_other_holders_have_died_is_no_longer_shared(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        3,
        """
ids = np.array([[0, 1], [1, 2], [2, 3]][rank])
x = np.zeros((2, 1))
c = malt.optimize.Consensus(x, ids=ids)
tell(first=c.is_shared)
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
while not c.converged:
    weight = 1 + c.rho * c.is_shared
    x[:, 0] = (rank + c.rho * c.is_shared * c.target[:, 0]) / weight
    c.exchange()
tell(shared=c.is_shared, z=c.z)
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
    )
    assert result.told[0]["first"].tolist() == [False, True]
    assert result.told[1]["first"].tolist() == [True, True]
    assert result.told[1]["shared"].tolist() == [True, False]
    assert np.allclose(result.told[0]["z"][:, 0], [0, 0.5], atol=1e-3)
    assert np.allclose(result.told[1]["z"][:, 0], [0.5, 1], atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"quorum": 1}])
def test_a_rank_that_shares_no_row_keeps_its_own_solution(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result = run(
        tmp_path,
        3,
        """
x = np.zeros(2)
c = malt.optimize.Consensus(x, ids=[[0, 1], [1, 2], [7, 5]][rank], **options)
while not c.converged:
    x[:] = (rank + c.rho * c.is_shared * c.target) / (1 + c.rho * c.is_shared)
    c.exchange()
tell(z=c.z, shared=c.is_shared.tolist())
""",
        options=options,
    )
    assert result.each("shared") == [[False, True], [True, False], [False, False]]
    wanted = [[0, 0.5], [0.5, 1], [2, 2]]
    assert np.allclose(result.each("z"), wanted, atol=1e-3)


def test_ranks_that_never_hear_of_a_slow_one_go_on_for_max_delay_rounds(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        3,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, max_delay=5, adapt=False)
solve(c, x)
c.exchange()
tell(rounds=c.rounds)
if rank == 2:
    await_flag("tried 0")
    await_flag("tried 1")
else:
    for _ in range(5):
        solve(c, x)
        c.exchange()
    solve(c, x)
    error = error_of(c.exchange, timeout=0.5)
    tell(error=error, rounds=c.rounds)
    raise_flag(f"tried {rank}")
agree(c, x)
tell(z=c.z, total=total(range(size)))
""",
    )
    for told in result.told[:2]:
        assert told["rounds"] == 6
        assert told["error"].kind == "TimeoutError"
        assert 2 in told["error"].ranks  # and the other one, if that has given up before
        assert told["error"].says("sent no update within 0.5 s", "round 7", "max_delay=5")
    for told in result.told:
        assert np.allclose(told["z"], told["total"], rtol=1e-2)


def test_a_quorum_is_of_the_ranks_that_are_left(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        4,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, quorum=0.5, max_delay=100, adapt=False, rtol=1e-9, atol=0)
solve(c, x)
c.exchange()
malt.barrier()
if rank == 3:                               # the others are a quorum
    await_flag("gone on")
elif rank == 2:                             # rank 0 and 1 are not
    agree(c, x, most=20)
    await_flag("gone on")
else:
    error = None
    while not error:
        solve(c, x)
        error = error_of(c.exchange, timeout=2)
    tell(error=error, rounds=c.rounds)
    raise_flag(f"tried {rank}")
    await_flag("tried 0")
    await_flag("tried 1")
    raise_flag("gone on")
agree(c, x)
tell(z=c.z, total=total(range(size)))
""",
    )
    for told in result.told[:2]:
        assert 15 <= told["rounds"] <= 25
        assert told["error"].kind == "TimeoutError"
        assert {2, 3} <= set(told["error"].ranks)
    for told in result.told:
        assert np.allclose(told["z"], told["total"], rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"quorum": 1}])
def test_ranks_do_not_wait_for_one_that_has_closed_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result = run(
        tmp_path,
        3,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, rtol=1e-8, **options)
agree(c, x, most=5 if rank == 1 else 10000)
if rank == 1:
    c.close()
    tell(error=error_of(c.exchange))
    await_flag("done 0")
    await_flag("done 2")
raise_flag(f"done {rank}")
tell(z=c.z, left=total([0, 2]), ranks=c.ranks)
""",
        options=options,
    )
    assert refused(result.told[1]["error"], "has been closed")
    for rank in (0, 2):
        assert result.told[rank]["ranks"] == (0, 2)
        assert np.allclose(result.told[rank]["z"], result.told[rank]["left"], rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"quorum": 1}, {"max_delay": 2}])
def test_a_value_that_is_not_finite_is_refused_on_all_ranks_which_then_go_on(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result = run(
        tmp_path,
        3,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, **options)
errors = []
while not c.converged:
    solve(c, x)
    if rank == 1 and c.rounds == 3 and not errors:
        x[2] = np.nan
    error = error_of(c.exchange)
    if error:
        errors.append(error)
        raise_flag(f"heard {rank}")
        for other in range(size):
            await_flag(f"heard {other}")
tell(errors=errors, z=c.z, total=total(range(size)))
""",
        options=options,
    )
    for told in result.told:
        assert len(told["errors"]) == 1
        assert refused(told["errors"][0], "a value that is not finite on rank 1")
        assert np.allclose(told["z"], told["total"], rtol=1e-2)


def test_a_synchronous_round_names_the_rank_that_does_not_come_and_can_be_made_later(
    tmp_path: Path,
) -> None:
    result = run(
        tmp_path,
        2,
        SQUARES
        + """
x = np.zeros(8)
c = malt.optimize.Consensus(x, rtol=1e-8)
if rank == 0:
    solve(c, x)
    tell(error=error_of(c.exchange, timeout=0.3), rounds=c.rounds)
    raise_flag("tried")
await_flag("tried")
while not c.converged:
    solve(c, x)
    while error_of(c.exchange):     # one that comes while another gives up does so too
        pass
tell(z=c.z, total=total(range(size)))
""",
    )
    error = result.told[0]["error"]
    assert error.kind == "TimeoutError"
    assert error.ranks == (1,)
    assert result.told[0]["rounds"] == 0
    for told in result.told:
        assert np.allclose(told["z"], told["total"], rtol=1e-5)
