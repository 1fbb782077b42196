"""NVRTC compiles the device's kernels for GPUs of several generations, without a word."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[3] / "src" / "vol" / "device"
PACKAGES = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
# As src/vol/device/compiler.cpp passes them.
OPTIONS = ("--std=c++17", "--fmad=false")


def nvrtc_library() -> Path:
    for package in PACKAGES:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith(("libnvrtc.so", "nvrtc64_")):
                return Path(os.fspath(file.locate()))
    pytest.fail(f"no NVRTC is installed to compile the kernels with: pip install {PACKAGES[0]}")


def source() -> bytes:
    """What the library hands to NVRTC: one text, without includes."""
    arguments = (DEVICE / "kernel_args.hpp").read_text().replace("#pragma once", "")
    return (arguments + (DEVICE / "kernels.cu").read_text()).encode()


def compile_for(architecture: str) -> tuple[int, str]:
    """NVRTC's result (0 if it has compiled the kernels) and its log."""
    nvrtc = ctypes.CDLL(str(nvrtc_library()))
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source(), b"kernels.cu", 0, None, None
    )
    assert created == 0
    options = [f"--gpu-architecture={architecture}", *OPTIONS]
    texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result: int = nvrtc.nvrtcCompileProgram(program, len(options), texts)
    size = ctypes.c_size_t()
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return result, log.value.decode().strip()


@pytest.mark.parametrize(
    "architecture",
    [*(pytest.param(each, marks=pytest.mark.long) for each in ("sm_75", "sm_80")), "sm_90"],
)
def test_kernels_compile_without_warnings(architecture: str) -> None:
    result, log = compile_for(architecture)
    assert (result, log) == (0, "")
