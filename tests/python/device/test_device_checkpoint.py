"""Checkpoints of vectors on GPUs, and ranks that rejoin: the values travel through the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpus import run_gpu_job, start_gpu_job


def test_vectors_come_back_on_gpus_and_on_the_host(tmp_path: Path) -> None:
    """What is saved from the one kind of memory can be restored into the other."""
    result = run_gpu_job(
        tmp_path,
        1,
        """
malt.init()
wrong = []
for dtype in ("float32", "float64", "int32", "int64"):
    for shape in ((7,), (1,), (2, 3, 4), ()):
        values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        x, w = on_gpu(values), np.asarray(values + 1)
        v, host = malt.vector(x), malt.vector(w)
        malt.save("gpu", {"w": v})
        malt.save("host", {"w": host})
        x.set(0)
        restored = malt.restore("gpu", {"w": v})
        if restored is None or x.get().tobytes() != values.tobytes(): wrong.append((dtype, shape))
        malt.restore("gpu", {"w": host})
        if w.tobytes() != values.tobytes(): wrong.append((dtype, shape, "to the host"))
        malt.restore("host", {"w": v})
        if x.get().tobytes() != (values + 1).tobytes(): wrong.append((dtype, shape, "to the GPU"))
        v.close(), host.close()
parts = [np.arange(6.0).reshape(2, 3), np.arange(5.0)]
xs, ws = [on_gpu(part) for part in parts], [part + 1 for part in parts]
v, host = malt.vector(xs), malt.vector(ws)
malt.save("list", {"model": v})
for x in xs: x.set(-1)
malt.restore("list", {"model": v})
malt.restore("list", {"model": host})
tell(wrong=wrong, several=[x.get().tolist() for x in xs], host=[w.tolist() for w in ws])
others = [on_gpu(np.zeros(3)), [on_gpu(np.zeros((3, 2))), xs[1]]]
tell(errors=[error_of(malt.restore, "list", {"model": malt.vector(other)}) for other in others],
     kept=[x.get().tolist() for x in xs])
""",
    )
    told = result.told[0]
    assert told["wrong"] == []
    parts = [np.arange(6.0).reshape(2, 3).tolist(), np.arange(5.0).tolist()]
    assert told["several"] == told["host"] == told["kept"] == parts
    for error in told["errors"]:
        assert error.kind == "ConfigError"
        assert error.says("model"), error


@pytest.mark.parametrize("slots", ["ipc", "host"])
def test_each_rank_restores_its_own_values(tmp_path: Path, slots: str) -> None:
    """And what the stream has before save() is in the file."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(1000, np.int32)
v = malt.vector(x)
x.fill(1 + rank)
v.scatter(), v.gather(malt.SUM, staleness=0)
malt.save("c", {"v": v})
x.fill(0)
malt.restore("c", {"v": v})
tell(x=set(x.get().tolist()))
malt.barrier()
""",
        slots=slots,
    )
    assert result.each("x") == [{6 * 0x01010101}] * 3


@pytest.mark.parametrize(
    ("slots", "transport", "mode"),
    [("ipc", "shm", 0), ("host", "shm", None), ("auto", "tcp", 0)],
)
def test_rank_that_rejoins_gets_the_values_and_all_finish(
    tmp_path: Path, slots: str, transport: str, mode: int | None
) -> None:
    script = f"""
malt.init(timeout=20)
x = on_gpu(np.full(3000, 1.0 + rank))
v = malt.vector(x, depth=4)
beside = malt.vector([on_gpu(np.full(5, 7.0 + rank)), on_gpu(np.full((2, 2), 8.0))])
malt.barrier()
tell(pid=os.getpid(), start=v.iteration, restarts=malt.jobs.restarts())
if malt.jobs.restarts(): tell(beside=beside.read().tolist(), first=float(x.get()[0]))
while v.iteration < goal():
    x.set(x.get() + 0.001)
    v.scatter()
    v.gather(malt.AVG, staleness={mode})
    if v.iteration % 10 == 0: v.allreduce(malt.AVG)
    got = x.get()
    assert got.min() == got.max()
    tell(at=v.iteration, alive=malt.alive())
    time.sleep(0.002)
tell(mean=float(x.get().mean()))
v.close(), beside.close()
malt.barrier()
"""
    with start_gpu_job(
        tmp_path,
        3,
        script,
        "--respawn=9",
        slots=slots,
        environ={"MALT_TRANSPORT": transport},
    ) as job:
        job.kill_and_await_return(2)
        job.set_goal(150)
        result = job.finish()
    assert result.code == 0, result.output
    back = result.told[2]
    assert back["restarts"] == 1
    assert back["beside"] in [[float(r + 7)] * 5 + [8.0] * 4 for r in (0, 1)]
    assert back["first"] != 3.0
    assert back["start"] >= 5
    means = result.each("mean")
    assert max(means) - min(means) < 0.2
    if mode == 0 and result.told[0]["at"] > back["start"]:  # a rank may need longer to rejoin
        assert result.told[0]["alive"] == (0, 1, 2)
