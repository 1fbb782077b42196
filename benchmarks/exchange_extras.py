"""What `exchange.py` measures besides the exchange from Python: C++, import time, memory."""

import math
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from exchange_peers import ENVIRONMENTS, ROOT, Job, choices, clean_environ, environment, mpirun

CPP_SIZES = [4, 4 << 10, 64 << 10]
CPP_RANKS = 2
MALT_VARIANTS = ("scatter_gather", "allreduce", "allreduce_own")
MEMORY = {"ranks": 4, "depth": 2, "bytes": 16 << 20}


def build(target):
    """A program of ours as CMake's preset "release" builds it."""
    for step in (
        ["--preset", "release"],
        ["--build", "--preset", "release", "--target", target],
    ):
        subprocess.run(["cmake", *step], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / "release" / target


def build_mpi_twin(peer):
    """exchange_mpi.c, compiled with the peer's own compiler wrapper."""
    home = environment(peer)
    program = ENVIRONMENTS / f"exchange_mpi_{peer}"
    source = Path(__file__).with_name("exchange_mpi.c")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        command = [
            str(home / "bin" / "mpicc"),
            "-O3",
            "-march=native",
            str(source),
            "-o",
            str(program),
        ]
        subprocess.run([*command, f"-Wl,-rpath,{home / 'lib'}"], env=clean_environ(), check=True)
    return program


def run_twin(command, environ):
    """The microseconds that a twin prints, in seconds."""
    done = subprocess.run(
        command, env=environ, check=True, stdout=subprocess.PIPE, timeout=120, text=True
    )
    return float(done.stdout.split()[-1]) * 1e-6


def measure_cpp(options, say):
    """Median seconds by size, language, library and variant; Python's MALT in turn with C++."""
    malt_twin = options.program or build("exchange")
    mpis = [peer for peer in options.peers if peer != "gloo"]
    mpi_twins = {peer: build_mpi_twin(peer) for peer in mpis}
    ways = [(peer, choice) for peer in mpis for choice in choices(peer, CPP_RANKS)]
    seconds = defaultdict(list)
    with Job("malt", CPP_RANKS) as python:
        for size in CPP_SIZES:
            python.ask(do="prepare", bytes=size)
            plans = {variant: python.plan(variant, options.blocks) for variant in MALT_VARIANTS}
            for turn in range(options.turns * options.rounds):
                say(f"C++ twins, {size} bytes, turn {turn + 1}")
                for variant in MALT_VARIANTS:
                    command = [str(malt_twin), str(CPP_RANKS), str(size), variant]
                    seconds[size, "cpp", "malt", variant].append(run_twin(command, clean_environ()))
                    taken = python.time(variant, *plans[variant])
                    seconds[size, "python", "malt", variant].append(taken)
                for peer, choice in ways:
                    command, environ = mpirun(peer, CPP_RANKS, choice)
                    taken = run_twin([*command, str(mpi_twins[peer]), str(size)], environ)
                    seconds[size, "cpp", peer, "allreduce", str(choice)].append(taken)
            python.ask(do="drop")
    medians = {}
    for (size, language, name, variant, *_), taken in seconds.items():
        key = (size, language, name, variant)
        medians[key] = min(statistics.median(taken), medians.get(key, math.inf))
    return medians


def measure_import(turns):
    """Median seconds of a Python that imports NumPy, and of one that imports MALT."""
    seconds = defaultdict(list)
    for _ in range(turns):
        for module in ("numpy", "malt"):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
            seconds[module].append(time.perf_counter() - start)
    return {module: statistics.median(taken) for module, taken in seconds.items()}


def covered(intervals):
    """How much a list of (begin, end) covers."""
    total, reached = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def measure_memory():
    """Bytes of shared memory of one vector over the caller's arrays, on the whole host.

    "mapped" counts each byte of each shared file once, however many ranks map it: that much is
    reserved. "resident" is the sum of the ranks' proportional shares (Pss_Shmem) of the pages they
    have used, the job's own control memory included. "most" is ranks x depth x slot bytes and one
    vector.
    """
    ranks, depth, size = MEMORY["ranks"], MEMORY["depth"], MEMORY["bytes"]
    with Job("malt", ranks) as job:
        answers = job.ask(do="memory", bytes=size, depth=depth)
    old = {inode for answer in answers for inode, _, _ in answer["before"]}
    files = defaultdict(list)
    for answer in answers:
        for inode, begin, end in answer["with"]:
            if inode not in old:
                files[inode].append((begin, end))
    return MEMORY | {
        "mapped": sum(covered(intervals) for intervals in files.values()),
        "resident": sum(answer["pss_shmem"] for answer in answers),
        "most": ranks * depth * size + size,
    }
