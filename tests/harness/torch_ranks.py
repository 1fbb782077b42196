"""Ranks of torch.distributed out of a script's text, without any launcher.

In the script there are `torch`, `nn`, `dist`, `malt`, `rank`, `size`, `backend` by name, and
`tell(name=value)`, which hands values to the test at once. `join()` makes the process group.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forks
import pytest

# The first version that the backend supports.
_LEAST = (2, 6)

_PREAMBLE = """\
import os, pickle, signal, sys, time, warnings
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
import malt, malt.torch
torch.set_num_threads(1)
rank, size, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
here = Path(sys.argv[4])
told = {}

def tell(**values):
    told.update(values)
    draft = here / f"draft-{rank}"
    draft.write_bytes(pickle.dumps(told))
    draft.rename(here / f"told-{rank}")

def join(name=backend, timeout=60):
    dist.init_process_group(
        name, init_method=f"file://{here}/store-{name}", rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout),
    )
"""


def import_torch() -> Any:
    """Return PyTorch, or skip the tests of the module that calls this."""
    torch = pytest.importorskip("torch")
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _LEAST:
        pytest.skip("the backend is for PyTorch 2.6 and later", allow_module_level=True)
    return torch


class Ranks:
    """What the ranks told, by rank, and their exit codes and output."""

    def __init__(self, told: list[dict[str, Any]], codes: list[int], output: str) -> None:
        self.told = told
        self.codes = codes
        self.output = output

    def each(self, name: str) -> list[Any]:
        """Return what every rank told under this name."""
        missing = [rank for rank, told in enumerate(self.told) if name not in told]
        assert not missing, f"ranks {missing} did not tell {name!r}:\n{self.output}"
        return [told[name] for told in self.told]


def run_ranks(
    directory: Path,
    size: int,
    body: str,
    *,
    backend: str = "malt",
    codes: set[int] = frozenset({0}),  # type: ignore[assignment]
    limit: float = 90,
) -> Ranks:
    """Run the script on each rank to its end.

    Args:
        directory: for the script and what it tells.
        size: the number of ranks.
        body: the script.
        backend: given to the script.
        codes: exit codes that ranks may end with.
        limit: seconds for all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "script.py"
    script.write_text(_PREAMBLE + body)
    ranks = []
    for rank in range(size):
        command = [str(script), str(rank), str(size), backend, str(directory)]
        with (directory / f"output-{rank}").open("w") as output:
            paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
            environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
            ranks.append(forks.start(command, Path.cwd(), environ, output, has_torch=True))
    deadline = time.monotonic() + limit
    try:
        found = [process.wait(max(0.1, deadline - time.monotonic())) for process in ranks]
    except subprocess.TimeoutExpired:
        found = []
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        text = "".join(
            f"--- rank {rank}\n{(directory / f'output-{rank}').read_text()}" for rank in range(size)
        )
    assert found, f"the ranks did not end within {limit} s:\n{text}"
    assert set(found) <= set(codes), f"exit codes {found}:\n{text}"
    told = []
    for rank in range(size):
        file = directory / f"told-{rank}"
        told.append(pickle.loads(file.read_bytes()) if file.exists() else {})
    return Ranks(told, found, text)


def torchrun(directory: Path, text: str) -> str:
    """Run a script on two ranks under torchrun, to a good end; return its standard output."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return run_script(directory, text, *launcher, limit=100)


def run_script(directory: Path, text: str, *launcher: str, limit: float) -> str:
    """Run a script, by Python itself or by a launcher of it, as `torchrun` does."""
    script = directory / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, *launcher, script],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
