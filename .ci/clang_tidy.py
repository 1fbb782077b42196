"""Runs clang-tidy over our C++ sources, several at a time.

usage: clang_tidy.py FOLDERS BUILD_DIR...        (each with a compile_commands.json)

FOLDERS are those of the sources, as in src,fuzz. Sources that a build compiles as one are checked
as one, which takes a fifth of the time.
A file that passed is not checked again until it, any header, a compile command or the rules change:
what passed is remembered in .cache/dev/tidy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OURS = ("src/", "tests/", "benchmarks/", "fuzz/", "python/bindings/")
PASSED = ROOT / ".cache/dev/tidy"
RULES = ROOT / ".clang-tidy"


class Unit(NamedTuple):
    """A file that is compiled, and those of ours that are in it."""

    file: Path
    build_dir: str
    command: str
    sources: tuple[Path, ...]


def units(folders: list[str], build_dirs: list[str]) -> list[Unit]:
    """Return what compiles the files in the folders, each once."""
    compiled: list[Unit] = []
    for build_dir in build_dirs:
        for entry in json.loads((ROOT / build_dir / "compile_commands.json").read_text()):
            file = Path(entry["file"])
            sources = [file]
            if file.parent.name == "Unity":  # CMake's UNITY_BUILD
                sources = [Path(one) for one in re.findall(r'#include "(.+)"', file.read_text())]
            compiled.append(Unit(file, build_dir, entry["command"], tuple(sources)))
    compiled.sort(key=lambda unit: -len(unit.sources))  # the sort is stable
    wanted = tuple(f"{ROOT}/{folder}/" for folder in folders)
    seen: set[Path] = set()
    found = []
    for unit in compiled:
        if unit.sources[0] in seen or not str(unit.sources[0]).startswith(wanted):
            continue
        if all(source.exists() for source in unit.sources):
            seen.update(unit.sources)
            found.append(unit)
    return found


def rules() -> bytes:
    headers = [path for folder in OURS for path in sorted((ROOT / folder).rglob("*.hpp"))]
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    return version + b"".join(p.read_bytes() for p in [RULES, *headers])


def check(unit: Unit, key: str) -> bool:
    if (PASSED / key).exists():
        return True
    command = ["clang-tidy", "--quiet", "-p", unit.build_dir, f"--config-file={RULES}"]
    # Clang knows not all of GCC's warnings, and sees deprecated names inside GCC's own headers.
    for warning in ("unknown-warning-option", "deprecated-declarations"):
        command.append(f"--extra-arg=-Wno-{warning}")
    command.append(str(unit.file))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    result = "failed" if done.returncode else "passed"
    for source in unit.sources:
        print(f"{source.relative_to(ROOT)}: {result}")
    print(done.stdout, end="", flush=True)
    if done.returncode:
        print(done.stderr, end="", flush=True)
        return False
    (PASSED / key).touch()
    return True


def main(folders: list[str], build_dirs: list[str]) -> int:
    PASSED.mkdir(parents=True, exist_ok=True)
    common = rules()

    def check_one(unit: Unit) -> bool:
        content = b"".join(source.read_bytes() for source in unit.sources)
        return check(unit, hashlib.sha256(common + unit.command.encode() + content).hexdigest())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check_one, units(folders, build_dirs)))
    print(f"clang-tidy: {results.count(True)} units passed, {results.count(False)} failed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), sys.argv[2:]))
