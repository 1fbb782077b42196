"""Rank 0's two threads of a sum over a job."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from malt._messages import values
from malt._pool import planning
from malt._pool.over_job.inbox import Inbox
from malt._pool.over_job.messenger import Message
from malt._pool.over_job.summing import Summing

CALL = 1


def test_an_answer_that_the_inbox_is_adding_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the last one, and comes between two looks of the rank's own thread."""
    answers: deque[Message] = deque()
    adding = threading.Event()
    sent = []
    add = planning.Sum.add

    def add_slowly(self: planning.Sum, nodes: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            adding.set()
            threading.Event().wait(0.3)
        add(self, nodes)

    def send(rank: int, kind: str, *_: Any, **__: Any) -> None:
        assert not sent, "the chunk was given to a rank before"
        sent.append((rank, kind))

    def show(done: int) -> None:
        if done == 1:
            part = values.pack([((0, 1), 2.0)], "a sum")
            answers.append(Message(1, ["done", CALL, 0.0], [memoryview(b"".join(part))]))
            assert adding.wait(10)

    monkeypatch.setattr(planning.Sum, "add", add_slowly)
    messenger: Any = SimpleNamespace(
        rank=0,
        live=lambda: [0, 1],
        receive=lambda: answers.popleft() if answers else None,
        send=send,
        flush=lambda: None,
        wait=lambda _: None,
    )
    copies: Any = SimpleNamespace(
        send=lambda *_: None, key=lambda *_: (0, 0), load=lambda *_: (1.0,)
    )
    name: Any = ("module", "function")
    data: Any = SimpleNamespace(chunks=2)
    summing = Summing(messenger, copies, CALL, name, values.pack(None, "theta"), data, 2)
    inbox = Inbox()
    try:
        assert summing.total(inbox, lambda _, x: x, show) == 3.0
    finally:
        inbox.close()
    assert sent == [(1, "sum")]
