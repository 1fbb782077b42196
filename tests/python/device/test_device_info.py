"""`malt info` says which GPUs there are, and what compiles for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from gpus import controls_the_driver, gpu_environ


def info(**environ: str) -> tuple[dict[str, Any], str]:
    """Its facts, and its table."""
    command = [sys.executable, "-m", "malt", "info"]
    variables = {**os.environ, **gpu_environ(), **environ}
    facts, table = (
        subprocess.run([*command, *more], capture_output=True, text=True, env=variables, check=True)
        for more in (["--json"], [])
    )
    return json.loads(facts.stdout), table.stdout


@controls_the_driver
def test_gpus_driver_and_compiler_are_listed() -> None:
    facts, table = info(FAKE_CUDA_DEVICES="2", FAKE_CUDA_MEMORY=str(3 << 30))
    assert facts["gpus"] == ["GPU 0: Fake GPU 0, 3072 MB", "GPU 1: Fake GPU 1, 3072 MB"]
    assert facts["cuda"].partition(".")[0] in ("12", "13")
    assert "libnvrtc.so" in facts["nvrtc"]
    assert "GPU 1: Fake GPU 1, 3072 MB" in table


def test_reason_for_no_gpu_is_given() -> None:
    facts, table = info(LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES="")
    assert facts["gpus"] == []
    assert "none: NVIDIA's driver" in table


@controls_the_driver
def test_driver_without_devices_is_no_gpu() -> None:
    facts, table = info(FAKE_CUDA_DEVICES="0")
    assert facts["gpus"] == []
    assert "none: NVIDIA's driver finds no GPU" in table
