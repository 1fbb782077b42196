"""`malt run --elastic` on several nodes: launchers on this host, and the server's books."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nodes
import pytest
from jobs import in_dev_shm, processes_in
from launches import assert_gone, exists, noted, wait_until
from test_elastic import await_alive, scale
from test_nodes import KEY, Job, end_of

from malt._errors import ConfigError
from malt._launch.scale import LEAVE, ask
from malt._rendezvous import placement, wire
from malt._rendezvous.allgather_table import Frames, ProtocolError
from malt._rendezvous.node_session import Answer, Node
from malt._rendezvous.node_table import Changed, Nodes
from malt._rendezvous.server import Server
from malt._rendezvous.session import Client
from malt._rendezvous.wire import ToClient, ToServer

LOOP = """
malt.init(timeout=20)
v = malt.vector(np.full(10, float(rank)))
at = {name: int(os.environ[f"MALT_{name.upper()}"]) for name in ("node_rank", "local_rank")}
tell(pid=os.getpid(), start=v.iteration, late=malt.jobs.restarts(), **at)
while not flag_is_up("over") and not malt.jobs.leaving():
    v.scatter()
    v.gather(malt.AVG)
    tell(at=v.iteration, alive=malt.alive())
    time.sleep(0.005)
s = v.stats()
tell(lost=s.sent - s.folded - s.overwritten - s.rejected - s.pending - s.to_dead,
     left=malt.jobs.leaving())
"""


class Training(nodes.Nodes):
    """LOOP in a job of 4 places, by two launchers with so many ranks each."""

    def __init__(self, directory: Path, ranks: int, limits: str) -> None:
        super().__init__(directory, LOOP, [f"--elastic {limits}"] * 2, ranks, places=4)

    def scale_by(self, node: int, count: int) -> str:
        """What `malt scale` says where node `node` runs."""
        done = scale(self.launchers[node].pid, count)
        return done.stdout + done.stderr

    def await_gone(self, *ranks: int) -> None:
        """Wait until these have left, and node 0 has been told so."""
        for rank in ranks:
            while not self.told(rank).get("left"):
                assert not self.has_ended, self.output
                time.sleep(0.01)
        time.sleep(0.5)

    def finish(self) -> list[int]:
        """End the rounds; returns the launchers' exit codes. Nothing that was sent is lost."""
        self.raise_flag("over")
        codes = [launcher.wait(100) for launcher in self.launchers]
        assert [self.told(rank)["lost"] for rank in range(4)] == [0] * 4
        return codes


Start = Callable[[int, str], Training]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a job that leaves neither processes nor files."""
    monkeypatch.chdir(tmp_path)
    files = in_dev_shm()
    yield tmp_path
    assert wait_until(lambda: processes_in(tmp_path) <= {os.getpid()})
    assert in_dev_shm() <= files


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    """Starts a Training, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(ranks: int, limits: str) -> Training:
            training = Training(directory, ranks, limits)
            stack.callback(training.close)
            return training

        yield begin


@pytest.fixture
def job(directory: Path) -> Iterator[Job]:
    """Whose ranks wait for their end."""
    job = Job(directory)
    job.write("time.sleep(60)")
    yield job
    for launcher in job.launchers:
        launcher.kill()
        launcher.communicate(timeout=20)


# Jobs


def test_a_job_of_two_nodes_grows_and_shrinks_evenly(start: Start) -> None:
    training = start(1, "1:4")
    await_alive(training, 0, 1)
    assert training.scale_by(1, 4) == "malt scale: started: ranks 2, 3\n"
    await_alive(training, 0, 1, 2, 3)
    assert [training.told(rank)["node_rank"] for rank in range(4)] == [0, 1, 0, 1]
    assert [training.told(rank)["local_rank"] for rank in range(4)] == [0, 0, 1, 1]
    assert training.told(3)["start"] > 0  # where the others were
    assert "5 ranks are not within the job's 1 to 4" in training.scale_by(1, 5)

    assert training.scale_by(0, 2) == "malt scale: asked to leave: ranks 2, 3\n"
    await_alive(training, 0, 1)
    training.await_gone(2, 3)
    assert training.scale_by(0, 3) == "malt scale: started: rank 2\n"
    await_alive(training, 0, 1, 2)
    assert training.told(2)["late"] == 2
    assert ask(training.launchers[0].pid, LEAVE, 1) == "asked to leave: rank 1"  # of node 1
    await_alive(training, 0, 2)
    assert training.finish() == [0, 0], training.output


def test_ranks_of_a_lost_node_are_replaced_on_another(
    start: Callable[[int, str], Training],
) -> None:
    training = start(2, "2:4")
    await_alive(training, 0, 1, 2, 3)
    training.launchers[1].kill()
    await_alive(training, 0, 1)
    assert wait_until(lambda: "node 1 is lost" in training.output_of(0))
    assert training.scale_by(0, 4) == "malt scale: started: ranks 2, 3\n"
    await_alive(training, 0, 1, 2, 3)
    assert [training.told(rank)["node_rank"] for rank in range(4)] == [0] * 4
    assert [training.told(rank)["local_rank"] for rank in range(4)] == [0, 1, 2, 3]
    assert training.finish()[0] == 1


def start_both(job: Job, ranks: int, *limits: str) -> list[subprocess.Popen[str]]:
    return [job.start(node, "--elastic", each, ranks=ranks) for node, each in enumerate(limits)]


def test_a_job_stops_on_all_nodes_when_too_few_are_left(job: Job) -> None:
    launchers = start_both(job, 2, "2:4", "2:4")
    assert exists("pid0", "pid1", "pid2", "pid3")
    for process in noted("pid1", "pid2", "pid3"):  # 3, 2 and 1 of at least 2 are left then
        os.kill(process, signal.SIGKILL)
    for end in map(end_of, launchers):
        assert end.code == 128 + signal.SIGKILL
        assert "1 of at least 2 are left; stopping the others" in end.err
    assert_gone(*noted("pid0"))


def test_a_job_that_cannot_do_without_a_node_ends_with_it(job: Job) -> None:
    launchers = start_both(job, 2, "3:4", "3:4")
    assert exists("pid0", "pid1", "pid2", "pid3")
    launchers[1].kill()
    end = end_of(launchers[0])
    assert end.code == 1
    assert "2 of at least 3 are left; stopping the others" in end.err
    assert_gone(*noted("pid0", "pid1", "pid2", "pid3"))


def test_nodes_whose_limits_differ_are_told(job: Job) -> None:
    for end in map(end_of, start_both(job, 1, "1:4", "2:4")):
        assert end.code == 2
        assert (
            "node 0 started with --elastic 1:4, node 1 started with --elastic 2:4: give" in end.err
        )


# The books


def ranks_frame(count: int, least: int = 0, most: int = 0) -> bytes:
    return wire.RANKS_FRAME.pack(ToServer.RANKS, count, True, least, most, 5.0)


def books(*counts: int, least: int, most: int) -> Nodes:
    """Of nodes that have come with so many ranks each."""
    nodes = Nodes(len(counts))
    for node, count in enumerate(counts):
        nodes.come(node, ranks_frame(count, least, most), 0.0)
    return nodes


def scaled(nodes: Nodes, count: int, node: int = 0) -> Changed:
    return nodes.scale(node, wire.SCALE_FRAME.pack(ToServer.SCALE, count))


def end(nodes: Nodes, node: int, rank: int, code: int = 0, process: int = 99) -> Frames:
    return nodes.end(node, wire.ENDED_FRAME.pack(ToServer.ENDED, rank, process, code))[3]


def answer(text: str, *, is_done: bool = True, node: int = 0) -> Any:
    return (node, [wire.ANSWER_HEAD.pack(ToClient.ANSWER, is_done) + text.encode()])


def test_ranks_are_numbered_first_and_places_are_free_after_them() -> None:
    nodes = books(2, 1, least=1, most=6)
    assert nodes.size == 6
    assert nodes.free() == [3, 4, 5]


@pytest.mark.parametrize(
    ("nodes", "refusal"),
    [
        (
            [(1, 1, 4), (1, 0, 0)],
            b"node 0 started with --elastic 1:4, node 1 started without --elastic",
        ),
        (
            [(2, 1, 3), (2, 1, 3)],
            b"the nodes start 4 ranks (-n), which is not within --elastic 1:3",
        ),
        (
            [(1, 3, 4), (1, 3, 4)],
            b"the nodes start 2 ranks (-n), which is not within --elastic 3:4",
        ),
    ],
)
def test_nodes_that_cannot_be_one_job_are_told(
    nodes: list[tuple[int, int, int]], refusal: bytes
) -> None:
    books = Nodes(2)
    frames = [books.come(node, ranks_frame(*each), 0.0) for node, each in enumerate(nodes)][-1]
    assert [node for node, _ in frames] == [0, 1]
    assert all(payloads[0].startswith(ToClient.REFUSED + refusal) for _, payloads in frames)


def test_the_node_with_the_fewest_ranks_starts_the_next() -> None:
    nodes = books(3, 1, least=1, most=6)
    assert scaled(nodes, 6, node=1) == (
        [4, 5],
        [],
        [
            (1, [wire.BEGIN_FRAME.pack(ToClient.BEGIN, 4, 1)]),
            (1, [wire.BEGIN_FRAME.pack(ToClient.BEGIN, 5, 1)]),
            answer("started: ranks 4, 5", node=1),
        ],
    )
    assert nodes.free() == []


def test_the_node_with_the_most_ranks_loses_its_highest() -> None:
    nodes = books(3, 1, least=1, most=6)
    assert scaled(nodes, 2) == (
        [],
        [2, 1],
        [
            (0, [wire.LEAVE_FRAME.pack(ToClient.LEAVE, 2)]),
            (0, [wire.LEAVE_FRAME.pack(ToClient.LEAVE, 1)]),
            answer("asked to leave: ranks 1, 2"),
        ],
    )
    assert scaled(nodes, 2).frames == [answer("2 ranks run already")]
    end(nodes, 0, 2)
    assert nodes.leaving == {1}
    assert nodes.free() == [2, 4, 5]


def test_the_lowest_rank_of_all_is_never_asked_to_leave() -> None:
    running = {0: {0}, 1: {1, 4}, 2: {2, 3}}
    assert placement.leaves(running, 4) == [(1, 4), (2, 3), (2, 2), (1, 1)]


def test_places_of_those_who_leave_are_not_free_until_they_have_ended() -> None:
    nodes = books(2, 1, least=1, most=3)
    scaled(nodes, 1)
    refused = scaled(nodes, 3)
    assert (refused.starting, refused.leaving) == ([], [])
    assert (
        b"3 of 3 ranks run, ranks 1, 2 among them, which were asked to leave"
        in refused.frames[0][1][0]
    )
    end(nodes, 0, 1)
    end(nodes, 1, 2)
    assert scaled(nodes, 3).starting == [1, 2]


def test_a_rank_counts_its_starts_on_whatever_node() -> None:
    nodes = books(1, 1, least=1, most=3)
    scaled(nodes, 3)
    assert nodes.again(0, wire.PROCESS_FRAME.pack(ToServer.AGAIN, 2, 99)) == (2, 99)
    lost, _ = nodes.leave(1)
    assert lost == {1}
    end(nodes, 0, 2)
    begins = [frames[0] for _, frames in scaled(nodes, 3).frames[:2]]
    assert begins == [
        wire.BEGIN_FRAME.pack(ToClient.BEGIN, 1, 1),
        wire.BEGIN_FRAME.pack(ToClient.BEGIN, 2, 3),
    ]


def test_all_are_told_once_that_too_few_are_left() -> None:
    nodes = books(2, 2, least=3, most=4)
    few = [wire.FEW_FRAME.pack(ToClient.FEW, 2)]
    assert end(nodes, 0, 0) == []  # who ends with 0 is not missed,
    assert end(nodes, 0, 1, code=1)[1:] == [(0, few), (1, few)]  # until somebody fails
    assert len(end(nodes, 1, 2, code=1)) == 1
    assert scaled(nodes, 4).frames == [answer("the job ends", is_done=False)]


def resume(nodes: Nodes, node: int, *ranks: int, starts: int = 0) -> None:
    head = wire.RESUME_HEAD.pack(ToServer.RESUME, True, True, 1, len(ranks))
    nodes.resume(
        node, head + b"".join(wire.RESUMED_RANK.pack(rank, starts, False) for rank in ranks)
    )


def test_books_are_taken_over_from_what_the_launchers_say() -> None:
    nodes = Nodes(3)
    nodes.succeed(6, range(1, 7), {1, 2})
    resume(nodes, 1, 2, 3, starts=4)
    assert scaled(nodes, 6, node=1).frames[0][1][0].endswith(b"try again in a second")
    assert end(nodes, 1, 2) == []  # not over
    assert nodes.missing == {2}
    assert nodes.settle() == []  # node 2 has not come
    assert nodes.free() == [0, 1, 2, 4, 5]
    assert nodes.again(1, wire.PROCESS_FRAME.pack(ToServer.AGAIN, 3, 9)) == (3, 9)
    with pytest.raises(ProtocolError):
        resume(nodes, 2, 4)


def test_too_few_ranks_may_be_left_when_books_are_taken_over() -> None:
    nodes = Nodes(2)
    nodes.succeed(4, range(3, 5), {1})
    resume(nodes, 1, 2, 3)
    assert nodes.settle() == [(1, [wire.FEW_FRAME.pack(ToClient.FEW, 2)])]


def test_two_launchers_cannot_have_the_same_rank() -> None:
    nodes = Nodes(3)
    nodes.succeed(4, range(0), {1, 2})
    resume(nodes, 1, 2)
    with pytest.raises(ProtocolError):
        resume(nodes, 2, 2)


def test_a_launcher_that_ends_is_given_no_more_ranks() -> None:
    nodes = books(2, 1, least=1, most=5)
    assert scaled(nodes, 4).frames[0][0] == 1
    begin = wire.BEGIN_FRAME.pack(ToClient.BEGIN, 3, 2)
    assert end(nodes, 1, 3, process=0) == [(0, [begin])]  # another starts it
    assert end(nodes, 0, 3, process=0) == []
    (frame,) = scaled(nodes, 4).frames
    assert b"start no more ranks: their `malt run` is ending" in frame[1][0]


@pytest.mark.parametrize("count", [0, 5, (1 << 32) - 1])
def test_counts_that_cannot_be_are_refused(count: int) -> None:
    refusal = f"{count} ranks are not within the job's 2 to 4 (--elastic)"
    assert scaled(books(2, least=2, most=4), count).frames == [answer(refusal, is_done=False)]


def test_a_job_that_is_not_elastic_or_not_whole_is_not_scaled() -> None:
    nodes = Nodes(2)
    for node in range(2):
        with pytest.raises(ProtocolError):
            scaled(nodes, 1)
        nodes.come(node, ranks_frame(1), 0.0)
    with pytest.raises(ProtocolError):
        scaled(nodes, 2)


@pytest.mark.parametrize(
    ("least", "most"), [(0, 3), (3, 2), (1, 0), (1, wire.MAX_RANKS + 1), (1 << 31, 1 << 31)]
)
def test_impossible_limits_are_refused(least: int, most: int) -> None:
    with pytest.raises(ProtocolError):
        Nodes(2).come(0, ranks_frame(1, least, most), 0.0)


def test_somebody_of_another_version_is_named_when_a_node_does_not_come() -> None:
    server = Server(2, bytes.fromhex(KEY))
    node = Node(server.address, bytes.fromhex(KEY), 0, 2)
    with socket.create_connection((server.host, server.port)) as other:
        other.sendall(struct.pack("=4sII32s", b"MALT", 99, 0x01020304, b"n" * 32))
        with pytest.raises(TimeoutError, match=r"127\.0\.0\.1:\d+: .* another version of MALT"):
            node.start(1, 0.2, server)
    node.abort()
    server.close()


@pytest.fixture
def launched() -> Iterator[tuple[Server, Node]]:
    """A job of one rank and two places that has started, and its launcher's session."""
    server = Server(1, bytes.fromhex(KEY))
    node = Node(server.address, bytes.fromhex(KEY), 0, 1)
    node.start(1, 5, server, elastic=range(1, 3))
    server.start()
    yield server, node
    server.close()
    node.abort()


def test_process_that_is_no_rank_of_the_job_is_refused(launched: tuple[Server, Node]) -> None:
    server, _ = launched
    with pytest.raises(ConfigError, match="rank 1 has ended, or was lost with its node"):
        Client(server.address, bytes.fromhex(KEY), 1, 2, 5)


def test_a_launcher_that_takes_no_answers_is_dropped(launched: tuple[Server, Node]) -> None:
    """And takes its ranks with it, as one that is stuck."""
    _, node = launched
    node.scale(2)
    while not any(isinstance(event, Answer) for event in node.hear()):
        time.sleep(0.001)

    def ask_on_and_on() -> None:
        while True:
            node._send(wire.SCALE_FRAME.pack(ToServer.SCALE, 2))

    with pytest.raises(ConnectionError):
        ask_on_and_on()
