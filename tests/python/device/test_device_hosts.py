"""Vectors on GPUs of several hosts: with tcp or verbs between them each rank is a host by itself.

The adapters are those of tests/fake_verbs; tests/softroce has the kernel's own.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gpus import controls_the_driver, over_rdma, run_gpu_job
from jobs import PROMPT, refused


@pytest.fixture(params=["tcp", "verbs"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The job's variables, by which it goes over this transport or fails in malt.init()."""
    return over_rdma(tmp_path) if request.param == "verbs" else {"MALT_TRANSPORT": "tcp"}


def test_folds_and_codecs_give_the_bits_of_a_vector_on_the_host(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
from numpy_folds import inputs
malt.init(timeout=40)
CODECS = {"none": None, "float16": malt.FLOAT16, "int8": malt.INT8, "top-k": malt.TOP_K(0.2)}
wrong, done = [], 0
for dtype in ("float32", "float64", "int64"):
    for name, codec in CODECS.items():
        if codec is not None and dtype.startswith("int"): continue
        values = inputs(size, dtype, 5003)[rank]
        w, x = values.copy(), on_gpu(values)
        host, gpu = malt.vector(w, codec=codec), malt.vector(x, codec=codec)
        for fold in FOLDS:
            w[:] = values
            x.set(values)
            for v in (host, gpu): v.scatter()
            a, b = (v.gather(FOLDS[fold], staleness=0).ranks for v in (host, gpu))
            done += 1
            if x.get().tobytes() != w.tobytes() or a != b or len(b) != size - 1:
                wrong.append((dtype, name, fold, a, b))
        malt.barrier()
        stats = [(s.sent, s.bytes_out) for s in (v.stats() for v in (host, gpu))]
        if stats[0] != stats[1]: wrong.append((dtype, name, *stats))
        slots = gpu.slots
        routes = {route.transport for route in gpu.stats().routes.values()}
        host.close(), gpu.close()
tell(wrong=wrong, done=done, slots=slots, routes=routes)
malt.barrier()
""",
        environ=environ,
    )
    assert result.each("wrong") == [[]] * 3
    assert result.each("done") == [9 * 6] * 3
    assert result.each("routes") == [{environ["MALT_TRANSPORT"]}] * 3
    assert (
        result.each("slots")
        == ["host: the ranks do not all share memory (several hosts, or MALT_TRANSPORT)"] * 3
    )


def test_lengths_from_one_element_to_megabytes_are_exact(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """The longest takes several writes of an adapter."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
wrong = []
for count in (1, 3, 16385, 3_000_000):
    values = np.arange(count) % 1000
    x = DeviceArray(count, np.float32)
    v = malt.vector(x)
    def check(call, expected):
        x.set(values + 1000 * rank)
        call()
        if not (x.get() == expected).all(): wrong.append((count, expected[:3], x.get()[:3]))
    for _ in range(3):  # more than there are slots
        def exchange():
            v.scatter()
            v.gather(malt.SUM, staleness=0)
        check(exchange, 3 * values + 3000)
        check(lambda: v.allreduce(malt.SUM), 3 * values + 3000)
        check(lambda: v.allreduce(malt.AVG), values + 1000)
tell(wrong=wrong)
malt.barrier()
""",
        environ=environ,
    )
    assert result.each("wrong") == [[]] * 3


@controls_the_driver
@pytest.mark.parametrize("transport", ["shm", "verbs"])
def test_memory_is_unlocked_for_gpu_and_adapter_before_it_is_unmapped(
    tmp_path: Path, transport: str
) -> None:
    """Under verbs both drivers have this rank's mailbox locked at the same time."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
import ctypes
malt.init(timeout=40)
adapter = ctypes.CDLL("libibverbs.so.1") if transport == "verbs" else None
def locked(): return fake().fake_cuda_registered(), adapter and adapter.fake_verbs_objects()
def exchange():
    v = malt.vector(on_gpu(np.full(5003, 1.0)))
    v.scatter(), v.gather(malt.SUM, staleness=0)
    malt.barrier()  # the other has its updates
    return locked()
exchange()
last, before = None, locked()
while last != before:  # connections are made, and those of vectors that are gone are closed
    time.sleep(1)
    last, before = before, locked()
malt.barrier()
during, _ = exchange(), exchange()
end = time.time() + 20
while locked() != before and time.time() < end: time.sleep(0.01)
tell(before=before, during=during, after=locked())
malt.barrier()
""",
        transport=transport,
        environ=over_rdma(tmp_path) if transport == "verbs" else {},
        slots="host",
    )
    for told in result.told:
        assert told["before"][0] < told["during"][0]
        assert transport == "shm" or told["before"][1] < told["during"][1]
        assert told["after"] == told["before"]


def test_ipc_between_hosts_is_refused_on_all(tmp_path: Path, environ: dict[str, str]) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
tell(error=error_of(malt.vector, on_gpu(np.zeros(3))))
malt.barrier()
""",
        environ=environ,
        slots="ipc",
    )
    for error in result.each("error"):
        assert refused(
            error,
            "MALT_DEVICE_SLOTS=ipc",
            "the ranks do not all share memory (several hosts, or MALT_TRANSPORT)",
        )


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_survivors_of_a_death_see_whole_updates_only(
    tmp_path: Path, environ: dict[str, str], policy: str
) -> None:
    """Rank 2 dies while it and its links are at work, in the middle of a copy of its GPU."""
    result = run_gpu_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
x = DeviceArray(5 * 16384, np.int32)
v = malt.vector(x, policy=policy, depth=2)
if rank > 1: threading.Timer(0.3 * (rank - 1), os.kill, (os.getpid(), signal.SIGKILL)).start()
wrong, seen, rounds = [], set(), 0
while rounds < 60 or rank > 1:
    x.fill(10 + rank)
    v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    values = set(x.get().tolist())
    if values != {0x01010101 * (10 + rank + sum(10 + r for r in g.ranks))}:
        wrong.append((g.ranks, sorted(values)[:3]))
    seen.add(g.count)
    rounds += 1
while malt.alive() != (0, 1): time.sleep(0.001)
start = time.monotonic()
y = on_gpu(np.full(1000, 10.0 ** rank))
new = malt.vector(y, name="made by the survivors")
new.scatter(), new.gather(malt.SUM, staleness=0), new.allreduce(malt.SUM)
tell(wrong=wrong, seen=seen, new=set(y.get().tolist()), seconds=time.monotonic() - start)
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        policy=policy,
        environ={**environ, "FAKE_CUDA_COPY_DELAY_US": "1500"},
    )
    for told in result.told[:2]:
        assert told["wrong"] == []
        assert {1, 3} <= told["seen"] <= {1, 2, 3}
        assert told["new"] == {22.0}
        assert told["seconds"] < PROMPT


def test_queue_loses_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = on_gpu(np.zeros(1000, np.int64))
v = malt.vector(x, policy="queue", depth=2)
folded = 0
if rank == 0:
    while folded < 60:
        folded += v.gather(malt.SUM).count
        time.sleep(0.0005)
else:
    for step in range(30):
        x.set(1000 * rank + step)
        assert v.scatter(malt.STAR) == (0,)
x.get()
malt.barrier()
while rank and v.stats().folded < 30: time.sleep(0.001)
tell(total=set(x.get().tolist()), stats=counters(v))
malt.barrier()
""",
        environ=environ,
    )
    assert result.told[0]["total"] == {sum(1000 * r + s for r in (1, 2) for s in range(30))}
    for rank in (1, 2):
        stats = result.told[rank]["stats"]
        assert (stats["sent"], stats["folded"], stats["pending"]) == (30, 30, 0)
