"""malt.Pool in a notebook's kernel: functions of cells, output in cells, and an interrupt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jobs import exists
from jupyter_client import BlockingKernelClient, KernelManager

LIMIT = 120.0  # seconds for a cell


class Done(NamedTuple):
    reply: dict[str, Any]
    stdout: str


def run(client: BlockingKernelClient, cell: str) -> Done:
    """Run a cell to its end; its output is what appears below that cell."""
    written: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            written.append(message["content"]["text"])

    reply = client.execute_interactive(cell, output_hook=hear, timeout=LIMIT)
    return Done(reply["content"], "".join(written))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[KernelManager]:
    manager = KernelManager(connection_file=str(tmp_path / "connection.json"))
    manager.start_kernel(cwd=str(tmp_path))
    yield manager
    manager.shutdown_kernel(now=True)


CELLS = [
    "import malt, numpy as np, os, signal, time\npool = malt.Pool(4)",
    """
SCALE = 2
def cost(theta, x):
    return SCALE * theta * x.sum()
data = pool.share(np.arange(100.0))
print(pool.sum(cost, 1.0, data))
""",
    """
def program(steps):
    malt.init()
    v = malt.vector(np.zeros(3), graph=malt.HALTON)
    for step in range(steps):
        v.array += malt.rank()
        v.scatter(); v.gather(malt.AVG, staleness=0)
    v.allreduce(malt.AVG)
    print("ready", malt.rank())
    return malt.rank(), v.array.tolist()
results = pool.run(program, 10)
print([rank for rank, _ in results], len({str(array) for _, array in results}))
""",
]


def test_notebook_with_four_ranks(manager: KernelManager) -> None:
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)
    done = [run(client, cell) for cell in CELLS]
    assert [each.reply["status"] for each in done] == ["ok"] * 3, [each.reply for each in done]
    assert done[1].stdout == "9900.0\n"
    lines = done[2].stdout.splitlines()
    assert sorted(lines[:4]) == [f"[{rank}] ready {rank}" for rank in range(4)]
    assert lines[4:] == ["[0, 1, 2, 3] 1"]

    shown = run(client, "def fail(theta, x):\n    raise KeyError('row')\npool.sum(fail, 0, data)")
    assert shown.reply["ename"] == "KeyError"
    assert "on rank" in "".join(shown.reply["traceback"])

    pid = int(run(client, "print(os.getpid())").stdout)
    ranks = run(client, "print(*pool.run(os.getpid))").stdout.split()
    hang = client.execute(
        "import pathlib\n"
        "def hang(theta, x):\n    pathlib.Path('begun').touch()\n    time.sleep(1000)\n"
        "pool.sum(hang, 0, data)"
    )
    deadline = time.monotonic() + LIMIT
    while not run_has_begun(manager):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, signal.SIGINT)  # what "Interrupt Kernel" does
    reply = client.get_shell_msg(timeout=LIMIT)
    while reply["parent_header"]["msg_id"] != hang:
        reply = client.get_shell_msg(timeout=LIMIT)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    time.sleep(0.1)  # the kernel aborts what comes in just then
    assert run(client, "print(pool.sum(cost, 1.0, data))").stdout == "9900.0\n"

    client.stop_channels()
    manager.shutdown_kernel(now=True)  # SIGKILL
    deadline = time.monotonic() + LIMIT
    while any(exists(int(rank)) for rank in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_has_begun(manager: KernelManager) -> bool:
    return (Path(manager.connection_file).parent / "begun").exists()
