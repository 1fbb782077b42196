"""Arrays, drivers, compilers and slots that a vector on a GPU cannot have, and what is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gpus import controls_the_driver, fake_driver, run_gpu_job
from jobs import PROMPT, Err, refused, run_job

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


@pytest.mark.xdist_group("arrays on GPUs")  # they share one job, which a worker runs once
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
