"""Logistic regression in which every example is trained on once a pass, though ranks die.

    malt run -n 4 --keep-going examples/survivors.py --kill 2

Rank 2 kills itself in pass 2. The others take over the examples that it had not trained on in this
pass, and all of its examples in later passes.
"""

import argparse
import os
import signal

import numpy as np

import malt

examples, features, chunk, passes, rate = 20_000, 50, 50, 5, 0.5

arguments = argparse.ArgumentParser()
arguments.add_argument("--kill", type=int, help="the rank that dies in pass 2")
arguments = arguments.parse_args()

malt.init()
rng = np.random.default_rng(0)
x = rng.standard_normal((examples, features), dtype=np.float32)
truth = rng.standard_normal(features, dtype=np.float32)
y = (x @ truth > rng.logistic(size=examples)).astype(np.float32)

w = np.zeros(features, dtype=np.float32)
m = malt.vector(w)
parts = malt.shard(x, y, chunk=chunk, shuffle=0, lockstep=True)  # a gather waits for all ranks
for n in range(1, passes + 1):
    trained = 0
    for xs, ys in parts:
        if len(ys):  # in lockstep a rank may have nothing to do in a turn
            w -= rate / len(ys) * (xs.T @ (1 / (1 + np.exp(-(xs @ w))) - ys))
            trained += len(ys)
        if malt.rank() == arguments.kill and n == 2 and trained > examples / malt.size() / 2:
            os.kill(os.getpid(), signal.SIGKILL)
        m.scatter()
        m.gather(malt.AVG, staleness=0)
    right = np.mean((x @ w > 0) == (y > 0))
    print(f"pass {n}: {trained} examples here, accuracy {right:.3f}", flush=True)
print(f"repeated, as (pass, chunk): {parts.repeated}")
