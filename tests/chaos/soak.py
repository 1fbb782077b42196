"""A long job, and short ones beside it in which a rank is killed: does anything grow?

usage: soak.py [--seconds 60 | --hours 1]

Four ranks make vectors of all kinds, exchange them and close them, over and over. Their memory
and descriptors, and the names in /dev/shm, are sampled, and a line is fitted to each after a
fifth of the time. Exit status 1 if one of them grows.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))
from jobs import Running, processes_in, start_job

SAMPLES = 200
# What a line may rise by over the time fitted: the allocator's own unrest, in MiB; nothing else.
ALLOWED = {"memory": 4.0, "descriptors": 0.5, "/dev/shm": 0.5}
UNITS = {"memory": "MiB", "descriptors": "descriptors", "/dev/shm": "names"}

LONG = """
malt.init(timeout=60, silence=30)
draw = np.random.default_rng(1)  # the same on all ranks
stop = malt.vector((1,))
rounds = 0
tell(pid=os.getpid())
while True:
    length = int(draw.integers(1, 20_000))
    policy = ["latest", "queue"][draw.integers(2)]
    if draw.random() < 0.5:
        v = malt.vector(np.ones(length), policy=policy)
    else:
        v = malt.sparse_vector(length, capacity=length, policy=policy)
        v.set(np.arange(length), np.ones(length))
    for _ in range(int(draw.integers(1, 20))):
        v.scatter()
        v.gather(malt.AVG, staleness=0)
    v.close()
    rounds += 1
    stop.array[0] = flag_is_up("stop")
    stop.allreduce(malt.SUM)
    if stop.array[0] > 0: break
tell(rounds=rounds)
malt.barrier()
"""

SHORT = """
malt.init(timeout=60)
v = malt.vector(np.ones(1000))
tell(pid=os.getpid())
while len(malt.alive()) == size:
    v.scatter(); v.gather(malt.AVG, staleness=0)
"""


def sample(pid: int) -> dict[str, float]:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {"memory": resident / 2**20, "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


def kill_one(job: Running, rank: int) -> None:
    """And see that the others end well, and all of them."""
    os.kill(job.await_told("pid")[rank], signal.SIGKILL)
    code = job.finish().code
    assert code == 128 + signal.SIGKILL, f"exit code {code}:\n{job.output}"
    deadline = time.monotonic() + 15
    while left := processes_in(job.directory):
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.05)


def soak(directory: Path, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """The samples, (seconds, value), by what they are of."""
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    killed = 0
    with start_job(directory / "long", 4, LONG) as job:
        pids = job.await_told("pid")
        start = time.monotonic()
        while (now := time.monotonic() - start) < seconds:
            for rank, pid in enumerate(pids):
                for what, value in sample(pid).items():
                    samples[f"{what} of rank {rank}"].append((now, value))
            samples["/dev/shm of all"].append((now, len(os.listdir("/dev/shm"))))
            if now > killed * seconds / SAMPLES * 10:
                with start_job(directory / f"short-{killed}", 3, SHORT, "--keep-going") as short:
                    kill_one(short, killed % 3)
                killed += 1
            time.sleep(seconds / SAMPLES)
        job.raise_flag("stop")
        result = job.finish()
    assert result.code == 0, result.output
    rounds = result.each("rounds")[0]
    print(f"row soak: {seconds:.0f} s, {rounds} vectors, {killed} short jobs with a rank killed")
    return samples


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hours", type=float)
    given = parser.parse_args()
    seconds = given.hours * 3600 if given.hours else given.seconds
    with tempfile.TemporaryDirectory() as directory:
        samples = soak(Path(directory), seconds)
    has_grown = False
    for name, points in samples.items():
        times, values = np.array([point for point in points if point[0] > seconds / 5]).T
        slope = float(np.polyfit(times, values, 1)[0])
        what = name.partition(" of ")[0]
        grows = slope * (times[-1] - times[0]) > ALLOWED[what]
        has_grown |= grows
        print(
            f"row soak: {name}: {values.mean():.1f} {UNITS[what]}, {3600 * slope:+.2f} an hour,"
            f" {len(values)} samples: {'GROWS' if grows else 'flat'}"
        )
    return 1 if has_grown else 0


if __name__ == "__main__":
    sys.exit(main())
