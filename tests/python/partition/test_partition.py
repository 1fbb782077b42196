"""malt.partition: what it places where, what it counts, and who takes it as partition=."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from jobs import run_job

import malt
from malt import _partition
from malt._factorization import trainer


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


def recounted(X: sp.csr_matrix, p: malt.Partition) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each part gets and sends, and which columns are shared, counted by NumPy."""
    needs = np.zeros((p.parts, X.shape[1]), bool)
    places = X.nonzero()
    needs[p.rows[places[0]], places[1]] = True
    travels = needs & (p.columns != np.arange(p.parts)[:, None])
    sent = np.bincount(p.columns, travels.sum(axis=0), minlength=p.parts)
    return travels.sum(axis=1), sent, needs.sum(axis=0) > 1


def test_rows_with_columns_in_common_go_together() -> None:
    X = groups()
    p = malt.partition(X, 3, passes=10)

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
    p = malt.partition(X, parts, balance=balance, seed=parts)
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
        p = malt.Partition(rows, columns, np.ones(X.shape[1], bool), 4)
        totals.append(p.traffic(X).total)

    assert abs(np.mean(totals) / p.traffic(X).random - 1) < 0.02


def test_is_the_same_for_the_same_seed_and_every_form_of_the_matrix() -> None:
    X = groups(mixed=0.5)
    p = malt.partition(X, 4, seed=1)

    backwards = sp.csr_matrix(X[:, ::-1])
    backwards.indices = X.shape[1] - 1 - backwards.indices  # columns of a row in falling order
    for same in (X.copy(), X.tocsc(), X.tocoo(), X.toarray(), sp.csr_array(X), backwards):
        assert malt.partition(same, 4, seed=1).checksum == p.checksum
    assert malt.partition(X, 4, seed=2).checksum != p.checksum


def test_can_be_pickled_and_saved(tmp_path: Path) -> None:
    p = malt.partition(groups(), 3)
    p.save(tmp_path / "p.npz")
    np.savez(tmp_path / "other.npz", rows=p.rows)

    for copy in (pickle.loads(pickle.dumps(p)), malt.Partition.load(tmp_path / "p.npz")):
        assert copy.checksum == p.checksum
        assert (copy.parts, copy.shape) == (3, p.shape)
    with pytest.raises(malt.ConfigError, match="has no partition: columns, parts, shared missing"):
        malt.Partition.load(tmp_path / "other.npz")
    np.save(tmp_path / "array.npy", p.rows)
    (tmp_path / "text").write_text("no partition")
    for name in ("array.npy", "text"):
        with pytest.raises(malt.ConfigError, match="has no partition"):
            malt.Partition.load(tmp_path / name)


def test_a_damaged_file_has_no_partition(tmp_path: Path) -> None:
    p = malt.partition(groups(60), 3)
    p.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    damaged = [whole[:end] for end in range(0, len(whole), 50)]
    for at in range(0, len(whole), 3):
        damaged += [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for bit in (255, 1)]
    whole_ones = 0  # a date has changed, or what nobody reads
    for data in damaged:
        (tmp_path / "damaged.npz").write_bytes(data)
        with contextlib.suppress(malt.ConfigError):
            whole_ones += malt.Partition.load(tmp_path / "damaged.npz").checksum == p.checksum
    assert whole_ones < len(damaged) / 2
    arrays = {name: getattr(p, name) for name in ("rows", "columns", "shared")}
    for name, wrong, text in [
        ("rows", np.array([0, None], object), "Object arrays cannot be loaded"),
        ("parts", [2, 3], "size 1"),
        ("parts", "x", "parts is 'x'; it must be a whole number"),
        ("parts", 2, "2; with 2 parts it is 0 to 1"),
    ]:
        np.savez(tmp_path / "other.npz", **{**arrays, "parts": 3, name: wrong})
        with pytest.raises(malt.ConfigError, match=r"other.npz' has no partition") as caught:
            malt.Partition.load(tmp_path / "other.npz")
        assert text in str(caught.value)


def test_does_not_change_with_the_arrays_it_was_made_of() -> None:
    X, rows, columns = np.ones((4, 5)), np.zeros(4, np.int32), np.zeros(5, np.int32)
    shared = np.ones(5, bool)
    p = malt.Partition(rows, columns, shared, 2)
    placed = malt.Partition.from_rows(X, rows, 2)
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
    p = malt.partition(twice, 3)

    assert p.checksum == malt.partition(once, 3).checksum
    assert p.traffic(twice).random == p.traffic(once).random
    assert twice.nnz == 2 * once.nnz


@pytest.mark.parametrize(("parts", "balance"), [(4, "rows"), (4, "values"), (7, "values")])
def test_empty_rows_are_spread_evenly(parts: int, balance: str) -> None:
    p = malt.partition(sp.csr_matrix((28, 4)), parts, balance=balance)
    assert np.bincount(p.rows, minlength=parts).tolist() == [28 // parts] * parts


def test_names_the_memory_that_wide_data_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.csr_matrix((np.ones(4), [0, 1, 0, 1], [0, 2, 4]), shape=(2, 100_000))
    p = malt.partition(X, 2)
    monkeypatch.setattr(_partition.core, "available_bytes", lambda: 2_700_000)
    for call in (
        lambda: malt.partition(X, 2),
        lambda: malt.Partition.from_rows(X, [0] * 2, 65),  # two words of bits a column
        lambda: p.traffic(X),
    ):
        with pytest.raises(malt.ConfigError, match="of 100000 columns need"):
            call()


def test_rows_placed_by_something_else_get_owners() -> None:
    X = groups(mixed=0.3)
    rows = np.arange(300) % 4
    p = malt.Partition.from_rows(X, rows, 4)

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
        (np.ones(4), 2, {}, "X is an array of shape (4,); it is a SciPy sparse matrix or a NumPy"),
        (sp.coo_array(np.ones(3)), 2, {}, "X is an array of shape (3,); it is a SciPy sparse"),
        ([[1, 2]], 2, {}, "X is list; it is a SciPy sparse matrix or a NumPy array"),
        (np.ones((0, 3)), 1, {}, "X has the shape (0, 3); it needs a row and a column at least"),
    ],
)
def test_refuses_what_it_cannot_place(
    X: Any, parts: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(malt.ConfigError) as caught:
        malt.partition(X, parts, **options)
    assert text in str(caught.value)


def test_refuses_parts_that_are_none() -> None:
    X = groups()
    p = malt.partition(X, 3)
    with pytest.raises(malt.ConfigError, match=r"rows\[1\] is 3; with 3 parts it is 0 to 2"):
        malt.Partition([0, 3], [0], [True], 3)
    with pytest.raises(malt.ConfigError, match="columns have the shape"):
        malt.Partition([0], [[0]], [True], 3)
    with pytest.raises(malt.ConfigError, match="shared has the shape"):
        malt.Partition([0], [0], [True, False], 3)
    with pytest.raises(malt.ConfigError, match="part is 3; it must be a whole number from 0 to 2"):
        p.rows_of(3)
    with pytest.raises(malt.ConfigError, match="there are parts for 300 rows, but the matrix has"):
        p.traffic(X[:10])


SPARSE = """
malt.init(timeout=30)
X = np.zeros((400, 80))
X[::2, :20] = X[1::2, 19:40] = 1        # column 19 is in rows of both parts
p = malt.partition(X, 2)
mine = X[p.rows_of(rank)].sum(0)
found = {}
for name, given in (("all", None), ("placed", p)):
    v = malt.sparse_vector(80, capacity=80, partition=given, name=name)
    v.set(np.flatnonzero(mine), mine[mine > 0])
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    dense = np.zeros(80)
    dense[v.indices] = v.values
    found[name] = (dense[mine > 0], v.stats().bytes_out)
tell(found=found)
wrong = malt.partition(X, 3)
tell(parts=error_of(malt.sparse_vector, 80, capacity=8, partition=wrong))
tell(width=error_of(malt.sparse_vector, 81, capacity=8, partition=p))
tell(kind=error_of(malt.sparse_vector, 80, capacity=8, partition=p.rows))
other = malt.Partition(p.rows, p.columns, np.roll(p.shared, 1) if rank else p.shared, 2)
tell(differ=error_of(malt.sparse_vector, 80, capacity=8, partition=other))
"""


def test_a_sparse_vector_sends_what_other_ranks_need(tmp_path: Path) -> None:
    result = run_job(tmp_path, 2, SPARSE)
    assert result.code == 0, result.output
    for told in result.told:
        (all_values, all_bytes), (values, sent) = told["found"]["all"], told["found"]["placed"]
        assert values.tolist() == all_values.tolist()
        assert (all_bytes, sent) in [(8 * 20, 8), (8 * 21, 8)]
        assert told["parts"].says("partition has 3 parts", "2 ranks", "malt.partition(X, 2)")
        assert told["width"].says("partition has 80 columns, but dim is 81")
        assert told["kind"].says("partition is a ndarray", "malt.partition(X, parts)")
        assert told["differ"].kind == "ConfigError"


TABLE = """
malt.init(timeout=30)
rng = np.random.default_rng(0)
owners = rng.integers(0, size, 5000)
p = malt.Partition([0], owners, np.ones(5000, bool), size)
expected = np.zeros((5000, 2))
with malt.ps.Table(5000, 2, staleness=0, dtype=np.float64, partition=p) as table:
    for step in range(20):
        for each in range(size):
            random = np.random.default_rng([step, each])
            keys = np.unique(random.integers(0, 5000, 700))
            values = random.integers(0, 9, (len(keys), 2)).astype(float)
            expected[keys] += values
            if each == rank:
                table.push(keys, values)
        if rank == 0:
            table.push(range(100, 300), 1.0)
            table.push(None, 2.0)
        expected[100:300] += 1
        expected += 2
        table.clock()
    keys = np.unique(rng.integers(0, 5000, 900))
    out = np.zeros((5000, 2))
    assert table.pull(out=out) is out
    tell(whole=(out == expected).all(), listed=(table.pull(keys) == expected[keys]).all())
    tell(part=(table.pull(range(4990, 5000)) == expected[4990:]).all(), none=len(table.pull([])))
    tell(errors=[error_of(table.pull, np.array(keys)) for keys in ([2, 1], [3, 3], [0, 5000])])
mine = p.columns_of(rank)
with malt.ps.Table(5000, 2, partition=p) as table:
    malt.barrier()
    table.wait(table.push(mine, 1.0))
    table.pull(mine)
    stats = table.stats()
    tell(own=(stats.bytes_out + stats.bytes_in, stats.bytes_own))
wrong = malt.Partition([0], owners % 1, np.ones(5000, bool), size + 1)
tell(parts=error_of(malt.ps.Table, 5000, partition=wrong))
tell(width=error_of(malt.ps.Table, 5001, partition=p))
tell(differ=error_of(malt.ps.Table, 5000, partition=p if rank else None, timeout=5))
"""


@pytest.mark.parametrize(("size", "transport"), [(1, "shm"), (3, "shm"), (2, "tcp")])
def test_a_table_with_owners_has_the_same_values(tmp_path: Path, size: int, transport: str) -> None:
    result = run_job(tmp_path, size, TABLE, environ={"MALT_TRANSPORT": transport})
    assert result.code == 0, result.output
    for told in result.told:
        assert (told["whole"], told["listed"], told["part"]) == (True, True, True)
        assert told["none"] == 0
        assert all(each.says("keys grow, and are 0 to 4999") for each in told["errors"])
        moved, own = told["own"]
        assert moved - own <= 64 * 4 * (size - 1) * 4  # clocks and partings, but no rows
        assert own > 5000 / size * 2 * 8 * 0.8
        assert told["parts"].says(f"partition has {size + 1} parts, but there are {size} ranks")
        assert told["width"].says("partition has 5000 columns, but the table has 5001 rows")
        assert size == 1 or told["differ"].kind == "ConfigError"


def test_a_checkpoint_fits_tables_with_the_same_partition(tmp_path: Path) -> None:
    script = f"""
malt.init(timeout=30)
p = malt.Partition([0], np.arange(100) % size, np.ones(100, bool), size)
where = {str(tmp_path / "saved")!r}
with malt.ps.Table(100, partition=p) as table:
    if rank == 0:
        table.push(None, np.arange(100))
    table.clock()
    malt.barrier()
    malt.save(where, {{"t": table}})
with malt.ps.Table(100, partition=p) as table:
    malt.restore(where, {{"t": table}})
    tell(values=table.pull())
with malt.ps.Table(100) as table:
    tell(without=error_of(malt.restore, where, {{"t": table}}))
with malt.ps.Table(100, update=malt.ps.SGD(1.0), partition=p) as table:
    tell(rule=error_of(malt.restore, where, {{"t": table}}))
with malt.ps.Table(100, update=malt.ps.Assign()) as table:
    arrays = malt.restore(where).arrays
    for name in arrays:
        if name.endswith("/keys"):
            is_row = arrays[name] >= 0
            table.push(arrays[name][is_row], arrays[name.replace("keys", "values")][is_row])
    table.wait()
    malt.barrier()
    tell(by_keys=table.pull())
"""
    result = run_job(tmp_path, 2, script)
    assert result.code == 0, result.output
    advice = "push them with malt.ps.Assign(), to the keys in t/0/keys"
    for told in result.told:
        assert told["values"].tolist() == list(range(100))
        assert told["by_keys"].tolist() == list(range(100))
        assert told["without"].kind == "ConfigError"
        assert told["without"].says("saved with partition=", "has partition=None", advice)
        assert told["rule"].says("saved with update=Add", "has update=SGD", advice)


def test_a_checkpoint_fits_other_numbers_of_ranks(tmp_path: Path) -> None:
    script = f"""
malt.init(timeout=30)
p = malt.Partition([0], np.random.default_rng(0).integers(0, 2, 5000), np.ones(5000, bool), 2)
where = {str(tmp_path / "saved")!r}
with malt.ps.Table(5000, partition=p) as table:
    if malt.restore(where, {{"t": table}}) is None:
        if rank == 0:
            table.push(None, np.arange(5000))
        table.clock()
        malt.barrier()
        malt.save(where, {{"t": table}})
    malt.barrier()
    tell(values=table.pull())
with malt.ps.Table(5008, partition=malt.Partition([0], [0] * 5008, [True] * 5008, 1)) as table:
    tell(wider=error_of(malt.restore, where, {{"t": table}}))
"""
    for size in (2, 3):
        (tmp_path / str(size)).mkdir()
        result = run_job(tmp_path / str(size), size, script)
        assert result.code == 0, result.output
        for told in result.told:
            assert told["values"].tolist() == list(range(5000))
            assert told["wider"].says("was saved with partition=")


RATINGS = """
rng = np.random.default_rng(0)
users, items = rng.integers(0, 200, 6000), rng.integers(0, 40, 6000)
items += 40 * (users % 2) * (rng.random(6000) < 0.9)
values = 3 + np.sin(users) + np.cos(items)
X = np.zeros((200, 80))
X[users, items] = 1
def model(**options):
    given = dict(n_factors=4, n_epochs=15, lr=0.05, random_state=0, shape=(200, 80))
    return malt.MatrixFactorization(**given | options)
"""


def test_a_factorization_learns_the_same_from_fewer_bytes(tmp_path: Path) -> None:
    script = f"""{RATINGS}
malt.init(timeout=30)
p = malt.partition(X, size)
given = (users, items, values)
placed = model(partition=p).fit(given)                # each rank is given all, and takes its own
own = p.rows[users] == rank
mine = tuple(each[own] for each in given)
again = model(partition=p).fit(mine)
whole = model().fit(mine)                             # exchanges all rows
sent = [each.history_["bytes_out"].max() for each in (placed, whole)]
tell(sent=sent, factors=[each.item_factors_ for each in (placed, again, whole)])
tell(rmse=[each.rmse(given) for each in (placed, whole)])
tell(parts=error_of(model(partition=malt.partition(X, 3)).fit, given))
tell(rows=error_of(model(partition=malt.partition(X[:50], 2)).fit, given))
one = p if rank else malt.partition(X, size, seed=5)
tell(differ=error_of(model(partition=one).fit, given))
tell(empty=error_of(model(partition=p).fit, tuple(e[own == (rank == 0)] for e in given)))
"""
    result = run_job(tmp_path, 2, script)
    assert result.code == 0, result.output
    for told in result.told:
        placed, again, whole = told["factors"]
        assert np.array_equal(placed, again)
        assert np.array_equal(placed, result.told[0]["factors"][0])
        assert np.allclose(placed, whole, atol=1e-4)
        assert told["sent"][0] < told["sent"][1] / 3
        assert abs(told["rmse"][0] - told["rmse"][1]) < 1e-4
        assert told["parts"].says("partition has 3 parts, but there are 2 ranks")
        assert told["rows"].says("the partition has 50 rows; make it of a matrix with a row for")
        assert told["differ"].says("the ranks were given different partitions")
        assert told["empty"].says("ratings is of a user of part 1")


def test_forked_ranks_take_the_users_of_their_parts() -> None:
    space: dict[str, Any] = {"np": np, "malt": malt}
    exec(RATINGS, space)
    p = malt.partition(space["X"], 2)
    given = tuple(space[name] for name in ("users", "items", "values"))
    fitted = space["model"](partition=p, ranks=2).fit(given)

    assert fitted.rmse(given) < 0.3
    is_train = given[0] < 150  # the last users are held out
    trained = space["model"](partition=p, ranks=2, shape=None)
    trained.fit(tuple(each[is_train] for each in given))
    assert trained.user_factors_.shape[0] == 150
    with pytest.raises(malt.ConfigError, match="partition has 2 parts, but there are 3 ranks"):
        space["model"](partition=p, ranks=3).fit(given)
    with pytest.raises(malt.ConfigError, match="partition is a str"):
        space["model"](partition="p", ranks=2).fit(given)


def test_drawn_pairs_make_all_items_shared_and_no_users() -> None:
    users, items = np.divmod(np.arange(2000), 50)
    items += 50 * (users % 2)  # two halves that have nothing in common
    X = sp.csr_matrix((np.ones(2000), (users, items)), shape=(40, 100))
    p = malt.partition(X, 2)
    sent = {}
    for epochs in (1, 11):
        for negatives in (0, 1):
            model = malt.MatrixFactorization(
                16, epochs, implicit=True, negatives=negatives, partition=p, ranks=2, verbose=False
            )
            sent[negatives, epochs] = model.fit(X).history_["bytes_out"].max()

    def by_epoch(negatives: int) -> float:
        return (sent[negatives, 11] - sent[negatives, 1]) / 10 / 4 / (16 + 1)  # in rows

    assert not p.shared.any()
    assert by_epoch(0) < 5
    assert 100 <= by_epoch(1) < 110


def test_the_exchange_of_shared_rows_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.csr_matrix(np.ones((20, 1000)))  # all items are shared
    p = malt.Partition.from_rows(X, np.arange(20) % 2, 2)
    monkeypatch.setattr(trainer, "available_bytes", lambda: 20 * 1020 * 17)
    malt.MatrixFactorization(16, 1, ranks=2, verbose=False).fit(X)
    with pytest.raises(malt.ConfigError, match="20 users and 1000 items with 16 factors need"):
        malt.MatrixFactorization(16, 1, ranks=2, partition=p, verbose=False).fit(X)
