"""The backend malt when ranks die: errors that name them, and training that goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks

import malt

torch = import_torch()
from malt.torch._backend.errors import translation  # noqa: E402 - it needs torch

pytestmark = pytest.mark.xdist_group("torch-backend")

DEATH = """
join()
group = dist.new_group([1, 2])
small, large = torch.ones(10), torch.ones(1_000_000)
dist.all_reduce(large)
dist.send(small, 1 - rank) if rank < 2 and rank == 0 else None
dist.recv(small, 0) if rank == 1 else None
dist.barrier()
if rank == 2:
    time.sleep(0.5)
    (here / "death").write_text(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
calls = {"in a sub-group": lambda: dist.all_reduce(small, group=group)} if rank == 1 else {}
calls |= {
    "barrier": lambda: dist.barrier(),
    "all_reduce": lambda: dist.all_reduce(small),
    "large all_reduce": lambda: dist.all_reduce(large),
    "broadcast": lambda: dist.broadcast(small, 0),
    "all_gather": lambda: dist.all_gather([torch.empty(10) for _ in range(3)], small),
    "async": lambda: dist.all_reduce(large, async_op=True).wait(),
    "recv": lambda: dist.recv(small, 2),
    "MAX": lambda: dist.all_reduce(small, dist.ReduceOp.MAX),
    "monitored_barrier": lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=20)),
}
found = {}
for name, call in calls.items():
    try:
        call()
        found[name] = None
    except RuntimeError as error:
        late = time.time() - float((here / "death").read_text())
        found[name] = (type(error).__name__, str(error), error.ranks, late)
tell(found=found)
"""


def test_calls_with_a_dead_rank_name_it_at_once(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 3, DEATH, codes={0, -signal.SIGKILL})
    assert ranks.codes == [0, 0, -signal.SIGKILL]
    for told in ranks.told[:2]:
        for name, error in told["found"].items():
            assert error is not None, name
            kind, text, dead, _ = error
            assert (kind, dead) == ("PeerError", (2,)), text  # ranks of the job, not of the group
            assert "rank 2 died or left" in text
    # Seconds after the death, on a machine that may be busy. No time limit of torch's is so short.
    assert min(told["found"]["barrier"][3] for told in ranks.told[:2]) < 2


# Rank 1 comes after rank 0's time limit. Each then makes the call again and again.
LATE = """
join(timeout=5 if rank == 0 else 30)
call = {
    "broadcast": lambda value: dist.broadcast(value, 0),
    "all_gather": lambda value: dist.all_gather([torch.empty_like(value) for _ in range(2)], value),
    "all_reduce": dist.all_reduce,
    "barrier": lambda value: dist.barrier(),
    "send": lambda value: dist.send(value, 1) if rank == 0 else dist.recv(value, 0),
}[CALL]
if CALL == "send":
    call(torch.ones(1))
dist.barrier()
if rank == 1:
    while not (here / "late").exists():
        time.sleep(0.01)
found = []
for k in range(3):
    value = torch.full((1 << 20,), k + 1.0 if rank == 0 else 0.0)
    try:
        call(value)
        found.append(value.unique().tolist())
    except RuntimeError as error:
        found.append((type(error).__name__, str(error)))
    (here / "late").touch()
tell(found=found)
"""


@pytest.mark.parametrize(
    "call",
    [
        *(pytest.param(call, marks=pytest.mark.long) for call in ("broadcast", "all_gather")),
        "all_reduce",
        "barrier",
    ],
)
def test_after_a_time_out_no_call_meets_an_earlier_one(tmp_path: Path, call: str) -> None:
    late, other = (told["found"] for told in run_ranks(tmp_path, 2, f"CALL = {call!r}{LATE}").told)
    assert late[0][0] == "TimeoutError"
    for error, text in late[1:]:
        assert error == "PeerError"
        assert f"an earlier {call} did not come to its end on this rank" in text
    for error, text in other[call == "barrier" :]:  # to its first barrier rank 0 had come
        assert error == "PeerError"
        assert "rank 0 died or left" in text


def test_nothing_arrives_of_a_send_that_timed_out(tmp_path: Path) -> None:
    sent, received = (told["found"] for told in run_ranks(tmp_path, 2, "CALL = 'send'" + LATE).told)
    assert sent[0][0] == "TimeoutError"
    assert [sent[1:], received[:2]] == [[[2.0], [3.0]], [[2.0], [3.0]]]


ROOT_DIES = """
import threading
join()
malt.torch.keep_going()
dist.barrier()
value = torch.full((8 << 20,), float(rank == 0))
if rank == 0:
    threading.Timer(0.001 * ROUND, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        dist.broadcast(value, 0)
dist.broadcast(value, 0)
dist.broadcast(value, 0)
after = torch.ones(1)
dist.all_reduce(after, dist.ReduceOp.AVG)
tell(found=value.unique().tolist(), after=after.item())
"""


@pytest.mark.parametrize("after", [1, 5, 20])
def test_a_broadcast_whose_root_dies_is_whole_on_all_or_none(tmp_path: Path, after: int) -> None:
    ranks = run_ranks(tmp_path, 3, f"ROUND = {after}{ROOT_DIES}", codes={0, -signal.SIGKILL})
    one, other = ranks.told[1:]
    assert one == other
    assert one["found"] in ([0.0], [1.0])
    assert one["after"] == 1.0


GOING_ON = """
from torch.nn.parallel import DistributedDataParallel
join()
malt.torch.keep_going()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 300), nn.BatchNorm1d(300),
                                              nn.Linear(300, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
x = torch.randn(64, 20)
y = x @ torch.arange(20.0).unsqueeze(1) / 20
losses = []
for step in range(60):
    if rank == 1 and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 19:
        dist.barrier()
sums = torch.full((4,), float(rank + 1))
dist.all_reduce(sums)
means = torch.full((4,), float(rank + 1))
dist.all_reduce(means, dist.ReduceOp.AVG)
counts = torch.full((4,), rank + 1)
dist.all_reduce(counts)
half = torch.tensor([1.0009765625 if rank else 1.5], dtype=torch.float16)
dist.all_reduce(half)
tell(half=half.item())
tell(losses=losses, weights=[p.detach() for p in model.parameters()],
     sums=sums.tolist(), means=means.tolist(), counts=counts.tolist())
"""


def test_training_goes_on_with_the_mean_of_the_living(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 3, GOING_ON, codes={0, -signal.SIGKILL})
    assert ranks.codes == [0, -signal.SIGKILL, 0]
    first, _, last = ranks.told
    assert all(torch.equal(a, b) for a, b in zip(first["weights"], last["weights"], strict=True))
    assert first["losses"][-1] < first["losses"][19] < first["losses"][0]
    for told in (first, last):
        assert told["means"] == [2.0] * 4  # of 1 and 3
        assert told["sums"] == [6.0] * 4  # three times that
        assert told["counts"] == [4] * 4  # of integers the sum
        assert told["half"] == 3.751953125  # rounded once


BETWEEN = """
import random, threading
join()
malt.torch.keep_going()
dist.barrier()
if rank == 2:
    after = random.Random(SEED).uniform(0, 0.05)
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
ends = []
while ends.count("dead") < 4:
    try:
        values = torch.full((300_000,), float(rank))  # more than two slots
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        ends.append(str(values.unique().tolist()))
    except RuntimeError as error:
        ends.append("dead")
        assert error.ranks == (2,), error
    given = torch.full((10,), 1000.0 * rank + len(ends))
    dist.broadcast(given, 0)
    ends.append(str((given - len(ends)).unique().tolist()))
tell(ends=ends)
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_death_at_any_moment_ends_a_call_alike_on_those_that_go_on(
    tmp_path: Path, seed: int
) -> None:
    """Calls after it meet the same calls of the others."""
    ranks = run_ranks(tmp_path, 3, f"SEED = {seed}{BETWEEN}", codes={0, -signal.SIGKILL})
    first, second = (told["ends"] for told in ranks.told[:2])
    assert first == second
    assert set(first[1::2]) == {"[0.0]"}
    assert set(first[::2]) <= {"[2.0]", "dead"}


STOPPING = """
from torch.nn.parallel import DistributedDataParallel
join()
model = DistributedDataParallel(nn.Linear(200, 300))
for step in range(100):
    if rank == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        model(torch.ones(4, 200)).sum().backward()
    except RuntimeError as error:
        tell(step=step, text=str(error))
        break
"""


EVICTED = """
import os, signal, subprocess
os.environ["MALT_SILENCE"] = "1"
join()
dist.barrier()
if rank == 2:
    subprocess.Popen(["sh", "-c", f"sleep 2.5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        tell(error=str(error), ranks=error.ranks)
    (here / "told").touch()
while not (here / "told").exists():
    time.sleep(0.01)
"""


def test_a_rank_that_was_evicted_does_not_name_the_others(tmp_path: Path) -> None:
    told = run_ranks(tmp_path, 3, EVICTED).told[2]
    assert "rank 2 was evicted from the job" in told["error"]
    assert told["ranks"] == (0, 1)  # which it has lost


def test_without_keep_going_a_death_ends_the_training_with_its_rank(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, STOPPING, codes={0, -signal.SIGKILL})
    assert ranks.codes == [0, -signal.SIGKILL]
    assert ranks.told[0]["step"] in (5, 6)
    assert "all_reduce: rank 1 died or left" in ranks.told[0]["text"]


# Rank 1 sends what tag 2 and tag 3 wait for, and receives nothing that is large.
OWN_LIMITS = """
join(timeout=4)
x, large = torch.zeros(1), torch.ones(10**7)
if rank == 0:
    dist.recv(x, 1)
    dist.send(x, 1)
    start = time.monotonic()
    def ended(call):
        try:
            call.wait()
            return None, time.monotonic() - start
        except RuntimeError as error:
            return str(error), time.monotonic() - start
    missing, early = dist.irecv(x, 1, tag=1), dist.irecv(x, 1, tag=3)
    time.sleep(2)
    later = dist.irecv(x, 1, tag=2)
    (here / "early").touch()
    tell(early=ended(early), missing=ended(missing))
    (here / "later").touch()
    tell(later=ended(later))
    start = time.monotonic()
    tell(sent=[ended(call) for call in [dist.isend(large, 1) for _ in range(3)]])
    (here / "end").touch()
else:
    dist.send(x, 0)
    dist.recv(x, 0)
    for name, tag in (("early", 3), ("later", 2), ("end", None)):
        while not (here / name).exists():
            time.sleep(0.01)
        if tag is not None:
            dist.send(x, 0, tag=tag)
"""


def test_each_message_has_a_time_limit_of_its_own(tmp_path: Path) -> None:
    told = run_ranks(tmp_path, 2, OWN_LIMITS).told[0]
    assert told["early"][0] is None
    error, seconds = told["missing"]
    assert "recv: Timed out waiting for rank 1" in error
    assert 4 <= seconds < 6  # the message of the other tag did not begin the limit anew
    assert told["later"][0] is None  # it was still to wait when the first one gave up
    for error, seconds in told["sent"]:
        assert "send: Timed out waiting for rank 1" in error
        assert seconds < 6  # not one limit after the other


GOSSIP = """
join()
group = dist.new_group([1, 2], timeout=timedelta(seconds=1))
found = []
if rank == 1:
    state = malt.torch.Gossip(group=group)
    for _ in range(2):
        try:
            state.exchange(0, torch.ones(10))
        except RuntimeError as error:
            found.append((type(error).__name__, str(error), error.ranks))
tell(found=found)
dist.barrier()
"""


def test_gossip_names_the_rank_of_the_job_that_did_not_come_to_its_first_step(
    tmp_path: Path,
) -> None:
    late, after = run_ranks(tmp_path, 3, GOSSIP).told[1]["found"]
    assert (late[0], late[2]) == ("TimeoutError", (2,))
    assert "new_group(timeout=)" in late[1]
    assert after[0] == "PeerError"
    assert "an earlier gossip did not come to its end" in after[1]


def test_an_evicted_rank_is_told_so_by_its_rank_in_the_job() -> None:
    """`ranks` has the others."""
    own = malt.PeerError("rank 1 was evicted from the job: the others received no heartbeat", [0])
    told = translation("all_reduce", (3, 5), own)
    assert str(told).startswith("all_reduce: rank 5 was evicted from the job")
    assert told.ranks == (3,)
