"""What takes partition=: a sparse vector, a table and its checkpoints, a factorisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from jobs import run_job

import malt
from malt._factorization import trainer
from malt.ps._placing import Placing

SPARSE = """
malt.init(timeout=30)
X = np.zeros((400, 80))
X[::2, :20] = X[1::2, 19:40] = 1        # column 19 is in rows of both parts
p = malt.data.partition(X, 2)
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
wrong = malt.data.partition(X, 3)
tell(parts=error_of(malt.sparse_vector, 80, capacity=8, partition=wrong))
tell(width=error_of(malt.sparse_vector, 81, capacity=8, partition=p))
tell(kind=error_of(malt.sparse_vector, 80, capacity=8, partition=p.rows))
other = malt.data.Partition(p.rows, p.columns, np.roll(p.shared, 1) if rank else p.shared, 2)
tell(differ=error_of(malt.sparse_vector, 80, capacity=8, partition=other))
"""


def test_a_sparse_vector_sends_what_other_ranks_need(tmp_path: Path) -> None:
    result = run_job(tmp_path, 2, SPARSE)
    assert result.code == 0, result.output
    for told in result.told:
        (all_values, all_bytes), (values, sent) = told["found"]["all"], told["found"]["placed"]
        assert values.tolist() == all_values.tolist()
        assert (all_bytes, sent) in [(8 * 20, 8), (8 * 21, 8)]
        assert told["parts"].says("partition has 3 parts", "2 ranks", "malt.data.partition(X, 2)")
        assert told["width"].says("partition has 80 columns, but dim is 81")
        assert told["kind"].says("partition is a ndarray", "malt.data.partition(X, parts)")
        assert told["differ"].kind == "ConfigError"


TABLE = """
malt.init(timeout=30)
rng = np.random.default_rng(0)
owners = rng.integers(0, size, 5000)
p = malt.data.Partition([0], owners, np.ones(5000, bool), size)
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
wrong = malt.data.Partition([0], owners % 1, np.ones(5000, bool), size + 1)
tell(parts=error_of(malt.ps.Table, 5000, partition=wrong))
tell(width=error_of(malt.ps.Table, 5001, partition=p))
tell(differ=error_of(malt.ps.Table, 5000, partition=p if rank else None, timeout=5))
tell(one=error_of(malt.ps.Table, 5000, partition=p if rank else wrong))
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
        assert told["one"].says(f"partition has {size + 1} parts, but there are {size} ranks")
        assert told["one"].seconds < 15


def test_an_owners_keys_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = np.random.default_rng(0).integers(0, 3, 100_000)
    p = malt.data.Partition([0], owners, np.ones(len(owners), bool), 3)
    placing = Placing(p, len(owners), 4)
    scans, scan = [], np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda array: scans.append(array) or scan(array))
    size = placing.room // len(placing.owners)
    firsts = range(0, placing.room, size)
    keys = np.concatenate([placing.keys_at(first, first + size) for first in firsts])
    monkeypatch.undo()

    assert len(placing.owners) > len(scans) == 3
    assert np.array_equal(placing.places[keys[keys >= 0]], np.flatnonzero(keys >= 0))
    assert (keys >= 0).sum() == len(owners)


def test_a_checkpoint_fits_tables_with_the_same_partition(tmp_path: Path) -> None:
    script = f"""
malt.init(timeout=30)
p = malt.data.Partition([0], np.arange(100) % size, np.ones(100, bool), size)
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
p = malt.data.Partition([0], np.random.default_rng(0).integers(0, 2, 5000), np.ones(5000, bool), 2)
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
with malt.ps.Table(5008, partition=malt.data.Partition([0], [0] * 5008, [True] * 5008, 1)) as table:
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
    given = dict(n_factors=4, passes=15, lr=0.05, random_state=0, shape=(200, 80))
    return malt.learn.MatrixFactorization(**given | options)
"""


def test_a_factorization_learns_the_same_from_fewer_bytes(tmp_path: Path) -> None:
    script = f"""{RATINGS}
malt.init(timeout=30)
p = malt.data.partition(X, size)
given = (users, items, values)
placed = model(partition=p).fit(given)                # each rank is given all, and takes its own
own = p.rows[users] == rank
mine = tuple(each[own] for each in given)
again = model(partition=p).fit(mine)
whole = model().fit(mine)                             # exchanges all rows
sent = [each.history_["bytes_out"].max() for each in (placed, whole)]
tell(sent=sent, factors=[each.item_factors_ for each in (placed, again, whole)])
tell(rmse=[each.rmse(given) for each in (placed, whole)])
tell(parts=error_of(model(partition=malt.data.partition(X, 3)).fit, given))
tell(rows=error_of(model(partition=malt.data.partition(X[:50], 2)).fit, given))
one = p if rank else malt.data.partition(X, size, seed=5)
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
        assert told["differ"].says("the partition's checksum is", "made from the same matrix")
        assert told["empty"].says("ratings is of a user of part 1")


def test_forked_ranks_take_the_users_of_their_parts() -> None:
    space: dict[str, Any] = {"np": np, "malt": malt}
    exec(RATINGS, space)
    p = malt.data.partition(space["X"], 2)
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
    p = malt.data.partition(X, 2)
    sent = {}
    for epochs in (1, 11):
        for negatives in (0, 1):
            model = malt.learn.MatrixFactorization(
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
    p = malt.data.Partition.from_rows(X, np.arange(20) % 2, 2)
    monkeypatch.setattr(trainer, "available_bytes", lambda: 20 * 1020 * 17)
    malt.learn.MatrixFactorization(16, 1, ranks=2, verbose=False).fit(X)
    with pytest.raises(malt.ConfigError, match="20 users and 1000 items with 16 factors need"):
        malt.learn.MatrixFactorization(16, 1, ranks=2, partition=p, verbose=False).fit(X)
