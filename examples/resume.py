"""Training that may be killed at any moment: the same command then continues it.

    malt run -n 4 examples/resume.py out/model

Kill it with Ctrl-C or kill -9 whenever you like. It ends with the same model as without a kill:
every rank gets back its own values, its place in the data and its random numbers.
"""

import argparse
import hashlib

import numpy as np

import malt

features, batch, rate = 1_000, 8, 0.05

arguments = argparse.ArgumentParser()
arguments.add_argument("path", help="of the checkpoints")
arguments.add_argument("--steps", type=int, default=2_000)
arguments.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
arguments = arguments.parse_args()

malt.init()
truth = np.random.default_rng(0).standard_normal(features, dtype=np.float32)
rng = np.random.default_rng((1, malt.rank()))
w = np.zeros(features, dtype=np.float32)
m = malt.vector(w)

first = 0
saved = malt.restore(arguments.path, {"w": m})
if saved:
    first = saved.extra["step"]
    rng.bit_generator.state = saved.extra["rng"]
    print(f"goes on at step {first}", flush=True)

for step in range(first + 1, arguments.steps + 1):
    x = rng.standard_normal((batch, features), dtype=np.float32)
    w -= rate / batch * (x.T @ (x @ (w - truth))) / np.sqrt(features)
    m.scatter()
    m.gather(malt.AVG, staleness=0)
    if step % arguments.every == 0:
        malt.save(arguments.path, {"w": m}, {"step": step, "rng": rng.bit_generator.state})
        print(f"saved step {step}", flush=True)

error = np.linalg.norm(w - truth) / np.linalg.norm(truth)
print(f"model {hashlib.sha256(w.tobytes()).hexdigest()[:16]}, error {error:.2g}")
