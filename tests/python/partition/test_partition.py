"""malt.data.partition: what it places where, what it counts, and the files of a Partition."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import malt
from malt import _npy, _partition


def groups(rows: int = 300, count: int = 3, mixed: float = 0.0) -> sp.csr_matrix:
    """Row i has columns of group i mod `count`, and a share of any."""
    random = np.random.default_rng(0)
    of_group = 20 * (np.arange(rows) % count)[:, None] + random.integers(0, 20, (rows, 8))
    any_column = random.integers(0, 20 * count, (rows, 8))
    columns = np.where(random.random((rows, 8)) < mixed, any_column, of_group)
    places = (np.repeat(np.arange(rows), 8), columns.ravel())
    made = sp.csr_matrix((np.ones(8 * rows, np.float32), places), shape=(rows, 20 * count))
    made.sum_duplicates()
    return made


def recounted(
    X: sp.csr_matrix, p: malt.data.Partition
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each part gets and sends, and which columns are shared, counted by NumPy."""
    needs = np.zeros((p.parts, X.shape[1]), bool)
    places = X.nonzero()
    needs[p.rows[places[0]], places[1]] = True
    travels = needs & (p.columns != np.arange(p.parts)[:, None])
    sent = np.bincount(p.columns, travels.sum(axis=0), minlength=p.parts)
    return travels.sum(axis=1), sent, needs.sum(axis=0) > 1


def test_rows_with_columns_in_common_go_together() -> None:
    X = groups()
    p = malt.data.partition(X, 3, passes=10)

    assert p.shape == X.shape
    assert all(len(np.unique(p.rows[k::3])) == 1 for k in range(3))
    assert p.traffic(X).total == 0
    assert p.traffic(X).random > 50
    assert not p.shared.any()
    assert sorted(np.concatenate([p.rows_of(k) for k in range(3)])) == list(range(300))
    assert sorted(np.concatenate([p.columns_of(k) for k in range(3)])) == list(range(60))


@pytest.mark.parametrize("parts", [1, 2, 5, 9, 70])
@pytest.mark.parametrize("balance", ["rows", "values"])
def test_counts_are_those_of_numpy(parts: int, balance: str) -> None:
    X = groups(500, 5, mixed=0.3)
    p = malt.data.partition(X, parts, balance=balance, seed=parts)
    received, sent, shared = recounted(X, p)
    traffic = p.traffic(X)

    assert traffic.received.tolist() == received.tolist()
    assert traffic.sent.tolist() == sent.tolist()
    assert p.shared.tolist() == shared.tolist()
    assert traffic.total == sent.sum() <= traffic.random
    lengths = X.getnnz(axis=1) if balance == "values" else np.ones(500)
    loads = np.bincount(p.rows, lengths, parts)
    mean = loads.mean()
    longest = lengths.max() if balance == "values" else 0
    assert loads.max() <= max(1.05 * mean, np.ceil(mean), mean + longest)


def test_random_traffic_is_the_mean_of_random_partitions() -> None:
    X = groups(200, 4, mixed=0.3)
    totals = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rows, columns = rng.integers(0, 4, X.shape[0]), rng.integers(0, 4, X.shape[1])
        p = malt.data.Partition(rows, columns, np.ones(X.shape[1], bool), 4)
        totals.append(p.traffic(X).total)

    assert abs(np.mean(totals) / p.traffic(X).random - 1) < 0.02


def test_is_the_same_for_the_same_seed_and_every_form_of_the_matrix() -> None:
    X = groups(mixed=0.5)
    p = malt.data.partition(X, 4, seed=1)

    backwards = sp.csr_matrix(X[:, ::-1])
    backwards.indices = X.shape[1] - 1 - backwards.indices  # columns of a row in falling order
    for same in (X.copy(), X.tocsc(), X.tocoo(), X.toarray(), sp.csr_array(X), backwards):
        assert malt.data.partition(same, 4, seed=1).checksum == p.checksum
    assert malt.data.partition(X, 4, seed=2).checksum != p.checksum


def test_can_be_pickled_and_saved(tmp_path: Path) -> None:
    p = malt.data.partition(groups(), 3)
    p.save(tmp_path / "p.npz")
    np.savez(tmp_path / "other.npz", rows=p.rows)

    for copy in (pickle.loads(pickle.dumps(p)), malt.data.Partition.load(tmp_path / "p.npz")):
        assert copy.checksum == p.checksum
        assert (copy.parts, copy.shape) == (3, p.shape)
    with pytest.raises(malt.ConfigError, match="has no partition: columns, parts, shared missing"):
        malt.data.Partition.load(tmp_path / "other.npz")
    np.save(tmp_path / "array.npy", p.rows)
    (tmp_path / "text").write_text("no partition")
    for name in ("array.npy", "text"):
        with pytest.raises(malt.ConfigError, match="has no partition") as caught:
            malt.data.Partition.load(tmp_path / name)
        assert "allow_pickle" not in str(caught.value)


def test_a_damaged_file_has_no_partition(tmp_path: Path) -> None:
    p = malt.data.partition(groups(60), 3)
    p.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    damaged = [whole[:end] for end in range(0, len(whole), 50)]
    for at in range(0, len(whole), 3):
        damaged += [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for bit in (255, 1)]
    whole_ones = 0  # a date has changed, or what nobody reads
    for data in damaged:
        (tmp_path / "damaged.npz").write_bytes(data)
        with contextlib.suppress(malt.ConfigError):
            whole_ones += malt.data.Partition.load(tmp_path / "damaged.npz").checksum == p.checksum
    assert whole_ones < len(damaged) / 2
    arrays = {name: getattr(p, name) for name in ("rows", "columns", "shared")}
    for name, wrong, text in [
        ("rows", np.array([0, None], object), "array rows has Python objects, which are never"),
        ("parts", [2, 3], "has no partition; it must be a file that Partition.save() wrote"),
        ("parts", "x", "parts is 'x'; it must be a whole number"),
        ("parts", 2, "2; with 2 parts it is 0 to 1"),
    ]:
        np.savez(tmp_path / "other.npz", **{**arrays, "parts": 3, name: wrong})
        with pytest.raises(malt.ConfigError, match=r"other.npz' has no partition") as caught:
            malt.data.Partition.load(tmp_path / "other.npz")
        assert text in str(caught.value)


def test_a_partition_that_does_not_fit_into_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_npy, "available_bytes", lambda: 30_000_000)
    arrays = {"columns": [0], "shared": [False], "parts": 1}
    np.savez_compressed(tmp_path / "p.npz", rows=np.zeros(1 << 23, np.int32), **arrays)
    with pytest.raises(
        malt.ConfigError, match="array rows does not fit into memory: it takes 32 MiB"
    ):
        malt.data.Partition.load(tmp_path / "p.npz")


def test_does_not_change_with_the_arrays_it_was_made_of() -> None:
    X, rows, columns = np.ones((4, 5)), np.zeros(4, np.int32), np.zeros(5, np.int32)
    shared = np.ones(5, bool)
    p = malt.data.Partition(rows, columns, shared, 2)
    placed = malt.data.Partition.from_rows(X, rows, 2)
    rows[0] = columns[0] = 7
    shared[0] = False

    assert not p.rows.any()
    assert not p.columns.any()
    assert not placed.rows.any()
    assert p.shared.all()
    for each in (p, placed, pickle.loads(pickle.dumps(p))):
        for array in (each.rows, each.columns, each.shared):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_an_element_that_is_stored_twice_counts_once() -> None:
    once = groups(mixed=0.3)
    places = once.nonzero()
    starts = 2 * once.indptr
    twice = sp.csr_matrix((np.ones(2 * once.nnz), np.repeat(places[1], 2), starts), once.shape)
    p = malt.data.partition(twice, 3)

    assert p.checksum == malt.data.partition(once, 3).checksum
    assert p.traffic(twice).random == p.traffic(once).random
    assert twice.nnz == 2 * once.nnz


@pytest.mark.parametrize(("parts", "balance"), [(4, "rows"), (4, "values"), (7, "values")])
def test_empty_rows_are_spread_evenly(parts: int, balance: str) -> None:
    p = malt.data.partition(sp.csr_matrix((28, 4)), parts, balance=balance)
    assert np.bincount(p.rows, minlength=parts).tolist() == [28 // parts] * parts


def test_names_the_memory_that_wide_data_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.csr_matrix((np.ones(4), [0, 1, 0, 1], [0, 2, 4]), shape=(2, 100_000))
    p = malt.data.partition(X, 2)
    monkeypatch.setattr(_partition.core, "available_bytes", lambda: 2_700_000)
    for call in (
        lambda: malt.data.partition(X, 2),
        lambda: malt.data.Partition.from_rows(X, [0] * 2, 65),  # two words of bits a column
        lambda: p.traffic(X),
    ):
        with pytest.raises(malt.ConfigError, match="of 100000 columns need"):
            call()


def test_rows_placed_by_something_else_get_owners() -> None:
    X = groups(mixed=0.3)
    rows = np.arange(300) % 4
    p = malt.data.Partition.from_rows(X, rows, 4)

    assert p.rows.tolist() == rows.tolist()
    assert p.traffic(X).received.tolist() == recounted(X, p)[0].tolist()


@pytest.mark.parametrize(
    ("X", "parts", "options", "text"),
    [
        (np.ones((1, 3)), 2, {}, "parts is 2, but the matrix has 1 rows: ask for at most so many"),
        (np.ones((4, 3)), 0, {}, "parts is 0; it must be a whole number from 1 to 1024"),
        (np.ones((4, 3)), 1025, {}, "parts is 1025; it must be a whole number from 1 to 1024"),
        (np.ones((4, 3)), 2.0, {}, "parts is 2.0; it must be a whole number"),
        (np.ones((4, 3)), True, {}, "parts is True; it must be a whole number"),
        (np.ones((4, 3)), 2, {"slack": 2}, "slack is 2.000000; it is 0 to 1"),
        (np.ones((4, 3)), 2, {"slack": "5 %"}, "slack is '5 %'; it is a number from 0 to 1"),
        (np.ones((4, 3)), 2, {"balance": "even"}, "balance is 'even'; it is 'rows' or 'values'"),
        (
            np.ones((4, 3)),
            2,
            {"passes": 0},
            "passes is 0; it must be a whole number from 1 to 1000",
        ),
        (np.ones((4, 3)), 2, {"seed": -1}, "seed is -1; it must be a whole number from 0 to"),
        (np.ones(4), 2, {}, "X is a ndarray of shape (4,); it is a SciPy sparse matrix or a NumPy"),
        (sp.coo_array(np.ones(3)), 2, {}, "X is a coo_array of shape (3,); it is a SciPy sparse"),
        (pd.DataFrame(np.ones((4, 3))), 2, {}, "X is a DataFrame of shape (4, 3); it is a SciPy"),
        (pd.DataFrame(np.ones((4, 3))), 2, {}, "of two dimensions: give X.to_numpy()"),
        ([[1, 2]], 2, {}, "X is a list; it is a SciPy sparse matrix or a NumPy array"),
        (np.ones((0, 3)), 1, {}, "X has the shape (0, 3); it needs a row and a column at least"),
    ],
)
def test_refuses_what_it_cannot_place(
    X: Any, parts: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(malt.ConfigError) as caught:
        malt.data.partition(X, parts, **options)
    assert text in str(caught.value)


def test_refuses_parts_that_are_none() -> None:
    X = groups()
    p = malt.data.partition(X, 3)
    with pytest.raises(malt.ConfigError, match=r"rows\[1\] is 3; with 3 parts it is 0 to 2"):
        malt.data.Partition([0, 3], [0], [True], 3)
    with pytest.raises(malt.ConfigError, match="columns have the shape"):
        malt.data.Partition([0], [[0]], [True], 3)
    with pytest.raises(malt.ConfigError, match="shared has the shape"):
        malt.data.Partition([0], [0], [True, False], 3)
    with pytest.raises(malt.ConfigError, match="part is 3; it must be a whole number from 0 to 2"):
        p.rows_of(3)
    with pytest.raises(malt.ConfigError, match="there are parts for 300 rows, but the matrix has"):
        p.traffic(X[:10])
