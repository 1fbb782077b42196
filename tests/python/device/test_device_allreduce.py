"""The allreduce of vectors on GPUs: exact, never paired with another call, and when ranks die."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import run_gpu_job
from jobs import PROMPT
from numpy_folds import fold_with_numpy, inputs, is_close

# Between hosts (tcp) the slots are on the host, and allreduce() is that of a vector there.
ways = pytest.mark.parametrize(
    ("slots", "transport"), [("ipc", "shm"), ("host", "shm"), ("auto", "tcp")]
)


@ways
def test_allreduce_is_exact_and_the_same_on_all_ranks(
    tmp_path: Path, slots: str, transport: str
) -> None:
    result = run_gpu_job(
        tmp_path,
        4,
        """
from numpy_folds import inputs
malt.init(timeout=40)
got = {}
for dtype in ("float32", "float64", "int32", "int64"):
    for length in (1, 4099):
        values = inputs(size, dtype, length)[rank]
        cut = max(1, length // 3)
        xs = [on_gpu(values[:cut]), *([on_gpu(values[cut:])] if length > 1 else [])]
        v = malt.vector(xs)
        for name in ("AVG", "SUM", "MEDIAN", "TRIMMED_MEAN"):
            xs[0].set(values[:cut]), length == 1 or xs[1].set(values[cut:])
            g = v.allreduce(FOLDS[name])
            got[dtype, length, name] = np.concatenate([x.get() for x in xs]), g.ranks, g.count
        v.close()
tell(got=got)
malt.barrier()
""",
        slots=slots,
        environ={"MALT_TRANSPORT": transport},
    )
    told = result.each("got")
    assert len(told[0]) == 4 * 2 * 4
    for (dtype, length, name), (values, ranks, count) in told[0].items():
        all_values = inputs(4, dtype, length)
        expected = fold_with_numpy(name, all_values, 0)
        assert is_close(values, expected, all_values), (dtype, length, name)
        assert (count, ranks) == (3, (1, 2, 3))
        for other in told[1:]:
            assert other[dtype, length, name][0].tobytes() == values.tobytes()


def test_allreduce_goes_beside_scatters_of_differing_number(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(5, np.float64)
v = malt.vector(x)
got = []
for turn in range(3):
    x.set(100)
    for step in range(rank): v.scatter()
    x.set(rank + 1)
    v.allreduce(malt.SUM)
    got.append(x.get().tolist())
x.set(rank + 1)
v.scatter()
x.get()
malt.barrier()
g = v.gather(malt.SUM)
tell(got=got, last=x.get().tolist(), ranks=g.ranks)
malt.barrier()
""",
    )
    assert result.each("got") == [[[6.0] * 5] * 3] * 3
    for rank, told in enumerate(result.told):
        assert told["ranks"] == tuple(r for r in range(3) if r != rank)
        assert told["last"] == [6.0] * 5


@ways
def test_call_that_times_out_is_repeated_as_the_same_call(
    tmp_path: Path, slots: str, transport: str
) -> None:
    """Rank 2 comes late to each call; no rank's call is ever paired with another one of it.

    Between hosts its own call may then fail too, as that of a vector on the host.
    """
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(3000, np.float64)
v = malt.vector(x)
late, sums, kept = [], [], []
for call in (1, 2, 3):
    if rank == 2:
        await_flag(f"{call} 0"), await_flag(f"{call} 1")
    x.set(call * 10.0 ** rank)
    if rank < 2:
        late.append(error_of(v.allreduce, malt.SUM, timeout=0.3))
        kept.append(set(x.get().tolist()))
        raise_flag(f"{call} {rank}")
    while (error := error_of(v.allreduce, malt.SUM)) is not None:
        assert error.kind == "TimeoutError" and error.says("gave up waiting"), error
    sums.append(set(x.get().tolist()))
tell(late=late, kept=kept, sums=sums)
malt.barrier()
""",
        slots=slots,
        environ={"MALT_TRANSPORT": transport},
    )
    assert result.each("sums") == [[{111.0}, {222.0}, {333.0}]] * 3
    for rank in (0, 1):
        told = result.told[rank]
        assert told["kept"] == [{call * 10.0**rank} for call in (1, 2, 3)]
        for error in told["late"]:
            assert error.kind == "TimeoutError"
            assert error.seconds < PROMPT
    for errors in zip(result.told[0]["late"], result.told[1]["late"], strict=True):
        assert any(2 in error.ranks for error in errors), errors


@ways
def test_rank_that_repeats_a_call_with_other_values_gets_what_the_others_get(
    tmp_path: Path, slots: str, transport: str
) -> None:
    """The others may have folded the values that it had sent, or fold the new ones."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
x = on_gpu(np.zeros(100))
v = malt.vector(x)
v.allreduce(malt.SUM)
if rank == 0:
    x.set(1.0)
    tell(late=error_of(v.allreduce, malt.SUM, timeout=0.3))
    x.set(2.0)
    raise_flag("late")
else:
    await_flag("late")
    x.set(10.0)
while error_of(v.allreduce, malt.SUM): pass
tell(first=set(x.get().tolist()))
x.set(5.0)
v.allreduce(malt.SUM)
tell(second=set(x.get().tolist()))
malt.barrier()
""",
        slots=slots,
        environ={"MALT_TRANSPORT": transport},
    )
    assert result.told[0]["late"].ranks == (1,)
    first = result.each("first")
    assert first[0] == first[1]
    assert first[0] in ({11.0}, {12.0})
    assert result.each("second") == [{10.0}] * 2


@ways
def test_different_folds_are_an_error_on_every_rank_and_the_next_call_works(
    tmp_path: Path, slots: str, transport: str
) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = on_gpu(np.full(3, rank + 1.0))
v = malt.vector(x)
errors = [error_of(v.allreduce, malt.AVG if rank == 1 else malt.SUM),
          error_of(v.allreduce, malt.TRIMMED_MEAN(0.1 + rank / 10))]
kept = x.get()
v.allreduce(malt.SUM)
tell(errors=errors, kept=kept, x=x.get())
malt.barrier()
""",
        slots=slots,
        environ={"MALT_TRANSPORT": transport},
    )
    for rank, told in enumerate(result.told):
        for error in told["errors"]:
            assert error.kind == "ConfigError"
            assert error.says("the ranks ask for different folds"), error
        assert told["kept"].tolist() == [rank + 1] * 3
        assert told["x"].tolist() == [6] * 3


@ways
def test_survivors_of_a_death_have_the_same_bits(
    tmp_path: Path, slots: str, transport: str
) -> None:
    """Ranks 2 and 3 die somewhere inside; each result is with a rank, or without, on both."""
    result = run_gpu_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
x = DeviceArray(20_000, np.float32)
v = malt.vector(x)
rows, without = [], 0
start = time.monotonic()
while without < 10:
    if rank > 1 and len(rows) == 1:
        threading.Timer(0.11 * (rank - 1), os.kill, (os.getpid(), signal.SIGKILL)).start()
    x.set(10 ** rank)
    g = v.allreduce(malt.SUM)
    values = x.get()
    assert values.min() == values.max()
    rows.append(int(values[0]))
    without += g.count == 1
tell(rows=rows, alive=malt.alive(), seconds=time.monotonic() - start)
malt.barrier()
""",
        "--keep-going",
        code=128 + 9,
        slots=slots,
        environ={"MALT_TRANSPORT": transport, "FAKE_CUDA_COPY_DELAY_US": "1000"},
    )
    rows = result.told[0]["rows"]
    assert rows == result.told[1]["rows"]
    assert rows[0] == 1111
    assert set(rows) <= {1111, 1011, 111, 11}
    assert rows == sorted(rows, reverse=True) or rows.count(1011)  # either may die first
    assert rows[-10:] == [11] * 10
    assert result.told[0]["alive"] == (0, 1)
    assert result.told[0]["seconds"] < 30


@ways
def test_rank_that_comes_after_a_death_folds_what_the_other_survivor_folds(
    tmp_path: Path, slots: str, transport: str
) -> None:
    """Rank 2 dies when it has sent; rank 0 is in the call by then, and rank 1 is not."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(1000, np.float64)
v = malt.vector(x)
v.allreduce(malt.SUM)
x.set(10.0 ** rank)
before = v.stats().bytes_out
def die():
    while v.stats().bytes_out == before: time.sleep(0.001)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 2: threading.Thread(target=die).start()
while rank == 1 and 2 in malt.alive(): time.sleep(0.01)
g = v.allreduce(malt.SUM)
tell(sums=set(x.get().tolist()), count=g.count)
x.set(10.0 ** rank)
v.allreduce(malt.SUM)
tell(next=set(x.get().tolist()))
malt.barrier()
""",
        "--keep-going",
        code=128 + 9,
        slots=slots,
        environ={"MALT_TRANSPORT": transport},
    )
    sums = [told["sums"] for told in result.told[:2]]
    counts = [told["count"] for told in result.told[:2]]
    assert sums[0] == sums[1]
    assert (sums[0], counts[0]) in (({11.0}, 1), ({111.0}, 2))
    assert counts[0] == counts[1]
    assert [told["next"] for told in result.told[:2]] == [{11.0}] * 2


def test_bytes_of_allreduce_are_counted_and_no_updates(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = on_gpu(np.full(1001, 1.0))
v = malt.vector(x)
for step in range(4): v.allreduce(malt.SUM)
tell(x=x.get()[0])
v.read()
malt.barrier()
tell(stats=counters(v))
malt.barrier()
""",
    )
    for told in result.told:
        stats = told["stats"]
        assert told["x"] == 3.0**4
        assert all(value == 0 for name, value in stats.items() if not name.startswith("bytes_"))
        assert stats["bytes_in"] == stats["bytes_out"] == 4 * 2 * 8008
