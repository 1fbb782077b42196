"""A vector over a copy of the loop's array exchanges nothing that the loop learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

SAID = "malt: vector 'vector-1' was made over a copy, and the program changes the array"
LOOP = "\nfor _ in range(6): w -= 0.1; v.scatter(); v.gather(malt.AVG, staleness=0)\n"
VARIABLE = "w = np.zeros(8); v = malt.vector(w.astype(np.float32))" + LOOP
LOCAL = f"""
def train():
    w = np.arange(8.0); v = malt.vector(np.array(w, np.float32))
    {LOOP.strip()}
train()
"""
LISTS = """
ws = [np.arange(3), np.arange(4)]; v = malt.vector([w.astype(np.float32) for w in ws])
for _ in range(6): ws[1][0] += 1; v.allreduce(); ws[0][0] += 1
"""
DICTIONARY = """
p = {"w": np.ones((4, 3)), "b": np.ones(3)}; v = malt.vector(p["w"].copy())
for _ in range(6): p["w"] -= 0.1; v.allreduce()
"""
TENSOR = "import torch; w = torch.ones(8, dtype=torch.bfloat16); v = malt.vector(w.float())" + LOOP


@pytest.mark.parametrize("program", [VARIABLE, LOCAL, LISTS, DICTIONARY, TENSOR])
def test_changes_of_the_original_are_told_once(tmp_path: Path, program: str) -> None:
    if "torch" in program:
        pytest.importorskip("torch")
    result = run_job(tmp_path, 2, f"malt.init(timeout=20)\n{program}")
    assert SAID in result.output
    assert result.output.count("\n") == 1


ROUND = "v.scatter(); v.gather(malt.AVG, staleness=0)"


@pytest.mark.parametrize(
    "program",
    [
        f"v = malt.vector(np.zeros(8))\nfor _ in range(6): v.array -= 0.1; {ROUND}",
        f"v = malt.vector(np.zeros(8)); w = v.array\nfor _ in range(6): w -= 0.1; {ROUND}",
        f"""
g = np.zeros(8); v = malt.vector(np.zeros(8))  # another array with the same values at first
for _ in range(6): g += 0.1; v.array -= g; {ROUND}""",
        f"""
x = np.full(3, float(rank)); v = malt.vector(x.astype(np.float32))  # a mean by gossip
for _ in range(30): {ROUND}
x[:] = v.array""",
        f"""
x = np.full(3, float(rank)); v = malt.vector(x.copy()); x = None
for _ in range(30): {ROUND}""",
        f"""
w = np.zeros(8); u = w.astype(np.float32); v = malt.vector(u)  # the copy is kept
for _ in range(6): w -= 0.1; u[:] = w; {ROUND}""",
        f"""
w = np.zeros((2, 4)); v = malt.vector(w.reshape(-1))  # a view
for _ in range(6): w -= 0.1; {ROUND}""",
    ],
)
def test_a_vector_that_is_used_by_its_array_is_told_of_nothing(
    tmp_path: Path, program: str
) -> None:
    assert run_job(tmp_path, 2, f"malt.init(timeout=20)\n{program}").output == ""
