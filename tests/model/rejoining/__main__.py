"""Prints what is wrong with the jobs of some seeds: python -m rejoining FIRST END."""

import gc
import sys

from rejoining.jobs import Job

gc.freeze()
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    if wrong := Job(seed).run():
        print(f"seed {seed}: {wrong}", flush=True)
