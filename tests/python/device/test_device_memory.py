"""The memory of a vector's updates: never freed under a rank that reads it, and given back."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import controls_the_driver, run_gpu_job

both_kinds = pytest.mark.parametrize("slots", ["ipc", "host"])


@both_kinds
@pytest.mark.parametrize("is_mapped", [True, False])
def test_vectors_of_one_size_follow_each_other_on_ranks_of_different_speed(
    tmp_path: Path, slots: str, is_mapped: bool
) -> None:
    """The quick ranks drop a vector while the slow one has yet to fold their last update of it."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(3000, np.int32)
wrong = []
for turn in range(24):
    v = malt.vector(x, name=f"turn {turn}")
    if is_mapped:
        x.set(7)
        v.scatter(), v.gather(malt.SUM, staleness=0)
        x.get()
        malt.barrier()
    x.set(1000 * turn + rank)
    v.scatter()
    if rank == turn % 3:
        x.get()
        time.sleep(0.02)
    g = v.gather(malt.SUM, staleness=0)
    values = set(x.get().tolist())
    if values != {3 * 1000 * turn + 3}: wrong.append((turn, sorted(values)[:4], g.ranks))
    del v
tell(wrong=wrong)
malt.barrier()
""",
        slots=slots,
        is_mapped=is_mapped,
    )
    assert result.each("wrong") == [[]] * 3


@controls_the_driver  # a real one counts the memory of all processes
def test_memory_of_updates_is_given_back_when_all_ranks_have_dropped_the_vector(
    tmp_path: Path,
) -> None:
    """Each rank keeps its slots until the others no longer map them, and frees them at its next."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
MB = 1 << 20
x, small = DeviceArray(MB, np.int32).fill(0), DeviceArray(1, np.int32).fill(0)
def use(data):
    v = malt.vector(data)
    v.scatter(), v.gather(malt.SUM, staleness=0), v.allreduce(malt.SUM)
    data.get()
    return v
use(small)
malt.barrier()
before = free_bytes()
v = use(x)
tell(used=(before - free_bytes()) / MB)
if rank == 1: await_flag("seen")
del v
if rank == 0:
    tell(kept=(before - free_bytes()) / MB)
    raise_flag("seen")
malt.barrier()
for _ in range(20): use(x)
malt.barrier()
use(small)
tell(left=(before - free_bytes()) / MB)
malt.barrier()
""",
        slots="ipc",
    )
    for told in result.told:
        assert 15 < told["used"] < 40  # two slots for each of scatter() and allreduce()
        assert told["left"] < 3  # the driver may round up
    assert result.told[0]["kept"] > 15, "rank 1 still maps them"


@controls_the_driver
def test_memory_kept_for_a_rank_that_dies_is_given_back(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
MB = 1 << 20
x, small = DeviceArray(MB, np.int32).fill(0), DeviceArray(1, np.int32).fill(0)
before = free_bytes()
v = malt.vector(x)
v.scatter(), v.gather(malt.SUM, staleness=0)
x.get()
meet("mapped")
if rank == 0:
    del v
    tell(kept=(before - free_bytes()) / MB)
    raise_flag("die")
else:
    await_flag("die")
    os.kill(os.getpid(), signal.SIGKILL)
while malt.alive() != (0,): time.sleep(0.001)
v = malt.vector(small)
v.scatter()
tell(left=(before - free_bytes()) / MB)
""",
        "--keep-going",
        code=128 + 9,
        slots="ipc",
    )
    told = result.told[0]
    assert told["kept"] >= 8
    assert told["left"] < 1


@controls_the_driver
def test_locked_memory_of_the_host_is_let_go_with_the_vector(tmp_path: Path) -> None:
    """Each mailbox is registered once, and unregistered before its memory is unmapped."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
def calls(): return [fake().fake_cuda_calls(name) for name in
                     (b"cuMemHostRegister_v2", b"cuMemHostUnregister")]
x = DeviceArray(100, np.int32).fill(0)
rows = []
for turn in range(3):
    v = malt.vector(x)
    v.scatter(), v.gather(malt.SUM, staleness=0), v.allreduce(malt.SUM)
    x.get()
    del v
    rows.append(calls())
tell(rows=rows)
malt.barrier()
""",
        slots="host",
    )
    for rows in result.each("rows"):
        assert rows == [[4, 4], [8, 8], [12, 12]]  # of each rank, for scatter() and allreduce()
