"""Runs the fuzz targets, three a core at a time, and fails if a target does.

usage: fuzz.py SECONDS SEED        (for each target; SEED 0: another seed each time)

A target fails on a crash, a leak, a hang or too much memory. Its output, the input that broke it
and the inputs that found new paths are left in .cache/dev/fuzz/<target>; the corpus is only read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(".cache/dev/fuzz")


def program(target: str) -> list[str]:
    """A target is in C++, or, for what Python reads, in Python."""
    script = f"fuzz/{target}.py"
    return ["python", script] if Path(script).exists() else [f"build/asan/fuzz_{target}"]


def fuzz(target: str, seconds: str, seed: str) -> int:
    out = RESULTS / target
    (out / "found").mkdir(parents=True, exist_ok=True)
    command = [*program(target), f"-seed={seed}", f"-max_total_time={seconds}", "-max_len=4096"]
    command += ["-timeout=20", "-print_final_stats=1", f"-artifact_prefix={out}/"]
    command += [f"{out}/found", f"fuzz/corpus/{target}"]
    with (out / "log").open("wb") as log:
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode


def tell(target: str, code: int) -> None:
    log = RESULTS / target / "log"
    text = log.read_text(errors="replace")
    if code == 0:
        inputs = re.search(r"^stat::number_of_executed_units: (\d+)", text, re.MULTILINE)
        print(f"row fuzz {target:<15} {int(inputs[1]) if inputs else 0:9} inputs")
        return
    print(re.sub(r"^#\d+\s.*\n", "", text, flags=re.MULTILINE), end="")  # all but progress
    broken = re.findall(r"Test unit written to (.*)", text)[-1:]
    print(f"the fuzz target '{target}' FAILED: all of its output is in {log}")
    print("what breaks it:", *broken or ["no input, it seems"])
    print("once more:", *program(target), *broken)


def main(seconds: str, seed: str) -> int:
    os.chdir(ROOT)
    os.environ["UBSAN_OPTIONS"] = "print_stacktrace=1"
    targets = sorted(folder.name for folder in Path("fuzz/corpus").iterdir() if folder.is_dir())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) * 3) as pool:
        codes = list(pool.map(lambda target: fuzz(target, seconds, seed), targets))
    for target, code in zip(targets, codes, strict=True):
        tell(target, code)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
