"""Jobs whose vectors are in the memory of a GPU: one of tests/fake_cuda, or a real one.

With MALT_TEST_GPU=1 the ranks use the machine's GPUs by NVIDIA's driver. Otherwise they load a
driver whose GPUs are in the host's memory, which the first job compiles (.cache/dev/fake_cuda). In
the environment of over_rdma() they also have an RDMA adapter in memory.

Besides what jobs.py says, a script has by name:

    DeviceArray        an array in the memory of a GPU (tests/fake_cuda/device_array.py)
    on_gpu(values)     one with these values
    Part(array, i, n)  n elements of it, from the i-th on
    free_bytes()       of GPU 0
    fake()             the fake driver's own functions (tests/fake_cuda/fake_cuda.hpp)
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jobs import Result, Running, run_job, start_job

_ROOT = Path(__file__).parents[2]
_FAKE = _ROOT / "tests/fake_cuda"
_BUILT = _ROOT / ".cache/dev"
_COMPILE = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread"]
_NAMES = "from device_array import DeviceArray, Part, fake, free_bytes, on_gpu\n"
_NO_VARIABLES: Mapping[str, str] = {}

IS_REAL = os.environ.get("MALT_TEST_GPU") == "1"
# A real driver cannot be told to fail, to be slow, or to have other GPUs.
controls_the_driver = pytest.mark.skipif(IS_REAL, reason="a real GPU's driver cannot be controlled")


class _Library(NamedTuple):
    name: str
    exports: Path
    sources: list[Path]


def _compiled(home: Path, libraries: Iterable[_Library], others: Iterable[Path] = ()) -> Path:
    """A folder with libraries of the tests' own in place of the machine's, compiled once.

    Their files are in `home`, except for these others.
    """
    digest = hashlib.sha256()
    for file in sorted([*home.glob("*.?pp"), *home.glob("*.map"), *others]):
        digest.update(file.read_bytes())
    built = _BUILT / home.name
    made = built / digest.hexdigest()[:16]
    built.mkdir(parents=True, exist_ok=True)
    with (built / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of several processes
        if not made.exists():
            draft = built / "draft"
            for old in built.glob("*/"):
                shutil.rmtree(old)
            draft.mkdir()
            for name, exports, sources in libraries:
                link = f"-Wl,-soname,{name},-z,nodelete,--version-script={exports}"
                command = [*_COMPILE, f"-I{_ROOT / 'src'}", link, "-o", str(draft / name)]
                subprocess.run([*command, *map(str, sources)], check=True)
            draft.rename(made)
    return made


@functools.cache
def fake_driver() -> Path:
    """The folder with the fake libcuda.so.1 and libnvrtc.so.12."""
    nvrtc = _FAKE / "nvrtc.cpp"
    driver = [file for file in _FAKE.glob("*.cpp") if file != nvrtc]
    kernels = _ROOT / "src/vol/device"
    libraries = (
        _Library("libcuda.so.1", _FAKE / "cuda.map", driver),
        _Library("libnvrtc.so.12", _FAKE / "nvrtc.map", [nvrtc]),
    )
    included = [kernels / "kernels.cu", *kernels.glob("kernel_*.hpp")]
    return _compiled(_FAKE, libraries, [*included, _ROOT / "src/dstorm/device/driver.hpp"])


def gpu_environ() -> dict[str, str]:
    """The variables of a program that uses GPUs and has the names above."""
    path = [str(_ROOT / "tests/harness"), str(_FAKE), os.environ.get("PYTHONPATH", "")]
    libraries = [os.environ.get("LD_LIBRARY_PATH", "")]
    if not IS_REAL:
        libraries.insert(0, str(fake_driver()))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
    }


def over_rdma(directory: Path) -> dict[str, str]:
    """The variables of such a program whose ranks are hosts with RDMA (tests/fake_verbs)."""
    home = _ROOT / "tests/fake_verbs"
    library = _Library("libibverbs.so.1", home / "ibverbs.map", [home / "ibverbs.cpp"])
    environ = gpu_environ()
    libraries = [str(_compiled(home, [library])), environ["LD_LIBRARY_PATH"]]
    return {
        **environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "FAKE_VERBS_WORLD": str(directory / "network"),
        "MALT_TRANSPORT": "verbs",
    }


def start_gpu_job(
    directory: Path,
    size: int,
    body: str,
    *arguments: str,
    environ: Mapping[str, str] = _NO_VARIABLES,
    slots: str = "auto",
    **given: Any,
) -> AbstractContextManager[Running]:
    """Start such a job; `slots` is MALT_DEVICE_SLOTS, and the rest as of run_job()."""
    header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    variables = {**gpu_environ(), "MALT_DEVICE_SLOTS": slots, **environ}
    return start_job(directory, size, _NAMES + header + body, *arguments, environ=variables)


def run_gpu_job(
    directory: Path,
    size: int,
    body: str,
    *arguments: str,
    environ: Mapping[str, str] = _NO_VARIABLES,
    slots: str = "auto",
    **given: Any,
) -> Result:
    """Run such a job to its end; `slots` is MALT_DEVICE_SLOTS, and the rest as of run_job()."""
    variables = {**gpu_environ(), "MALT_DEVICE_SLOTS": slots, **environ}
    return run_job(directory, size, _NAMES + body, *arguments, environ=variables, **given)
