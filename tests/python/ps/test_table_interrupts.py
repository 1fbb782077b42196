"""malt.ps.Table: what an interrupt at any moment of a call leaves."""

from __future__ import annotations

from pathlib import Path

from jobs import run_job


def test_table_that_an_interrupted_rank_makes_again_is_the_same_on_all_ranks(
    tmp_path: Path,
) -> None:
    body = """
from interrupts import interrupts_of_rank_0
malt.init(timeout=1)
files = "_table.py", "_arguments.py", "_seat.py", "_joining.py", "calls.py"
sums, kinds, moments = set(), set(), 0
make = lambda: malt.ps.Table(10, staleness=0)
for where, errors, table in interrupts_of_rank_0("table", make, files, step=6):
    table.push([1, 7], rank + 1)
    table.clock()
    sums.add(tuple(table.pull([1, 7])))
    table.close()
    kinds |= {type(error).__name__ for error in errors}
    moments += 1
    table = None
tell(sums=sums, kinds=kinds, moments=moments)
"""
    result = run_job(tmp_path, 2, body)
    assert result.each("sums") == [{(3, 3)}] * 2
    assert result.told[0]["moments"] > 20
    assert "KeyboardInterrupt" in result.told[0]["kinds"]
    assert result.told[1]["kinds"] <= {"ConfigError", "TimeoutError"}


def test_interrupted_calls_leave_each_push_whole_and_each_clock_counted_once(
    tmp_path: Path,
) -> None:
    body = """
from interrupts import interrupts
malt.init(timeout=10)
table = malt.ps.Table(1000, dtype=np.float64)
if rank == 0:
    before, seen = 0, set()
    for where in interrupts(lambda: table.push(None, 1.0)):
        values = np.unique(table.pull())
        seen.add((len(values), values[0] - before))
        before = values[0]
    clocks, before = set(), 0
    for where in interrupts(table.clock):
        clocks.add(table.iteration - before)
        before = table.iteration
    sums = set()
    for where in interrupts(lambda: sums.add(table.pull().sum())):
        pass
    tell(seen=seen, clocks=clocks, sums=len(sums))
malt.barrier()
table.close()
"""
    told = run_job(tmp_path, 2, body).told[0]
    assert told["seen"] == {(1, 0), (1, 1)}
    assert told["clocks"] == {0, 1}
    assert told["sums"] == 1
