"""Runs clang-tidy over our C++ sources, several at a time.

usage: clang_tidy.py BUILD_DIR...        (each with a compile_commands.json)

A file that passed is not checked again until it, any header, a compile command or the rules change:
what passed is remembered in .cache/dev/tidy.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("src/", "tests/", "benchmarks/", "fuzz/", "python/bindings/")
PASSED = ROOT / ".cache/dev/tidy"


def sources(build_dirs: list[str]) -> dict[str, tuple[str, str]]:
    """Maps each of our files to the build directory and the command that compile it."""
    found: dict[str, tuple[str, str]] = {}
    for build_dir in build_dirs:
        for entry in json.loads((ROOT / build_dir / "compile_commands.json").read_text()):
            name = os.path.relpath(entry["file"], ROOT)
            if name.startswith(OURS) and (ROOT / name).exists():
                found.setdefault(name, (build_dir, entry["command"]))
    return found


def rules() -> bytes:
    headers = [path for folder in OURS for path in sorted((ROOT / folder).rglob("*.hpp"))]
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    return version + b"".join(p.read_bytes() for p in [ROOT / ".clang-tidy", *headers])


def check(name: str, build_dir: str, key: str) -> bool:
    if (PASSED / key).exists():
        return True
    command = ["clang-tidy", "--quiet", "-p", build_dir]
    # Clang knows not all of GCC's warnings, and sees deprecated names inside GCC's own headers.
    for warning in ("unknown-warning-option", "deprecated-declarations"):
        command.append(f"--extra-arg=-Wno-{warning}")
    command.append(name)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(f"{name}: {'failed' if done.returncode else 'passed'}\n{done.stdout}", end="", flush=True)
    if done.returncode:
        print(done.stderr, end="", flush=True)
        return False
    (PASSED / key).touch()
    return True


def main(build_dirs: list[str]) -> int:
    PASSED.mkdir(parents=True, exist_ok=True)
    common = rules()

    def check_one(item: tuple[str, tuple[str, str]]) -> bool:
        name, (build_dir, command) = item
        content = common + command.encode() + (ROOT / name).read_bytes()
        return check(name, build_dir, hashlib.sha256(content).hexdigest())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check_one, sorted(sources(build_dirs).items())))
    print(f"clang-tidy: {results.count(True)} files passed, {results.count(False)} failed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
