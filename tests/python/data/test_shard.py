"""malt.shard: fixed parts, and chunks that move when a rank dies."""

from __future__ import annotations

import collections
import itertools
import operator
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunk_turns import TRAIN, check_turns, turns_taken
from jobs import run_job
from scipy import sparse

import malt

TRANSPORTS = ["shm", "tcp"]


# ---- One rank, and what it is given ----


def test_a_fixed_part_is_a_view_of_every_nth(alone: None) -> None:
    x = np.arange(5)

    assert np.shares_memory(malt.shard(x), x)
    assert list(malt.shard(iter("abc"))) == ["a", "b", "c"]


CONTAINERS = {
    "array": (np.arange(20).reshape(10, 2), lambda part: part[:, 0].tolist()),
    "csr": (sparse.csr_matrix(np.arange(20).reshape(10, 2)), lambda part: part.toarray()[:, 0]),
    "list": (list(range(0, 20, 2)), list),
    "tuple": (tuple(range(0, 20, 2)), list),
    "range": (range(0, 20, 2), list),
}


def test_even_parts_have_as_many_elements_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malt._job.job.size", lambda: 3)
    rows = sparse.csr_matrix(np.eye(11))
    for rank in range(3):
        monkeypatch.setattr("malt._job.job.rank", lambda rank=rank: rank)
        assert malt.shard(list(range(11)), even=True) == [rank, rank + 3, rank + 6]
        assert malt.shard(rows, even=True).shape == (3, 11)
    assert len(malt.shard([0, 1], even=True)) == 0
    with pytest.raises(malt.ConfigError, match="even=True takes data with a length; generator has"):
        malt.shard((x for x in "abc"), even=True)
    with pytest.raises(malt.ConfigError, match="with chunk=, lockstep=True"):
        malt.shard(list(range(11)), chunk=2, even=True)


def test_even_parts_of_a_torch_data_set_have_as_many_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("malt._job.job.size", lambda: 3)
    for rank in range(3):
        monkeypatch.setattr("malt._job.job.rank", lambda rank=rank: rank)
        assert len(malt.shard(torch.utils.data.TensorDataset(torch.zeros(11)), even=True)) == 3


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shuffle", [None, 5])
def test_chunks_of_any_container_have_all_elements(
    alone: None, container: str, shuffle: int | None
) -> None:
    data, first_column = CONTAINERS[container]
    numbers = np.arange(10)
    got: list[tuple[int, int]] = []
    for part, number in malt.shard(data, numbers, chunk=4, shuffle=shuffle):
        got += zip(first_column(part), number.tolist(), strict=True)

    assert sorted(got) == [(2 * i, i) for i in range(10)]
    assert (got == sorted(got)) == (shuffle is None)


def test_without_shuffle_chunks_of_an_array_are_views(alone: None) -> None:
    x = np.arange(10)

    parts = list(malt.shard(x, chunk=4))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(np.shares_memory(part, x) for part in parts)


def test_each_pass_is_shuffled_anew_and_the_same_for_all_arrays(alone: None) -> None:
    parts = malt.shard(np.arange(50), list(range(50)), chunk=50, shuffle=1)

    orders = []
    for _ in range(3):
        for xs, ys in parts:
            assert xs.tolist() == ys
            orders.append(tuple(ys))
    assert len(set(orders)) == 3


@pytest.mark.parametrize(("elements", "chunk"), [(0, 3), (3, 100), (1, 1)])
def test_little_data_gives_few_chunks(alone: None, elements: int, chunk: int) -> None:
    parts = malt.shard(np.arange(elements), chunk=chunk)

    for _ in range(2):
        assert [part.tolist() for part in parts] == [list(range(elements))][: elements > 0]


def test_a_loop_that_was_left_goes_on_with_the_chunk_it_was_left_at(alone: None) -> None:
    parts = malt.shard(range(6), chunk=2)

    for part in parts:
        if part[0] == 2:
            break
    assert [list(part) for part in parts] == [[2, 3], [4, 5]]
    assert [list(part) for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert parts.repeated == []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1],), {"chunk": 0}, "chunk is 0; it must be a whole number from 1"),
        (([1],), {"chunk": 2.5}, r"chunk is 2\.5"),
        (([1],), {"chunk": True}, "chunk is True"),
        (([1],), {"chunk": 1, "shuffle": -1}, "shuffle is -1; it must be a whole number from 0"),
        (([1], [1, 2]), {"chunk": 1}, "have 1, 2 elements"),
        ((iter([1]),), {"chunk": 1}, r"a list_iterator \(.*: it needs a length"),
        (({1: 2},), {"chunk": 1}, "a dict cannot be shared out"),
        ((np.array(1),), {"chunk": 1}, "ndarray without dimensions"),
        (([1], [2]), {}, "need chunk="),
        (([1],), {"lockstep": True}, "need chunk="),
    ],
)
def test_wrong_arguments_are_refused(
    alone: None, arguments: Any, options: Any, message: str
) -> None:
    with pytest.raises(malt.ConfigError, match=message):
        malt.shard(*arguments, **options)


# ---- Several ranks ----


def test_disagreement_of_ranks_raises_on_all(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
tell(elements=error_of(malt.shard, [0] * (5 + rank), chunk=2),
     wrong=error_of(malt.shard, [0], chunk=1 - rank),
     lockstep=error_of(malt.shard, [0], chunk=1, lockstep=rank == 0),
     good=len(list(malt.shard([0, 1], chunk=1))))
malt.barrier()
""",
    )
    for error in result.each("elements"):
        assert error.kind == "ConfigError"
        assert error.says("elements is 5 on rank 0, and 6 on rank 1")
    assert all(error.says("rank 1: chunk is 0") for error in result.each("wrong"))
    assert all(error.says("lockstep is True on rank 0") for error in result.each("lockstep"))
    assert sum(result.each("good")) == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_without_deaths_each_element_comes_once_a_pass(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        4,
        """
import itertools
malt.init(transport=transport, timeout=60)
seen, turns = [], []
for elements, chunk in ((103, 8), (96, 8), (3, 1), (0, 5), (7, 100)):
    for options in ({}, {"shuffle": 3}, {"lockstep": True}):
        parts = malt.shard(np.arange(elements), chunk=chunk, **options)
        passes = [[part.tolist() for part in parts] for _ in range(3)]
        assert not parts.repeated
        turns.append([len(taken) for taken in passes])
        seen.append([(elements, list(itertools.chain(*taken))) for taken in passes])
        malt.barrier()  # nobody keeps step with a rank that has left
tell(seen=seen, turns=turns)
""",
        transport=transport,
    )
    for case in zip(*result.each("seen"), strict=True):
        for of_pass in zip(*case, strict=True):
            elements = of_pass[0][0]
            assert sorted(itertools.chain(*(got for _, got in of_pass))) == list(range(elements))
    for turns in zip(*result.each("turns"), strict=True):
        by_rank = np.array(turns)
        assert (by_rank.max(axis=0) - by_rank.min(axis=0) <= 1).all()
    for turns in list(zip(*result.each("turns"), strict=True))[2::3]:
        assert len({tuple(of_rank) for of_rank in turns}) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(6))
def test_survivors_train_on_the_unfinished_chunks_of_the_dead(
    tmp_path: Path, transport: str, seed: int
) -> None:
    rng = random.Random(seed)
    elements, chunk, passes = 160, 4, 3
    victims = rng.sample(range(4), 1 + seed % 3)
    run_job(
        tmp_path,
        4,
        TRAIN,
        "--keep-going",
        code=128 + signal.SIGKILL,
        transport=transport,
        elements=elements,
        chunk=chunk,
        passes=passes,
        shuffle=seed if seed % 2 else None,
        lockstep=False,
        deaths={f"{rank}-0": rng.uniform(0.02, 0.25) for rank in victims},
    )
    lives = [f"{rank}-0" for rank in victims]
    check_turns(turns_taken(tmp_path), elements, passes, lives, transport)


@pytest.mark.parametrize(
    ("seed", "lockstep", "transport"),
    [
        (0, False, "shm"),
        (0, True, "tcp"),
        pytest.param(1, False, "tcp", marks=pytest.mark.long),
        pytest.param(1, True, "shm", marks=pytest.mark.long),
    ],
)
def test_ranks_that_come_back_take_part_again(
    tmp_path: Path, transport: str, lockstep: bool, seed: int
) -> None:
    rng = random.Random(seed)
    elements, chunk, passes = 120, 3, 30
    first, second = rng.sample(range(4), 2)
    deaths = {f"{first}-0": rng.uniform(0.1, 0.5), f"{second}-0": rng.uniform(0.1, 1)}
    deaths[f"{first}-1"] = rng.uniform(0.1, 0.5)
    result = run_job(
        tmp_path,
        4,
        TRAIN,
        "--respawn",
        transport=transport,
        elements=elements,
        chunk=chunk,
        passes=passes,
        shuffle=seed if seed % 2 else None,
        lockstep=lockstep,
        deaths=deaths,
    )
    by_chunk = turns_taken(tmp_path)
    check_turns(by_chunk, elements, passes, deaths, transport)
    lives = {turn.life for turns in by_chunk.values() for turn in turns}
    assert {f"{first}-2", f"{second}-1"} <= lives, result.output


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_in_lockstep_a_bsp_loop_goes_on_when_a_rank_dies(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init(transport=transport, timeout=30)
w = np.zeros(2)
m = malt.vector(w)
parts = malt.shard(np.arange(90.0), chunk=2, lockstep=True)
turns, seen = 0, []
for n in range(3):
    for part in parts:
        turns += 1
        if (rank, turns) in ((2, 5), (1, 17)):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += [(n, x) for x in part.tolist()]
        w += part.sum()
        m.scatter()
        m.gather(malt.AVG, staleness=0)
    m.allreduce()
tell(turns=turns, w=w.tolist(), seen=seen, repeated=parts.repeated)
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        transport=transport,
    )
    first, last = result.told[0], result.told[3]
    assert first["turns"] == last["turns"]
    assert first["w"] == last["w"]
    assert len(first["repeated"] + last["repeated"]) == 2
    assert max(Counter(first["seen"] + last["seen"]).values()) == 1
    alone = {x for n, x in first["seen"] + last["seen"] if n == 2}
    assert alone == set(range(90))


def test_a_rank_that_waits_in_vain_says_for_whom_and_what_to_do(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
meet("here")
malt.init(timeout=1)
parts = malt.shard(range(8), chunk=1)
if rank == 1:
    for n, part in enumerate(parts):
        if n == 1:
            await_flag("late")
else:
    got = []
    error = error_of(lambda: got.extend(parts))
    raise_flag("late")
    tell(error=error, rest=list(parts), got=len(got))
""",
    )
    told = result.told[0]
    assert told["error"].kind == "TimeoutError"
    assert told["error"].ranks == (1,)
    assert told["error"].says("end of pass 1 for rank 1: 3 of 8 chunks are unfinished", "lockstep")
    assert told["error"].seconds > 1
    assert told["got"] == 4
    assert told["rest"] == []


def test_a_pass_ends_although_two_ranks_were_reading_the_rows_of_the_others(tmp_path: Path) -> None:
    # Rank 0 and 1 each send a row per turn, and one with which they wait at the end of the pass.
    # While they send that, rank 2 is reading their first rows, and rank 3 their second ones.
    result = run_job(
        tmp_path,
        4,
        """
meet("here")
malt.init(timeout=10, transport="shm")
parts = malt.shard(range(8), chunk=1)

class Noting:
    def __init__(self, rows):
        self._rows = rows

    def __getattr__(self, name):
        return getattr(self._rows, name)

    def await_update(self, *arguments):
        raise_flag(f"{rank} waits")
        return self._rows.await_update(*arguments)

def read(_, updates):
    tell(read=sorted({update.rank for update in updates}))
    raise_flag(f"{rank} reads")
    await_flag("0 waits")
    await_flag("1 waits")

if rank < 2:
    parts._rows = Noting(parts._rows)
else:
    for other in (0, 1):
        await_flag(f"{other} is in turn {rank - 1}")
    parts._rows.gather(read)
got = []
for part in parts:
    got += part
    if rank < 2:
        raise_flag(f"{rank} is in turn {len(got)}")
        await_flag(f"{len(got) + 1} reads")
tell(got=got)
malt.barrier()
""",
    )
    assert [told["read"] for told in result.told[2:]] == [[0, 1]] * 2
    assert sorted(itertools.chain(*result.each("got"))) == list(range(8))
    assert [len(got) for got in result.each("got")] == [2] * 4


def test_a_rank_that_leaves_hands_on_its_chunks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=30)
parts = malt.shard(range(30), chunk=1)
got = []
for part in parts:
    if rank == 2 and len(got) == 4:
        malt.finalize()
        break
    got += part
    time.sleep(0.005)
tell(got=got, repeated=parts.repeated)
""",
    )
    assert sorted(itertools.chain(*result.each("got"))) == list(range(30))
    assert sum(map(len, result.each("repeated"))) == 1  # begun, and not finished


def test_a_rank_that_is_left_out_hears_of_it_and_the_others_do_its_chunks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=30, silence=1)
parts = malt.shard(range(30), chunk=1)
got = []
def train():
    for part in parts:
        got.extend(part)
        if rank == 2 and len(got) == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.005)
if rank == 2:
    pid = os.getpid()
    if os.fork() == 0:
        await_flag("done")
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
error = error_of(train)
if rank == 0:
    raise_flag("done")
tell(got=got, repeated=parts.repeated, error=error)
""",
    )
    first, second, stopped = result.told
    assert first["error"] is second["error"] is None
    assert stopped["error"].kind == "PeerError"
    assert stopped["error"].says("was evicted from the job")
    assert len(stopped["got"]) == 4
    assert sorted(first["got"] + second["got"] + stopped["got"][:-1]) == list(range(30))
    assert len(first["repeated"] + second["repeated"]) == 1


@pytest.mark.parametrize(
    ("data", "way"),
    [
        ({"x": [1, 2]}, r"dict.*each of its values.*data\.items\(\)"),
        ({"a", "b"}, r"set.*its order differs from rank to rank.*sorted\(data\)"),
        (3, "int cannot be shared out: give an array, a sequence or an iterable"),
    ],
)
def test_data_without_an_order_is_refused(alone: None, data: Any, way: str) -> None:
    with pytest.raises(malt.ConfigError, match=way):
        malt.shard(data)


class MapStyle:
    """As a dataset of Hugging Face's: a slice is no part of the elements."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: Any) -> Any:
        return {"x": list(range(*i.indices(10)))} if isinstance(i, slice) else {"x": i}


class WholeNumbers(MapStyle):
    def __getitem__(self, i: Any) -> int:
        return range(10)[operator.index(i)]


@pytest.mark.parametrize(
    ("data", "elements"),
    [
        (MapStyle(), [{"x": i} for i in range(10)]),
        (WholeNumbers(), list(range(10))),
        (collections.deque(range(10)), list(range(10))),
        (tuple(range(10)), list(range(10))),
        (range(10), list(range(10))),
        (collections.UserList(range(10)), list(range(10))),
        (dict.fromkeys("abc", 1).values(), [1, 1, 1]),
        (b"abc", list(b"abc")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_collections_of_any_kind(
    alone: None, monkeypatch: pytest.MonkeyPatch, data: Any, elements: list[Any]
) -> None:
    for shuffle in (None, 0):
        parts = list(malt.shard(data, chunk=4, shuffle=shuffle))
        assert sorted(str(each) for part in parts for each in part) == sorted(map(str, elements))
    monkeypatch.setattr("malt._job.job.size", lambda: 3)
    monkeypatch.setattr("malt._job.job.rank", lambda: 1)
    assert list(malt.shard(data)) == elements[1::3]
    if not isinstance(data, collections.abc.ValuesView):
        part = malt.shard(data, even=True)
        assert len(part) == len(elements) // 3
        assert part[0] == elements[1]


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_sparse_matrices_of_any_layout(
    alone: None, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    dense = np.arange(12.0).reshape(6, 2)
    for kind in ("matrix", "array"):
        matrix = getattr(sparse, f"{layout}_{kind}")(dense)
        for shuffle in (None, 0):
            parts = [part.toarray() for part in malt.shard(matrix, chunk=4, shuffle=shuffle)]
            np.testing.assert_array_equal(np.sort(np.vstack(parts), axis=0), dense)
        with monkeypatch.context() as patch:
            patch.setattr("malt._job.job.size", lambda: 3)
            patch.setattr("malt._job.job.rank", lambda: 1)
            np.testing.assert_array_equal(malt.shard(matrix).toarray(), dense[1::3])


class NoSteps:
    shape = (4,)

    def __getitem__(self, i: Any) -> Any:
        raise ValueError("Step must be >= 1")


@pytest.mark.parametrize(
    "data", [np.array(1), NoSteps(), 5, None], ids=["0-d", "no steps", "int", "None"]
)
def test_data_without_rows_are_refused(alone: None, data: Any) -> None:
    with pytest.raises(malt.ConfigError, match=r"cannot (be shared|share) out"):
        malt.shard(data)
