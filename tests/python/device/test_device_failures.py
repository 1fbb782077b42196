"""GPUs that have no room, fail or hang, and what that does to their rank and to the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import controls_the_driver, run_gpu_job
from jobs import PROMPT, Err, refused


def is_error(error: Err | None, *parts: object) -> bool:
    """A malt.Error that is no ConfigError, came at once and says all this."""
    assert error is not None, f"no error that says {parts}"
    assert error.kind == "Error", error
    assert error.seconds < PROMPT, error
    assert error.says(*parts), error
    return True


@controls_the_driver
@pytest.mark.parametrize("slots", ["ipc", "host"])
def test_gpu_without_room_is_refused_on_all_ranks_and_the_vector_can_be_made_when_there_is(
    tmp_path: Path, slots: str
) -> None:
    """Rank 1 has no room for the slots. Those on the host need none on the GPU."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
x = on_gpu(np.full(1 << 18, 10 ** rank, np.int32))  # 1 MB
filler = DeviceArray((free_bytes() >> 20) - 1 << 20, np.int8) if rank == 1 else None
made = []
tell(error=error_of(lambda: made.append(malt.vector(x, name="v"))), kept=set(x.get().tolist()))
malt.barrier()
del filler
v = made[0] if made else malt.vector(x, name="v")
v.scatter(), v.gather(malt.SUM, staleness=0)
tell(x=set(x.get().tolist()))
malt.barrier()
""",
        environ={"FAKE_CUDA_MEMORY": str(16 << 20)},
        slots=slots,
    )
    for rank, told in enumerate(result.told):
        assert told["kept"] == {10**rank}
        assert told["x"] == {11}
        if slots == "host":
            assert told["error"] is None
            continue
        needed = "rank 1: vector 'v' needs 2 MB on GPU 0 (Fake GPU 0)"
        assert refused(told["error"], needed, "1 of 16 MB", "CUDA_ERROR_OUT_OF_MEMORY")
        assert told["error"].says("MALT_DEVICE_SLOTS=host", "depth=")


@controls_the_driver
def test_stream_that_is_being_captured_is_refused(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
x = on_gpu(np.full(9, 10.0 ** rank))
v = malt.vector(x)
tell(errors=[error_of(call) for call in (v.scatter, v.gather, v.allreduce)])
malt.barrier()
""",
        environ={"FAKE_CUDA_CAPTURING": "1"},
    )
    for told in result.told:
        for call, error in zip(("scatter", "gather", "allreduce"), told["errors"], strict=True):
            assert refused(error, call, "captured into a CUDA graph", "between replays")


@controls_the_driver
@pytest.mark.parametrize("slots", ["ipc", "host"])
def test_rank_whose_context_is_lost_says_so_and_ends_and_the_others_go_on(
    tmp_path: Path, slots: str
) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=20)
x = on_gpu(np.full(1000, 10.0 ** rank))
v, q = malt.vector(x), malt.vector(x, policy="queue")
for u in (v, q): u.scatter(), u.gather(malt.SUM, staleness=0)
x.get()
malt.barrier()
if rank == 2:
    v.scatter()
    fake().fake_cuda_lose_context()
    calls = [error_of(call) for call in (v.scatter, v.gather, v.allreduce, v.read, q.scatter)]
    tell(errors=calls)
    raise_flag("lost")
    sys.exit(3)
await_flag("lost")
x.set(10.0 ** rank)
start = time.monotonic()
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(x=set(x.get().tolist()), ranks=g.ranks, seconds=time.monotonic() - start)
x.set(10.0 ** rank)
v.allreduce(malt.SUM)
tell(alive=malt.alive(), reduced=set(x.get().tolist()))
malt.barrier()
""",
        "--keep-going",
        code=3,
        slots=slots,
    )
    for error in result.told[2]["errors"]:
        assert is_error(error, "ILLEGAL_ADDRESS"), error
        assert error.says("lost its GPU", "start it again")
    for rank, told in enumerate(result.told[:2]):
        assert told["ranks"] in [(1 - rank,), (1 - rank, 2)]
        assert told["x"] <= {11.0, 11.0 + 333.0}
        assert told["seconds"] < PROMPT
        assert told["alive"] == (0, 1)
        assert told["reduced"] == {11.0}


@controls_the_driver
def test_gpu_that_hangs_is_named_by_its_rank_within_the_time_limit(tmp_path: Path) -> None:
    """The kernels of rank 1 do not end for a while; the others cannot have its update."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=2)
x = on_gpu(np.full(1000, 10.0 ** rank))
v = malt.vector(x)
malt.barrier()
if rank == 1:
    fake().fake_cuda_stall(1)
    start = time.monotonic()
    v.scatter()
    tell(began=time.monotonic() - start)
    tell(errors=[error_of(call) for call in (v.scatter, v.allreduce)])
    fake().fake_cuda_stall(0)
    raise_flag("goes on")
else:
    v.scatter()
    tell(errors=[error_of(v.gather, malt.SUM, staleness=0)])
    await_flag("goes on")
g = v.gather(malt.SUM, staleness=0, timeout=20)
tell(x=set(x.get().tolist()), ranks=g.ranks, alive=malt.alive())
malt.barrier()
""",
    )
    assert result.told[1]["began"] < 1
    for error in result.told[1]["errors"]:
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.says("vector 'vector-1'", "GPU 0", "not finished within 2 s")
        assert 1.9 < error.seconds < 6
    (error,) = result.told[0]["errors"]
    assert (error.kind, error.ranks) == ("TimeoutError", (1,))
    assert result.each("x") == [{11.0}] * 2
    assert result.each("alive") == [(0, 1)] * 2


@controls_the_driver
def test_process_ends_though_its_gpu_hangs(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=2)
x = on_gpu(np.full(1000, 10.0 ** rank))
v = malt.vector(x)
malt.barrier()
if rank == 1:
    fake().fake_cuda_stall(1)
    v.scatter()
    x.address = 0  # or freeing it waits for the GPU
    tell(end=time.monotonic())
    sys.exit()
while malt.alive() != (0,): time.sleep(0.01)
tell(end=time.monotonic())
""",
    )
    assert result.told[0]["end"] - result.told[1]["end"] < 10


@controls_the_driver
@pytest.mark.parametrize("symbol", ["cuLaunchKernel", "cuMemcpyAsync", "cuLaunchHostFunc"])
def test_scatter_in_which_a_call_of_the_driver_fails_is_done_or_not_begun(
    tmp_path: Path, symbol: str
) -> None:
    """If it raises an error, nothing has been sent, and it can be repeated."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
x = on_gpu(np.full(1000, 10.0 ** rank))
v = malt.vector(x, codec=malt.FLOAT16 if symbol == "cuLaunchKernel" else None)
if rank == 0:
    fake().fake_cuda_fail(symbol.encode(), 1, 2)
    error = error_of(v.scatter)
    tell(error=error, kept=set(x.get().tolist()), sent=v.iteration)
malt.barrier()
if rank == 1: tell(came=v.gather(malt.SUM).count, values=set(x.get().tolist()))
x.set(10.0 ** rank)
malt.barrier()
if rank == 0 and v.iteration == 0: v.scatter()
if rank == 1: v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(x=set(x.get().tolist()))
malt.barrier()
""",
        symbol=symbol,
    )
    sender, receiver = result.told
    assert sender["kept"] == {1.0}
    if sender["error"] is not None:
        assert is_error(sender["error"], "OUT_OF_MEMORY")
        assert (sender["sent"], receiver["came"]) == (0, 0)
        assert result.each("x") == [{11.0}] * 2
    else:
        assert (sender["sent"], receiver["came"], receiver["values"]) == (1, 1, {11.0})
        assert result.each("x") == [{11.0}, {10.0}]


@controls_the_driver
def test_ctrl_c_ends_each_wait_and_the_calls_can_be_made_again(tmp_path: Path) -> None:
    """For an update, for the others in allreduce(), and for a GPU that hangs."""
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
x = on_gpu(np.full(10, 10.0 ** rank))
v = malt.vector(x)
malt.barrier()
if rank == 0:
    v.scatter()
    errors = [interrupted(lambda: v.gather(malt.SUM, staleness=0)),
              interrupted(lambda: v.allreduce(malt.SUM))]
    fake().fake_cuda_stall(1)
    v.scatter()
    errors.append(interrupted(v.scatter))
    fake().fake_cuda_stall(0)
    tell(errors=errors)
    raise_flag("goes on")
else:
    await_flag("goes on")
    v.scatter(), v.scatter()
v.gather(malt.SUM, staleness=0)
tell(folded=set(x.get().tolist()))
x.set(10.0 ** rank)
v.allreduce(malt.SUM)
tell(summed=set(x.get().tolist()))
malt.barrier()
""",
    )
    for error in result.told[0]["errors"]:
        assert error.kind == "builtins.KeyboardInterrupt"
        assert error.seconds < PROMPT
    assert result.each("folded") == result.each("summed") == [{11.0}] * 2


# Forks


@pytest.mark.parametrize("slots", ["ipc", "host"])
def test_forked_child_takes_no_part_and_its_end_changes_nothing(tmp_path: Path, slots: str) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
x = on_gpu(np.full(1000, 10.0 ** rank))
v = malt.vector(x)
v.scatter(), v.gather(malt.SUM, staleness=0), v.allreduce(malt.SUM)
x.get()
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    calls = (v.scatter, v.gather, v.allreduce, v.read, lambda: malt.vector(x), malt.barrier)
    with os.fdopen(write_end, "wb") as pipe:
        pickle.dump([error_of(call) for call in calls], pipe)
    del v
    malt.finalize()
    sys.exit()
os.close(write_end)
with os.fdopen(read_end, "rb") as pipe:
    errors = pickle.load(pipe)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
rounds = []
for step in range(10):
    x.set(10.0 ** rank)
    v.scatter(), v.gather(malt.SUM, staleness=0)
    rounds.append(set(x.get().tolist()))
tell(errors=errors, code=code, rounds=rounds, alive=malt.alive())
malt.barrier()
""",
        slots=slots,
    )
    for told in result.told:
        assert all(refused(error, "fork") for error in told["errors"])
        assert told["code"] == 0
        assert told["rounds"] == [{11.0}] * 10
        assert told["alive"] == (0, 1)
