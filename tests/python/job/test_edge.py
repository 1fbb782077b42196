"""malt.messages.Edge: arrays from one rank to one other, in order, each once."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from jobs import PROMPT, Result, refused, run_job, start_job

from malt._errors import DamagedError
from malt._messages import array_head
from malt._messages.array_head import Head

# They share one job, which a worker runs once.
pytestmark = pytest.mark.xdist_group("edge")

JOB = """
malt.init(timeout=60)

# Arrays of any shape and dtype
edge = malt.messages.Edge(2, 0, capacity=800, depth=2)
sent = [np.arange(100.0), np.zeros((0, 3), np.int8), np.array(7, np.uint16), np.array([[True]]),
        np.arange(12, dtype=np.complex64).reshape(3, 4)[:, ::2], np.asfortranarray(np.eye(3)[:2])]
if rank == 2:
    for each in sent:
        edge.send(each)
if rank == 0:
    tell(came=[edge.receive() for _ in sent], sent=sent)

# Nothing is lost or comes twice, however far the sender is ahead
edge = malt.messages.Edge(0, 1, depth=3)
if rank == 0:
    for i in range(2000):
        edge.send(np.full(i % 7, i))
if rank == 1:
    tell(order=[edge.receive().tolist() for _ in range(2000)])

# An array is copied: the sender may change it
held = malt.messages.Edge(0, 1)
if rank == 0:
    array = np.zeros(3)
    held.send(array)
    array[:] = 1
    raise_flag("changed")
if rank == 1:
    await_flag("changed")
    tell(kept=held.receive().tolist())

# What is wrong
Edge = malt.messages.Edge
tell(wrong=[
    error_of(Edge, 0, 3), error_of(Edge, 1, 1), error_of(Edge, 0, 1, depth=0),
    error_of(Edge, 0, 1, capacity=2.5), error_of(Edge, 0, 1, capacity=rank + 1),
    error_of(Edge, 0, 1, capacity=1 << 44), error_of(Edge, 0, 1, capacity=1 << 64),
    error_of(Edge, 0, 1, depth=1 << 31),
])
if rank == 0:
    tell(here=[
        error_of(edge.receive), error_of(edge.send, np.zeros(1 << 18)),
        error_of(edge.send, np.array(["a"])), error_of(edge.send, [[1], [1, 2]]),
    ])
if rank == 1:
    tell(here=[error_of(edge.send, 1), error_of(edge.receive, timeout=0.1),
               error_of(edge.receive, timeout="a"), error_of(edge.receive, timeout=float("nan"))])
malt.barrier()
edge.close()
if rank < 2:
    tell(closed=error_of(edge.send, 1) if rank == 0 else error_of(edge.receive))


# One end closes: what was sent is received first
last = malt.messages.Edge(0, 1)
if rank == 0:
    last.send([5])
    last.close()
if rank == 1:
    tell(last=last.receive().tolist(), left=error_of(last.receive))
malt.barrier()

# An edge waits in one thread while another uses the job
waiting = malt.messages.Edge(0, 1)
if rank == 1:
    came = []
    thread = threading.Thread(target=lambda: came.append(waiting.receive().tolist()))
    thread.start()
total = malt.allreduce(rank, malt.SUM)
if rank == 0:
    waiting.send([total])
if rank == 1:
    thread.join()
    tell(threads=came)
malt.barrier()

# Two threads receive from one edge
shared = malt.messages.Edge(0, 1)
if rank == 0:
    for i in range(3000):
        shared.send(np.full(1, i, np.int64 if i % 2 else np.float64))
    shared.close()
if rank == 1:
    got, ends = [], []
    def receive():
        while True:
            try:
                got.append(shared.receive())
            except malt.Error as error:
                ends.append(type(error).__name__)
                return
    threads = [threading.Thread(target=receive) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    tell(shared=[(array.dtype.kind, int(array[0])) for array in got], ends=ends)
malt.barrier()

# An edge is closed in a wait
waited = malt.messages.Edge(0, 1)
if rank == 1:
    errors = []
    thread = threading.Thread(target=lambda: errors.append(error_of(waited.receive)))
    thread.start()
    time.sleep(0.3)
    tell(late=error_of(waited.receive, timeout=0.1))
    waited.close()
    thread.join()
    tell(in_wait=errors[0])
malt.barrier()
"""


@pytest.fixture(scope="module", params=["shm", "tcp"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    environ = {"MALT_TRANSPORT": request.param}
    result = run_job(tmp_path_factory.mktemp("edge"), 3, JOB, environ=environ)
    assert result.code == 0, result.output
    return result


def test_arrays_of_any_shape_and_dtype_arrive(job: Result) -> None:
    told = job.told[0]

    for came, sent in zip(told["came"], told["sent"], strict=True):
        assert (came.dtype, came.shape) == (sent.dtype, sent.shape)
        assert came.tolist() == sent.tolist()


def test_all_arrive_in_order_and_each_once(job: Result) -> None:
    assert job.told[1]["order"] == [[i] * (i % 7) for i in range(2000)]


def test_the_sender_may_change_what_it_has_sent(job: Result) -> None:
    assert job.told[1]["kept"] == [0.0, 0.0, 0.0]


def test_wrong_arguments_are_refused_on_all_ranks(job: Result) -> None:
    for wrong in job.each("wrong"):
        assert refused(wrong[0], "dst is 3", "from 0 to 2")
        assert refused(wrong[1], "both 1", "another rank")
        assert refused(wrong[2], "depth is 0", "from 1 to 1024")
        assert refused(wrong[3], "capacity is 2.5", "whole number")
        assert refused(wrong[5], "rank 0", "MB of shared memory", "smaller depth")
        assert refused(wrong[4], "capacity is 1 on rank 0, and 2 on rank 1")
        assert refused(wrong[6], f"capacity is {1 << 64}", f"from 1 to {1 << 48}")
        assert refused(wrong[7], f"depth is {1 << 31}", "from 1 to 1024")


def test_the_wrong_rank_and_what_does_not_fit_are_refused(job: Result) -> None:
    receiving, large, text, ragged = job.told[0]["here"]

    assert refused(receiving, "edge 0 -> 1", "this is rank 0", "receive on rank 1")
    assert refused(large, "2,097,152 bytes", "1,048,576", "capacity=2097152")
    assert refused(text, "<U1", "convert")
    assert refused(ragged, "cannot send a list", "same length")
    assert refused(job.told[1]["here"][0], "this is rank 1", "send on rank 0")
    assert job.told[1]["here"][1].kind == "TimeoutError"
    assert job.told[1]["here"][1].ranks == (0,)
    assert refused(job.told[1]["here"][2], "timeout is 'a'", "a number at least 0 seconds, or None")
    assert refused(job.told[1]["here"][3], "timeout is nan", "a number at least 0 seconds, or None")
    for rank in (0, 1):
        assert refused(job.told[rank]["closed"], "is closed: this rank has closed it")


def test_array_sent_before_a_close_is_received(job: Result) -> None:
    told = job.told[1]

    assert told["last"] == [5]
    assert told["left"].kind == "PeerError"
    assert told["left"].ranks == (0,)
    assert told["left"].says("edge 0 -> 1: rank 0 has closed it")
    assert told["left"].seconds < PROMPT


def test_an_edge_waits_beside_the_jobs_own_calls(job: Result) -> None:
    assert job.told[1]["threads"] == [[3.0]]


def test_each_array_comes_whole_to_one_of_two_threads_that_receive(job: Result) -> None:
    told = job.told[1]

    assert sorted(told["shared"], key=lambda each: each[1]) == [
        ("i" if i % 2 else "f", i) for i in range(3000)
    ]
    assert told["ends"] == ["PeerError"] * 2


def test_a_thread_waits_no_longer_than_its_timeout_for_another_one(job: Result) -> None:
    late = job.told[1]["late"]

    assert (late.kind, late.ranks) == ("TimeoutError", (0,))
    assert late.seconds < PROMPT


def test_a_receiver_learns_that_another_thread_has_closed_the_edge(job: Result) -> None:
    in_wait = job.told[1]["in_wait"]

    assert refused(in_wait, "edge 0 -> 1 has been closed by another thread")


def test_a_sender_waits_for_a_slot_no_longer_than_the_time_limit(tmp_path: Path) -> None:
    body = """
malt.init(timeout=2)
edge = malt.messages.Edge(0, 1, depth=1)
if rank == 0:
    edge.send(1)
    tell(full=error_of(edge.send, 2))
    raise_flag("full")
if rank == 1:
    await_flag("full")
    tell(came=int(edge.receive()))
"""
    result = run_job(tmp_path, 2, body)

    full = result.told[0]["full"]
    assert full.kind == "TimeoutError"
    assert full.ranks == (1,)
    assert full.says("rank 1 received none of the 1 messages on their way within 2 s")
    assert result.told[1]["came"] == 1


def test_tensors_can_be_sent(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = """
import torch
malt.init(timeout=60)
edge = malt.messages.Edge(0, 1)
if rank == 0:
    edge.send(torch.arange(6.0, requires_grad=True).reshape(2, 3).T)
    lazy = torch.tensor([1 + 2j]).conj()
    edge.send(lazy)
    edge.send(lazy.imag)
if rank == 1:
    tell(came=torch.from_numpy(edge.receive()).numpy())
    tell(lazy=[edge.receive().tolist() for _ in range(2)])
"""
    result = run_job(tmp_path, 2, body)

    assert np.array_equal(result.told[1]["came"], np.arange(6.0).reshape(2, 3).T)
    assert result.told[1]["lazy"] == [[1 - 2j], [-2.0]]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 0.5, 8.0])
def test_a_number_of_a_message_must_be_whole_and_in_range(number: float) -> None:
    head = array_head.unpack(Head(0, number=number).pack())

    with pytest.raises(DamagedError, match=rf"number {number}; .* from 0 to 7"):
        head.whole(0, 7)


@pytest.mark.parametrize("shape", [(3,), (0, 1 << 63), (1 << 40, 0, 1 << 40)])
def test_a_shape_must_fit_the_body_and_memory(shape: tuple[int, ...]) -> None:
    head = array_head.unpack(Head(0, "float64", shape).pack())

    with pytest.raises(DamagedError, match="and has 0 bytes"):
        head.check_length(0, 8)


def test_a_dead_sender_is_named_once_all_that_it_sent_has_come(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
edge = malt.messages.Edge(0, 1, depth=4)
if rank == 0:
    for i in range(3):
        edge.send(i)
    os.kill(os.getpid(), signal.SIGKILL)
while 0 in malt.alive():
    time.sleep(0.01)
tell(came=[int(edge.receive()) for _ in range(3)], error=error_of(edge.receive))
"""
    with start_job(tmp_path, 2, body, "--keep-going") as job:
        result = job.finish()

    assert result.told[1]["came"] == [0, 1, 2]
    error = result.told[1]["error"]
    assert (error.kind, error.ranks) == ("PeerError", (0,))
    assert error.seconds < PROMPT


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_sender_that_is_stopped_for_long_is_named_though_it_is_the_lower_of_the_two(
    tmp_path: Path, transport: str
) -> None:
    body = """
malt.init(timeout=30)
edge = malt.messages.Edge(1, 2)
tell(pid=os.getpid())
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 2:
    tell(error=error_of(edge.receive))
if rank != 1:
    tell(total=malt.allreduce(1, malt.SUM))
"""
    environ = {"MALT_TRANSPORT": transport, "MALT_SILENCE": "1.5"}
    with start_job(tmp_path, 3, body, "--keep-going", environ=environ) as job:
        assert job.await_told("total", ranks=[0, 2]) == [2, 2]
        os.kill(job.told(1)["pid"], signal.SIGKILL)
        error = job.told(2)["error"]
    assert error.ranks == (1,), error
    assert error.says("edge 1 -> 2: rank 1 died or left")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_was_stopped_for_long_does_not_blame_the_other_one(
    tmp_path: Path, transport: str
) -> None:
    body = """
malt.init(timeout=6)
edge = malt.messages.Edge(2, 0)
tell(pid=os.getpid())
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
    tell(error=error_of(lambda: [edge.send(i) for i in range(100)]))
else:
    tell(total=malt.allreduce(1, malt.SUM))
    await_flag("end")
"""
    environ = {"MALT_TRANSPORT": transport, "MALT_SILENCE": "1.5"}
    with start_job(tmp_path, 3, body, "--keep-going", environ=environ) as job:
        assert job.await_told("total", ranks=[0, 1]) == [2, 2]
        os.kill(job.told(2)["pid"], signal.SIGCONT)
        [error] = job.await_told("error", ranks=[2])
        job.raise_flag("end")
    assert error.ranks == (0, 1), error
    assert error.text.startswith(("rank 2 was evicted", "rank 2 is cut off")), error
