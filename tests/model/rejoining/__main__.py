"""Prints what is wrong with the jobs of some seeds, and at last how many ranks have come back.

python -m rejoining FIRST END
"""

import gc
import sys

from rejoining.jobs import Job

gc.freeze()
come_back = 0
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    job = Job(seed)
    if wrong := job.run():
        print(f"seed {seed}: {wrong}", flush=True)
    come_back += job.come_back
print(come_back)
