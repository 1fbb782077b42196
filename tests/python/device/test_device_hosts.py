"""Vectors on GPUs of several hosts: with tcp between them each rank is a host by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gpus import run_gpu_job
from jobs import PROMPT, refused

TCP = {"MALT_TRANSPORT": "tcp"}


def test_folds_and_codecs_over_tcp_give_the_bits_of_a_vector_on_the_host(tmp_path: Path) -> None:
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
        host.close(), gpu.close()
tell(wrong=wrong, done=done, slots=slots)
malt.barrier()
""",
        environ=TCP,
    )
    assert result.each("wrong") == [[]] * 3
    assert result.each("done") == [9 * 6] * 3
    assert (
        result.each("slots")
        == ["host: the ranks do not all share memory (several hosts, or MALT_TRANSPORT)"] * 3
    )


def test_ipc_between_hosts_is_refused_on_all(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
tell(error=error_of(malt.vector, on_gpu(np.zeros(3))))
malt.barrier()
""",
        environ=TCP,
        slots="ipc",
    )
    for error in result.each("error"):
        assert refused(
            error,
            "MALT_DEVICE_SLOTS=ipc",
            "the ranks do not all share memory (several hosts, or MALT_TRANSPORT)",
        )


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_survivors_of_a_death_over_tcp_see_whole_updates_only(tmp_path: Path, policy: str) -> None:
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
        environ={**TCP, "FAKE_CUDA_COPY_DELAY_US": "1500"},
    )
    for told in result.told[:2]:
        assert told["wrong"] == []
        assert {1, 3} <= told["seen"] <= {1, 2, 3}
        assert told["new"] == {22.0}
        assert told["seconds"] < PROMPT


def test_queue_over_tcp_loses_nothing(tmp_path: Path) -> None:
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
        environ=TCP,
    )
    assert result.told[0]["total"] == {sum(1000 * r + s for r in (1, 2) for s in range(30))}
    for rank in (1, 2):
        stats = result.told[rank]["stats"]
        assert (stats["sent"], stats["folded"], stats["pending"]) == (30, 30, 0)
