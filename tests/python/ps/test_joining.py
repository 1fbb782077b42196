"""Where this rank's two members of a table's group wait for each other."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import run_job

import malt
from malt._core_import import Deadline
from malt.ps import _joining


def test_the_error_of_a_server_comes_out_at_once_where_its_client_waits() -> None:
    def make_further(*_: Any) -> Any:
        def fail(*_: Any) -> None:
            raise malt.TimeoutError("rank 2 did not connect", [2])

        return fail

    job: Any = SimpleNamespace(rank=0, size=3, make_further=make_further)
    limit = Deadline(600)
    servers = _joining._Servers(job, [*range(6)], limit)
    with pytest.raises(malt.TimeoutError, match="rank 2 did not connect") as caught:
        servers.given(limit)
    assert caught.value.ranks == (2,)
    servers.give_up()


def test_all_pieces_that_the_ranks_exchange_have_one_limit() -> None:
    """Rank 1 is slow, but comes to each piece within the whole limit."""

    def exchange(_: str, piece: bytes, limit: Deadline) -> list[bytes]:
        time.sleep(min(limit.left, 0.3))
        if not limit.left:
            raise malt.TimeoutError("rank 1 did not come", [1])
        return [piece, piece]

    group: Any = SimpleNamespace(exchange=exchange)
    since = time.monotonic()
    with pytest.raises(malt.TimeoutError, match="rank 1"):
        _joining._Exchange(group, "t", Deadline(1.0)).all(bytes(768 * 10))
    assert time.monotonic() - since < 2


def test_too_few_descriptors_for_a_table_are_an_error_of_a_rank(tmp_path: Path) -> None:
    """Rank 1 runs out of them, maybe as its server, which has a number of its own in the group."""
    run_job(tmp_path, 2, FEW_DESCRIPTORS, environ={"MALT_TRANSPORT": "tcp"})


FEW_DESCRIPTORS = """
import os, resource
import malt

malt.init()
for free in range(0, 30, 3):
    if malt.rank() == 1:
        limit = len(os.listdir("/proc/self/fd")) - 1 + free
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        malt.ps.Table(8, name="rows", timeout=20).close()
    except malt.Error as error:
        assert "rank 1: " in str(error), error
        assert "rank 2" not in str(error), error
        assert "rank 3" not in str(error), error
"""
