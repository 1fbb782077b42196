"""Mistakes that show when the ranks make a vector: another order, other data, other memory."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "shard",
    [
        "malt.shard(np.random.default_rng(0).normal(size=(50, 3)))",
        "malt.shard([object(), object(), object()])",
        "malt.shard(iter([rank, 2, 3]))",
        "malt.shard('word'), malt.shard(range(9)), malt.shard(np.array([{}, {}]))",
        "rank or malt.shard([1, 2])",
    ],
)
def test_like_data_are_told_of_nothing(tmp_path: Path, shard: str) -> None:
    assert run_job(tmp_path, 2, f"malt.init(timeout=20); x = {shard}{VECTOR}").output == ""


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
from malt._job.matching import Site
job = malt.init(timeout=20)
site = Site("w", "here.py:1", 0, is_on_gpu=rank == 1)
tell(error=error_of(job.matching.compare, job.group, "w", site))
""",
    )
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert "vector 'w' is on a GPU on rank 1 and on the CPU on rank 0" in error.text
