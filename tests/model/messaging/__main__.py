"""Prints what is wrong with the jobs of some seeds, and at last how many results were right.

python -m messaging FIRST END [pools|backend|consensus]
"""

import gc
import sys

from messaging.backend import BackendJob
from messaging.consensus import ConsensusJob
from messaging.pools import PoolJob

KINDS = {"pools": PoolJob, "backend": BackendJob, "consensus": ConsensusJob}


def main(first: str, end: str, *kinds: str) -> None:
    gc.freeze()
    for kind in kinds or KINDS:
        right = errors = 0
        for seed in range(int(first), int(end)):
            job = KINDS[kind](seed)
            if wrong := job.run():
                print(f"seed {seed}, {kind}: {wrong}", flush=True)
            right += job.right
            errors += job.errors
        print(f"{kind}: {right} right, {errors} errors", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
