"""One-sided windows of the backend malt, on one host and over TCP."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks

torch = import_torch()

if not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
    pytest.skip("windows need a newer PyTorch", allow_module_level=True)

pytestmark = pytest.mark.xdist_group("torch-backend")

START = """
from types import SimpleNamespace
join()
group = dist.group.WORLD
HAS_ATTR = hasattr(dist.distributed_c10d, "Window")
assert group.supports_window
after, before = (rank + 1) % size, (rank - 1) % size

def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert isinstance(error, RuntimeError) and isinstance(error, malt.Error), repr(error)
        return str(error)
    return None
"""

# After PyTorch's own tests of windows (test_c10d_window.py), which need GPUs.
RING = (
    START
    + """
if HAS_ATTR:
    assert dist._supports_window() and dist.get_backend_impl(device=torch.device("cpu")) is group
wrong = []
for count, dtype in ((1, torch.float64), (4, torch.float32), (1024, torch.int32),
                     (64 * 1024, torch.int8), (100_003, torch.bfloat16), (7, torch.bool),
                     (33, torch.complex64), (5, torch.float8_e5m2), (600_000, torch.float32)):
    for is_async in (False, True):
        own = torch.ones(count * size, dtype=torch.float32).to(dtype)
        early = own.view(size, count)
        if is_async:
            window = group.new_window(own)
        else:
            window = group.new_window()
            window.tensor_register(own)
        for number in range(4):
            given = torch.full((count,), (rank + number) % 2, dtype=torch.float32).to(dtype)
            work = window.put(given, after, after * count, is_async)
            work.wait()
            given.view(torch.uint8).fill_(255)           # the put has taken its values
            work = window.signal(after, is_async)
            work.wait()
            work = window.wait_signal(before, is_async)
            work.wait()
            assert work.is_completed() and work.is_success()
            expected = torch.full((count,), (before + number) % 2, dtype=torch.float32).to(dtype)
            mapped = window.map_remote_tensor(rank)
            for found in (mapped.view(size, count)[rank], early[rank], own.view(size, count)[rank]):
                if not torch.equal(found.view(torch.uint8), expected.view(torch.uint8)):
                    wrong.append((count, dtype, is_async, number, found[:3], expected[:3]))
            window.signal(before)                        # it may write the next values
            window.wait_signal(after)
        window.tensor_deregister()
        if not torch.equal(early.flatten().view(torch.uint8), own.view(torch.uint8)):
            wrong.append(("view", count, dtype))
tell(wrong=wrong)
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [1, 3])
def test_windows_have_the_tensor_that_was_put_before_a_signal(
    tmp_path: Path, size: int, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_TRANSPORT", transport)
    assert run_ranks(tmp_path, size, RING).each("wrong") == [[]] * size


UNLIKE = (
    START
    + """
# Rank 0 has a part of a larger tensor, rank 1 a matrix of integers, rank 2 nothing.
whole = torch.arange(30.0)
tensors = [whole[10:16].view(2, 3), torch.zeros((3, 4), dtype=torch.int64), torch.empty((0, 2))]
window = group.new_window(tensors[rank])
window.put(torch.full((2,), 50.0 + rank), 0, 2 * rank)
window.put(torch.tensor([rank, rank]), 1, 2 * rank)
window.put(torch.empty(0), 2, 0)
for to in range(size):
    window.signal(to)
for source in range(size):
    window.wait_signal(source)
if rank == 0:
    tell(own=whole.tolist())
elif rank == 1:
    tell(own=tensors[1].flatten().tolist())
else:
    tell(own=[])
shapes = []
for other in range(size):
    if window._made.is_mapped(other):
        mapped = window.map_remote_tensor(other)
        shapes.append((tuple(mapped.shape), mapped.dtype))
    else:
        text = error_of(window.map_remote_tensor, other)
        assert f"rank {other} is on another host" in text, text
    if HAS_ATTR:
        access = window.get_attr(other).access_type.name
        assert access == ("UNIFIED" if window._made.is_mapped(other) else "SEPARATE"), access
tell(shapes=shapes)
dist.barrier()
if rank == 2 and window._made.is_mapped(0):
    window.map_remote_tensor(0)[1, 2] = -1.0             # in place
dist.barrier()
tell(last=whole[15].item())

refused = {}
for name, arguments in {
    "dtype": (torch.zeros(2, dtype=torch.int32), 0, 0),
    "length": (torch.zeros(4), 0, 3),
    "offset": (torch.zeros(2), 0, -1),
    "beyond": (torch.zeros(1), 0, 2**63 - 1),
    "empty": (torch.zeros(1), 2, 0),
    "rank": (torch.zeros(2), 3, 0),
    "negative rank": (torch.zeros(2), -1, 0),
}.items():
    refused[name] = error_of(window.put, *arguments)
tell(refused=refused)
for given, text in ((([1.0], 0, 0), "list"), ((None, 0, 0), "NoneType"),
                    ((torch.ones(1), "0", 0), "'0'"), ((torch.ones(1), 0, 0.5), "0.5")):
    assert text in error_of(window.put, *given), given
assert "3 ranks" in error_of(window.signal, 3)
assert "3 ranks" in error_of(window.wait_signal, -1)
window.tensor_deregister()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_each_rank_may_register_another_tensor(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_TRANSPORT", transport)
    ranks = run_ranks(tmp_path, 3, UNLIKE)
    own = ranks.each("own")
    assert own[0] == [*range(10), 50, 50, 51, 51, 52, 52, *range(16, 30)]
    assert own[1] == [0, 0, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0]
    shapes = [((2, 3), torch.float32), ((3, 4), torch.int64), ((0, 2), torch.float32)]
    is_mapped = transport == "shm"
    assert ranks.each("shapes") == ([shapes] * 3 if is_mapped else [[each] for each in shapes])
    assert ranks.each("last") == [-1.0 if is_mapped else 52.0, 15.0, 15.0]
    for refused in ranks.each("refused"):
        assert "torch.int32, the window of rank 0 of torch.float32" in refused["dtype"]
        for name in ("length", "offset", "beyond"):
            assert "exceeds the window size of rank 0, 6 elements" in refused[name]
        assert "exceeds the window size of rank 2, 0 elements" in refused["empty"]
        assert "3 ranks" in refused["rank"]
        assert "3 ranks" in refused["negative rank"]


REFUSED = (
    START
    + """
import numpy
window = group.new_window()
texts = {}
for name, call in {
    "put": lambda: window.put(torch.ones(1), 0, 0),
    "signal": lambda: window.signal(0),
    "wait": lambda: window.wait_signal(0),
    "map": lambda: window.map_remote_tensor(0),
    "attr": lambda: window.get_attr(0),
    "deregister": window.tensor_deregister,
}.items():
    assert "not registered" in error_of(call), name

def wrong_ones():
    taken = torch.ones(4)
    other = group.new_window(taken)
    yield "another window", lambda: taken
    yield "not list", lambda: [1.0]
    yield "meta", lambda: torch.ones(4, device="meta")
    yield "sparse", lambda: torch.ones(4).to_sparse()
    yield "not contiguous", lambda: torch.ones((4, 4)).t()
    yield "conjugates", lambda: torch.ones(4, dtype=torch.complex64).conj()
    yield "not contiguous", lambda: torch.ones(1).expand(4)
    yield "clone", lambda: torch.from_numpy(numpy.ones(4))
    yield "clone", lambda: torch.ones(4).share_memory_()
    yield "strided", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield "dimensions", lambda: torch.ones((1,) * 40)
    other.tensor_deregister()

wrong = []
for text, make in wrong_ones():
    # One rank gives it, the others a good tensor: all refuse, and the group goes on.
    for giver in range(size):
        found = error_of(window.tensor_register, make() if rank == giver else torch.ones(4))
        if found is None or (rank == giver and text not in found):
            wrong.append((text, giver, found))
        one = torch.ones(1)
        dist.all_reduce(one)
        assert one.item() == size
own = torch.nn.Parameter(torch.zeros(4))                 # a leaf that requires grad
window.tensor_register(own)
if "double registration" not in error_of(window.tensor_register, torch.ones(4)):
    wrong.append("double")
window.put(torch.ones(4).requires_grad_(), after, 0)
window.signal(after)
window.wait_signal(before)
assert own.tolist() == [1.0] * 4 and own.requires_grad and own.grad is None
(own.sum() * 2).backward()
assert own.grad.tolist() == [2.0] * 4
window.signal(before)
window.wait_signal(after)
window.put(torch.ones((2, 4)).t()[:, 0] * 3, after, 0)   # strides of its own
window.put(torch.full((2,), 4.0)._neg_view(), after, 2)
window.signal(after)
window.wait_signal(before)
assert own.tolist() == [3.0, 3.0, -4.0, -4.0]

# The window's tensor is registered again, and another one too.
window.tensor_deregister()
window.tensor_register(own)
second = group.new_window(torch.zeros(1))
second.put(torch.ones(1), after, 0)
second.signal(after)
second.wait_signal(before)
second.tensor_deregister()
if "not registered" not in error_of(second.tensor_deregister):
    wrong.append("deregistered twice")

# Arrays that show the tensor outlive its windows, and those that did before show what was then.
large = torch.ones(1_000_000)
before_ = torch.from_dlpack(large)
third = group.new_window(large)
array = large.numpy()
third.put(torch.full((4,), 2.0), after, 0)
third.signal(after)
third.wait_signal(before)
third.tensor_deregister()
third.tensor_register(large)
third.put(torch.full((4,), 3.0), after, 4)
third.tensor_deregister()
assert array[:9].tolist() == large[:9].tolist() == [2.0] * 4 + [3.0] * 4 + [1.0]
assert before_.sum().item() == 1_000_000
kept = group.new_window(torch.ones(1_000_000))           # held by the process group alone
shown = kept.map_remote_tensor(after).numpy()
del kept, large, third

# Memory that moves behind the window's back
for move in (lambda: own.data.share_memory_(), lambda: own.set_(torch.zeros(4))):
    move()
    for call in (lambda: window.put(torch.ones(1), rank, 0), lambda: window.signal(rank)):
        if "has moved" not in (error_of(call) or ""):
            wrong.append("moved")
    window.tensor_deregister()
    own = torch.zeros(4)
    window.tensor_register(own)
tell(wrong=wrong)
dist.destroy_process_group()
assert shown.sum() == 1_000_000 and array.sum() == 1_000_012
for call in (lambda: window.put(torch.ones(1), rank, 0), lambda: window.signal(rank),
             lambda: window.wait_signal(rank)):
    assert error_of(call)
"""
)


def test_wrong_tensors_and_calls_are_refused_on_all_ranks(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, 2, REFUSED).each("wrong") == [[]] * 2


DEATHS = (
    START
    + """
# In a sub-group, whose ranks 0 and 1 are 0 and 2 of the job: errors name those.
pair = dist.new_group([0, 2], timeout=timedelta(seconds=30))
if rank != 1:
    window = pair.new_window(torch.zeros(1000))
    mine = dist.get_group_rank(pair, rank)
    start = time.monotonic()
    options = torch._C._distributed_c10d.WaitSignalOptions() if HAS_ATTR else SimpleNamespace()
    options.timeout = timedelta(seconds=0.3)
    for is_async in (False, True):
        try:
            window.wait_signal(1 - mine, is_async, options).wait()
            raise SystemExit(5)
        except RuntimeError as error:
            assert isinstance(error, malt.TimeoutError) and error.ranks == (2 - rank,), error
    took = time.monotonic() - start
    assert 0.6 <= took < 5, took
    dist.barrier(pair)
    window.signal(1 - mine)
    window.wait_signal(1 - mine)
dist.barrier()
if rank == 2:
    window.put(torch.full((1000,), 8.0), 0, 0)
    window.signal(0)
    window.wait_signal(0)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    window.wait_signal(1)
    window.signal(1)
    start = time.monotonic()
    for call in (lambda: window.wait_signal(1), lambda: window.wait_signal(1, True).wait(),
                 lambda: window.put(torch.ones(1), 1, 0), lambda: window.signal(1)):
        try:
            call()
            raise SystemExit(6)
        except RuntimeError as error:
            assert isinstance(error, malt.PeerError) and error.ranks == (2,), error
            assert "rank 2" in str(error), error
    tell(seconds=time.monotonic() - start, own=window.map_remote_tensor(0).sum().item())
    window.close()
"""
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_time_outs_and_deaths_are_named(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_TRANSPORT", transport)
    ranks = run_ranks(tmp_path, 3, DEATHS, codes={0, -9})
    assert ranks.codes == [0, 0, -9], ranks.output
    assert ranks.told[0]["own"] == 8000.0
    assert ranks.told[0]["seconds"] < 8


# Alarms come at any instruction: each call that one has ended is made again.
INTERRUPTED = (
    START
    + """
import random
class Alarm(Exception):
    pass
is_armed = False
def ring(*_):
    if is_armed:
        raise Alarm
signal.signal(signal.SIGALRM, ring)
seed = random.Random(rank)
own = torch.zeros(1000, dtype=torch.int64)
window = group.new_window(own)
alarms = 0

def again(call):
    global alarms, is_armed
    is_done = False
    while not is_done:
        try:
            is_armed = True
            signal.setitimer(signal.ITIMER_REAL, seed.choice((2e-6, 1e-5, 3e-5, 1e-4, 1e-3)))
            is_done = call() is not None         # no handler runs between the two steps
        except Alarm:
            alarms += 1
        is_armed = False

wrong = 0
for number in range(1, 301):
    given = torch.full((1000,), number)
    again(lambda: window.put(given, after, 0))
    again(lambda: window.signal(after))
    again(lambda: window.wait_signal(before))
    wrong += not bool((own == number).all())
    again(lambda: window.signal(before))
    again(lambda: window.wait_signal(after))
tell(wrong=wrong, alarms=alarms)
window.tensor_deregister()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_exceptions_of_signal_handlers_lose_and_double_no_signal(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_TRANSPORT", transport)
    ranks = run_ranks(tmp_path, 2, INTERRUPTED)
    assert ranks.each("wrong") == [0, 0]
    assert min(ranks.each("alarms")) > 20


ASYNCHRONOUS = (
    START
    + """
window = group.new_window(torch.zeros(4))
if rank == 0:
    # Both wait; the second one's signal comes first, and only it lets rank 1 send the other.
    works = [window.wait_signal(1, True), window.wait_signal(2, True), window.wait_signal(2, True)]
    assert not any(work.is_completed() for work in works)
    works[1].wait()
    assert not works[0].is_completed()
    window.signal(1)
    works[0].wait()
    window.signal(2)
    works[2].wait()
    later = window.wait_signal(1, True)
    window.signal(1)
    assert later.get_future().wait() == []
elif rank == 1:
    window.wait_signal(0)
    window.signal(0)
    window.wait_signal(0)
    window.signal(0)
else:
    time.sleep(0.2)
    window.signal(0)
    window.wait_signal(0)
    window.signal(0)
dist.barrier()

# A wait behind an asynchronous one: it may be interrupted, and made again.
class Alarm(Exception):
    pass
def ring(*_):
    raise Alarm
signal.signal(signal.SIGALRM, ring)
if rank == 0:
    first = window.wait_signal(1, True)
    for wait in (lambda: window.wait_signal(1), lambda: window.wait_signal(2)):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begin = time.monotonic()
        try:
            wait()
            raise SystemExit(7)
        except Alarm:
            assert time.monotonic() - begin < 2
    assert not first.is_completed()
    window.signal(1)
    window.wait_signal(1)
    assert first.is_completed()
elif rank == 1:
    window.wait_signal(0)
    window.signal(0)
    window.signal(0)
dist.barrier()

# A handler's call inside a wait: an error where it would wait for itself.
if rank == 0:
    heard = []
    def ring(*_):
        try:
            window.wait_signal(2)
        except malt.ConfigError as error:
            heard.append(str(error))
        window.put(torch.ones(1), 0, 0)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    window.wait_signal(1)
    assert heard and "signal handler" in heard[0], heard
elif rank == 1:
    time.sleep(0.8)
    window.signal(0)
dist.barrier()
tell(done=True)
dist.destroy_process_group()                             # with the window still registered
"""
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_asynchronous_waits_end_in_any_order(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_TRANSPORT", transport)
    assert run_ranks(tmp_path, 3, ASYNCHRONOUS).each("done") == [True] * 3
