"""Mistakes that show when the ranks make a vector: another order, other data, other memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import run_job

TWO = "malt.init(timeout=20); W, B = np.ones(4), np.full(4, 100.0)\n"
MATCHED = "ranks match unnamed vectors by their order"


def test_unnamed_vectors_made_on_other_lines_are_told(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        TWO
        + """
if rank == 0:
    a = malt.vector(W)
    b = malt.vector(B)
else:
    b = malt.vector(B)
    a = malt.vector(W)
a.scatter(), b.scatter(), a.gather(), b.gather()
""",
    )
    assert result.output.count(MATCHED) == 1
    assert "[0] malt: vector 'vector-1' is made at script.py:" in result.output
    assert " on rank 0, and script.py:" in result.output
    assert " on ranks 1, 2: ranks match" in result.output


def test_unnamed_vectors_with_one_anothers_values_are_told(tmp_path: Path) -> None:
    loop = "vs = [malt.vector(x) for x in ((W, B) if rank == 0 else (B, W))]\n"
    result = run_job(tmp_path, 2, TWO + loop + "for v in vs: v.allreduce()")
    assert result.output.startswith(
        "[0] malt: vectors 'vector-1' and 'vector-2' have one another's values on some ranks"
    )
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    "make",
    [
        "vs = [malt.vector(W), malt.vector(B)]",
        "vs = [malt.vector(W * rank), malt.vector(B + rank)]",
        "vs = [malt.vector(x) for x in (np.zeros(4), np.zeros(4))]",
        "if rank: vs = [malt.vector(W, name='w')]\nelse: vs = [malt.vector(W, name='w')]",
        "vs = [malt.sparse_vector(4, capacity=2), malt.vector(3)]",
    ],
)
def test_vectors_made_in_one_order_or_named_are_told_of_nothing(tmp_path: Path, make: str) -> None:
    assert run_job(tmp_path, 2, f"{TWO}{make}\nfor v in vs: v.scatter(), v.gather()").output == ""


VECTOR = "; v = malt.vector(np.zeros(2)); v.allreduce()"


@pytest.mark.parametrize(
    "data",
    [
        "np.random.default_rng().normal(size=(50, 3))",
        "np.arange(50 + rank)",
        "['b', 'a'] if rank else ['a', 'b']",
        "list(range(rank, 9 + rank))",
    ],
)
def test_other_data_on_some_rank_are_told_when_a_vector_is_made(tmp_path: Path, data: str) -> None:
    result = run_job(tmp_path, 2, f"malt.init(timeout=20); x = malt.shard({data}){VECTOR}")
    assert result.output.count("\n") == 1
    assert result.output.startswith("[0] malt: malt.shard() at script.py:")
    assert "rank 1 gave other data than rank 0" in result.output


UNSEEDED = "np.random.default_rng().normal(size=(50, 3))"
TORCH = "import torch; from torch.utils import data as sets; "


@pytest.mark.parametrize(
    "data",
    [
        f"{TORCH}d = torch.from_numpy({UNSEEDED})",
        f"{TORCH}d = torch.from_numpy({UNSEEDED}).bfloat16()",
        f"{TORCH}d = sets.TensorDataset(torch.zeros(50), torch.from_numpy({UNSEEDED}))",
        f"{TORCH}d = sets.random_split(sets.TensorDataset(torch.arange(50)), [40, 10])[0]",
        f"{TORCH}d = sets.ConcatDataset([sets.TensorDataset(torch.randn(9)) for _ in range(2)])",
        f"import pandas as pd; d = pd.DataFrame({UNSEEDED})",
        "import pandas as pd; d = pd.DataFrame({'a': range(9), 'b': ['x', str(rank), 'y'] * 3})",
        f"import pandas as pd; d = pd.Series({UNSEEDED}[:, 0])",
        f"from scipy import sparse; d = sparse.csr_matrix({UNSEEDED})",
        f"from scipy import sparse; d = sparse.coo_matrix({UNSEEDED})",
        f"d = {UNSEEDED}.tolist()",
        f"d = list({UNSEEDED})",
        "d = [{'text': str(i), 'label': i + rank} for i in range(9)]",
        "d = np.array([[i, 'x', rank] for i in range(9)], dtype=object)",
        "import pathlib; d = [pathlib.Path(f'{i + rank}.csv') for i in range(9)]",
    ],
)
def test_other_data_of_many_kinds_are_told(tmp_path: Path, data: str) -> None:
    for module in re.findall(r"torch|pandas|scipy", data):
        pytest.importorskip(module)
    program = f"malt.init(timeout=20)\n{data}\nx = malt.shard(d){VECTOR}"
    result = run_job(tmp_path, 2, program)
    assert result.output.count("rank 1 gave other data than rank 0") == 1, result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("calls", "which"),
    [
        ("x, y = malt.shard(X), malt.shard(Y)", "(call 2 of 2 on this line)"),
        ("def get(d): return malt.shard(d)\nget(X), get(X), get(Y)", "(call 3 of 3 on this line)"),
        ("{k: malt.shard(v) for k, v in {'a': X, 'b': Y}.items()}", "(call 2 of 2 on this line)"),
        ("[malt.shard(X) for _ in range(20)], malt.shard(Y)", "(call 21 of 21 on this line)"),
        ("malt.shard(np.array(malt.shard(X)))", "or it is a part that malt.shard() has made"),
    ],
)
def test_each_call_on_a_line_is_compared(tmp_path: Path, calls: str, which: str) -> None:
    data = f"X, Y = np.arange(50), {UNSEEDED}\n"
    result = run_job(tmp_path, 2, f"malt.init(timeout=20)\n{data}{calls}\n{VECTOR[2:]}")
    assert result.output.count("\n") == 1
    assert which in result.output


@pytest.mark.parametrize(
    "shard",
    [
        "malt.shard(np.random.default_rng(0).normal(size=(50, 3)))",
        "malt.shard([object(), object(), object()])",
        "malt.shard(iter([rank, 2, 3]))",
        "malt.shard('word'), malt.shard(range(9)), malt.shard(np.array([{}, {}]))",
        "rank or malt.shard([1, 2])",
        "[malt.shard(np.arange(i + 9 * rank)) for i in range(1 + rank, 9)]",
        "[malt.shard(np.arange(i)) for i in range(1, 500)]",
        "[malt.shard([{object(), i}, {'a': object()}]) for i in range(9)]",
        "malt.shard(type('R', (), {'__len__': lambda _: 3, '__getitem__': lambda *_: rank})())",
    ],
)
def test_like_data_are_told_of_nothing(tmp_path: Path, shard: str) -> None:
    assert run_job(tmp_path, 2, f"malt.init(timeout=20); x = {shard}{VECTOR}").output == ""


def test_like_data_of_other_libraries_are_told_of_nothing(tmp_path: Path) -> None:
    for module in ("torch", "pandas", "scipy"):
        pytest.importorskip(module)
    result = run_job(
        tmp_path,
        2,
        """
import pandas as pd, torch
from scipy import sparse
from torch.utils import data as sets
malt.init(timeout=20)
x = np.random.default_rng(0).normal(size=(500, 3))
t = torch.from_numpy(x)
named = pd.DataFrame({"a": x[:, 0], "b": [None, "x", object(), 1, 2.0] * 100})
same = [t, t.bfloat16(), t[0, 0] * 1j * torch.ones(9), sets.TensorDataset(t, t > 0)]
same += [sets.random_split(same[-1], [400, 100], torch.Generator().manual_seed(0))[0]]
same += [named, named["b"], pd.Series(["a", "b"] * 9, dtype="category")]
same += [sparse.csr_matrix(x), sparse.lil_matrix(x), x.tolist(), list(x), x[:0], x[::-1].T]
parts = [malt.shard(each) for each in same]
v = malt.vector(3)
v.allreduce()
""",
    )
    assert result.output == ""


@pytest.mark.parametrize(
    "again",
    [
        "malt.shard(malt.shard(np.arange(50)))",
        "malt.shard(malt.shard(list(range(50))))",
        "[rows for rows in malt.shard(malt.shard(np.arange(50)), chunk=4)]",
        "malt.shard(malt.load_data('x.csv').X)",
    ],
    ids=["array", "list", "chunks", "loaded"],
)
def test_a_part_of_a_part_is_told_once(tmp_path: Path, again: str) -> None:
    (tmp_path / "x.csv").write_text("1,2\n" * 9)
    result = run_job(tmp_path, 2, f"malt.init(timeout=20); x = {again}{VECTOR}")
    assert result.output.count("gets a part of its part") == 1, result.output
    assert "gave other data" not in result.output


def test_memory_of_another_kind_on_some_rank_is_refused_on_all(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
from malt._mistakes.matching import Site
job = malt.init(timeout=20)
site = Site("w", "here.py:1", 0, is_on_gpu=rank == 1)
tell(error=error_of(job.matching.compare, job.group, "w", site))
""",
    )
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert (
            "vector 'w': its memory is on the CPU on rank 0, and on a GPU on rank 1" in error.text
        )
