"""Programs for `malt run --preload`, whose ranks are forked or, for a reason, executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launches import PREAMBLE, run

SHARED = b"malt run: ranks share the import of "
ALONE = b"malt run: each rank imports by itself: "


def program(body: str, imports: str = "import numpy\n", name: str = "program.py") -> Path:
    path = Path(name)
    path.write_text(imports + PREAMBLE + body)
    return path


def both(*arguments: object) -> list[subprocess.CompletedProcess[bytes]]:
    """Run the program with forked and with executed ranks."""
    return [
        run("-n", 2, "--keep-going", each, *arguments) for each in ("--preload", "--no-preload")
    ]


def assert_forked(path: Path, *options: object) -> bytes:
    done = run("-n", 2, "--preload", "-v", *options, path)
    assert SHARED in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def reason(path: Path) -> bytes:
    """Why the program's ranks are executed, though they were to be forked."""
    done = run("-n", 2, "--preload", "-v", path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(ALONE)]
    return line.removeprefix(ALONE)


def installed(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Make a module that Python takes for an installed one: of the user's own site-packages."""
    monkeypatch.setenv("PYTHONUSERBASE", str(Path("user").absolute()))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = Path("user", "lib", version, "site-packages")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    # A virtual environment looks there only if PYTHONPATH names it.
    monkeypatch.setenv("PYTHONPATH", str(folder.absolute()), prepend=os.pathsep)
