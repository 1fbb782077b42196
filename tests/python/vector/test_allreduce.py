"""The allreduce of a dense vector: exact, within a host and between hosts, and when ranks die."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import PROMPT, run_job
from numpy_folds import fold_with_numpy, inputs, is_close

import malt


def test_allreduce_is_exact_over_callers_and_own_memory(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
got = {}
for dtype in ("float32", "float64", "int32", "int64"):
    for length in (1, 3, 1000, 4099):
        values = np.random.default_rng(length).standard_normal((size, length)) * 1000
        for memory in ("own", "callers", "several"):
            w = np.empty(length, dtype=dtype)
            cut = max(1, length // 3)
            parts = [w[:cut], w[cut:]] if length > 1 else [w]
            v = malt.vector({"own": (length,), "callers": w, "several": parts}[memory], dtype=dtype)
            if memory == "own": w = v.array
            for name in ("AVG", "SUM", "MEDIAN", "TRIMMED_MEAN"):
                w[:] = values.astype(dtype)[rank]
                g = v.allreduce(FOLDS[name])
                got[dtype, length, name, memory] = w.copy(), g.count, g.ranks
            v.close()
tell(got=got)
malt.barrier()
""",
    )
    told = result.each("got")
    assert len(told[0]) == 4 * 4 * 3 * 4
    for (dtype, length, name, memory), (values, count, ranks) in told[0].items():
        all_values = inputs(4, dtype, length)
        expected = fold_with_numpy(name, all_values, 0)
        assert is_close(values, expected, all_values), (dtype, length, name, memory)
        assert (count, ranks) == (3, (1, 2, 3))
        for other in told[1:]:
            assert other[dtype, length, name, memory][0].tobytes() == values.tobytes()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_means_of_large_integers_are_exact_on_every_way(
    tmp_path: Path, ranks: int, transport: str
) -> None:
    """Gathered alone and shared out, reduced in one memory and by messages, dense and sparse."""
    result = run_job(
        tmp_path,
        ranks,
        """
malt.init(transport, timeout=30)
told = []
for count in (3, 9000):  # the long one is shared out
    for fold in (malt.AVG, malt.TRIMMED_MEAN(0), malt.MEDIAN):
        w = np.full(count, -(2**62) - 2 * rank)
        v = malt.vector(w)
        v.allreduce(fold)
        reduced = w.copy()
        w[:] = 2**62 + 2 * rank
        v.scatter(), v.gather(fold, staleness=0)
        told.append([set(reduced.tolist()), set(w.tolist())])
s = malt.sparse_vector(9, capacity=9, dtype=np.int64)
s.set([rank, 5], [7, 2**63 - 1])
s.scatter(), s.gather(malt.AVG, staleness=0)
tell(told=told, sparse=s.values.tolist()[-1])
malt.barrier()
""",
        transport=transport,
    )
    middle = ranks - 1  # the mean of 2 * rank
    for told in result.told:
        assert told["told"] == [[{-(2**62) - middle}, {2**62 + middle}]] * 6
        assert told["sparse"] == 2**63 - 1


def test_allreduce_goes_beside_scatters_of_differing_number(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
got = []
for own in (True, False):
    w = np.zeros(5)
    v = malt.vector((5,), dtype="float64") if own else malt.vector(w)
    if own: w = v.array
    for step in range(rank):
        v.scatter()
    w[:] = rank + 1
    v.allreduce(malt.SUM)
    got.append(w.tolist())
tell(got=got)
malt.barrier()
""",
    )
    assert result.each("got") == [[[6.0] * 5] * 2] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_stats_count_the_bytes_of_allreduce_and_no_updates(
    tmp_path: Path, transport: str, size: int
) -> None:
    """Each rank sends its parts of the others' sums, and its sum to them, though read in place."""
    result = run_job(
        tmp_path,
        size,
        """
malt.init(transport=TRANSPORT)
got = []
for own in (True, False):
    v = malt.vector((1001,), dtype="float64") if own else malt.vector(np.zeros(1001))
    for step in range(3):
        v.allreduce(malt.SUM)
    got.append(counters(v))
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    malt.barrier()
    got.append(counters(v))
tell(got=got)
malt.barrier()
""",
        TRANSPORT=transport,
    )
    payload = 3 * 2 * (size - 1) * 8008  # of all ranks together
    for reduced, scattered in [told["got"][i : i + 2] for told in result.told for i in (0, 2)]:
        assert all(reduced[name] == 0 for name in reduced if name[:6] != "bytes_")
        assert scattered["sent"] == scattered["folded"] == size - 1
        updates = (size - 1) * 8008
        assert scattered["bytes_out"] - reduced["bytes_out"] == updates
        assert scattered["bytes_in"] - reduced["bytes_in"] == updates
    for i in (0, 2):
        received, sent = (
            sum(told["got"][i][name] for told in result.told) for name in ("bytes_in", "bytes_out")
        )
        if transport == "shm":
            assert received == sent == payload
        else:  # a short vector goes whole to everybody, in messages with headers
            assert received == 3 * size * (size - 1) * 8008
            assert received < sent < received + 20_000


def test_allreduce_alone_changes_nothing(alone: None) -> None:
    v = malt.vector(np.array([1.0, 2.0]))
    assert v.allreduce(malt.AVG).count == 0
    assert v.array.tolist() == [1.0, 2.0]


def test_allreduce_without_a_rank_that_is_late_raises_and_can_be_repeated(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
w = np.full(3, rank + 1.0)
v = malt.vector(w)
if rank < 2:  # their limit is long enough for each to see the other come
    tell(late=error_of(v.allreduce, malt.SUM, timeout=1), kept=w.copy())
    raise_flag(rank)
else:
    await_flag(0), await_flag(1)
    tell(late=error_of(v.allreduce, malt.SUM, timeout=0.3), kept=w.copy())
malt.barrier()
v.allreduce(malt.SUM)
tell(summed=w)
malt.barrier()
""",
    )
    for rank in (0, 1):
        late = result.told[rank]["late"]
        assert late.kind == "TimeoutError"
        assert late.seconds < PROMPT
        assert set(late.ranks) <= {2}, late
    assert any(result.told[rank]["late"].ranks == (2,) for rank in (0, 1))
    for rank, told in enumerate(result.told):
        assert told["kept"].tolist() == [rank + 1] * 3
        assert told["summed"].tolist() == [6] * 3


@pytest.mark.parametrize("count", [3, 300_000])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_is_an_allreduce_behind_meets_the_others_again(
    tmp_path: Path, transport: str, count: int
) -> None:
    """They do so once they have met elsewhere; no later sum has what the failed call was given."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(transport=transport, timeout=40)
w = np.zeros(count)
v = malt.vector(w)
v.allreduce()
kinds, sums = [], []
for step in range(6):
    w[:] = 10 ** step * (rank + 1)
    error = None
    if step > 0 or rank == 0:  # as if Ctrl-C came right before the call of rank 1
        error = error_of(v.allreduce, malt.SUM, timeout=20 if step else 0.3)
    kinds.append(error and error.kind)
    sums.append(w[-1])
    malt.barrier()
tell(kinds=kinds, sums=sums)
""",
        transport=transport,
        count=count,
    )
    for rank, told in enumerate(result.told):
        assert told["kinds"] == ["TimeoutError" if rank == 0 else None, *[None] * 5]
        assert told["sums"] == [rank + 1, 30, 300, 3_000, 30_000, 300_000]


@pytest.mark.parametrize("late_at", [0, 2])
@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_is_late_for_allreduces_is_paired_with_no_other_step(
    tmp_path: Path, transport: str, size: int, meets: bool, late_at: int
) -> None:
    """In the first one, mailboxes are made between hosts; `meets`: at a barrier in each step."""
    result = run_job(
        tmp_path,
        size,
        """
malt.init(transport=transport, timeout=20)
w = np.zeros(3)
v = malt.vector(w)
late, wrong = 0, []
for step in range(12):
    if rank == 0 and step == late_at:
        time.sleep(1.1)
    w[:] = step
    if error_of(v.allreduce, malt.SUM, timeout=0.3 if step < 8 else 20) is not None:
        late += 1
    elif w[0] != malt.size() * step:
        wrong.append((step, w[0]))
    if meets:
        malt.barrier()
tell(late=late, wrong=wrong)
""",
        transport=transport,
        meets=meets,
        late_at=late_at,
    )
    assert all(result.each("late"))
    assert result.each("wrong") == [[]] * size


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_gave_up_a_barrier_is_in_step_before_and_after_the_others_make_it(
    tmp_path: Path, transport: str, size: int
) -> None:
    result = run_job(
        tmp_path,
        size,
        """
malt.init(transport=transport, timeout=20)
v = malt.vector(np.zeros(3))
for fold in (malt.AVG, malt.SUM):
    v.allreduce(fold)
    malt.barrier()
given_up = None
if rank == 0:
    given_up = error_of(malt.barrier, timeout=0.1)  # the others are in the next call by then
sums = []
for step in range(8):
    v.array[:] = step
    v.allreduce(malt.SUM)
    sums.append(v.array[0])
    if step == 3:
        malt.barrier()
tell(sums=sums, given_up=given_up)
""",
        transport=transport,
    )
    assert result.told[0]["given_up"].kind == "TimeoutError"
    assert result.each("sums") == [[float(size * step) for step in range(8)]] * size


@pytest.mark.parametrize("length", [10, 91, 200])
def test_a_vectors_name_may_be_long_though_its_first_allreduce_was_given_up(
    tmp_path: Path, length: int
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(transport="tcp", timeout=20)
v = malt.vector(np.zeros(3), name="n" * length)
if rank == 0:
    error_of(v.allreduce, timeout=0.2)
else:
    time.sleep(0.4)
for _ in range(2):
    v.array[:] = rank + 1
    while error_of(v.allreduce, malt.SUM, timeout=5) is not None:
        pass
    malt.barrier()
tell(sum=v.array[0])
""",
        length=length,
    )
    assert result.each("sum") == [6.0] * 3


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_repeated_allreduce_that_others_have_ended_needs_no_call_of_theirs(
    tmp_path: Path, transport: str, size: int
) -> None:
    """They have gone on to another vector, where they wait for this rank."""
    result = run_job(
        tmp_path,
        size,
        """
malt.init(transport=transport, timeout=20)
rng = np.random.default_rng(0)
vectors = [malt.vector(np.zeros(10_000)) for _ in range(2)]
for v in vectors:
    v.allreduce()
late, wrong, slow = 0, [], []
for step in range(300):
    for v in vectors:
        v.array[:] = step
        limit = 0.001 * rng.random() if rank == 0 else 20
        if rank == 1:
            time.sleep(0.001 * rng.random())
        while (error := error_of(v.allreduce, malt.SUM, timeout=limit)) is not None:
            late += 1
            limit = 20
            if error.seconds > 10:
                slow.append((step, error.text))
        if set(v.array) != {step * malt.size()}:
            wrong.append((step, v.array[0]))
tell(late=late, wrong=wrong, slow=slow)
""",
        transport=transport,
    )
    assert result.told[0]["late"] > 0
    assert result.each("wrong") == [[]] * size
    assert result.each("slow") == [[]] * size


def test_allreduce_of_different_folds_is_an_error_on_every_rank(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.full(3, rank + 1.0)
v = malt.vector(w)
tell(differ=error_of(v.allreduce, malt.AVG if rank else malt.SUM), kept=w.copy(),
     cuts=error_of(v.allreduce, malt.TRIMMED_MEAN(0.2 + rank / 10)),
     weighted=error_of(v.allreduce, malt.WEIGHTED))
malt.barrier()
v.allreduce(malt.SUM)
tell(summed=w)
malt.barrier()
""",
    )
    for rank, told in enumerate(result.told):
        for name in ("differ", "cuts"):
            assert told[name].kind == "ConfigError"
            assert told[name].says("the ranks ask for different folds")
        assert told["weighted"].kind == "ConfigError"
        assert told["weighted"].says("takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not WEIGHTED")
        assert told["kept"].tolist() == [rank + 1] * 3
        assert told["summed"].tolist() == [3] * 3


def test_allreduce_between_hosts_sends_two_vectors_less_two_parts(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
w = np.arange(100_000, dtype=np.float32) + rank
v = malt.vector(w)
g = v.allreduce(malt.AVG)
tell(sent=v.stats().bytes_out / w.nbytes, ranks=g.ranks, w=w)
malt.barrier()
""",
        environ={"MALT_TRANSPORT": "tcp"},
    )
    for rank, told in enumerate(result.told):
        assert 1.5 <= told["sent"] < 1.51
        assert told["ranks"] == tuple(r for r in range(4) if r != rank)
        assert np.array_equal(told["w"], np.arange(100_000, dtype=np.float32) + 1.5)


@pytest.mark.parametrize(
    ("memory", "transport"), [("own", "shm"), ("callers", "shm"), ("callers", "tcp")]
)
def test_allreduce_goes_on_without_a_rank_that_is_killed(
    tmp_path: Path, memory: str, transport: str
) -> None:
    """Rank 2 dies somewhere inside; the others agree on each result: with it, or without."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
v = malt.vector((20_000,) if memory == "own" else np.zeros(20_000, dtype=np.float32))
w = v.array
rows, without = [], 0
start = time.monotonic()
while without < 20:
    if rank == 2 and len(rows) == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    w[:] = 10 ** rank
    g = v.allreduce(malt.SUM)
    assert w.min() == w.max()
    rows.append(int(w[0]))
    without += g.count == 1
tell(rows=rows, alive=malt.alive(), seconds=time.monotonic() - start)
malt.barrier()
""",
        "--keep-going",
        code=128 + 9,
        environ={"MALT_TRANSPORT": transport},
        memory=memory,
    )
    rows = result.told[0]["rows"]
    assert rows == result.told[1]["rows"]
    assert set(rows) == {111, 11}
    assert rows == sorted(rows, reverse=True)  # never back to three
    assert rows.count(11) >= 20
    assert result.told[0]["alive"] == (0, 1)
    assert result.told[0]["seconds"] < 30
    assert not result.told[2]


def test_a_death_does_not_begin_the_time_limit_anew(tmp_path: Path) -> None:
    """Rank 1 comes and dies late in the wait for rank 2, which never comes."""
    body = """
malt.init(timeout=60)
v = malt.vector(np.zeros(10))
v.allreduce(malt.SUM)
malt.barrier()
if rank == 0:
    tell(error=error_of(v.allreduce, malt.SUM, timeout=4))
    raise_flag("over")
elif rank == 1:
    threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    v.allreduce(malt.SUM)
else:
    while not flag_is_up("over"):
        time.sleep(.01)
os._exit(0)
"""
    result = run_job(tmp_path, 3, "import threading\n" + body, "--keep-going", code=None)
    error = result.told[0]["error"]
    assert error.kind == "TimeoutError"
    assert error.says("rank 2 did not come")
    assert error.seconds < 6  # 7 if the death began it anew
