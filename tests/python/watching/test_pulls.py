"""What collectors of different hosts send one another: files come whole though messages are lost.

The collectors' clocks are this process's own; messages go by calls.
"""

from __future__ import annotations

import errno
import io
import json
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from malt._rendezvous import wire
from malt._rendezvous.allgather_table import ProtocolError
from malt._rendezvous.connection import Connection
from malt._rendezvous.relay import Relay
from malt._rendezvous.wire import ToClient, ToServer
from malt._watching import exchange, other_hosts, pulls, report_parts, run_report, trace
from malt._watching.board import Curve, unsent
from malt._watching.other_hosts import OtherHosts
from malt._watching.pulls import PIECE, Answers, Pull, Puller
from malt._watching.run_report import Process
from malt._watching.series import Point, Series
from malt._watching.timeline import COLUMNS, Timeline

SECONDS = 60.0


class Hosts:
    """An asker, node 0, and hosts that answer; each message is kept until it is delivered."""

    def __init__(self, answers: dict[int, Answers]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, bytes]] = []
        self.puller = Puller(lambda node, message: self.asked.append((node, message)))

    def deliver(self, is_lost: Callable[[], bool] = lambda: False) -> int:
        """Deliver what was asked, and the answers; return how many there were."""
        asked, self.asked[:] = list(self.asked), []
        for node, message in asked:
            answer = None if is_lost() else self.answers[node].answer(0, message)
            if answer is not None and not is_lost():
                self.puller.hear(node, answer)
        return len(asked)


def file_of(data: bytes) -> BinaryIO:
    opened.append(exchange.file_of(data))
    return opened[-1]


opened: list[BinaryIO] = []


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are repeated at once."""
    monkeypatch.setattr(pulls, "_AGAIN_NS", 0)


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 300_000])
def test_a_file_comes_whole_though_messages_are_lost(size: int, impatient: None) -> None:
    chance = random.Random(size)
    data = chance.randbytes(size)
    answers = {}
    for node in range(1, 8):
        answers[node] = Answers(lambda *_: b"")
        answers[node].files[pulls.TRACE] = file_of(data)
    hosts = Hosts(answers)
    begun = [hosts.puller.begin(node, pulls.TRACE, io.BytesIO()) for node in answers]
    deadline = time.monotonic() + SECONDS
    while not all(pull.is_done for pull in begun):
        assert time.monotonic() < deadline
        hosts.deliver(lambda: chance.random() < 0.4)
        assert len(hosts.puller._asking) <= 4  # P2
        hosts.puller.advance()
        for pull in begun:
            if not pull.is_waiting and not pull.is_done:
                hosts.puller.go_on(pull)
    for pull in begun:
        assert isinstance(pull.into, io.BytesIO)
        assert pull.into.getvalue() == data


def test_an_answer_that_comes_twice_or_late_changes_nothing() -> None:
    answers = Answers(lambda *_: b"")
    answers.files[pulls.TRACE] = file_of(bytes(range(256)) * 256)
    hosts = Hosts({1: answers})
    pull = hosts.puller.begin(1, pulls.TRACE, io.BytesIO())
    first = answers.answer(0, hosts.asked.pop()[1])
    assert first is not None
    hosts.puller.hear(1, first)
    hosts.puller.hear(1, first)
    hosts.puller.hear(2, first)
    while hosts.deliver():
        hosts.puller.hear(1, first)
    assert isinstance(pull.into, io.BytesIO)
    assert pull.into.getvalue() == bytes(range(256)) * 256


def test_a_file_is_of_one_piece_though_a_new_one_is_made_for_each_question() -> None:
    made: list[bytes] = []

    def make(_: int, is_first: bool) -> bytes:
        assert is_first == (not made)
        made.append(bytes([len(made)]) * 40_000)
        return made[-1]

    hosts = Hosts({1: Answers(make)})
    for _ in range(2):
        whole = io.BytesIO()
        hosts.puller.begin(1, pulls.SUMMARY, whole)
        while hosts.deliver():
            pass
        assert whole.getvalue() == made[-1]
    hosts.puller.begin(1, pulls.SUMMARY, io.BytesIO())
    hosts.deliver()
    ((_, rest),) = hosts.asked
    hosts.asked.clear()
    assert hosts.answers[1].answer(0, rest) is not None
    hosts.puller.begin(1, pulls.SUMMARY, io.BytesIO())
    hosts.deliver()
    assert hosts.answers[1].answer(0, rest) is None  # of the file before


def test_a_host_that_does_not_answer_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulls, "_GIVE_UP_NS", 0)
    silent = [Answers(lambda *_: b"") for _ in range(4)]  # they have no such file yet
    ready = Answers(lambda *_: b"")
    ready.files[pulls.TRACE] = file_of(b"abc")
    hosts = Hosts(dict(enumerate([*silent, ready], 1)))
    begun = [hosts.puller.begin(node, pulls.TRACE, io.BytesIO()) for node in hosts.answers]
    hosts.deliver()
    hosts.puller.advance()
    hosts.deliver()
    assert [pull.is_done for pull in begun] == [False] * 4 + [True]
    assert not any(pull.is_waiting for pull in begun)


def test_nothing_is_asked_of_a_host_that_is_gone() -> None:
    hosts = Hosts({1: Answers(lambda *_: b"")})
    asked = hosts.puller.begin(1, pulls.TRACE, io.BytesIO())
    hosts.asked.clear()
    hosts.puller.gone.add(1)
    hosts.puller.advance()
    after = hosts.puller.begin(1, pulls.TRACE, io.BytesIO())
    assert not asked.is_waiting
    assert not after.is_waiting
    assert not hosts.asked


class Full(io.BytesIO):
    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_cannot_be_kept_or_is_too_large_is_given_up_with_the_reason() -> None:
    answers = Answers(lambda *_: bytes(2 << 20))
    answers.files[pulls.TRACE] = file_of(b"abc")
    hosts = Hosts({1: answers})
    full = hosts.puller.begin(1, pulls.TRACE, Full())
    large = hosts.puller.begin(1, pulls.SUMMARY, io.BytesIO())
    while hosts.deliver():
        pass
    assert full.error == "No space left on device"
    assert large.error == "File too large"
    assert not full.is_waiting
    assert not large.is_done


@pytest.mark.parametrize("message", [b"?", b"=", b"=123", b"x" * 100, bytes(400)])
def test_foreign_messages_are_refused_or_change_nothing(message: bytes) -> None:
    hosts = Hosts({1: Answers(lambda *_: b"")})
    pull = hosts.puller.begin(1, pulls.TRACE, io.BytesIO())
    try:
        hosts.puller.hear(1, message)
    except struct.error:
        assert len(message) < PIECE.size
    assert pull.is_waiting
    assert pull.offset == 0


@pytest.mark.parametrize("ahead", [-(10**15), 0, 10**12])
def test_the_difference_of_clocks_is_measured(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10**18]

    class Clock:
        monotonic_ns = staticmethod(lambda: clock[0])

    monkeypatch.setattr(pulls, "time", Clock)
    puller = Puller(lambda *_: None)
    error = 10**9
    for takes in (10**6, 3 * 10**7, 2 * 10**5, 9 * 10**6):
        pull = puller.begin(1, pulls.TAKEN, io.BytesIO())
        theirs = clock[0] + ahead + takes // 5  # when the answer is made, on its way
        clock[0] += takes
        puller.hear(1, PIECE.pack(b"=", pulls.TAKEN, pull.serial, 0, 0, theirs))
        error = min(error, takes // 2)
        assert abs(puller.shift(1) + ahead) <= error


class Line:
    """The session of a launcher whose outbox the test fills."""

    def __init__(self) -> None:
        self.joined: dict[bytes, dict[int, Any]] = {wire.NODE: {}}
        self.sent: list[tuple[int, bytes]] = []

    def join(self, node: int) -> Connection:
        who = wire.Introduction(wire.NODE, node, 3, 1)
        sealers = wire.sealers(bytes(32))
        connection = Connection(None, "", *who, *sealers)  # type: ignore[arg-type]
        self.joined[wire.NODE][node] = connection
        return connection

    def send(self, connection: Connection, payload: bytes) -> None:
        self.sent.append((connection.number, payload))

    def take(self) -> list[tuple[int, bytes]]:
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def lines() -> tuple[Line, Relay]:
    line = Line()
    for node in range(3):
        line.join(node)
    return line, Relay(line)  # type: ignore[arg-type]


def relayed(node: int, message: bytes = b"") -> bytes:
    return wire.RELAY_HEAD.pack(ToServer.RELAY, node) + message


def test_a_message_is_dropped_where_the_way_is_not_free(lines: tuple[Line, Relay]) -> None:
    line, relay = lines
    relay.hear(0, relayed(1, b"abc"), set())
    assert line.take() == [(1, relayed(0, b"abc"))]
    line.joined[wire.NODE][1].outbox.append(memoryview(b"unsent"))
    relay.hear(0, relayed(1, b"abc"), set())
    assert not line.take()


def test_a_message_for_a_launcher_that_is_gone_is_answered(lines: tuple[Line, Relay]) -> None:
    line, relay = lines
    relay.hear(0, relayed(7, b"abc"), {7})  # it may still come
    assert not line.take()
    relay.hear(0, relayed(7, b"abc"), set())
    assert line.take() == [(0, relayed(7))]


def test_launchers_leave_together(lines: tuple[Line, Relay]) -> None:
    line, relay = lines
    relay.end_if_finished()
    relay.hear(1, ToServer.FINISHED, set())
    relay.hear(0, ToServer.FINISHED, set())
    assert not line.take()
    del line.joined[wire.NODE][2]  # the last one is lost
    relay.end_if_finished()
    assert sorted(line.take()) == [(0, ToClient.FINISHED), (1, ToClient.FINISHED)]
    relay.end_if_finished()
    assert not line.take()


@pytest.mark.parametrize(
    "payload",
    [
        ToServer.RELAY,
        relayed(1),
        relayed(1, bytes(wire.MAX_RELAYED + 1)),
        ToServer.FINISHED + b"x",
    ],
)
def test_frames_that_cannot_be_are_refused(payload: bytes, lines: tuple[Line, Relay]) -> None:
    with pytest.raises(ProtocolError):
        lines[1].hear(0, payload, set())


def test_the_longest_answer_fits_into_a_frame() -> None:
    assert PIECE.size + pulls._PIECE_BYTES <= wire.MAX_RELAYED


# The content of messages


def test_a_summary_stays_small_and_leaves_out_curves_first() -> None:
    chance = random.Random(1)
    rows = [
        {
            "rank": rank,
            "state": "runs",
            "reports": {f"{chance.random()}": chance.random() for _ in range(32)},
        }
        for rank in range(1000)
    ]
    pairs = [[a, b, chance.getrandbits(40), 0] for a in range(100) for b in range(100)]
    state = {"ranks": rows, "pairs": pairs, "changes": [], "size": 1000, "host": "a", "hosts": []}
    points = [
        Point(chance.getrandbits(60), chance.getrandbits(30), chance.random()) for _ in range(4096)
    ]
    curves = [(rank, "loss", 0, points) for rank in (0, 63, 64)]
    host = other_hosts._Host()
    small = {**state, "ranks": rows[:2], "pairs": pairs[:5]}
    found = host.take(other_hosts.pack(small, [(0, "loss", 0, points[:9]), curves[2]]))
    assert found == [(0, "loss", points[:9])]
    assert (host.ranks, host.pairs) == (rows[:2], pairs[:5])
    packed = other_hosts.pack(state, curves)
    assert len(packed) <= 1 << 18
    assert host.take(packed) == []
    assert len(host.ranks) >= 64


def test_new_points_are_thinned_to_what_a_summary_may_have_and_end_at_the_newest() -> None:
    points = [Point(time, time, 0.5) for time in range(1000)]
    sent: dict[tuple[int, str], int] = {}
    ((_, _, _, found),) = unsent([Curve(1, 0, "loss", 0, points)], sent, 100)
    assert len(found) == 100
    assert found[-1] == points[-1]
    assert found == sorted(found)
    assert unsent([Curve(1, 0, "loss", 0, points)], sent, 100) == []


NAMES = "began lasted iteration bytes ranks kind rank count staleness"
EVENT = np.dtype([(name, np.int64) for name in NAMES.split()])


def scatters(*began: int) -> Any:
    found = np.zeros(len(began), EVENT)
    found["kind"], found["began"], found["lasted"], found["bytes"] = trace.SCATTER, began, 1000, 7
    return found


@pytest.mark.parametrize("by", [0, 1, 1 << 20, 5 << 19, 3 << 30, -1, -(5 << 19), -(1 << 40)])
def test_columns_that_are_moved_keep_their_sums(by: int) -> None:
    timeline = Timeline(0, 0, 0)
    width = timeline.columns.width
    timeline.add(scatters(*range(0, COLUMNS * width - 1000, 7 * width // 2)))
    timeline.columns.staleness[3] = 9
    before, after = timeline.columns, timeline.columns.moved(by)
    assert after.spent.sum() == pytest.approx(before.spent.sum())
    assert after.sent.sum() == pytest.approx(before.sent.sum())
    assert (after.spent >= -1e-6).all()
    last = max(np.flatnonzero(before.sent)) * before.width + by
    at = max(np.flatnonzero(after.sent > 1e-9)) * after.width
    assert abs(max(last, 0) - at) <= max(before.width, after.width)
    if by > -3 * width:
        assert after.staleness.max() == 9


def test_a_part_of_a_report_comes_in_the_time_of_the_host_that_reads_it() -> None:
    shift, origin = -5_000_000, 1_000_000_000
    timeline = Timeline(3, origin + 2_000_000 - shift, origin + 3_000_000 - shift)
    events = scatters(*(origin + at * 1_000_000 - shift for at in range(3, 900)))
    timeline.add(events)
    death = scatters(origin + 9_000_000 - shift)
    death["kind"] = trace.DEATH
    timeline.add(death)
    series = Series()
    series.add(Point(origin + 4_000_000 - shift, 2, float("nan")))
    peers = np.full((4, 3), 1 << 60, np.uint64)
    one = Process(timeline, events, 5, {"scatters": 897}, peers, {"loss <1>": series})
    empty = Process(Timeline(4, 0, 0), np.empty(0), 0, {"scatters": 0}, peers, {})
    found, other = report_parts.unpack(report_parts.pack([one, empty]), origin, shift)
    line = found.timeline
    assert (line.rank, line.began, line.origin) == (3, origin + 3_000_000, origin)
    assert line.ended == origin + 899_000_000 + 1000
    assert line.events == 898
    assert [mark["began"] for mark in line.marks] == [origin + 9_000_000]
    assert line.columns.sent.sum() == pytest.approx(897 * 7)
    newest = [origin + at * 1_000_000 for at in range(780, 900)]
    assert found.newest["began"].tolist() == newest
    assert found.missed == 5
    assert (found.peers == peers).all()
    assert found.reported["loss <1>"].count == 1
    ((at, update, value),) = found.reported["loss <1>"].points
    assert (at, update) == (origin + 4_000_000, 2)
    assert np.isnan(value)
    assert len(other.newest) == 0
    for wrong in (b"", b"no such file", report_parts.pack([one])[:-40]):
        with pytest.raises(ValueError, match="no part of a report"):
            report_parts.unpack(wrong, origin, shift)


def a_part() -> bytes:
    timeline = Timeline(0, 0, 0)
    events = scatters(*range(0, 10**9, 10**7))
    timeline.add(events)
    death = scatters(10**9)
    death["kind"] = trace.DEATH
    timeline.add(death)
    series = Series()
    series.add(Point(5, 1, 0.5))
    peers = np.ones((2, 3), np.uint64)
    return report_parts.pack([Process(timeline, events, 0, {"scatters": 1}, peers, {"a": series})])


WRONG = (None, -1, 2**70, 1e400, float("nan"), "a", [], [[]], {}, {"a": 1}, True)
WRONG_ARRAYS = (
    *(np.zeros(shape, kind) for shape in ((), 0, 7, (3, 3)) for kind in (np.float64, np.uint64)),
    np.full((5, 1024), np.nan),
    np.full((1, 3), np.inf),
    np.array(["a"]),
    np.zeros(3, [("began", "f8")]),
    np.full(3, 2**62, EVENT),
)


def spoilt_heads(part: bytes) -> Iterator[bytes]:
    """Yield the part with each value of its heads replaced by others."""
    arrays = dict(np.load(io.BytesIO(part)))
    heads = json.loads(arrays.pop("heads").tobytes())

    def places(at: Any) -> Iterator[tuple[Any, Any]]:
        for key in at if isinstance(at, dict) else range(len(at)):
            yield at, key
            if isinstance(at[key], dict | list):
                yield from places(at[key])

    for at, key in list(places(heads)):
        before = at[key]
        for wrong in WRONG:
            at[key] = wrong
            file = io.BytesIO()
            text = np.frombuffer(json.dumps(heads).encode(), np.uint8)
            np.savez(file, heads=text, **arrays)
            yield file.getvalue()
        at[key] = before


def spoilt_arrays(part: bytes) -> Iterator[bytes]:
    arrays = dict(np.load(io.BytesIO(part)))
    for name in arrays:
        for wrong in WRONG_ARRAYS:
            file = io.BytesIO()
            np.savez(file, **(arrays | {name: wrong}))
            yield file.getvalue()


def test_a_hostile_part_of_a_report_is_refused_or_drawn(tmp_path: Path) -> None:
    part, refused, drawn = a_part(), 0, 0
    own = report_parts.unpack(part, 0, 0)
    for hostile in (*spoilt_heads(part), *spoilt_arrays(part)):
        try:
            processes = report_parts.unpack(hostile, 0, 0)
        except ValueError as error:
            assert str(error) == "no part of a report"  # noqa: PT017 - or it is drawn
            refused += 1
            continue
        run_report.write(tmp_path / "r.html", "x", 0, 0, [*own, *processes], 2)
        drawn += 1
    assert refused > drawn > 0


@pytest.mark.parametrize(
    "heads",
    [b"[" * 100_000, b"\xff", b"{}x", b"[1e999]"],
    ids=["deep", "no text", "more behind", "infinite"],
)
def test_heads_that_are_no_json_are_refused(heads: bytes) -> None:
    file = io.BytesIO()
    np.savez(file, heads=np.frombuffer(heads, np.uint8))
    with pytest.raises(ValueError, match="no part of a report"):
        report_parts.unpack(file.getvalue(), 0, 0)


def test_a_part_of_a_report_that_is_too_large_is_not_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = a_part()
    monkeypatch.setattr(report_parts, "_MOST_UNPACKED", 1000)
    with pytest.raises(ValueError, match="no part of a report"):
        report_parts.unpack(part, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": [1]},
        {"ranks": [{"rank": 0}]},
        {"ranks": [{"rank": "a", "state": "runs"}]},
        {"ranks": [{"rank": 0, "state": "runs", "memory": float("nan")}]},
        {"pairs": [[0, 1]]},
        {"pairs": 7},
        {"changes": [{"text": 1, "time": 1.0}]},
        {"changes": [{"text": "a", "time": "x"}]},
        {"size": float("inf")},
        {"points": [[0, "a", [[float("inf"), 0, 0]]]]},
        {"points": [[0]]},
    ],
)
def test_a_hostile_summary_changes_nothing(wrong: dict[str, Any]) -> None:
    rows = [{"rank": 0, "state": "runs", "reports": {}}]
    changes = [{"text": "a", "time": 1.0}]
    state = {"ranks": rows, "pairs": [[0, 1, 2, 3]], "changes": changes, "size": 1, "host": "h"}
    others = OtherHosts(0, 2, Puller(lambda *_: None))
    others._puller._clocks[1] = 0.0, 0, 0
    own = state | {"ranks": [], "pairs": [], "changes": []}

    def hear(told: Any) -> None:
        pull = Pull(1, pulls.SUMMARY, 1, io.BytesIO(zlib.compress(json.dumps(told).encode())))
        others._take(1, pull)

    hear(state | {"points": [[0, "a", [[1, 2, 0.5]]]]})
    before = others.merged(own)
    assert before["ranks"] == [rows[0] | {"node": 1}]
    hear(state | {"points": [], "size": 9} | wrong)
    hear([[]])
    after = others.merged(own)
    for name in ("ranks", "pairs", "changes", "size"):
        assert after[name] == before[name]
    assert [(rank, name) for rank, name in others._curves] == [(0, "a")]


def test_a_pull_tells_when_it_was_asked_first(impatient: None) -> None:
    """A repeated question does not make the answer to the first seem quicker than it was."""
    puller = Puller(lambda *_: None)
    pull: Pull = puller.begin(1, pulls.TRACE, io.BytesIO())
    first = pull.asked
    puller.advance()
    assert pull.repeated > pull.asked == first
