"""What cannot be done with a vector on a GPU, and what a GPU that fails does to its rank."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gpus import controls_the_driver, fake_driver, run_gpu_job
from jobs import PROMPT, Err, refused, run_job


def is_error(error: Err | None, *parts: object) -> bool:
    """A malt.Error that is no ConfigError, came at once and says all this."""
    assert error is not None, f"no error that says {parts}"
    assert error.kind == "Error", error
    assert error.seconds < PROMPT, error
    assert error.says(*parts), error
    return True


# Arrays


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Err | None]:
    """The errors of malt.vector() over arrays that cannot be shared, in one process."""
    result = run_gpu_job(
        tmp_path_factory.mktemp("arrays"),
        1,
        """
malt.init()
class Changed:
    def __init__(self, array, **changes): self.array, self.changes = array, changes
    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, **self.changes}
x, w = on_gpu(np.zeros((4, 6), np.float32)), np.zeros(24, np.float32)
flat = on_gpu(np.zeros(24, np.float32))
moving = Changed(flat)
v = malt.vector(moving, name="moving")
v.scatter()
moving.array = on_gpu(np.zeros(24, np.float32))
tell(errors={
    "mixed": error_of(malt.vector, [x, w]),
    "mixed too": error_of(malt.vector, [w, x]),
    "read-only": error_of(malt.vector, Changed(x, data=(x.address, True))),
    "strided": error_of(malt.vector, Changed(x, shape=(6, 4), strides=(4, 24))),
    "float16": error_of(malt.vector, Changed(x, typestr="<f2")),
    "uint8": error_of(malt.vector, Changed(x, typestr="|u1")),
    "empty": error_of(malt.vector, DeviceArray((3, 0), np.float32)),
    "dtypes": error_of(malt.vector, [x, on_gpu(np.zeros(3))]),
    "other dtype": error_of(malt.vector, x, dtype=np.float64),
    "twice": error_of(malt.vector, [flat, flat]),
    "overlap": error_of(malt.vector, [Part(flat, 0, 9), Part(flat, 8, 9)]),
    "host memory": error_of(malt.vector, Changed(x, data=(w.ctypes.data, False))),
    "integers and codec": error_of(malt.vector, on_gpu(np.zeros(3, np.int32)), codec=malt.INT8),
    "integers and norm": error_of(malt.vector, on_gpu(np.zeros(3, np.int32)), max_norm=1.0),
    "own fold": error_of(malt.vector(x).gather, lambda mine, updates: None),
    "own fold of all": error_of(malt.vector(x).allreduce, lambda mine, updates: None),
    "not shareable": error_of(malt.vector(x).allreduce, malt.REPLACE),
    "moved and scattered": error_of(v.scatter),
    "moved and gathered": error_of(v.gather),
    "moved and reduced": error_of(v.allreduce),
    "moved and read": error_of(v.read),
})
moving.array = flat
v.close()
tell(closed=error_of(v.scatter))
same = Changed(x, strides=(24, 4))  # strides that say contiguous
malt.vector(same).scatter()
""",
    )
    errors: dict[str, Err | None] = result.told[0]["errors"]
    return {**errors, "closed": result.told[0]["closed"]}


@pytest.mark.parametrize(
    ("case", "parts"),
    {
        "mixed": ("some arrays are on a GPU and some are not", "a vector for each kind"),
        "mixed too": ("some arrays are on a GPU and some are not",),
        "read-only": ("Changed is read-only",),
        "strided": ("shape (6, 4) is not contiguous (strides (4, 24))", "contiguous"),
        "float16": ("dtype is float16", "float32, float64, int32, int64", "convert"),
        "uint8": ("dtype is uint8", "float32, float64, int32, int64"),
        "empty": ("shape (3, 0)", "no element"),
        "dtypes": ("have one dtype, not float32, float64",),
        "other dtype": ("dtype is float64, but the array has float32",),
        "twice": ("share memory", "folded twice"),
        "overlap": ("share memory", "folded twice"),
        "host memory": ("is not in the memory of a GPU",),
        "integers and codec": ("int32, which codec int8 cannot encode",),
        "integers and norm": ("int32", "float32 or float64"),
        "own fold": ("a fold of your own", "use AVG, SUM", "host's memory"),
        "own fold of all": ("allreduce takes AVG, SUM, MEDIAN and TRIMMED_MEAN",),
        "not shareable": ("takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not REPLACE",),
        "moved and scattered": ("array 0", "has moved", "change it in place"),
        "moved and gathered": ("array 0", "has moved"),
        "moved and reduced": ("array 0", "has moved"),
        "moved and read": ("array 0", "has moved"),
        "closed": ("'moving'", "has been closed"),
    }.items(),
)
def test_array_that_cannot_be_shared_is_refused_with_the_way_out(
    arrays: dict[str, Err | None], case: str, parts: tuple[str, ...]
) -> None:
    assert refused(arrays[case], *parts)


@controls_the_driver
def test_arrays_on_two_gpus_are_refused_and_vectors_on_each_work(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
xs = [on_gpu(np.full(9, 10.0 ** rank), device=d) for d in (0, 1)]
tell(both=error_of(malt.vector, xs))
one = malt.vector(xs[rank], name="each rank has its own GPU")
two = malt.vector(xs[1 - rank], name="and another")
for v in (one, two): v.scatter(), v.gather(malt.SUM, staleness=0), v.allreduce(malt.SUM)
tell(values=[set(x.get().tolist()) for x in xs], slots=one.slots)
malt.barrier()
""",
        environ={"FAKE_CUDA_DEVICES": "2"},
    )
    for told in result.told:
        assert refused(told["both"], "GPU 0", "GPU 1", "make a vector for each GPU")
        assert told["values"] == [{22.0}] * 2
        assert told["slots"] == "ipc"


# Driver and compiler

LENT = """
class Lent:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False),
                                "version": 3, "strides": None}
malt.init(timeout=20)
"""


def test_machine_without_a_gpu_says_so(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        LENT
        + """
tell(error=error_of(malt.vector, Lent()))
w = np.full(3, rank + 1.0)
malt.vector(w).allreduce(malt.SUM)
tell(w=w.tolist())
malt.barrier()
""",
        environ={"CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": ""},
    )
    for told in result.told:
        assert refused(told["error"], "NVIDIA's driver")
        assert told["error"].says("cannot be loaded (libcuda.so.1") or told["error"].says("no GPU")
        assert told["w"] == [3.0] * 3


@controls_the_driver
def test_gpu_for_which_nothing_can_be_compiled_says_so(tmp_path: Path) -> None:
    """Without NVRTC, and with one whose compilation fails."""
    driver = tmp_path / "lib"
    driver.mkdir()
    (driver / "libcuda.so.1").symlink_to(fake_driver() / "libcuda.so.1")
    body = """
sys.modules["nvidia"] = None  # its packages may have NVRTC
malt.init(timeout=20)
x = on_gpu(np.full(3, rank + 1.0))
tell(error=error_of(malt.vector, x))
"""
    for variables, kind, parts in (
        (
            {"LD_LIBRARY_PATH": str(driver), "CUDA_HOME": "", "CUDA_PATH": ""},
            "ConfigError",
            ("NVRTC (libnvrtc.so.13 or .12)", "pip install nvidia-cuda-nvrtc-cu12"),
        ),
        ({"FAKE_NVRTC_FAIL": "1"}, "Error", ("cannot compile", "FAKE_NVRTC_FAIL is set")),
    ):
        result = run_gpu_job(tmp_path / kind, 2, body, environ=variables)
        for error in result.each("error"):
            assert error.kind == kind, error
            assert error.says(*parts), error
            assert error.seconds < PROMPT


@controls_the_driver
def test_driver_that_lacks_a_function_is_too_old(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    command = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True)
    body = LENT + "tell(error=error_of(malt.vector, Lent()))"
    result = run_job(tmp_path, 1, body, environ={"LD_LIBRARY_PATH": str(tmp_path)})
    assert refused(result.told[0]["error"], "libcuda.so.1 has no cu", "CUDA 11.4", "update it")


# Where updates lie


@controls_the_driver
def test_ipc_that_one_rank_cannot_have_is_refused_on_all_and_avoided_unless_asked_for(
    tmp_path: Path,
) -> None:
    body = """
if rank == 1: os.environ[variable] = "1"
malt.init(timeout=20)
x = on_gpu(np.full(9, 10.0 ** rank), device=rank % devices)
made = []
tell(error=error_of(lambda: made.append(malt.vector(x))))
for v in made:
    v.scatter(), v.gather(malt.SUM, staleness=0), v.allreduce(malt.SUM)
    tell(slots=v.slots, x=set(x.get().tolist()))
malt.barrier()
"""
    cases = (
        ("FAKE_CUDA_NO_IPC", 1, ("rank 1 cannot share memory of its GPU", "NOT_SUPPORTED")),
        ("FAKE_CUDA_NO_PEER", 2, ("rank 1 cannot map memory of rank 0", "MAP")),
    )
    for variable, devices, parts in cases:
        for slots in ("ipc", "auto") if devices == 1 else ("auto",):
            result = run_gpu_job(
                tmp_path / f"{variable}-{slots}",
                3,
                body,
                slots=slots,
                variable=variable,
                devices=devices,
                environ={"FAKE_CUDA_DEVICES": str(devices)},
            )
            for told in result.told:
                if slots == "ipc":
                    assert refused(told["error"], "MALT_DEVICE_SLOTS=ipc", *parts, "leave it out")
                else:
                    assert told["error"] is None
                    assert told["slots"].startswith("host: ")
                    assert all(part in told["slots"] for part in parts), told["slots"]
                    assert told["x"] == {333.0}


def test_slots_on_which_ranks_differ_are_refused_on_all_and_a_wrong_name_names_the_right_ones(
    tmp_path: Path,
) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=20)
x = on_gpu(np.full(9, 10.0 ** rank))
os.environ["MALT_DEVICE_SLOTS"] = "host" if rank == 1 else "ipc"
tell(differ=error_of(malt.vector, x))
os.environ["MALT_DEVICE_SLOTS"] = "gpu"
tell(wrong=error_of(malt.vector, x))
os.environ["MALT_DEVICE_SLOTS"] = "host"
v = malt.vector(x)
v.scatter(), v.gather(malt.SUM, staleness=0)
tell(x=set(x.get().tolist()), slots=v.slots)
malt.barrier()
""",
    )
    for told in result.told:
        assert refused(told["differ"], "MALT_DEVICE_SLOTS differs between", "rank 1", "alike")
        assert refused(told["wrong"], "MALT_DEVICE_SLOTS is 'gpu'; it is auto, ipc or host")
        assert told["x"] == {111.0}
        assert told["slots"] == "host: MALT_DEVICE_SLOTS=host"


def test_ranks_that_differ_in_kind_of_memory_are_refused_on_all(tmp_path: Path) -> None:
    """One makes the vector over memory of the host, and the others over a GPU's."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=8)
x, w = on_gpu(np.full(9, 10.0 ** rank)), np.full(9, 10.0 ** rank)
tell(error=error_of(malt.vector, w if rank == 1 else x))
tell(length=error_of(malt.vector, on_gpu(np.zeros(9 + rank))))
v = malt.vector(x)
v.scatter(), v.gather(malt.SUM, staleness=0)
tell(x=set(x.get().tolist()))
malt.barrier()
""",
    )
    for told in result.told:
        assert refused(told["error"], "vector 'vector-1'", "rank 1")
        assert refused(told["length"], "float64 x")
        assert told["x"] == {111.0}


# GPUs that have no room, fail or hang


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
@pytest.mark.parametrize("symbol", ["cuLaunchKernel", "cuMemcpyAsync"])
def test_scatter_whose_work_cannot_be_queued_fails_and_can_be_repeated(
    tmp_path: Path, symbol: str
) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
x = on_gpu(np.full(1000, 10.0 ** rank))
v = malt.vector(x, codec=malt.FLOAT16 if symbol == "cuLaunchKernel" else None)
if rank == 0:
    fake().fake_cuda_fail(symbol.encode(), 1, 2)
    tell(error=error_of(v.scatter), kept=set(x.get().tolist()))
malt.barrier()
if rank == 1: tell(came=v.gather(malt.SUM).count)
malt.barrier()
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(x=set(x.get().tolist()), staleness=g.staleness)
malt.barrier()
""",
        symbol=symbol,
    )
    assert is_error(result.told[0]["error"], "OUT_OF_MEMORY")
    assert result.told[0]["kept"] == {1.0}
    assert result.told[1]["came"] == 0
    assert result.each("x") == [{11.0}] * 2
    assert result.each("staleness") == [(0,)] * 2


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
