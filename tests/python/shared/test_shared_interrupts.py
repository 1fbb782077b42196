"""malt.ps.Shared: what an interrupt or a time-out at any moment of a drain leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job


@pytest.mark.parametrize("dtype", ["int64", pytest.param("float64", marks=pytest.mark.long)])
def test_drain_that_is_interrupted_is_made_once(tmp_path: Path, dtype: str) -> None:
    """Rank 0 is interrupted at the next moment of each drain, until none is left."""
    result = run_job(
        tmp_path,
        2,
        """
from interrupts import Moments
malt.init(timeout=10)
array = np.zeros(3, dtype)
shared = malt.ps.Shared(array)
most = 0
for at in range(1, 400):
    array += 1
    moments = Moments(at if rank == 0 else 0, ["replica", "shared"])
    while True:
        try:
            moments.run(shared.drain) if not moments.where else shared.drain()
            break
        except KeyboardInterrupt:
            pass
    assert array.tolist() == [2 * at] * 3, (at, moments.where, array)
    most = max(most, moments.count)
tell(all_moments=most < 400)
""",
        dtype=dtype,
    )
    assert result.told[0]["all_moments"]


def test_drain_that_times_out_in_any_step_is_made_once(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=10)
array = np.zeros(200_000)
shared = malt.ps.Shared(array)
draw = np.random.default_rng(rank)
late = 0
for drain in range(1, 150):
    array += 1
    while True:
        try:
            shared.drain(timeout=draw.choice([0, 1e-4, 3e-4, 1e-3]))
            break
        except malt.TimeoutError:
            late += 1
    assert (array == 2 * drain).all(), drain
tell(late=late)
malt.barrier()
""",
    )
    assert all(late > 50 for late in result.each("late"))


def test_drain_that_times_out_again_and_again_keeps_what_is_changed_meanwhile(
    tmp_path: Path,
) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=10)
array = np.zeros(3)
shared = malt.ps.Shared(array)
array += 1
if rank == 0:
    for _ in range(20):
        try:
            shared.drain(timeout=0.01)
        except malt.TimeoutError:
            array += 1
meet("late")
shared.drain()
first = array.copy()
shared.drain()
tell(first=first, second=array)
malt.barrier()
""",
    )
    assert [first.tolist() for first in result.each("first")] == [[22.0] * 3, [2.0] * 3]
    assert [second.tolist() for second in result.each("second")] == [[22.0] * 3] * 2
