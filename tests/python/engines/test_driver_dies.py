"""Ranks whose driver is killed: the process that called `malt.ray.run` or `malt.dask.run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launches import is_alive, wait_until

import malt

RAY_DRIVER = """
import os, sys
from pathlib import Path
import ray, malt.ray

def train(directory):
    import malt, numpy as np
    malt.init()
    v = malt.vector(np.zeros(8))
    malt.barrier()
    part = Path(directory, f"part-{malt.rank()}")
    part.write_text(str(os.getpid()))
    part.rename(Path(directory, f"process-{malt.rank()}"))
    while True:
        v.allreduce(malt.AVG)

ray.init(address=sys.argv[2], log_to_driver=False)
malt.ray.run(train, sys.argv[1], ranks=2)
"""

DASK_DRIVER = """
import os, sys
from pathlib import Path
import distributed, malt.dask

def train(directory):
    import malt, numpy as np
    malt.init()
    v = malt.vector(np.zeros(8))
    malt.barrier()
    Path(directory, f"begun-{malt.rank()}").touch()
    while not Path(directory, "driver-is-dead").exists():
        v.allreduce(malt.AVG)
    Path(directory, f"done-{malt.rank()}").touch()

if __name__ == "__main__":
    with distributed.Client(sys.argv[2]) as client:
        malt.dask.run(client, train, sys.argv[1])
"""


def processes(directory: Path) -> list[int]:
    return [int(file.read_text()) for file in directory.glob("process-*")]


@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_ends_the_ranks_of_a_dead_driver(ray_cluster: Any, tmp_path: Path) -> None:
    address = ray_cluster.get_runtime_context().gcs_address
    program = tmp_path / "driver.py"
    program.write_text(RAY_DRIVER)
    driver = subprocess.Popen([sys.executable, program, tmp_path, address])
    try:
        assert wait_until(lambda: len(processes(tmp_path)) == 2)
    finally:
        driver.kill()
        driver.wait()
    ranks = processes(tmp_path)
    assert wait_until(lambda: not any(is_alive(rank) for rank in ranks))
    assert wait_until(lambda: ray_cluster.available_resources().get("CPU") == 4)


def where() -> tuple[int, int]:
    with malt.init():
        return malt.rank(), malt.size()


@pytest.mark.xdist_group("dask")
@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_ranks_outlive_a_dead_dask_client_and_then_give_up_their_workers(
    dask_client: Any, tmp_path: Path
) -> None:
    malt_dask = pytest.importorskip("malt.dask", exc_type=ImportError)
    program = tmp_path / "driver.py"
    program.write_text(DASK_DRIVER)
    driver = subprocess.Popen([sys.executable, program, tmp_path, dask_client.scheduler.address])
    try:
        assert wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 3)
    finally:
        driver.kill()
        driver.wait()
    (tmp_path / "driver-is-dead").touch()
    assert wait_until(lambda: len(list(tmp_path.glob("done-*"))) == 3)
    with pytest.raises(malt.TimeoutError, match="not free of other jobs of MALT"):
        malt_dask.run(dask_client, where, timeout=0.5)
    assert malt_dask.run(dask_client, where, timeout=60) == [(0, 3), (1, 3), (2, 3)]
