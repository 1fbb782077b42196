"""Jobs whose vectors are in the memory of a GPU: one of tests/fake_cuda, or a real one.

With MALT_TEST_GPU=1 the ranks use the machine's GPUs by NVIDIA's driver. Otherwise they load a
driver whose GPUs are in the host's memory, which the first job compiles (.cache/dev/fake_cuda).

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
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from jobs import Result, Running, run_job, start_job

_ROOT = Path(__file__).parents[2]
_FAKE = _ROOT / "tests/fake_cuda"
_BUILT = _ROOT / ".cache/dev/fake_cuda"
_COMPILE = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread"]
_NAMES = "from device_array import DeviceArray, Part, fake, free_bytes, on_gpu\n"
_NO_VARIABLES: Mapping[str, str] = {}

IS_REAL = os.environ.get("MALT_TEST_GPU") == "1"
# A real driver cannot be told to fail, to be slow, or to have other GPUs.
controls_the_driver = pytest.mark.skipif(IS_REAL, reason="a real GPU's driver cannot be controlled")


def _sources() -> list[Path]:
    """The files that the fake is made of."""
    kernels = _ROOT / "src/vol/device"
    files = [*_FAKE.glob("*.cpp"), *_FAKE.glob("*.hpp"), *_FAKE.glob("*.map")]
    files += [kernels / "kernels.cu", *kernels.glob("kernel_*.hpp")]
    return sorted([*files, _ROOT / "src/dstorm/device/driver.hpp"])


def _compile(to: Path) -> None:
    own = "nvrtc.cpp"
    sources = [file for file in _FAKE.glob("*.cpp") if file.name != own]
    libraries = (
        ("libcuda.so.1", "cuda.map", sources),
        ("libnvrtc.so.12", "nvrtc.map", [_FAKE / own]),
    )
    for name, exports, files in libraries:
        link = f"-Wl,-soname,{name},-z,nodelete,--version-script={_FAKE / exports}"
        command = [*_COMPILE, f"-I{_ROOT / 'src'}", link, "-o", str(to / name), *map(str, files)]
        subprocess.run(command, check=True)


@functools.cache
def fake_driver() -> Path:
    """The folder with the fake libcuda.so.1 and libnvrtc.so.12, which is compiled once."""
    digest = hashlib.sha256()
    for file in _sources():
        digest.update(file.read_bytes())
    made = _BUILT / digest.hexdigest()[:16]
    _BUILT.mkdir(parents=True, exist_ok=True)
    with (_BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of several processes
        if not made.exists():
            draft = _BUILT / "draft"
            for old in _BUILT.glob("*/"):
                shutil.rmtree(old)
            draft.mkdir()
            _compile(draft)
            draft.rename(made)
    return made


def gpu_environ() -> dict[str, str]:
    """The variables of a program that uses GPUs and has the names above."""
    path = [str(_ROOT / "tests/harness"), str(_FAKE), os.environ.get("PYTHONPATH", "")]
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    if not IS_REAL:
        libraries = [str(fake_driver()), os.environ.get("LD_LIBRARY_PATH", "")]
        environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return environ


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
