"""Calls are in the order of the program's stream, and no rank sees an update before it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import controls_the_driver, run_gpu_job

both_kinds = pytest.mark.parametrize("slots", ["ipc", "host"])


@controls_the_driver
@both_kinds
def test_scatter_returns_before_the_gpu_has_copied_and_the_update_comes_after(
    tmp_path: Path, slots: str
) -> None:
    """The copy takes half a second; the sender changes its array behind it."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
if rank == 0: os.environ["FAKE_CUDA_COPY_DELAY_US"] = "125000"  # after each 64 KB
malt.init(timeout=40)
x = DeviceArray(4 * 16384, np.int32).fill(1 + rank)
v = malt.vector(x, graph=malt.Graph([(0, 1), (1, 0)]))
malt.barrier()
if rank == 0:
    tell(begun=time.monotonic())
    v.scatter()
    x.fill(7)
    tell(returned=time.monotonic(), under_way=counters(v))
    await_flag("come")
    tell(come=counters(v))
else:
    while not v.gather(malt.REPLACE).count: time.sleep(0.001)
    tell(come=time.monotonic(), values=set(x.get().tolist()))
    raise_flag("come")
malt.barrier()
""",
        slots=slots,
    )
    sender, receiver = result.told
    assert receiver["come"] - sender["begun"] >= 0.5
    assert sender["returned"] < receiver["come"]
    for name, pending in (("under_way", 1), ("come", 0)):
        stats = sender[name]
        assert (stats["sent"], stats["pending"], stats["folded"]) == (1, pending, 1 - pending)
    assert receiver["values"] == {0x01010101}


@controls_the_driver
@both_kinds
def test_gather_returns_before_the_gpu_has_folded_and_the_slot_is_kept_until_then(
    tmp_path: Path, slots: str
) -> None:
    """Under "queue" with one slot the sender's next scatter waits for the end of the fold."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
if rank == 1: os.environ["FAKE_CUDA_COPY_DELAY_US"] = "125000"  # after each 64 KB
malt.init(timeout=40)
x = DeviceArray(4 * 16384, np.int32).fill(1 + rank)
v = malt.vector(x, graph=malt.Graph([(0, 1), (1, 0)]), policy="queue", depth=1)
malt.barrier()
if rank == 0:
    v.scatter()
    x.fill(9)
    v.scatter()
    tell(freed=time.monotonic())
else:
    while v.clock_of(0) < 1: time.sleep(0.001)
    tell(begun=time.monotonic())
    count = v.gather(malt.REPLACE).count
    tell(returned=time.monotonic(), count=count)
    tell(values=set(x.get()[::999].tolist()))
    while not v.gather(malt.REPLACE).count: time.sleep(0.001)
    tell(then=set(x.get()[::999].tolist()))
malt.barrier()
""",
        slots=slots,
    )
    sender, receiver = result.told
    assert (receiver["count"], receiver["values"]) == (1, {0x01010101})
    assert sender["freed"] - receiver["begun"] >= 0.5
    assert receiver["returned"] < sender["freed"]
    assert receiver["then"] == {0x09090909}


@both_kinds
@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_no_update_is_torn_or_folded_out_of_order(tmp_path: Path, slots: str, policy: str) -> None:
    """All ranks overwrite their arrays behind each call, while copies and folds take their time."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(5 * 16384, np.int32)
v = malt.vector(x, policy=policy, depth=2)
wrong, seen, newest = [], 0, {}
for step in range(60):
    x.fill(1 + (3 * step + rank) % 250)
    v.scatter()
    x.fill(0)
    g = v.gather(malt.REPLACE)
    values = np.unique(x.get())
    x.fill(255)
    if not g.count:
        if values.tolist() != [0]: wrong.append((step, "changed", values[:4]))
        continue
    seen += 1
    byte = int(values[0]) & 255
    sender = (byte - 1) % 3 if byte else -1
    if len(values) != 1 or sender not in g.ranks:
        wrong.append((step, g.ranks, values[:4]))
        continue
    if newest.get(sender, 0) > byte: wrong.append((step, sender, newest[sender], byte))
    newest[sender] = byte
raise_flag(rank)
while not all(flag_is_up(r) for r in range(size)): v.gather(malt.REPLACE)
tell(wrong=wrong, seen=seen)
malt.barrier()
""",
        slots=slots,
        policy=policy,
        environ={"FAKE_CUDA_COPY_DELAY_US": "200"},
    )
    assert result.each("wrong") == [[]] * 3
    assert min(result.each("seen")) > 5


def test_a_gather_is_seen_by_the_work_that_comes_next_on_the_stream(tmp_path: Path) -> None:
    """Nothing waits for the GPU here until the end: the values only come out right in order."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = on_gpu(np.full(40_000, float(rank)))
v = malt.vector(x, policy="queue", depth=4)
for step in range(30):
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    v.allreduce(malt.SUM)
    v.scatter()
    v.gather(malt.TRIMMED_MEAN(0), staleness=0)
    v.allreduce(malt.MEDIAN)
got = x.get()
tell(ends=(got.min(), got.max()))
malt.barrier()
""",
        environ={"FAKE_CUDA_COPY_DELAY_US": "300"},
    )
    assert result.each("ends") == [(3.0**30, 3.0**30)] * 3


@both_kinds
def test_update_comes_though_its_rank_drops_the_vector_or_ends_right_after_the_scatter(
    tmp_path: Path, slots: str
) -> None:
    """Rank 1 drops it, and rank 2 ends, while their GPUs have yet to copy."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(4 * 16384, np.int32).fill(1 + rank)
v = malt.vector(x)
malt.barrier()
v.scatter()
x.fill(8)
if rank == 2: sys.exit()
if rank == 1: del v
raise_flag(rank)
if rank == 0:
    await_flag(1)
    seen = {}
    while len(seen) < 2:
        g = v.gather(malt.SUM)
        seen.update(dict.fromkeys(g.ranks))
    tell(values=set(x.get().tolist()))
malt.barrier()
""",
        slots=slots,
        environ={"FAKE_CUDA_COPY_DELAY_US": "50000"},
    )
    assert result.told[0]["values"] == {(8 + 2 + 3) * 0x01010101}


def test_calls_are_in_the_order_of_the_stream_that_the_array_names(tmp_path: Path) -> None:
    """The array's work is on a stream that does not wait for the default one."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
import ctypes
class OnStream:
    def __init__(self, array, stream): self.array, self.stream = array, stream
    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "stream": self.stream}
malt.init(timeout=40)
x, source = DeviceArray(4 * 16384, np.int32).fill(3), DeviceArray(4 * 16384, np.int32)
source.fill(10 + rank)
source.get()
cuda, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
current = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0)
cuda.cuCtxPushCurrent_v2(current)
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
v = malt.vector(OnStream(x, stream.value))
def copy(to, of): return cuda.cuMemcpyAsync(
    ctypes.c_uint64(to.address), ctypes.c_uint64(of.address), ctypes.c_size_t(x.nbytes), stream)
y = DeviceArray(4 * 16384, np.int32).fill(0)
y.get()
for step in range(5):
    assert copy(x, source) == 0
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    v.allreduce(malt.SUM)
    assert copy(y, x) == 0
tell(values=set(y.get().tolist()))
malt.barrier()
""",
        environ={"FAKE_CUDA_COPY_DELAY_US": "3000"},
    )
    assert result.each("values") == [{2 * 21 * 0x01010101}] * 2
