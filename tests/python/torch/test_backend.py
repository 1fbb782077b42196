"""The backend malt: what each call gives, for all dtypes, in place, in lists and asynchronously."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import Ranks, import_torch, run_ranks, run_script, torchrun

import_torch()

from malt.torch._backend.versions import IS_OLD  # noqa: E402 - needs PyTorch

pytestmark = pytest.mark.xdist_group("torch-backend")

CALLS = """
join()
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
          torch.int16, torch.int32, torch.int64]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX,
       dist.ReduceOp.PRODUCT]
wrong = []

def check(what, found, expected):
    if found.shape != expected.shape or not torch.equal(found, expected.to(found.dtype)):
        wrong.append((what, found.flatten()[:4], expected.flatten()[:4]))

def values(of, count, dtype):
    return ((torch.arange(count) + of) % 3 + 1).to(dtype)

for dtype in DTYPES:
    # Below, at and above what is folded at once, what fits a slot, and what needs several.
    for count in (1, 5, 8192, 8193, 300_001):
        every = torch.stack([values(r, count, torch.float64) for r in range(size)])
        for op, expected in zip(OPS, (every.sum(0), every.mean(0), every.amin(0), every.amax(0),
                                      every.prod(0)), strict=True):
            if not dtype.is_floating_point:
                expected = expected.trunc()
            mine = values(rank, count, dtype)
            dist.all_reduce(mine, op)
            if dtype.is_floating_point and op == dist.ReduceOp.AVG:
                torch.testing.assert_close(mine, expected.to(dtype), rtol=1e-2, atol=1e-2)
            else:
                check(f"all_reduce {dtype} {count} {op}", mine, expected)
    every = torch.stack([values(r, 1000, dtype) for r in range(size)])
    mine = every[rank].clone()
    dist.broadcast(mine, 1)
    check(f"broadcast {dtype}", mine, every[1])
    outputs = [torch.empty(1000, dtype=dtype) for _ in range(size)]
    dist.all_gather(outputs, every[rank])
    check(f"all_gather {dtype}", torch.stack(outputs), every)
    whole = torch.empty(size, 1000, dtype=dtype)
    whole[rank] = every[rank]
    dist.all_gather_into_tensor(whole, whole[rank])      # in place
    check(f"all_gather_into_tensor {dtype}", whole, every)
    part = torch.empty(1000, dtype=dtype)
    dist.reduce_scatter_tensor(part, every.flatten().clone())
    check(f"reduce_scatter_tensor {dtype}", part, every[rank] * size)
    dist.reduce_scatter(part, [row.clone() for row in every])
    check(f"reduce_scatter {dtype}", part, every[rank] * size)

# Bitwise, on integers
for op, function in ((dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or),
                     (dist.ReduceOp.BXOR, torch.bitwise_xor)):
    mine = torch.tensor([rank + 5, rank])
    dist.all_reduce(mine, op)
    expected = torch.tensor([5, 0])
    for r in range(1, size):
        expected = function(expected, torch.tensor([r + 5, r]))
    check(f"{op}", mine, expected)

# An operation that the dtype lacks, in every call that has one: an error, and the group goes on
floats = torch.ones(2 * size)
for name, call in (
    ("all_reduce", lambda op: dist.all_reduce(floats[:2], op)),
    ("reduce", lambda op: dist.reduce(floats[:2], 0, op)),
    ("reduce_scatter", lambda op: dist.reduce_scatter_tensor(floats[:2], floats, op)),
):
    try:
        call(dist.ReduceOp.BAND)
    except malt.ConfigError as error:
        assert f"{name}: RedOpType.BAND of torch.float32" in str(error), error
    else:
        raise AssertionError(f"{name}: BAND of floats")

# A root that is no rank
for name, call in (
    ("broadcast", lambda: dist.broadcast(floats, size)),
    ("reduce", lambda: dist.reduce(floats, size)),
    ("scatter", lambda: dist.scatter(floats, None, size)),
    ("gather", lambda: dist.gather(floats, None, size)),
):
    try:
        call()
    except malt.ConfigError as error:
        assert f"{name}: the root is {size}; the group has the ranks 0 to {size - 1}" in str(error)
    else:
        raise AssertionError(f"{name}: a root that is no rank")

# With gaps in memory, without elements, complex, boolean and sparse
gaps = torch.full((6, 4), float(rank + 1))[:, ::2]
dist.all_reduce(gaps)
check("gaps", gaps, torch.full((6, 2), size * (size + 1) / 2))
dist.broadcast(gaps.t(), 0)
none = torch.empty(0)
dist.all_reduce(none)
dist.all_gather([torch.empty(0) for _ in range(size)], none)
pair = torch.tensor([complex(1, rank)])
dist.all_reduce(pair)
check("complex", pair, torch.tensor([complex(size, size * (size - 1) / 2)]))
flags = torch.tensor([rank == 0, False])
dist.all_reduce(flags, dist.ReduceOp.MAX)
check("boolean", flags, torch.tensor([True, False]))
sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 1.0], (size + 1,))
dist.all_reduce(sparse)
check("sparse", sparse.to_dense(), torch.tensor([1.0] * size + [size]))

# reduce, gather, scatter
mine = torch.tensor([rank + 1.0])
dist.reduce(mine, 2)
check("reduce", mine, torch.tensor([6.0 if rank == 2 else rank + 1.0]))
rows = [torch.empty(2) for _ in range(size)] if rank == 1 else None
dist.gather(torch.full((2,), float(rank)), rows, dst=1)
if rank == 1:
    check("gather", torch.stack(rows)[:, 0], torch.arange(size).float())
part = torch.empty(2)
parts = [torch.full((2,), float(r)) for r in range(size)] if rank == 2 else None
dist.scatter(part, parts, src=2)
check("scatter", part, torch.full((2,), float(rank)))

# all_to_all, of equal and of unequal parts
given = torch.arange(size * 2) + 100 * rank
taken = torch.empty_like(given)
dist.all_to_all_single(taken, given)
check("all_to_all_single", taken, torch.cat([torch.arange(2) + 2 * rank + 100 * r
                                             for r in range(size)]))
given = [torch.full((r + 1,), float(rank)) for r in range(size)]
taken = [torch.empty(rank + 1) for _ in range(size)]
dist.all_to_all(taken, given)
expected = torch.arange(size).float().unsqueeze(1).expand(-1, rank + 1)
check("all_to_all", torch.stack(taken), expected)
sizes = [r + 1 for r in range(size)]
taken = torch.empty(size * (rank + 1))
dist.all_to_all_single(taken, torch.cat(given), [rank + 1] * size, sizes)
check("unequal", taken, torch.arange(size).float().repeat_interleave(rank + 1))

# Asynchronously: works, futures, and the order of the calls
tensors = [torch.ones(n) for n in (3, 50_000, 3)]
works = [dist.all_reduce(t, async_op=True) for t in tensors]
futures = [work.get_future() for work in works]
dist.barrier()
assert all(work.is_completed() for work in works)
assert futures[1].wait()[0] is tensors[1] or torch.equal(futures[1].wait()[0], tensors[1])
check("async", torch.cat(tensors), torch.full((50_006,), float(size)))

# Coalesced
group = [torch.ones(2), torch.ones(3)]
with dist._coalescing_manager():
    for t in group:
        dist.all_reduce(t)
check("coalesced", torch.cat(group), torch.full((5,), float(size)))

# Sub-groups, and objects
pair = dist.new_group([0, 2])
if rank != 1:
    mine = torch.tensor([float(rank)])
    dist.all_reduce(mine, group=pair)
    check("sub-group", mine, torch.tensor([2.0]))
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(size)]
dist.group.WORLD.monitored_barrier(timedelta(seconds=20))

# Functional collectives, as compiled models make them
import torch.distributed._functional_collectives as functional
summed = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
check("functional", summed + 0, torch.full((4,), float(size)))
summed = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
dist.all_reduce(summed)  # before anybody has waited for it
check("functional, twice", summed + 0, torch.full((4,), float(size * size)))
options = dist.AllreduceOptions()
if hasattr(options, "asyncOp"):
    options.asyncOp = False
for dtype in (torch.float32, torch.int8):
    direct = torch.ones(4, dtype=dtype)
    dist.group.WORLD.allreduce([direct], options).wait()
    check("direct", direct, torch.full((4,), size))
whole = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
check("functional", whole + 0, torch.arange(size).float().repeat_interleave(2))

# Calls that do not fit together
try:
    dist.broadcast(torch.ones(2 + rank), 0)
    tell(unequal="nothing" if rank == 0 else "no error")
except ValueError as error:
    tell(unequal=str(error))
outputs = [torch.empty(3) for _ in range(size)]
if rank == 1:
    outputs[1] = torch.empty(2)
try:
    dist.all_gather(outputs, torch.full((3,), float(rank)))
    tell(own=[each.tolist()[0] for each in outputs])
except ValueError as error:
    tell(own=str(error))
dist.barrier()  # the group goes on
tell(wrong=wrong)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_ranks(tmp_path_factory.mktemp("calls"), 3, CALLS)


def test_all_calls_and_dtypes_give_what_they_should(calls: Ranks) -> None:
    assert calls.each("wrong") == [[], [], []]


SHARED_OUT = """
join()
wrong = []
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32,
              torch.int64):
    for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
        every = [((torch.arange(300_001) + r) % 3 + 1) * size for r in range(size)]
        mine = every[rank].to(dtype, copy=True)
        dist.all_reduce(mine, op)
        expected = torch.stack(every).sum(0) / divisor
        if not torch.equal(mine, expected.to(dtype)):
            wrong.append((str(dtype), str(op)))
tell(wrong=wrong)
"""


def test_a_sum_that_many_ranks_share_out_is_right(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, 5, SHARED_OUT).each("wrong") == [[]] * 5


def test_tensors_of_unequal_size_are_an_error_that_says_so(calls: Ranks) -> None:
    texts = calls.each("unequal")
    assert texts[0] == "nothing"
    assert "broadcast: rank 0 gave 8 bytes, and this rank needs 12" in texts[1]
    owns = calls.each("own")
    assert owns[0] == owns[2] == [0.0, 1.0, 2.0]
    assert "this rank gives 3 elements, and its tensor for them has 2" in owns[1]


MESSAGES = """
join()
other = 1 - rank
# Both send first, more than fits into the slots, and small ones of another tag after it
large = torch.full((3_000_000,), float(rank))
works = [dist.isend(large, other), dist.isend(torch.tensor([rank + 10]), other, tag=7)]
small = torch.zeros(1, dtype=torch.int64)
dist.recv(small, other, tag=7)
taken = torch.empty(3_000_000)
dist.all_reduce(torch.ones(1))               # a collective while messages are on their way
dist.recv(taken, other)
for work in works:
    work.wait()
tell(small=small.item(), large=taken.unique().tolist())

# In any order of the tags, from any rank, with gaps, and many at once
first, second = torch.zeros(1), torch.zeros(2, 2).t()[:, ::2]
waits = [dist.irecv(first, other, tag=1), dist.irecv(second, other, tag=2)]
dist.send(torch.full((2, 1), 2.0), other, tag=2)
dist.send(torch.ones(1), other, tag=1)
for wait in waits:
    wait.wait()
anything = torch.zeros(1)
sent = dist.isend(torch.tensor([5.0]), other, tag=3)
source = dist.recv(anything, tag=3)
sent.wait()
tell(tags=[first.item(), second.flatten().tolist()], any=[anything.item(), source])
operations = []
rows = torch.zeros(20)
for n in range(20):
    operations.append(dist.P2POp(dist.isend, torch.tensor([float(n)]), other))
    operations.append(dist.P2POp(dist.irecv, rows[n:n + 1], other))
for work in dist.batch_isend_irecv(operations):
    work.wait()
tell(rows=rows.tolist())
try:
    dist.recv(torch.zeros(2), other, tag=9) if rank else dist.send(torch.zeros(1), other, tag=9)
    tell(length="no error")
except ValueError as error:
    tell(length=str(error))
dist.destroy_process_group()
"""


def test_messages_arrive_by_their_tags_while_other_calls_go_on(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, MESSAGES)
    assert ranks.each("small") == [11, 10]
    assert ranks.each("large") == [[1.0], [0.0]]
    assert ranks.each("tags") == [[1.0, [2.0, 2.0]]] * 2
    assert ranks.each("any") == [[5.0, 1], [5.0, 0]]
    assert ranks.each("rows") == [[float(n) for n in range(20)]] * 2
    assert "the message has 4 bytes, and the tensor to receive it 8" in ranks.each("length")[1]


TORCHRUN = """
import torch, torch.distributed as dist
import malt.torch
dist.init_process_group("malt")
t = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(t)
print(f"sum {t.tolist()}\\n", end="", flush=True)
"""


def test_torchrun_starts_ranks_that_need_nothing_else(tmp_path: Path) -> None:
    assert torchrun(tmp_path, TORCHRUN).count("sum [3.0, 3.0, 3.0, 3.0]") == 2


MIXED = """
import torch.testing._internal.distributed.fake_pg  # registers a backend that does nothing
join("cpu:malt,meta:fake")
mine = torch.ones(3)
dist.all_reduce(mine)
elsewhere = torch.ones(3, device="meta")
dist.all_reduce(elsewhere)
dist.broadcast(elsewhere, 0)
dist.all_gather([torch.ones(3, device="meta") for _ in range(size)], elsewhere)
group = dist.new_group([0, 1])
dist.all_reduce(mine, group=group)
dist.all_reduce(elsewhere, group=group)
dist.barrier()
tell(sum=mine.tolist(), kind=type(dist.group.WORLD).__name__)
dist.destroy_process_group()
"""


@pytest.mark.skipif(IS_OLD, reason="older torch.distributed takes no meta tensors")
def test_tensors_of_other_devices_go_through_their_own_backend(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, MIXED)
    assert ranks.each("sum") == [[4.0] * 3] * 2
    assert ranks.each("kind") == ["MixedProcessGroup"] * 2


LATE_CALLBACK = """
join()
call = dist.all_reduce(torch.ones(4), async_op=True)
call.get_future().then(lambda _: time.sleep(0.3))
call.wait()
dist.destroy_process_group()
tell(destroyed=True)
"""


def test_program_ends_well_while_a_callback_runs(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, LATE_CALLBACK)  # exit codes are 0
    assert ranks.each("destroyed") == [True, True]


KINDS = """
join()
def parameter(values):
    return nn.Parameter(values * (rank + 1))

found = {}
for name, make in {
    "parameter": lambda: parameter(torch.ones(4)),
    "bfloat16": lambda: parameter(torch.ones(4).bfloat16()),
    "channels last": lambda: parameter(
        torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    ),
    "transposed": lambda: parameter(torch.ones(2, 3).t()),
    "negated": lambda: torch._neg_view(torch.ones(3) * -(rank + 1)),
    "negated by conj": lambda: (torch.tensor([1 - 1j]) * (rank + 1)).conj().imag,
}.items():
    everywhere, largest, of_root, received = make(), make(), make(), make()
    dist.all_reduce(everywhere)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.broadcast(of_root, 1)
    gathered = [make(), make()]
    dist.all_gather(gathered, make())
    dist.send(received, 1) if rank == 0 else dist.recv(received, 0)
    tensors = everywhere, largest, of_root, *gathered, received
    found[name] = [each.detach().float().unique().tolist() for each in tensors]
tell(found=found)
"""


def test_parameters_and_lazily_negated_tensors(tmp_path: Path) -> None:
    for rank, told in enumerate(run_ranks(tmp_path, 2, KINDS).told):
        for name, values in told["found"].items():
            assert values == [[3.0], [2.0], [2.0], [1.0], [2.0], [1.0]], (rank, name)


UNLIKE = """
join()
malt.torch.keep_going(KEEPS_GOING)
n = 3 if rank == size - 1 else 2
own = torch.arange(float(n))
rows = [torch.zeros(n) for _ in range(size)]
calls = {
    "all_gather": lambda: dist.all_gather(rows, own),
    "broadcast": lambda: dist.broadcast(own.clone(), size - 1),
    "gather": lambda: dist.gather(own, rows if rank == 0 else None),
    "scatter": lambda: dist.scatter(own.clone(), rows if rank == 0 else None),
    "reduce": lambda: dist.reduce(own.clone(), 0),
    "max": lambda: dist.all_reduce(own.clone(), dist.ReduceOp.MAX),
    "sum": lambda: dist.all_reduce(own.clone()),
}
found = {}
for name, call in calls.items():
    try:
        call()
        found[name] = ""
    except (RuntimeError, ValueError) as error:
        found[name] = str(error)
total = torch.ones(2)
dist.all_reduce(total)
tell(found=found, total=total.tolist())
"""


@pytest.mark.parametrize("keeps_going", [False, True])
def test_tensors_of_unlike_size_are_refused_and_the_group_goes_on(
    tmp_path: Path, keeps_going: bool
) -> None:
    """On the ranks that give or take another number of elements than one of them."""
    ranks = run_ranks(tmp_path, 3, f"KEEPS_GOING = {keeps_going}{UNLIKE}")
    assert ranks.each("total") == [[3.0, 3.0]] * 3
    refused = {
        name: [told["found"][name] != "" for told in ranks.told] for name in ranks.told[0]["found"]
    }
    assert refused == {
        "all_gather": [True] * 3,
        "broadcast": [True, True, False],  # from the last
        "gather": [True, False, False],
        "scatter": [False, False, True],
        "reduce": [True] * 3,
        "max": [True] * 3,
        "sum": [True] * 3,
    }


AGAIN = """
found = []
store = dist.FileStore(str(here / "store"), size)
for k in range(3):
    dist.init_process_group(
        "malt", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    sent, received = torch.full((3,), float(k)), torch.zeros(3)
    dist.send(sent, 1) if rank == 0 else dist.recv(received, 0)
    dist.all_reduce(sent, group=dist.new_group([0, 1]))
    found.append([sent[0].item(), received[0].item()])
    dist.destroy_process_group()
tell(found=found)
"""


def test_a_group_is_made_again_over_the_same_store(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, AGAIN)
    assert ranks.told[0]["found"] == [[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]]
    assert ranks.told[1]["found"] == [[0.0, 0.0], [2.0, 1.0], [4.0, 2.0]]


CALLED_INSIDE = """
join(timeout=20)
x, y, z = torch.full((4,), rank + 1.0), torch.full((4,), 10.0), torch.full((4,), 1000.0)

def then(_):
    time.sleep(0.5 if rank == 0 else 0)
    dist.all_reduce(y)

if rank == 1:
    time.sleep(0.5)  # so that the call of rank 0 is still in progress at then()
work = dist.all_reduce(x, async_op=True)
future = work.get_future().then(then)
work.wait()
dist.all_reduce(z)
future.wait()

def handle(*_):
    try:
        dist.all_reduce(torch.ones(1))
    except malt.ConfigError as error:
        tell(error=str(error))

if rank == 0:
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
else:
    time.sleep(0.6)
w = torch.ones(4)
dist.all_reduce(w)
dist.barrier()
tell(sums=[each[0].item() for each in (x, y, z, w)])
dist.destroy_process_group()
"""


def test_calls_inside_a_callback_and_a_signal_handler(tmp_path: Path) -> None:
    """A callback's come before the next call on all ranks; a handler's inside a call is refused."""
    ranks = run_ranks(tmp_path, 2, CALLED_INSIDE)
    assert ranks.each("sums") == [[3.0, 20.0, 2000.0, 2.0]] * 2
    assert "a signal handler has made a collective call inside" in ranks.told[0]["error"]


def test_a_program_need_only_name_the_backend(tmp_path: Path) -> None:
    """`import torch` makes the name known, and loads no more of MALT until a group is made."""
    script = """
import sys, torch, torch.distributed as dist
before = sorted(name for name in sys.modules if name.startswith("malt"))
dist.init_process_group("malt", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(before, tensor.tolist(), dist.get_backend())
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
for can in ("splitting", "coalescing", "time_estimate", "shrinking"):  # torch asks for these
    assert not getattr(backend, f"supports_{can}")
assert not backend.supports_tensor_alloc(torch.device("cpu"))
dist.destroy_process_group()
"""
    output = run_script(tmp_path, script, limit=60)
    assert output == "['malt_torch_backend'] [1.0, 1.0, 1.0] malt\n"
