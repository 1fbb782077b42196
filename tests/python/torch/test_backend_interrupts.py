"""The backend malt when an exception of a signal handler ends a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks

torch = import_torch()

pytestmark = pytest.mark.xdist_group("torch-backend")

# Rank 1's first call on a group is interrupted, and made again. It is not if torch had waited for
# its end: that is as an interrupt behind the call. What the ranks give tells the calls apart.
CALLS = """
import contextlib
from malt.torch._backend.process_group import core_of
from interrupts import Moments
join(timeout=20)
traced = (*(os.path.dirname(each.__file__) for each in (malt, dist)), contextlib.__file__)
dist.all_reduce(torch.ones(1))
found, over, at = [], torch.zeros(1), 1
while not over:
    group = dist.new_group([0, 1])
    moments = Moments(at, traced=traced)
    sums = {}
    for turn in (1, 2):
        given = 10.0 ** turn * (rank + 1)
        x = torch.tensor([given], dtype=dtype)
        def call():
            dist.all_reduce(x, group=group)
        try:
            try:
                moments.run(call) if rank == 1 and turn == 1 else call()
            except KeyboardInterrupt:
                if x.item() == given or core_of(group)._untaken: call()
            sums[turn] = x.item()
        except RuntimeError as error:
            sums[turn] = str(error)
    found.append((moments.where, sums))
    over = torch.tensor([float(rank == 1 and not moments.where)])
    dist.all_reduce(over)
    dist.destroy_process_group(group)
    at += 1
tell(found=found)
"""


@pytest.mark.parametrize(("dtype", "moments"), [("float32", 30), ("int16", 40)])
def test_a_repeated_call_is_never_paired_with_a_later_one(
    tmp_path: Path, dtype: str, moments: int
) -> None:
    """A sum of float32 takes a shorter way, `sum_at_once`."""
    ranks = run_ranks(tmp_path, 2, f"dtype = torch.{dtype}\n{CALLS}")
    left = 0
    for (_, there), (where, here) in zip(*ranks.each("found"), strict=True):
        for sums in (there, here):
            for turn, got in sums.items():
                assert got == 3 * 10.0**turn or "did not come" in got or "left" in got, (where, got)
        left += isinstance(here[1], str)
    assert len(ranks.each("found")[0]) > moments
    assert left > 5, "an interrupt behind the exchange ends the group on this rank"


# Rank 1's first call on a group is interrupted, and made again, as above.
MESSAGES = """
import contextlib
from malt.torch._backend import work
from malt.torch._backend.process_group import core_of
from interrupts import Moments
join(timeout=20)
traced = (*(os.path.dirname(each.__file__) for each in (malt, dist)), contextlib.__file__)
taken = []
forget = work.Blocking._forget
work.Blocking._forget = lambda self: (taken.append(True), forget(self))
await_end = work.Call.await_end

def waits_now():
    return here / f"waits-{at}"

def wait_in_sight(self, limit=None):
    if is_begun:
        waits_now().touch()
    await_end(self, limit)

if KIND == "recv later":
    work.Call.await_end = wait_in_sight

def message(number):
    return torch.tensor([float(number)])

def received(into=None):
    into = message(0) if into is None else into
    try:
        dist.recv(into, 1 - rank, group)
        return into.item()
    except ValueError as error:
        return str(error)

found, kind, is_begun = [], KIND, False
over, at = torch.zeros(1), 1
while not over:
    group = dist.new_group([0, 1])
    moments, given, errors, got = Moments(at, traced=traced), message(0), [], []
    is_begun = False
    source = 1 if "send" in kind else 0
    if not kind.startswith("first"):
        dist.send(message(0), 1 - rank, group) if rank == source else received()
    if rank == 0 and source == 0:
        while kind == "recv later" and not waits_now().exists():
            time.sleep(0.001)
        for number in (1, 2):
            dist.send(message(number), 1, group)
    if kind == "recv":
        dist.barrier()
    if rank == 1:
        call = (lambda: dist.send(message(1), 0, group)) if source else (lambda: received(given))
        taken.clear()
        is_begun = True
        try:
            moments.run(call)
            taken.append(True)
        except KeyboardInterrupt:
            if source and not taken:
                try:
                    call()
                except ValueError as error:
                    errors.append(str(error))
        if source:
            for number in (2, 3):
                dist.send(message(number), 0, group)
        else:
            got = [given.item()] if taken else []
            while not got or got[-1] != 2:
                got.append(received())
    elif source:
        got = [received() for _ in range(3)]
    found.append((moments.where, got, given.item(), errors))
    over = torch.tensor([float(rank == 1 and not moments.where)])
    dist.all_reduce(over)
    dist.destroy_process_group(group)
    at += 1
tell(found=found)
"""

SAID = "this call has done nothing, as an exception has ended the {} before it"


@pytest.mark.parametrize("kind", ["first send", "send"])
def test_a_repeated_send_arrives_once(tmp_path: Path, kind: str) -> None:
    ranks = run_ranks(tmp_path, 2, f"KIND = {kind!r}{MESSAGES}")
    there, here = ranks.each("found")
    said = 0
    for (_, got, *_), (where, _, _, errors) in zip(there, here, strict=True):
        assert got == [1, 2, 3], where
        assert all(SAID.format("send") in error for error in errors), (where, errors)
        said += len(errors)
    assert len(here) > 40
    assert said > 0, "an interrupt behind the sending is told"


@pytest.mark.parametrize(
    "kind", ["first recv", "recv", pytest.param("recv later", marks=pytest.mark.long)]
)
def test_a_repeated_recv_gets_the_message_or_says_that_it_has_come(
    tmp_path: Path, kind: str
) -> None:
    ranks = run_ranks(tmp_path, 2, f"KIND = {kind!r}{MESSAGES}")
    said = 0
    for where, got, given, _ in ranks.each("found")[1]:
        if got != [1, 2]:
            assert SAID.format("recv") in str(got[0]), (where, got)
            assert (given, got[1:]) == (1, [2]), where
            said += 1
    assert len(ranks.each("found")[1]) > 40
    assert said > 0, "an interrupt behind the receiving is told"


WAITS = """
join(timeout=20)
class Alarm(Exception):
    pass
def ring(*_):
    raise Alarm
signal.signal(signal.SIGALRM, ring)
def rings(call):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        call()
    except Alarm:
        return True
large = torch.ones(2 << 20)  # more than the slots have
got, x, early, rows = [], torch.zeros(1), torch.zeros(1), torch.zeros(3)
if rank == 1:
    pending = dist.irecv(early, 0)  # whose end nobody waits for yet
    got += [rings(lambda: dist.recv(x, 0)), rings(lambda: dist.recv(x))]
    dist.barrier()
    time.sleep(0.3)
    for n in range(2):
        dist.recv(rows[n:n + 1], 0)
    pending.wait()
    dist.recv(rows[2:])
    got += [early.item(), x.item(), *rows.tolist()]
    got += [rings(lambda: dist.send(x, 0))]  # there is no link yet
    dist.barrier()
    dist.send(x + 5, 0)
    got += [rings(lambda: dist.send(large, 0))]
    try:
        dist.send(large, 0)
    except ValueError as error:
        got += [str(error)]
    dist.barrier()
    dist.send(2 * large, 0)
else:
    dist.barrier()
    for n in range(4):
        dist.send(torch.tensor([n + 1.0]), 1)
    dist.barrier()
    dist.recv(x, 1)
    got += [x.item()]
    dist.barrier()
    for n in range(2):
        dist.recv(large, 1)
        got += large.unique().tolist()
tell(got=got)
"""


def test_a_wait_for_a_message_that_an_alarm_ends(tmp_path: Path) -> None:
    """The messages that come later go to those that wait for them then."""
    received, sent = reversed(run_ranks(tmp_path, 2, WAITS).each("got"))
    assert received[:7] == [True, True, 1, 0, 2, 3, 4]
    assert received[7:9] == [True, True]
    assert SAID.format("send") in received[9]
    assert sent == [5, 1, 2]
