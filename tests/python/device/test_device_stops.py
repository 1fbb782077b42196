"""Ranks that are stopped while a GPU copies or folds for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import run_gpu_job


@pytest.mark.parametrize("slots", ["ipc", "host"])
def test_rank_that_is_stopped_for_a_while_goes_on_with_the_others(
    tmp_path: Path, slots: str
) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=60, silence=30)
x = DeviceArray(5 * 16384, np.int32)
v = malt.vector(x)
tell(pid=os.getpid())
meet("made")
if rank == 0:
    import jobs, pickle
    pid = pickle.loads(open("told-2", "rb").read())["pid"]
    def stop():
        for _ in range(3):
            time.sleep(0.1)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(pid, signal.SIGCONT)
        raise_flag("over")
    threading.Thread(target=stop).start()
wrong, rounds = [], 0
over = False
while not over:
    x.fill(1 + rank)
    v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    values = np.unique(x.get()).tolist()
    if values != [6 * 0x01010101] or g.count != 2: wrong.append((g.ranks, values[:3]))
    rounds += 1
    x.fill(1 if rank == 0 and flag_is_up("over") else 0)
    v.allreduce(malt.SUM)
    over = x.get()[0] != 0
tell(wrong=wrong, rounds=rounds, alive=malt.alive())
malt.barrier()
""",
        slots=slots,
        environ={"FAKE_CUDA_COPY_DELAY_US": "500"},
    )
    assert result.each("wrong") == [[]] * 3
    assert min(result.each("rounds")) > 1
    assert result.each("alive") == [(0, 1, 2)] * 3


@pytest.mark.parametrize("slots", ["ipc"])
def test_rank_that_is_stopped_until_it_is_evicted_is_told_and_disturbs_nobody(
    tmp_path: Path, slots: str
) -> None:
    """It wakes in the middle of a copy, which then ends: the update is of an epoch that is over."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=60, silence=1)
x = DeviceArray(5 * 16384, np.int32).fill(1 + rank)
v = malt.vector(x)
v.scatter()
v.gather(malt.SUM, staleness=0)
x.fill(10 + rank)
if rank == 2:
    tell(pid=os.getpid())
    v.scatter()
    os.kill(os.getpid(), signal.SIGSTOP)
    tell(errors=[error_of(call) for call in (v.scatter, v.gather, v.allreduce, malt.barrier)])
    raise_flag("awake")
    sys.exit()
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(second=(g.ranks, set(x.get().tolist())))
while malt.alive() != (0, 1): time.sleep(0.01)
if rank == 0:
    import pickle
    os.kill(pickle.loads(open("told-2", "rb").read())["pid"], signal.SIGCONT)
await_flag("awake")
x.fill(20 + rank)
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(third=(g.ranks, set(x.get().tolist())))
x.fill(20 + rank)
v.allreduce(malt.SUM)
tell(summed=set(x.get().tolist()))
malt.barrier()
""",
        slots=slots,
        environ={"FAKE_CUDA_COPY_DELAY_US": "40000"},
    )
    for rank, told in enumerate(result.told[:2]):
        assert told["second"] == ((1 - rank,), {21 * 0x01010101})
        assert told["third"] == ((1 - rank,), {41 * 0x01010101})
        assert told["summed"] == {41 * 0x01010101}
    for error in result.told[2]["errors"]:
        assert error.kind == "PeerError"
        assert error.says("rank 2 was evicted from the job", "stopped")
