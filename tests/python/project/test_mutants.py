"""The tables of tests/mutants name code that is there, each piece once."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def mutants_of(table: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tests/mutants"))
    mutants = runpy.run_path(str(ROOT / f"tests/mutants/{table}.py"))["MUTANTS"]
    assert len(mutants) > 10
    return mutants


@pytest.mark.parametrize("table", ["memory", "membership", "table"])
def test_each_mutant_of_the_core_breaks_one_place(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mutant in mutants_of(table, monkeypatch):
        assert (ROOT / "src" / mutant.file).read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.parametrize(
    ("table", "package"),
    [
        ("rejoining", ""),
        ("pool", "_pool"),
        ("consensus", "_consensus"),
        ("pipeline", ""),
        ("messaging", ""),
    ],
)
def test_each_mutant_of_the_package_breaks_one_place(
    table: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mutant in mutants_of(table, monkeypatch).items():
        file = ROOT / "python/malt" / package / (mutant.module.replace(".", "/") + ".py")
        assert file.read_text().count(mutant.old) == 1, name
