"""Vectors that go over the wire in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import run_job

import malt

CODECS = {
    "none": "None",
    "float16": "malt.FLOAT16",
    "bfloat16": "malt.BFLOAT16",
    "int8": "malt.INT8",
    "top-k": "malt.TOP_K(0.1)",
}

# Data-parallel gradient descent on a linear model; the gradients are exchanged.
TRAIN = """
malt.init()
random = np.random.default_rng(7)
truth = random.standard_normal(400)
x = random.standard_normal((size, 2000, 400))
y = x @ truth
w, gradient = np.zeros(400), np.zeros(400)
v = malt.vector(gradient, policy="queue", codec=codec)
for step in range(100):
    gradient[:] = x[rank].T @ (x[rank] @ w - y[rank]) / 2000
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    w -= 0.1 * gradient
tell(error=float(np.abs(w - truth).max()), bytes=v.stats().bytes_out, shown=repr(v))
malt.barrier()
"""


def test_training_gets_as_far_with_fewer_bytes(tmp_path: Path) -> None:
    told = {
        name: run_job(tmp_path / name, 2, f"codec = {codec}\n{TRAIN}").told
        for name, codec in CODECS.items()
    }
    plain = told["none"][0]["bytes"]
    for name, share in {"float16": 1 / 4, "bfloat16": 1 / 4, "int8": 0.13, "top-k": 0.15}.items():
        for one in told[name]:
            assert one["error"] < 0.1, name
            assert one["bytes"] <= plain * share * 1.01, name
            assert name in one["shown"]


def test_codec_that_cannot_be_is_refused() -> None:
    with malt.init():
        with pytest.raises(malt.ConfigError, match="int32, which codec int8 cannot encode"):
            malt.vector(np.zeros(3, np.int32), codec=malt.INT8)
        with pytest.raises(malt.ConfigError, match="codec is 'float16'; it is"):
            malt.vector(np.zeros(3), codec="float16")  # type: ignore[arg-type]
    for fraction in (0, 1.01, float("nan")):
        with pytest.raises(malt.ConfigError, match="above 0 and at most 1"):
            malt.TOP_K(fraction)
