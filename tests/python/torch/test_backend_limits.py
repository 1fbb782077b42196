"""The backend malt's limits: of the time of each call, and of the messages that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_ranks import Ranks, import_torch, run_ranks

torch = import_torch()

pytestmark = pytest.mark.xdist_group("torch-backend")

LIMIT = 2.0

# All calls are made at once, each on a group of its own. Rank 0 waits for them in turn, so each has
# ended by the time that it tells.
BEGINNING = f"""
LIMIT = {LIMIT}
os.environ["MALT_SILENCE"] = "60"  # a stopped rank does not count as dead
from malt.torch._backend import members, reducers
from malt.torch._backend.process_group import core_of

def groups_of(calls):
    return {{name: dist.new_group([0, 1], timeout=timedelta(seconds=LIMIT)) for name in calls}}

def begin(calls, groups):
    return {{name: call(groups[name]) for name, call in calls.items()}}

def ends(works, began):
    found = {{}}
    for name, work in works.items():
        try:
            work.wait()
            error = None
        except RuntimeError as raised:
            error = type(raised).__name__, str(raised), raised.ranks
        found[name] = error, time.monotonic() - began
    return found

COUNT = 3 << 20  # of float32: 12 MB, 24 slots
SUM, MAX, PRODUCT = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT
def reduced(op, dtype=torch.float32):
    return lambda group: dist.all_reduce(torch.ones(COUNT, dtype=dtype), op, group, async_op=True)
def sparse():
    return torch.sparse_coo_tensor([[1, 2]], [1.0, 2.0], (4,))
def several(group):
    opts = dist.AllreduceCoalescedOptions()
    opts.reduceOp = MAX
    if hasattr(opts, "asyncOp"):
        opts.asyncOp = True
    return group.allreduce_coalesced([torch.ones(10) for _ in range(5)], opts)
def parts():
    return [torch.ones(COUNT // 2) for _ in range(2)]
"""

# Rank 1 comes to each step of a call a little before the limit.
SLOW = (
    BEGINNING
    + """
join()
calls = {
    "MAX": reduced(MAX),
    "PRODUCT": reduced(PRODUCT),
    "SUM of int16": reduced(SUM, torch.int16),
    "reduce": lambda g: dist.reduce(torch.ones(COUNT), 0, op=MAX, group=g, async_op=True),
    "all_to_all": lambda g: dist.all_to_all(parts(), parts(), g, async_op=True),
    "sparse": lambda g: dist.all_reduce(sparse(), group=g, async_op=True),
    "several": several,
} if not GOES_ON else {
    "SUM": reduced(SUM),
    "broadcast": lambda g: dist.broadcast(torch.ones(COUNT), 0, g, async_op=True),
    "MAX": reduced(MAX),
}
malt.torch.keep_going(GOES_ON)
groups = groups_of([*calls, "send"])
def late(function):
    def call(*arguments, **options):
        time.sleep(0.9 * LIMIT)
        return function(*arguments, **options)
    return call
dist.barrier()
if rank == 1:
    members.Members.run = late(members.Members.run)
    class LateReducer(reducers.Reducer):
        __init__ = late(reducers.Reducer.__init__)
        allreduce = late(reducers.Reducer.allreduce)
    reducers.Reducer = LateReducer
began = time.monotonic()
works = begin(calls, groups)
if rank == 0:
    works["send"] = dist.isend(torch.ones(COUNT), 1, groups["send"])
    tell(found=ends(works, began))
else:  # makes the link, and takes nothing
    late(core_of(groups["send"]).mail._receiver(0)._end.link)(time.monotonic() + LIMIT)
while not (here / "told-0").exists():
    time.sleep(0.01)
"""
)

STOPPED = (
    BEGINNING
    + """
join()
calls = {
    "all_reduce": reduced(SUM),
    "MAX": reduced(MAX),
    "sparse": lambda g: dist.all_reduce(sparse(), group=g, async_op=True),
    "broadcast": lambda g: dist.broadcast(torch.ones(COUNT), 1, g, async_op=True),
    "barrier": lambda g: dist.barrier(g, async_op=True),
    "all_gather": lambda g: dist.all_gather(parts(), torch.ones(COUNT // 2), g, async_op=True),
    "all_to_all": lambda g: dist.all_to_all(parts(), parts(), g, async_op=True),
    "reduce_scatter": lambda g: dist.reduce_scatter(
        torch.ones(COUNT // 2), parts(), MAX, g, async_op=True
    ),
    "gather": lambda g: dist.gather(torch.ones(COUNT // 2), parts(), 0, g, async_op=True),
    "scatter": lambda g: dist.scatter(torch.ones(COUNT // 2), None, 1, g, async_op=True),
    "first send": lambda g: dist.isend(torch.ones(1), 1, g),
    "send": lambda g: dist.isend(torch.ones(COUNT), 1, g),
    "first recv": lambda g: dist.irecv(torch.ones(1), 1, g),
    "recv": lambda g: dist.irecv(torch.ones(1), 1, g),
    "recv from any": lambda g: dist.irecv(torch.ones(1), group=g),
}
groups = groups_of(calls)
one = torch.ones(1)
dist.send(one, 1, groups["send"]) if rank == 0 else dist.recv(one, 0, groups["send"])
dist.send(one, 0, groups["recv"]) if rank == 1 else dist.recv(one, 1, groups["recv"])
if rank == 1:
    (here / "pid").write_text(str(os.getpid()))
dist.barrier()
if rank == 0:
    stopped = int((here / "pid").read_text())
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    tell(found=ends(begin(calls, groups), began))
    os.kill(stopped, signal.SIGCONT)
while not (here / "told-0").exists():
    time.sleep(0.01)
"""
)


def check(ranks: Ranks, count: int) -> None:
    found: dict[str, Any] = ranks.told[0]["found"]
    assert len(found) == count
    for name, (error, seconds) in found.items():
        assert error is not None, f"{name} has ended well, after {seconds:.1f} s"
        kind, text, names = error
        assert kind == "TimeoutError", (name, text)
        assert names == (1,), (name, text)
        assert "Timed out waiting for rank 1" in text
        assert seconds < 1.6 * LIMIT, (name, seconds)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_call_of_several_steps_has_one_limit(tmp_path: Path, goes_on: bool) -> None:
    check(run_ranks(tmp_path, 2, f"GOES_ON = {goes_on}{SLOW}"), 4 if goes_on else 8)


def test_calls_with_a_stopped_rank_end_at_their_limit_and_name_it(tmp_path: Path) -> None:
    check(run_ranks(tmp_path, 2, STOPPED), 15)


# Rank 0 sends more with tag 1 than is kept, and then a message with tag 2.
KEPT = (
    f"""
LIMIT = {LIMIT}
"""
    """
import resource
join()
group = dist.new_group([0, 1], timeout=timedelta(seconds=30 if rank == 0 else LIMIT))
COUNT, LENGTH = 40, 1 << 20  # of 4 MB each
large = torch.empty(1 << 26, dtype=torch.uint8)
def kept():  # the most MB so far
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
if rank == 0:
    large[:] = 7
    works = [dist.isend(torch.full((LENGTH,), float(n)), 1, group, tag=1) for n in range(COUNT)]
    works.append(dist.isend(torch.ones(1), 1, group, tag=2))
    works.append(dist.isend(large, 1, group, tag=3))
    for work in works:
        work.wait()
else:
    large[:] = 0
    before, began = kept(), time.monotonic()
    x, rows = torch.zeros(1), torch.zeros(LENGTH)
    try:
        dist.recv(x, 0, group, tag=2)
    except ValueError as error:
        tell(said=str(error), seconds=time.monotonic() - began)
    try:
        dist.recv(x, None, group, tag=2)
    except ValueError as error:
        tell(of_any=str(error))
    tell(kept=kept() - before)
    found = []
    for n in range(COUNT):
        dist.recv(rows, 0, group, tag=1)
        found.append(rows.unique().tolist())
    dist.recv(x, 0, group, tag=2)
    before = kept()
    dist.recv(large, 0, group, tag=3)
    tell(found=found, x=x.item(), more=kept() - before, large=[large.min(), large.max()])
"""
)


def test_messages_that_nobody_receives_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    told = run_ranks(tmp_path, 2, KEPT).told[1]
    assert "recv: no message with tag 2 can be received yet: before it rank 0" in told["said"]
    assert "one of 4194304 bytes with tag 1" in told["said"]
    assert "fill the 64 MiB that are kept" in told["said"]
    assert told["of_any"] == told["said"]
    assert told["seconds"] < 1.6 * LIMIT
    assert told["kept"] < 90, "MB"
    assert told["found"] == [[float(n)] for n in range(40)]
    assert (told["x"], told["large"]) == (1, [7, 7])
    assert told["more"] < 20, "what is received goes straight to its tensor"
