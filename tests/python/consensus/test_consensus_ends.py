"""Ends of rounds of malt.optimize.Consensus: inexact solvers, constraints, closing, and x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Result, refused, run_job

import malt
from malt._consensus import arguments


def run(directory: Path, size: int, body: str, *given: str, **named: Any) -> Result:
    return run_job(directory, size, "malt.init(timeout=60)\n" + body, *given, **named)


# Gradient steps on |x - wanted|^2 / 2. Where all ranks have the same function, and in the rows that
# only one has, the primal residual is 0 throughout.
INEXACT = """
def solve(wanted, **options):
    x = np.zeros(np.shape(wanted))
    c = malt.optimize.Consensus(x, **options)
    while not c.converged and c.rounds < 9000:
        for _ in range(3):
            x -= 0.003 * (x - wanted + c.rho * c.is_shared * (x - c.target))
        c.exchange()
    c.close()
    return c.z, c.rho

tell(same=solve([1, 100.0], **options))
tell(small=solve([1, 100.0], rho=1e-6, **options))
tell(own=solve([1, 100.0], ids=[0, 10 + rank], **options))
tell(differs=solve([1.0 + rank] + [100.0] * 9, ids=[0, *range(10 + 9 * rank, 19 + 9 * rank)],
                   **options))
"""


@pytest.mark.parametrize("options", [{}, {"max_delay": 2}])
def test_rounds_of_an_inexact_solver_do_not_end_while_x_moves(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result = run(tmp_path, 2, INEXACT, options=options)
    for told in result.told:
        assert np.allclose(told["same"][0], [1, 100], rtol=0.02)
        assert np.allclose(told["small"][0], [1, 100], rtol=0.02)
        assert np.allclose(told["own"][0], [1, 100], rtol=0.02)
        assert np.allclose(told["differs"][0], [1.5] + [100] * 9, rtol=0.02)
        if not options:  # with a delay, x - z is the distance that x has gone meanwhile
            for rho in (told["same"][1], told["own"][1], told["differs"][1]):
                assert rho > 0.1


@pytest.mark.parametrize("options", [{}, {"ids": [3, 5]}])
def test_alone_the_rounds_end_when_the_solver_stays(options: dict[str, Any]) -> None:
    with malt.init():
        x, wanted = np.zeros(2), np.array([1.0, 100])
        c = malt.optimize.Consensus(x, **options)
        while not c.converged:
            x -= 0.01 * (x - wanted + c.rho * c.is_shared * (x - c.target))
            c.exchange()
        assert np.allclose(c.z, wanted, rtol=0.02)


def test_norms_that_overflow_do_not_count_as_small() -> None:
    with malt.init(), np.errstate(over="ignore"):
        x = np.ones(3, np.float32)
        c = malt.optimize.Consensus(x, prox=lambda v, step: v / 2)
        for scale in (1e20, 2e20, 4e20, 8e20):
            x[:] = scale
            c.exchange()
            assert not c.converged


def test_constraints_without_a_common_solution_are_an_error_on_all_ranks(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        2,
        """
def solve(bound, steep=0.0, rho=1.0):
    x = np.zeros(2)
    c = malt.optimize.Consensus(x, rho=rho)
    while not c.converged and c.rounds < 1000:
        near = (steep * (1e3 if rank else -1e3) + c.rho * c.target) / (steep + c.rho)
        x[:] = np.maximum(near, 1) if rank else np.minimum(near, bound)
        c.exchange()
    return c.z

errors = [
    error_of(solve, -1.0),
    error_of(solve, -1.0, steep=1e8),               # rho cannot rise any more before x stays
    error_of(solve, -1.0, steep=1e4, rho=1e-6),
]
tell(errors=errors, z=solve(1.0))
""",
    )
    for told in result.told:
        for error in told["errors"]:
            assert refused(error, "is infeasible", "no x meets the constraints of all ranks")
        assert np.allclose(told["z"], 1, atol=1e-3)


def test_functions_far_steeper_than_rho_are_not_infeasible(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        2,
        """
x, steep = np.zeros(2), 1e14
c = malt.optimize.Consensus(x)
while not c.converged and c.rounds < 1000:
    x[:] = (steep * np.array([1.0, 2.0]) * (rank + 1) + c.rho * c.target) / (steep + c.rho)
    c.exchange()
tell(z=c.z)
""",
    )
    assert np.allclose(result.each("z"), [1.5, 3], rtol=1e-3)


# Rank 1 and 2 each hold one of rank 0's two slots when rank 0 closes, or finds that x is not
# finite.
HELD = """
from malt._consensus import rounds

x, reads = np.zeros(2), []
c = malt.optimize.Consensus(x, max_delay=3, adapt=False, rtol=1e-9, atol=1e-9)

def solve():
    x[:] = (np.array([1.0, 5]) * (rank + 1) + c.rho * c.target) / (1 + c.rho)

def go_on():
    solve()
    c.exchange()

keep = rounds.Asynchronous._keep

def slow(self, mine, updates):
    if reads and any(update.rank == 0 for update in updates):
        raise_flag(reads.pop())
        await_flag("said")
    keep(self, mine, updates)

rounds.Asynchronous._keep = slow
go_on()
malt.barrier()
if rank == 0:
    await_flag("1 is ready")
    go_on()
    await_flag("1 reads")
    go_on()
    raise_flag("sent again")
    await_flag("2 reads")
    if closes:
        c.close()
    else:
        x[0] = np.nan
        error = error_of(c.exchange)
    raise_flag("said")
else:
    c._rounds._updates.gather(c._rounds._keep)  # what has come so far
    if rank == 1:
        raise_flag("1 is ready")
    else:
        await_flag("sent again")
    reads.append(f"{rank} reads")
if rank or not closes:
    errors = [error] if rank == 0 else []
    while not c.converged:
        solve()
        error = error_of(c.exchange)
        if error:
            errors.append(error)
    tell(z=c.z, ranks=c.ranks, errors=errors)
malt.barrier()
"""


@pytest.mark.parametrize("closes", [True, False])
def test_a_word_arrives_although_every_slot_is_being_read(tmp_path: Path, closes: bool) -> None:
    result = run(tmp_path, 3, HELD, closes=closes)
    for told in result.told[1 if closes else 0 :]:
        assert told["ranks"] == ((1, 2) if closes else (0, 1, 2))
        assert np.allclose(told["z"], np.array([1, 5]) * (2.5 if closes else 2))
        assert len(told["errors"]) == (0 if closes else 1)
        assert all(refused(each, "not finite on rank 0") for each in told["errors"])


# From round 3 to 5 rank 1 and 2 each hold one of rank 0's two slots. Rank 3 waits for an update of
# rank 0, and in round 5 rank 0 waits for one of each other rank.
SKIPPED = """
from malt._consensus import rounds

x, c = np.zeros(2), None
keep, wait = rounds.Asynchronous._keep, rounds.Asynchronous._await_updates

def slow(self, mine, updates):
    if rank in (1, 2) and c and c.rounds == 1 and any(update.rank == 0 for update in updates):
        raise_flag(f"{rank} reads")
        await_flag("0 waits")
    keep(self, mine, updates)

def wait_noted(self, limit):
    if rank == 0 and self.count == 2:       # its update of round 3 is there, and it has read none
        raise_flag("0 has sent 3")
        await_flag("2 reads")
        await_flag("3 waits")
    if rank == 0 and self.count == 4:
        tell(reached_nobody=not self._is_out)
        raise_flag("0 waits")
    if rank == 3 and self.count == 3:
        raise_flag("3 waits")
    return wait(self, limit)

rounds.Asynchronous._keep, rounds.Asynchronous._await_updates = slow, wait_noted
c = malt.optimize.Consensus(x, max_delay=1, adapt=False, rtol=1e-9, atol=1e-9)

def go_on():
    x[:] = (np.array([1.0, 5]) * (rank + 1) + c.rho * c.target) / (1 + c.rho)
    c.exchange(timeout=10)

go_on()
malt.barrier()
if rank == 0:
    go_on()
    raise_flag("0 has sent 2")
    await_flag("1 reads")
elif rank == 1:
    await_flag("0 has sent 2")
else:
    await_flag("0 has sent 3")
while not c.converged:
    go_on()
tell(z=c.z)
"""


def test_an_update_that_found_every_slot_being_read_is_sent_again(tmp_path: Path) -> None:
    result = run(tmp_path, 4, SKIPPED, environ={"MALT_TRANSPORT": "shm"})
    assert result.told[0]["reached_nobody"]
    assert np.allclose(result.each("z"), [2.5, 12.5])


def test_no_word_replaces_another(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        3,
        """
x = np.zeros(1)
c = malt.optimize.Consensus(x, max_delay=3)
if rank == 0:
    x[:] = np.nan
    tell(error=error_of(c.exchange))
    c.close()
    raise_flag("said")
else:
    await_flag("said")
    tell(error=error_of(c.exchange))
    while not c.converged:
        x[:] = (rank + c.rho * c.target) / (1 + c.rho)
        c.exchange()
    tell(z=c.z, ranks=c.ranks)
malt.barrier()
""",
    )
    for told in result.told:
        assert refused(told["error"], "not finite on rank 0")
    for told in result.told[1:]:
        assert told["ranks"] == (1, 2)
        assert np.allclose(told["z"], 1.5, rtol=1e-3)


def test_a_mark_ends_the_phase_of_ranks_that_do_not_find_it_done(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        2,
        """
from malt._consensus import rounds

make = rounds.Asynchronous._make_round
if rank:
    rounds.Asynchronous._make_round = lambda self: make(self) and False
x = np.zeros(1)
c = malt.optimize.Consensus(x, max_delay=0, adapt=False)
while not c.converged:
    x[:] = (rank + c.rho * c.target) / (1 + c.rho)
    c.exchange(timeout=5)
tell(z=c.z)
""",
    )
    assert np.allclose(result.each("z"), 0.5, rtol=1e-3)


def test_an_x_that_no_round_changes_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with malt.init():
        for is_rebound in (False, True):
            x = np.zeros(3)
            c = malt.optimize.Consensus(x)
            while not c.converged:
                if is_rebound:
                    x = x + 1
                else:
                    x[:] = 1
                c.exchange()
            c.exchange()
            assert len(caplog.records) == is_rebound
    assert "has changed x: was it rebound" in caplog.records[0].message


def test_ids_are_found_in_pieces(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        2,
        """
from malt._consensus import arguments

arguments._PIECE = 4
ids = np.array([[9, 3, 0, 12], [4, 12, 3, 21]][rank], np.uint8)
c = malt.optimize.Consensus(np.full(4, 1.0 + rank), ids=ids)
tell(shared=c.is_shared.tolist(), z=c.z)
""",
    )
    assert result.each("shared") == [[False, True, False, True], [False, True, True, False]]
    assert np.array_equal(result.each("z"), [[1, 1.5, 1, 1.5], [2, 1.5, 1.5, 2]])
    assert arguments._PIECE <= 2**20  # the memory of all ids up to 2^31 would be 8 GiB


@pytest.mark.parametrize("options", [{}, {"quorum": 1}])
def test_rho_becomes_what_the_curvature_of_the_functions_needs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result = run(
        tmp_path,
        2,
        """
for curvature in (1e-5, 1, 1e5):    # of functions whose sum is least at 2
    x = np.zeros(1)
    c = malt.optimize.Consensus(x, rtol=1e-4, atol=1e-9, **options)
    while not c.converged and c.rounds < 300:
        x[:] = (curvature * (1 + 2 * rank) + c.rho * c.target) / (curvature + c.rho)
        c.exchange()
    tell(**{f"rho {curvature:g}": c.rho, f"z {curvature:g}": float(c.z[0])})
    c.close()
    malt.barrier()
""",
        options=options,
    )
    for told in result.told:
        assert np.allclose([told["z 1e-05"], told["z 1"], told["z 100000"]], 2, atol=1e-2)
        assert told["rho 1e-05"] < 1e-2 < told["rho 1"] < 1e2 < told["rho 100000"]
