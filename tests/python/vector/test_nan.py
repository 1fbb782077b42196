"""NaN of one rank is in all ranks' vectors after a round: the rank that made it is told of once."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

ROUNDS = """
malt.init(timeout=20)
w = MAKE
v = malt.vector(w, name="w", **OPTIONS)
for step in range(6):
    if step == 2 and rank in WHO: w.reshape(-1)[PLACE] = np.nan
    EXCHANGE
"""
SAID = "malt: rank 1 has NaN in vector 'w' at "


def rounds(make: str, place: str, exchange: str, who: str = "[1]", options: str = "{}") -> str:
    values = {"MAKE": make, "PLACE": place, "EXCHANGE": exchange, "WHO": who, "OPTIONS": options}
    program = ROUNDS
    for name, value in values.items():
        program = program.replace(name, value)
    return program


BSP = "v.scatter(); v.gather(staleness=0)"


@pytest.mark.parametrize(
    ("make", "place"),
    [
        ("np.ones(4)", "0"),
        ("np.ones(1, np.float32)", "0"),
        ("np.ones(64, np.float32)", "63"),
        ("np.ones((300, 300))", ":"),
    ],
)
@pytest.mark.parametrize("exchange", [BSP, "v.allreduce()"], ids=["gather", "allreduce"])
def test_a_rank_that_makes_nan_is_told_of_once(
    tmp_path: Path, make: str, place: str, exchange: str
) -> None:
    result = run_job(tmp_path, 3, rounds(make, place, exchange))
    call = "allreduce()" if "allreduce" in exchange else "scatter()"
    assert result.output.startswith(f"[1] {SAID}{call}, and averages carry it to all ranks")
    assert "reject_nonfinite=True" in result.output
    assert result.output.count("\n") == 1


def test_of_ranks_that_make_nan_at_once_one_is_told(tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, rounds("np.ones(4)", ":", "v.allreduce()", who="[0, 1, 2]"))
    assert result.output.count("has NaN in vector 'w'") == 1


def test_in_a_list_of_arrays_all_short_ones_are_looked_at(tmp_path: Path) -> None:
    program = rounds("np.ones(4)", "3", BSP).replace(
        "malt.vector(w,", "malt.vector([np.ones(30), np.ones(30), w],"
    )
    assert SAID in run_job(tmp_path, 2, program).output


@pytest.mark.parametrize(
    ("make", "exchange", "options"),
    [
        ("np.ones(4)", BSP, "{'reject_nonfinite': True}"),
        ("np.ones(4)", BSP, "{'max_norm': 9.0}"),
        ("np.ones(4)", "v.gather(lambda mine, updates: None); v.scatter()", "{}"),
    ],
    ids=["rejected", "clipped", "a fold of its own"],
)
def test_programs_that_reckon_with_nan_are_told_of_nothing(
    tmp_path: Path, make: str, exchange: str, options: str
) -> None:
    assert "NaN" not in run_job(tmp_path, 2, rounds(make, "0", exchange, options=options)).output


def test_nan_in_few_elements_of_a_long_vector_is_told_in_the_end(tmp_path: Path) -> None:
    result = run_job(tmp_path, 2, rounds("np.ones(99999)", "77777", BSP))
    assert result.output.startswith("[0] vector 'w': 1 of its 99999 elements are NaN on rank 0")
    assert result.output.count("\n") == 1
