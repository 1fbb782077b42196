"""Where this rank's two members of a table's group wait for each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import malt
from malt.ps import _joining


def test_the_error_of_a_server_comes_out_at_once_where_its_client_waits() -> None:
    def make_further(*_: Any) -> Any:
        def fail(*_: Any) -> None:
            raise malt.TimeoutError("rank 2 did not connect", [2])

        return fail

    job: Any = SimpleNamespace(rank=0, size=3, make_further=make_further)
    servers = _joining._Servers(job, [0, 1, 2])
    with pytest.raises(malt.TimeoutError, match="rank 2 did not connect") as caught:
        servers.given(600)
    assert caught.value.ranks == (2,)
    servers.give_up()
