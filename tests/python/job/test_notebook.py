"""malt in a notebook's kernel: restarted in the middle of a cell, and interrupted in a wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import exists, in_dev_shm, start_job
from jupyter_client import BlockingKernelClient, KernelManager

LIMIT = 60.0  # seconds for a cell

JOIN = """
import os, malt, numpy as np
malt.init(timeout=60)
v = malt.vector(np.ones(1000))
"""


def run(client: BlockingKernelClient, cell: str) -> dict[str, Any]:
    """Run the cell to its end; returns the kernel's reply, whose status is "ok" or "error"."""
    reply: dict[str, Any] = client.execute(cell, reply=True, timeout=LIMIT)["content"]
    return reply


def value(client: BlockingKernelClient, expression: str) -> str:
    status = "aborted"  # as is what comes in while the kernel deals with a cell that raised
    while status == "aborted":
        asked = client.execute(
            "", user_expressions={"asked": expression}, reply=True, timeout=LIMIT
        )
        status = asked["content"]["status"]
    return str(asked["content"]["user_expressions"]["asked"]["data"]["text/plain"])


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[KernelManager]:
    manager = KernelManager(connection_file=str(tmp_path / "connection.json"))
    manager.start_kernel(cwd=str(tmp_path))
    yield manager
    manager.shutdown_kernel(now=True)


def test_kernel_that_is_restarted_in_the_middle_joins_anew(manager: KernelManager) -> None:
    before = in_dev_shm()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)
    assert run(client, JOIN)["status"] == "ok"
    pid = int(value(client, "os.getpid()"))
    client.execute("while True: v.scatter(), v.gather(), v.allreduce(), malt.barrier()")
    time.sleep(0.2)

    manager.restart_kernel(now=True)  # SIGKILL
    client.wait_for_ready(timeout=LIMIT)
    assert not exists(pid)
    assert run(client, JOIN)["status"] == "ok"
    assert run(client, "malt.init(); v.scatter(), v.gather(), malt.barrier()")["status"] == "ok"
    assert value(client, "malt.alive()") == "(0,)"
    assert int(value(client, "os.getpid()")) != pid
    client.stop_channels()
    assert in_dev_shm() <= before


# Rank 0 is a kernel, as the notebook's server starts it; rank 1 comes when it is told to.
KERNEL_AND_PEER = """
if rank == 0:
    from ipykernel.kernelapp import launch_new_instance
    launch_new_instance(["-f", os.path.abspath("connection.json")])
    sys.exit()
malt.init(timeout=60)
v = malt.vector(np.ones(1000))
await_flag("go")
v.scatter()
malt.barrier()
"""


def test_interrupted_wait_is_a_keyboard_interrupt_and_the_next_cell_works(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, KERNEL_AND_PEER) as job:
        connection = tmp_path / "connection.json"
        deadline = time.monotonic() + LIMIT
        while not connection.exists() or not connection.read_text().endswith("}"):
            assert time.monotonic() < deadline, job.output
            time.sleep(0.05)
        client = BlockingKernelClient(connection_file=str(connection))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=LIMIT)
        assert run(client, JOIN + "v.scatter()")["status"] == "ok"
        pid = int(value(client, "os.getpid()"))
        waiting = client.execute("v.gather(staleness=0)")
        time.sleep(0.5)
        os.kill(pid, signal.SIGINT)  # what "Interrupt Kernel" does
        reply = client.get_shell_msg(timeout=LIMIT)
        assert reply["parent_header"]["msg_id"] == waiting
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert value(client, "malt.alive()") == "(0, 1)"
        job.raise_flag("go")
        assert value(client, "v.gather(staleness=0).ranks") == "(1,)"
        assert run(client, "malt.barrier(); malt.finalize()")["status"] == "ok"
        client.shutdown()
        client.stop_channels()
        assert job.finish().code == 0, job.output
