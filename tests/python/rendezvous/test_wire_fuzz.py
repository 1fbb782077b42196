"""Mutated messages of the rendezvous: refused in the way that is meant for it, and in no other."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from malt._rendezvous import node_session, wire
from malt._rendezvous.allgather_table import ProtocolError, Rounds
from malt._rendezvous.exit_code import describe_end
from malt._rendezvous.generation_table import GenerationTable
from malt._rendezvous.node_table import Nodes
from malt._rendezvous.wire import ToClient, ToServer

MESSAGES = 10_000
KEY = bytes(range(32))
RANKS = wire.RANKS_FRAME.pack(ToServer.RANKS, 1, True, 1, 4, 5.0)
NUMBERS = [0, 1, 2, 3, 255, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


def mutated(random_: random.Random, message: bytes) -> bytes:
    data = bytearray(message)
    for _ in range(random_.randint(1, 3)):
        at = random_.randrange(len(data) + 1)
        change = random_.randrange(6)
        if change == 0:
            del data[at : at + random_.randint(1, 8)]
        elif change == 1:
            data[at:at] = random_.randbytes(random_.randint(1, 8))
        elif change == 2:
            del data[at:]
        elif change == 3 and at < len(data):
            data[at] ^= 1 << random_.randrange(8)
        elif len(data) >= 5:  # numbers follow the kind, four bytes each
            at = 1 + at % (len(data) - 4) // 4 * 4
            data[at : at + 4] = struct.pack("!I", random_.choice(NUMBERS))[: len(data) - at]
    return bytes(data)


def test_no_mutated_frame_of_a_stranger_is_taken() -> None:
    random_ = random.Random(1)
    outcomes = {"waits": 0, "refused": 0, "genuine": 0}
    for _ in range(MESSAGES):
        seal = wire.sealers(KEY)[0].seal
        sent = [random_.randbytes(random_.randint(1, 40)) for _ in range(3)]
        inbox = bytearray(mutated(random_, b"".join(map(seal, sent))))
        opener = wire.sealers(KEY)[0]
        taken = []
        try:
            while (payload := wire.take_frame(inbox, opener)) is not None:
                taken.append(payload)
            outcomes["genuine" if taken == sent else "waits"] += 1
        except ConnectionError:
            outcomes["refused"] += 1
        assert taken == sent[: len(taken)]
    assert outcomes["refused"] > MESSAGES // 2, outcomes
    assert outcomes["waits"] > MESSAGES // 100, outcomes


def part(payload: bytes) -> None:
    rounds = Rounds(2)
    rounds.join(0)
    rounds.join(1)
    rounds.part(1, wire.PART_HEAD.pack(ToServer.PART, 0, 5.0), 0.0)
    rounds.part(0, payload, 0.0)
    rounds.expire(wire.MAX_SECONDS)


def come(payload: bytes) -> None:
    nodes = Nodes(2)
    nodes.come(0, RANKS, 0.0)
    nodes.come(1, payload, 0.0)
    nodes.expire(wire.MAX_SECONDS)


def end(payload: bytes) -> None:
    nodes = Nodes(2)
    for node in range(2):
        nodes.come(node, RANKS, 0.0)
    rank, _, code, _ = nodes.end(1, payload)
    assert rank == 1
    assert describe_end(code)
    nodes.leave(0)


def scale(payload: bytes) -> None:
    nodes = Nodes(2)
    for node in range(2):
        nodes.come(node, RANKS, 0.0)
    starting, leaving, frames = nodes.scale(0, payload)
    assert len(frames) == len(starting) + len(leaving) + 1
    assert set(starting) <= {2, 3}
    assert set(leaving) <= {1}


def leave(payload: bytes) -> None:
    nodes = Nodes(2)
    for node in range(2):
        nodes.come(node, RANKS, 0.0)
    starting, leaving, frames = nodes.ask_to_leave(0, payload)
    assert len(frames) == len(leaving) + 1
    assert starting == []
    assert set(leaving) <= {0, 1}


def generation(payload: bytes) -> None:
    """What ranks say who come back, in a generation of two that has begun."""
    generations = GenerationTable(2)
    for rank in range(2):
        generations.join(rank)
        generations.hear(rank, wire.WANT_FRAME.pack(ToServer.WANT, 5.0), 0.0)
    generations.hear(0, payload, 0.0)
    generations.hear(1, wire.GENERATION_PART.pack(ToServer.PART, 1, 0), 0.0)
    generations.expire(wire.MAX_SECONDS)


def hold(payload: bytes) -> None:
    generations = GenerationTable(2)
    generations.succeed()
    for rank in range(2):
        generations.join(rank)
    generations.hear(0, payload, 0.0)
    generations.settle(0.0)


def resume(payload: bytes) -> None:
    nodes = Nodes(2)
    nodes.succeed(3, range(0), {1})
    nodes.resume(1, payload)
    nodes.settle()


# What one says that knows the key, but has lost its mind.
@pytest.mark.parametrize(
    ("digest", "message", "refusal"),
    [
        (part, wire.PART_HEAD.pack(ToServer.PART, 0, 5.0) + b"data", ProtocolError),
        (come, wire.RANKS_FRAME.pack(ToServer.RANKS, 3, True, 1, 4, 5.0), ProtocolError),
        (scale, wire.SCALE_FRAME.pack(ToServer.SCALE, 4), ProtocolError),
        (leave, wire.LEAVE_FRAME.pack(ToServer.LEAVE, 1), ProtocolError),
        (node_session.parse_event, wire.BEGIN_FRAME.pack(ToClient.BEGIN, 3, 1), struct.error),
        (node_session.parse_event, wire.LEAVE_FRAME.pack(ToClient.LEAVE, 3), struct.error),
        (node_session.parse_event, wire.FEW_FRAME.pack(ToClient.FEW, 3), struct.error),
        (
            node_session.parse_event,
            wire.ANSWER_HEAD.pack(ToClient.ANSWER, True) + b"started: rank 3",
            struct.error,
        ),
        (end, wire.ENDED_FRAME.pack(ToServer.ENDED, 1, 4000, -9), ProtocolError),
        (generation, wire.WANT_FRAME.pack(ToServer.WANT, 5.0), ProtocolError),
        (generation, wire.GENERATION_PART.pack(ToServer.PART, 1, 0) + b"data", ProtocolError),
        (generation, wire.FORMED_FRAME.pack(ToServer.FORMED, 1), ProtocolError),
        (generation, wire.pack_members(ToServer.ABSENT, 1, [0, 1]), ProtocolError),
        (
            hold,
            wire.HOLD_HEAD.pack(ToServer.HOLD, 1, 2, 5, True) + bytes([0] * 7 + [1]),
            ProtocolError,
        ),
        (
            resume,
            wire.RESUME_HEAD.pack(ToServer.RESUME, True, True, 1, 2)
            + wire.RESUMED_RANK.pack(1, 0, True)
            + wire.RESUMED_RANK.pack(2, 3, False),
            ProtocolError,
        ),
        (wire.unpack_ranks, wire.pack_ranks(ToClient.LATE, [1, 5], "in time"), ConnectionError),
    ],
)
def test_mutated_message_is_digested_or_refused(
    digest: Callable[[bytes], object], message: bytes, refusal: type[Exception]
) -> None:
    random_ = random.Random(2)
    digest(message)
    digested = 0
    for _ in range(MESSAGES):
        changed = mutated(random_, message)
        try:
            digest(changed)
            digested += 1
        except refusal:
            pass
        except Exception as error:
            pytest.fail(f"{changed!r}: {error!r}")
    assert MESSAGES // 100 < digested < MESSAGES
