"""A program that replaces a vector's array, instead of changing it, trains each rank by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

SAID = "is no longer used by anybody else"
ROUNDS = """
def rounds(v, count=4):
    for _ in range(count): v.scatter(), v.gather(staleness=0), v.allreduce()
"""


VARIABLE = """
w = np.ones(3); v = malt.vector(w)
for _ in range(4): w = w - 0.1; v.allreduce()
"""
VIEW = """
P = np.ones((2, 4)); w = P[0]; v = malt.vector(w)
for _ in range(4): w = w + 1; v.allreduce()
"""
LIST = """
p = [np.ones(2), np.ones(4)]; v = malt.vector(p)
for _ in range(4): p[1] = p[1] - 0.1; v.allreduce()
"""
IN_LIST = """
a = np.ones(2); v = malt.vector([a, np.ones(3)])
for _ in range(4): a = a + 1; v.allreduce()
"""
ATTRIBUTE = """
class Model: pass
m = Model(); m.coef = np.ones(5); v = malt.vector(m.coef)
for _ in range(3): v.allreduce()
m.coef = m.coef - 0.1; v.allreduce()
"""
ARGUMENT = """
def train(w):
    v = malt.vector(w)
    for _ in range(4): w = w - 0.1; v.scatter(); v.gather()
train(np.ones(3))
"""
DATA = """
import torch
net = torch.nn.Linear(3, 1); v = malt.vector(list(net.parameters()))
for _ in range(4): net.bias.data = net.bias.data - 0.1; v.allreduce()
"""
PARAMETER = """
import torch
net = torch.nn.Linear(3, 1); v = malt.vector(net.weight.data)
for _ in range(4): net.weight = torch.nn.Parameter(net.weight - 0.1); v.allreduce()
"""


def of_torch(program: str) -> str:
    return "import torch" + program.replace("np.", "torch.").replace("((2, 4))", "(2, 4)")


@pytest.mark.parametrize(
    ("program", "which"),
    [
        (VARIABLE, "the array"),
        (VIEW, "the array"),
        (LIST, "array 1 (counted from 0)"),
        (IN_LIST, "array 0 (counted from 0)"),
        (ATTRIBUTE, "the array"),
        (ARGUMENT, "the array"),
        (of_torch(VARIABLE), "the array"),
        (of_torch(VIEW), "the array"),
        (of_torch(ATTRIBUTE), "the array"),
        (DATA, "array 1 (counted from 0)"),
        (PARAMETER, "the array"),
    ],
)
def test_an_array_that_is_rebound_is_told_once(tmp_path: Path, program: str, which: str) -> None:
    if "torch" in program:
        pytest.importorskip("torch")
    result = run_job(tmp_path, 2, f"malt.init(timeout=20)\n{program}")
    assert result.output.count(f"{which} of vector 'vector-1' {SAID}") == 1  # of both ranks
    assert "w[:] = " in result.output


@pytest.mark.parametrize(
    "program",
    [
        "v = malt.vector(np.full(3, 1.0 * rank)); rounds(v); tell(v=v.array)",
        "v = malt.vector([np.ones(2), np.ones(3)]); rounds(v); v.array[1][:] = 2",
        "v = malt.vector(np.arange(6.0).reshape(2, 3)); rounds(v)",
        "def make():\n    w = np.ones(3); return malt.vector(w)\nv = make(); rounds(v)",
        "def make():\n    w = torch.ones(3); return malt.vector(w)\nv = make(); rounds(v)",
        "P = np.ones((2, 3)); vs = [malt.vector(row) for row in P]\nfor v in vs: rounds(v)",
        "vs = []\nfor row in np.ones((2, 3)): vs.append(malt.vector(row))\nfor v in vs: rounds(v)",
        "a = np.ones(4); v = malt.vector(a[1:3]); rounds(v)",
        "b = np.ones(8).reshape(2, 4); row = b[0]; v = malt.vector(b); del b; rounds(v)",
        "m = type('M', (), {})(); m.coef = np.ones(3); v = malt.vector(m.coef); rounds(v)",
        "t = torch.ones(3); v = malt.vector(t); rounds(v)",
        "v = malt.vector(torch.ones(3)); rounds(v)",
        "n = np.ones(3); t = torch.from_numpy(n); v = malt.vector(n); del n; rounds(v)",
        "p = torch.nn.Parameter(torch.ones(3)); v = malt.vector([p.data]); rounds(v)",
        "v = malt.vector((2, 2)); rounds(v)",
        "w = np.ones(3); v = malt.vector(w); v.array -= 1; w = None; rounds(v)",
    ],
)
def test_no_false_alarm_of_rebinding(tmp_path: Path, program: str) -> None:
    header = ROUNDS
    if "torch" in program:
        pytest.importorskip("torch")
        header += "import torch\n"
    assert run_job(tmp_path, 2, f"{header}malt.init()\n{program}").output == ""


def test_looking_keeps_no_variable_of_a_function_alive(tmp_path: Path) -> None:
    """Python 3.12 and earlier keep a copy of a frame's variables once somebody asked for them."""
    result = run_job(
        tmp_path,
        1,
        """
import weakref
class Big: pass
def train():
    big, w = Big(), np.ones(3)
    held = locals()
    mine = weakref.ref(big)
    v = malt.vector(w)
    assert held["w"] is w
    del held
    malt.vector(w, name="other")
    del big
    tell(is_gone=mine() is None)
malt.init()
train()
""",
    )
    assert result.each("is_gone") == [True]
