"""`malt scale --leave`: a rank of the user's choice leaves an elastic job."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from chunk_turns import TRAIN, check_turns, turns_taken
from test_elastic import await_alive, scale_to, start
from test_elastic_nodes import answer, books, end, scaled

from malt._rendezvous import wire
from malt._rendezvous.allgather_table import ProtocolError
from malt._rendezvous.node_table import Changed, Nodes
from malt._rendezvous.wire import ToClient, ToServer


def leave(process: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "malt", "scale", *map(str, (process, "--leave", *arguments))]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_chosen_rank_leaves_and_its_place_is_free_again(tmp_path: Path) -> None:
    with start(tmp_path, 3, "2:3") as job:
        await_alive(job, 0, 1, 2)
        process = job.launcher.pid
        done = leave(process, 0)
        assert (done.returncode, done.stdout) == (0, "malt scale: asked to leave: rank 0\n")
        await_alive(job, 1, 2)
        assert job.told(0)["left"]
        done = leave(process, 1)
        assert done.returncode == 2
        assert "1 rank is not within the job's 2 to 3 (--elastic)" in done.stderr
        while "started: rank 0" not in (text := scale_to(job, 3)):
            assert "asked to leave" in text  # it has not ended yet
        await_alive(job, 0, 1, 2)
        assert job.told(0)["late"] == 1
        job.raise_flag("over")
        result = job.finish()
    assert result.code == 0, result.output


def test_a_leaving_ranks_chunks_go_to_the_others(tmp_path: Path) -> None:
    elements, passes = 120, 20
    given = {"transport": "auto", "elements": elements, "chunk": 3, "passes": passes}
    given |= {"shuffle": 1, "lockstep": False, "deaths": {}}
    header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    turn = "    for part in parts:\n"
    assert turn in TRAIN
    loop = TRAIN.replace(turn, turn + "        if malt.jobs.leaving():\n            sys.exit()\n")
    with start(tmp_path, 3, "1:3", script=header + loop) as job:
        while not (tmp_path / "taken-1-0").exists():
            assert not job.has_ended, job.output
            time.sleep(0.01)
        assert leave(job.launcher.pid, 1).returncode == 0
        result = job.finish()
    assert result.code == 0, result.output
    by_chunk = turns_taken(tmp_path)
    check_turns(by_chunk, elements, passes, ("1-0",))
    assert all(len(turns) == 1 for turns in by_chunk.values())
    last = {turns[0].life for chunk, turns in by_chunk.items() if chunk[0] == passes}
    assert last == {"0-0", "2-0"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("7",), "rank 7 does not run; of this job run ranks 0, 1"),
        ((str(10**30),), f"{10**30} is not within 0 to 1,048,576"),
        (("-1",), "'-1' is not a number"),
        (("last",), "'last' is not a number"),
        (("1", "2"), "unrecognized arguments: 2"),
    ],
)
def test_wrong_ranks_are_refused(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    with start(tmp_path, 2, "1:3") as job:
        await_alive(job, 0, 1)
        done = leave(job.launcher.pid, *arguments)
        assert done.returncode == 2
        assert error in done.stderr
        job.raise_flag("over")
        assert job.finish().code == 0


# The books


def asked(nodes: Nodes, rank: int, node: int = 0) -> Changed:
    return nodes.ask_to_leave(node, wire.LEAVE_FRAME.pack(ToServer.LEAVE, rank))


def test_the_node_of_the_rank_is_told_and_the_asking_one_has_the_answer() -> None:
    nodes = books(2, 2, least=1, most=4)
    assert asked(nodes, 3) == (
        [],
        [3],
        [(1, [wire.LEAVE_FRAME.pack(ToClient.LEAVE, 3)]), answer("asked to leave: rank 3")],
    )
    assert asked(nodes, 3, node=1) == ([], [], [answer("rank 3 has been asked already", node=1)])
    end(nodes, 1, 3)
    refusal = "rank 3 does not run; of this job run ranks 0, 1, 2"
    assert asked(nodes, 3) == ([], [], [answer(refusal, is_done=False)])


def test_ranks_that_leave_do_not_count_for_the_least() -> None:
    nodes = books(3, least=2, most=4)
    assert scaled(nodes, 2).leaving == [2]
    refusal = "1 rank is not within the job's 2 to 4 (--elastic)"
    assert asked(nodes, 0) == ([], [], [answer(refusal, is_done=False)])
    assert asked(nodes, 2) == ([], [], [answer("rank 2 has been asked already")])
    end(nodes, 0, 2)
    refusal = "rank 2 does not run; of this job run ranks 0, 1"
    assert asked(nodes, 2) == ([], [], [answer(refusal, is_done=False)])


def test_nobody_is_asked_while_another_node_takes_over_or_at_the_end() -> None:
    nodes = Nodes(2)
    nodes.succeed(3, range(1, 4), {0, 1})
    nodes.resume(
        1, wire.RESUME_HEAD.pack(ToServer.RESUME, False, True, 0, 1) + b"\0\0\0\0" * 2 + b"\0"
    )
    (refused,) = asked(nodes, 0, node=1).frames
    assert refused[1][0].endswith(b"try again in a second")
    nodes = books(2, least=1, most=2)
    nodes.is_closed = True
    assert asked(nodes, 0) == ([], [], [answer("the job ends", is_done=False)])


def test_launchers_of_other_jobs_may_not_ask() -> None:
    for nodes in (books(2, least=1, most=2), books(2, least=0, most=0)):
        with pytest.raises(ProtocolError):
            asked(nodes, 0, node=9)
    with pytest.raises(ProtocolError):
        asked(books(2, least=0, most=0), 0)
