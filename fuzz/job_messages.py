"""Messages between the ranks of a job, and posts of a rank in an exchange: what Python reads.

As fuzz/target.py says. A rank that holds the job's key has made the messages.

usage: job_messages.py [OPTION]... [FOLDER OR FILE]...
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse  # noqa: F401 # before memory is counted
import torch  # noqa: F401 # as well
from make_corpus import JOB_MESSAGES
from target import MIB, Decoder, frames, fuzz, instrument

import malt
from malt import _alike as alike
from malt import _pieces as pieces
from malt._core_import import Deadline
from malt._job import agreement, calls
from malt._messages import array_head, collective, edge, subgroup, values
from malt._mistakes import matching
from malt._pool import failures
from malt._pool.over_job import messenger, naming, running, serving, summing
from malt._pool.over_job.backlog import Backlog
from malt._pool.over_job.chunks import Chunks
from malt._pool.over_job.messenger import Message
from malt._rejoining import handover, roles, vote
from malt._shared import replica
from malt._shared.streams import Streams
from malt.ps import _joining as joining
from malt.torch._backend import windows

SIZE = 3  # ranks; this one is rank 0, but for the pool's requests
FREE = 16 * MIB  # memory that the machine has

messenger.available_bytes = lambda: FREE


def bare(kind: Any, **attributes: Any) -> Any:
    """An object without its job."""
    made = object.__new__(kind)
    made.__dict__.update(attributes)
    return made


def parts_of(given: bytes) -> list[bytes]:
    return [part for _, part in frames(given)]


def take_values(given: bytes) -> None:
    parts = parts_of(given)
    if parts:
        values.unpack([memoryview(part) for part in parts])


def take_array(given: bytes) -> None:
    """As Edge.receive(): the body is as long as the first two bytes say."""
    head = array_head.unpack(given[2:])
    dtype = edge._dtype(head.dtype)
    head.check_length(int.from_bytes(given[:2], "little"), dtype.itemsize)
    np.empty(head.shape, dtype)
    head.whole(0, 1 << 30)


# ---- malt.Pool over a job ------------------------------------------------------------------------


class Mail:
    """Each rank's messages so far; then all others have ended."""

    rank = 0

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def receive(self) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def live(self) -> list[int]:
        return list(range(SIZE)) if self.messages else [self.rank]

    def others(self) -> list[int]:
        return []

    def ignore(self, *_: object, **__: object) -> None: ...

    send = flush = wait = take_in = ignore


def messages_of(given: bytes) -> list[Message]:
    """Whole messages, as they are in memory once all pieces have come."""
    return [messenger._read(sender % SIZE, memoryview(whole)) for sender, whole in frames(given)]


def take_pieces(given: bytes) -> None:
    office = bare(messenger.Messenger, _begun={}, _arrived=deque())
    for sender, piece in frames(given):
        office._take(sender % SIZE, memoryview(piece))


def double(theta: float, chunk: float) -> float:
    return 2 * theta * chunk


def serve(given: bytes) -> None:
    mail = Mail([message._replace(sender=0) for message in messages_of(given)])
    mail.rank = 1

    def run(
        members: list[int], allgather: Callable[..., Any], _: object, argument: values.Parts
    ) -> values.Parts:
        assert all(isinstance(rank, int) for rank in members)
        values.unpack(argument)
        allgather(b"", 1.0)
        return []

    ear = SimpleNamespace(lock=nullcontext(), check=lambda: None, listening=lambda _: nullcontext())
    server = bare(
        serving._Server,
        _messenger=mail,
        _names=naming.Names("__main__"),
        _inbox=ear,
        _chunks=Chunks(),
        _backlog=Backlog(),
        _call=-1,
        _theta=(),
        _program=SimpleNamespace(run=run),
        _next=None,
    )
    server.serve()


def take_answers(given: bytes) -> None:
    """Of ranks that have two chunks of a sum each; rank 1 is to give chunks back."""
    mail = Mail(messages_of(given))
    asked = {1: {0, 1}, 2: {2, 3}}

    def send(_: int, chunk: int, __: object) -> None:
        assert chunk in range(4)

    copies = SimpleNamespace(send=send, key=lambda *_: (0, 0), missing_bytes=lambda *_: 0)
    data = SimpleNamespace(chunks=4)
    answers = summing.Summing(mail, copies, 1, ("m", "f"), [b"null"], data, SIZE)
    answers._backlogs, answers._asked, answers._seconds = asked, {1: 2}, math.inf
    try:
        answers.attend()
        if answers._plan.todo() == ():
            answers._plan.total()
    except Exception as error:
        if not isinstance(error.__cause__, failures.RankTraceback):  # as the rank has described it
            raise


def take_results(given: bytes) -> None:
    mail = Mail(messages_of(given))
    results = bare(
        running.Running,
        _messenger=mail,
        _call=1,
        _size=SIZE,
        _members=range(SIZE),
        _waiting={1, 2},
        _results={},
        _failures=[],
        _program=SimpleNamespace(stop=lambda: None),
        _step=1,
        _given={},
    )
    results.attend()
    assert len(results._given) <= 2  # steps: a rank is at most one ahead


# ---- exchanges of a group ------------------------------------------------------------------------


def posts_of(given: bytes) -> list[bytes | None]:
    posts: list[bytes | None] = [None] * SIZE
    for rank, data in frames(given):
        posts[rank % SIZE] = data
    return posts


class Group:
    """A group whose exchanges give the posts of the input, one after the other, then empty ones."""

    rank = 0

    def __init__(self, given: bytes, own: int | None = None) -> None:
        self.posts = parts_of(given)
        self.own = own
        self.count = 0

    def exchange(
        self, _: str, mine: bytes, __: float | None = None, kept: list[Any] | None = None
    ) -> list[bytes | None]:
        self.count += 1
        assert self.count < 1 << 17, "it would never end"
        posts = [mine, self.posts.pop(0) if self.posts else b"", None]
        if kept is not None:
            kept.append(posts)
        return posts


def together(given: bytes) -> Any:
    group = Group(given)
    calls.call = lambda _, step: step(group)
    return bare(
        agreement.Together,
        call="a call",
        timeout=1.0,
        _limit=1.0,
        _left=1.0,
        _wait=None,
        _last_group=None,
        _repeats=False,
        _is_marked=False,
    )


def agree(given: bytes) -> None:
    """As a collective call whose arguments must be the same."""
    step = together(given).step("look", lambda: (None, {"size": 1, "name": "w"}))
    alike.check_alike("a call", step[1])


def tell_all(given: bytes) -> None:
    """As malt.broadcast() and malt.allreduce() do."""
    collective.Together = lambda *_: together(given)
    job = SimpleNamespace(sent=pieces.SentByThread())
    job.sent.by_call["a call"] = pieces.Sent()
    collective.jobs = SimpleNamespace(current=lambda: job)
    collective._tell_all("a call", lambda: 1.0, lambda: {"fold": ""}, None)


def form_subgroup(given: bytes) -> None:
    forming = bare(subgroup.Subgroups, _together=together(given), _steps=itertools.count())
    forming._job = SimpleNamespace(rank=0, size=SIZE, make_further=lambda *_: make)

    def make(_: list[int], allgather: Callable[..., list[bytes]]) -> None:
        parts = allgather(b"mine", 1.0)
        assert all(isinstance(part, bytes) for part in parts)

    forming.form([0, 1], lambda _: None)


def compare(given: bytes) -> None:
    told = matching.Matching()
    told._shared_out = {"a.py:1": matching._Calls(2, ("0011", "2233"))}
    site = matching.Site(None, "a.py:2", 7, False)
    group = Group(given)
    told.compare(group, "w", site)
    told.compare(group, "v", site._replace(digest=8))


def take_votes(given: bytes) -> None:
    posts = posts_of(given)
    vectors = SimpleNamespace(all=list)
    forming = SimpleNamespace(agree=lambda *_: posts)
    voting = bare(vote.Voting, group=None, is_decided=False, _old=None, _forming=forming)
    voting._vectors, voting._timeout, voting._voters = vectors, 1.0, {0}
    voting.vote(has_moved=False)


def assign_roles(given: bytes) -> None:
    own = roles.State(False, 0, 1, 1, 0, 0).pack()
    roles.assign([own, *(each or b"" for each in posts_of(given)[1:])])


class Way:
    """The updates by which a rank sends the values of all vectors."""

    def __init__(self, given: bytes) -> None:
        self.parts = parts_of(given)

    def gather(self, collect: Callable[..., None]) -> Any:
        words = [(self.parts.pop(0) + bytes(24))[:24]] if self.parts else []
        updates = [SimpleNamespace(rank=1, values=np.frombuffer(each, np.int64)) for each in words]
        collect(None, updates)
        return SimpleNamespace(count=len(updates))


def take_over(given: bytes) -> None:
    """The values of a dense and of a sparse vector, in chunks of 8 bytes."""
    group: Any = SimpleNamespace(alive=list)
    taker = handover._Taker(Way(given), group, 1, 1.0)
    for vector in VECTORS:
        taker.take(vector)


class NoWay(handover.Vector):
    def __init__(self, **_: object) -> None:
        raise malt.Error


def name_sender(given: bytes) -> None:
    group: Any = SimpleNamespace(rank=0, alive=lambda: [0, 1], exchange=lambda *_: posts_of(given))
    real, handover.Vector = handover.Vector, NoWay
    try:
        handover.share(group, [(VECTORS[1], None)], [0], [1], 1.0)
    finally:
        handover.Vector = real


# ---- malt.shared and tables ----------------------------------------------------------------------


def messages_for(given: bytes) -> Iterator[tuple[int, bytes, bool]]:
    for sender, data in frames(given):
        yield 1 + sender % (SIZE - 1), data, bool(sender & 0x80)


def share(given: bytes) -> None:
    """Messages for an array of five elements, which is fresh on this rank if the first is odd."""
    flat = np.zeros(5, np.float32)
    made = bare(
        replica.Replica,
        name="w",
        streams=Streams(0, SIZE),
        added=0,
        _flat=flat,
        _copy=flat.copy(),
        _rank=0,
        _size=SIZE,
        _marks=[0] * SIZE,
        _is_fresh=bool(given[:1] and given[0] & 1),
        _pieces=0,
    )
    made._messages = SimpleNamespace(is_closed=False, receive=lambda: messages_for(given[1:]))
    made.receive()


class NoServers:
    def __init__(self, *_: object) -> None: ...

    def given(self, _: float) -> bytes:
        return b"server"

    def take(self, parts: list[bytes]) -> None:
        assert len(parts) == 2 * SIZE

    def join(self, _: object) -> None: ...

    def give_up(self) -> None: ...


def form_table(given: bytes) -> None:
    """The description of rank 1's table, then what its two members give."""
    joining._Servers = NoServers
    job: Any = SimpleNamespace(rank=0, size=SIZE)
    job.make_further = lambda *_: make

    def make(_: list[int], allgather: Callable[..., list[bytes]]) -> Any:
        allgather(b"client", 1.0)
        return SimpleNamespace(leave=lambda: None)

    joining.form_first(job, Group(given), "a table", "2 x float32", Deadline(1.0))


def describe_tensor(given: bytes) -> None:
    """As a window does with the note of rank 1."""
    windows._Peer.unpack(1, given)


ERRORS = (malt.Error,)
DECODERS = {
    "values": Decoder(take_values, ERRORS),
    "array_head": Decoder(take_array, ERRORS),
    "pool_pieces": Decoder(take_pieces, ERRORS, 1 << 27),
    "pool_requests": Decoder(serve, ERRORS),
    "pool_sums": Decoder(take_answers, ERRORS),
    "pool_results": Decoder(take_results, ERRORS),
    "reports": Decoder(agree, ERRORS, 1 << 27),
    "broadcast": Decoder(tell_all, ERRORS, 1 << 27),
    "subgroup": Decoder(form_subgroup, ERRORS, 1 << 27),
    "matching": Decoder(compare, ERRORS),
    "votes": Decoder(take_votes, ERRORS),
    "roles": Decoder(assign_roles, ERRORS),
    "sender_of_values": Decoder(name_sender, ERRORS),
    "handed_over": Decoder(take_over, ERRORS),
    "shared": Decoder(share, ERRORS),
    "table": Decoder(form_table, ERRORS, 1 << 27),
    "window_note": Decoder(describe_tensor, ERRORS),
}


if __name__ == "__main__":
    logging.disable()
    instrument(
        *("malt._alike", "malt._job", "malt._mistakes", "malt._messages", "malt._pieces"),
        *("malt._pool", "malt._recording", "malt._rejoining", "malt._shared", "malt._vectors"),
        *("malt.ps._joining", "malt.torch._backend.windows"),
    )
    with malt.init(), np.errstate(all="ignore"):
        VECTORS: Any = [malt.vector(np.zeros(2)), malt.sparse_vector(4, capacity=4)]
        fuzz(JOB_MESSAGES, DECODERS)
