"""Vectors, edges and collective calls: what an interrupt at any moment leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

COLLECTIVE = """
from interrupts import interrupts_of_rank_0
malt.init(timeout=1)
right, kinds, moments = set(), set(), 0
for where, errors, made in interrupts_of_rank_0("call", MAKE, FILES, step=STEP):
    right.add(RIGHT)
    kinds |= {type(error).__name__ for error in errors}
    moments += 1
    made = None
tell(right=right, kinds=kinds, moments=moments)
malt.barrier()
"""


def sum_over(vector: str) -> str:
    return f"({vector}.array.__setitem__(0, rank + 1), {vector}.allreduce(malt.SUM), "


@pytest.mark.parametrize(
    ("make", "files", "step", "right"),
    [
        (
            "lambda: malt.vector(np.zeros(1))",
            ["calls.py"],
            1,
            sum_over("made") + "made.array[0] == 3, made.close())[2]",
        ),
        (
            "lambda: malt.allreduce(rank + 1, malt.SUM)",
            ["agree", "collective", "calls"],
            5,
            "made == 3",
        ),
        ("lambda: malt.broadcast([rank])", ["agree", "collective", "calls"], 5, "made == [0]"),
        ("malt.barrier", [""], 1, "made is None"),
        (
            "lambda: malt.Edge(0, 1)",
            ["edge", "subgroup", "agree"],
            13,
            "(made.send([7]) is None if rank == 0 else made.receive() == [7], made.close())[0]",
        ),
    ],
    ids=["vector", "allreduce", "broadcast", "barrier", "edge"],
)
def test_collective_call_works_again_after_an_interrupt_of_one_rank(
    tmp_path: Path, make: str, files: list[str], step: int, right: str
) -> None:
    body = COLLECTIVE.replace("MAKE", make).replace("FILES", repr(files))
    body = body.replace("STEP", str(step)).replace("RIGHT", f"bool({right})")
    result = run_job(tmp_path, 2, body)
    assert result.each("right") == [{True}] * 2
    assert result.told[0]["moments"] > 3
    assert result.told[0]["kinds"] >= {"KeyboardInterrupt"}
    assert result.told[1]["kinds"] <= {"ConfigError", "TimeoutError"}


def test_interrupted_receive_loses_no_array_and_keeps_no_other_thread_out(tmp_path: Path) -> None:
    body = """
from interrupts import interrupts
malt.init(timeout=10)
edge = malt.Edge(1, 0, depth=64)
if rank == 1:
    for number in range(200):
        edge.send(number)
else:
    got = []
    for where in interrupts(lambda: got.append(int(edge.receive()))):
        thread = threading.Thread(target=lambda: got.append(int(edge.receive(timeout=5))))
        thread.start()
        thread.join()
    moments = len(got)
    while len(got) < 200:
        got.append(int(edge.receive()))
    tell(got=got, moments=moments)
malt.barrier()
"""
    told = run_job(tmp_path, 2, body).told[0]
    assert sorted(told["got"]) == list(range(200))
    assert told["moments"] > 20
