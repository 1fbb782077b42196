"""Tables in checkpoints of one process: what is refused, and what a checkpoint can be read into."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import malt
from malt.ps import FTRL, SGD, AdaGrad, Add, Assign, Momentum, Table


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"rows": 101}, ["rows=100", "rows=101"]),
        ({"width": None}, ["width=3", "width=None"]),
        ({"width": 4}, ["width=3", "width=4"]),
        ({"dtype": np.float64}, ["dtype=float32", "dtype=float64"]),
        ({"update": Add()}, ["update=AdaGrad", "update=Add"]),
        ({"update": lambda values, gradients: None}, ["update=AdaGrad", "a function"]),
    ],
)
def test_another_table_is_refused(tmp_path: Path, given: dict[str, Any], parts: list[str]) -> None:
    like: dict[str, Any] = {"rows": 100, "width": 3, "update": AdaGrad(0.1)}
    with Table(**like) as table:
        table.push(None, 1.0)
        malt.save(tmp_path, {"t": table})
    with Table(**{**like, **given, "initial": 5.0}) as other:
        w = np.zeros(1)
        with pytest.raises(malt.ConfigError) as caught:
            malt.restore(tmp_path, {"t": other})
        assert all(part in str(caught.value) for part in [*parts, "'t'", "Assign()"])
        with pytest.raises(malt.ConfigError, match=r"has no table 'u'; it has 't'"):
            malt.restore(tmp_path, {"u": other})
        with pytest.raises(malt.ConfigError, match=r"one file.*directory"):
            malt.restore(tmp_path / "checkpoint-000001/rank-00000.safetensors", {"t": other})
        with pytest.raises(malt.ConfigError, match=r"has no array 'w'"):
            malt.restore(tmp_path, {"w": w})
        assert (other.pull() == 5).all()


@pytest.mark.usefixtures("alone")
def test_a_rule_may_have_other_numbers(tmp_path: Path) -> None:
    with Table(100, update=SGD(0.5)) as table:
        table.push(None, -2.0)
        malt.save(tmp_path, {"t": table})
    with Table(100, update=SGD(2.0), initial=7) as other:
        malt.restore(tmp_path, {"t": other})
        assert (other.pull() == 1).all()
        assert (other.push_pull([3], -1.0) == 3).all()


@pytest.mark.usefixtures("alone")
def test_the_values_can_be_read_without_a_table(tmp_path: Path) -> None:
    with Table(100, 2, update=FTRL(0.1)) as table:
        table.push(None, np.arange(200).reshape(100, 2))
        malt.save(tmp_path, {"t": table})
        expected = table.pull()
    restored = malt.restore(tmp_path)
    assert restored is not None
    with Table(100, 2, update=Assign()) as values:
        for name, array in restored.arrays.items():
            _, first, kind = name.split("/")
            if kind == "values":
                values.push(range(int(first), int(first) + len(array)), array)
        assert np.array_equal(values.pull(), expected)


@pytest.mark.usefixtures("alone")
def test_damaged_rows_are_found_before_any_row_is_changed(tmp_path: Path) -> None:
    with Table(3000, update=Momentum(0.1)) as table:
        for _ in range(2):
            table.push(None, -1.0)
            malt.save(tmp_path, {"t": table})
        first = table.pull()
        file = tmp_path / "checkpoint-000002/rank-00000.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
        table.push(None, -1.0)
        restored = malt.restore(tmp_path, {"t": table})
        assert restored is not None
        assert restored.path.name == "checkpoint-000001"
        assert (table.pull() < first).all()
        other = tmp_path / "checkpoint-000001/rank-00000.safetensors"
        other.write_bytes(other.read_bytes()[:-1] + b"\x7f")
        before = table.pull()
        with pytest.raises(malt.ConfigError, match=r"every checkpoint.*damaged"):
            malt.restore(tmp_path, {"t": table})
        assert np.array_equal(table.pull(), before)


@pytest.mark.usefixtures("alone")
def test_a_closed_table_is_refused(tmp_path: Path) -> None:
    table = Table(10, name="t")
    table.close()
    for call in (malt.save, malt.restore):
        with pytest.raises(malt.ConfigError, match="'t' has been closed"):
            call(tmp_path, {"t": table})


@pytest.mark.usefixtures("alone")
def test_saving_and_restoring_take_little_memory(tmp_path: Path) -> None:
    rows = 1_000_000
    with Table(rows, 4, update=AdaGrad(0.1)) as table:
        table.push(None, 1.0)
        table.wait()
        tracemalloc.start()
        malt.save(tmp_path, {"t": table})
        malt.restore(tmp_path, {"t": table})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < rows * 4 * 4 * 2 / 20
