"""The backend malt when ranks give a call wrong or unlike arguments: an error, and it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks

import_torch()

pytestmark = pytest.mark.xdist_group("torch-backend")

# Rank 0 is wrong in each. `found` has, by call, its error and what the next calls give.
REFUSED = """
join()
malt.torch.keep_going(KEEPS_GOING)
odd = rank == 0
SUM, MAX, BAND = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BAND

def full(value, count=4):
    return torch.full((count,), float(value))

def coalesced_into():
    whole = torch.zeros(4 * size)
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(torch.zeros(4 * size), full(rank))
        dist.all_gather_into_tensor(whole[:4] if odd else whole, full(100 + rank))

def coalesced_lists():
    outputs = [[torch.zeros(4), torch.zeros(4)] for _ in range(size)]
    if odd:
        outputs[1][0] = torch.zeros(5)
    dist.group.WORLD.allgather_coalesced(outputs, [full(rank), full(100 + rank)]).wait()

def coalesced_scatter():
    whole = torch.ones(4 * size)
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(torch.zeros(4), whole)
        dist.reduce_scatter_tensor(torch.zeros(5 if odd else 4), whole)

def fewer(count):
    with dist._coalescing_manager():
        for k in range(1 if odd else 2):
            dist.all_reduce(full(k, count))

def sparse():
    values = torch.zeros((0, 3)) if odd else full(7, 2)
    indices = torch.zeros((1 if odd else 2, len(values)), dtype=torch.int64)
    dist.all_reduce(torch.sparse_coo_tensor(indices, values, (3, 3)))

def lists(call):
    given = [full(r) for r in range(size)]
    call(given[1:] if odd else given)

def two(call, *arguments):
    call([full(rank)] * (2 if odd else 1), *arguments).wait()

def with_one(of_odd, call):
    call(of_odd() if odd else full(rank))

def expanded():
    return torch.ones(1).expand(4)

def inferred():
    with torch.inference_mode():
        return torch.ones(4, 2)[:, 0]

def meta():
    return torch.ones(4, device="meta")

calls = {
    "sum of expanded": lambda: with_one(expanded, dist.all_reduce),
    "MAX of expanded": lambda: with_one(expanded, lambda given: dist.all_reduce(given, MAX)),
    "broadcast into expanded": lambda: with_one(expanded, lambda to: dist.broadcast(to, 1)),
    "sum of inferred": lambda: with_one(inferred, dist.all_reduce),
    "sum of meta": lambda: with_one(meta, dist.all_reduce),
    "asynchronous sum of meta": lambda: with_one(
        meta, lambda given: dist.all_reduce(given, async_op=True).wait()
    ),
    "sum of efficient zeros": lambda: with_one(
        lambda: torch._efficientzerotensor(4), dist.all_reduce
    ),
    "large sum of meta": lambda: dist.all_reduce(
        full(rank, 100_000).to("meta" if odd else "cpu")
    ),
    "broadcast of meta": lambda: with_one(meta, lambda given: dist.broadcast(given, 0)),
    "all_gather of meta": lambda: with_one(
        meta, lambda own: dist.all_gather([full(0) for _ in range(size)], own)
    ),
    "coalesced all_gather_into_tensor": coalesced_into,
    "coalesced all_gather": coalesced_lists,
    "coalesced reduce_scatter": coalesced_scatter,
    "coalesced all_reduce": lambda: fewer(4),
    "large coalesced all_reduce": lambda: fewer(300_000),
    "all_gather": lambda: lists(lambda given: dist.all_gather(given, full(rank))),
    "all_to_all": lambda: lists(lambda given: dist.all_to_all(given, given)),
    "reduce_scatter": lambda: lists(lambda given: dist.reduce_scatter(torch.zeros(4), given)),
    "gather": lambda: lists(lambda given: dist.gather(full(rank), given if odd else None)),
    "scatter": lambda: lists(lambda given: dist.scatter(full(rank), given if odd else None)),
    "sizes": lambda: dist.all_to_all_single(
        torch.zeros(size), torch.zeros(size), None, [2] * size if odd else [1] * size
    ),
    "root": lambda: dist.broadcast(full(rank), size if odd else 1),
    "BAND of a MAX": lambda: dist.all_reduce(full(rank), BAND if odd else MAX),
    "BAND of a sum": lambda: dist.all_reduce(full(rank), BAND if odd else SUM),
    # Of a length that they have summed before, and of another one; each in memory of its own.
    "BAND of a large sum": lambda: dist.all_reduce(full(rank, 100_000), BAND if odd else SUM),
    "BAND of a larger sum": lambda: dist.all_reduce(full(rank, 700_000), BAND if odd else SUM),
    "BAND of a large MAX": lambda: dist.all_reduce(full(rank, 100_000), BAND if odd else MAX),
    "sum of float8": lambda: dist.all_reduce(
        full(rank).to(torch.float8_e4m3fn if odd else torch.float32)
    ),
    "two tensors": lambda: two(dist.group.WORLD.broadcast, 1),
    "two large sums": lambda: dist.group.WORLD.allreduce(
        [full(rank, 100_000)] * (2 if odd else 1)
    ).wait(),
    "broadcast instead of a large sum": lambda: (
        dist.broadcast(full(0), size) if odd else dist.all_reduce(full(0, 100_000))
    ),
    "sparse": sparse,
    "empty all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
        torch.zeros(0 if odd else size), torch.zeros(0 if odd else 1)
    ),
    "empty MAX": lambda: dist.all_reduce(torch.zeros(0 if odd else 4), MAX),
}
if not KEEPS_GOING:  # or else the others are in a sum
    calls["empty all_reduce"] = lambda: dist.all_reduce(torch.zeros(0 if odd else 4))
found = {}
for number, (name, call) in enumerate(calls.items()):
    dist.all_reduce(torch.ones(100_000))
    begin = time.monotonic()
    try:
        call()
        error = ""
    except malt.ConfigError as raised:
        error = str(raised)
    except RuntimeError as raised:  # which ends the group
        raise AssertionError(name) from raised
    seconds = time.monotonic() - begin
    rows = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(rows, full(1000 * number + rank))
    total, large = full(rank), full(rank, 100_000)
    dist.all_reduce(total)
    dist.all_reduce(large)
    sums = [total.unique().tolist(), large.unique().tolist()]
    found[name] = error, seconds, torch.stack(rows).unique().tolist(), *sums
tell(found=found)
"""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("keeps_going", [False, True])
def test_arguments_that_one_rank_refuses_fail_the_call_on_all(
    tmp_path: Path, size: int, keeps_going: bool
) -> None:
    ranks = run_ranks(tmp_path, size, f"KEEPS_GOING = {keeps_going}{REFUSED}")
    total = [float(sum(range(size)))]
    for rank, found in enumerate(ranks.each("found")):
        for number, (name, (error, seconds, *following)) in enumerate(found.items()):
            assert following == [[1000.0 * number + r for r in range(size)], total, total], name
            # A rank that has nothing to take has nothing to miss.
            is_content = name == "empty all_gather_into_tensor" and rank == 0
            assert is_content or error, (rank, name)
            assert seconds < 4, (rank, name)  # no rank waits for its limit
            if rank > 0:
                assert "rank 0" in error, (rank, name)
        if rank > 0:  # the reason of the rank that refuses
            assert "with wrong arguments: BAND" in found["BAND of a large sum"][0].replace(
                "RedOpType.", ""
            )


# Rank 0 fails in the second part of a call, which its next call is like but for its number.
HALF_MADE = """
join(timeout=5)
from malt.torch._backend import collectives
reduce, parts = collectives.all_reduce, []
def fail_in_second(*arguments):
    parts.append(None)
    if len(parts) == 2:
        raise malt.ConfigError("not here")
    reduce(*arguments)
if rank == 0:
    collectives.all_reduce = fail_in_second
errors = []
call = lambda value: dist.all_reduce(torch.full((COUNT,), value))
def coalesced():
    with dist._coalescing_manager():
        for _ in range(3):
            call(1.0)
for step in (coalesced, lambda: call(1000.0), lambda: call(1000.0)):
    try:
        step()
    except (ValueError, RuntimeError) as error:
        errors.append(str(error))
tell(errors=errors)
"""


@pytest.mark.parametrize("count", [4, 300_000])
def test_a_call_that_a_rank_makes_half_is_not_paired_with_its_next_one(
    tmp_path: Path, count: int
) -> None:
    ranks = run_ranks(tmp_path, 3, HALF_MADE.replace("COUNT", str(count)))
    assert [len(errors) for errors in ranks.each("errors")] == [3] * 3


UNTOLD = """
join(timeout=40)
if rank == 0:
    from malt.torch._backend import members
    members._TELL_SECONDS = 0.3
    for _ in range(2):
        try:
            dist.broadcast(torch.ones(1), 7)
        except (ValueError, RuntimeError) as error:
            tell(**{type(error).__name__: str(error)})
    (here / "refused").touch()
    while not all((here / f"told-{other}").exists() for other in range(size)):
        time.sleep(0.01)
else:
    while not (here / "refused").exists():
        time.sleep(0.01)
    begin = time.monotonic()
    try:
        dist.broadcast(torch.ones(1), 0)
    except RuntimeError as error:
        tell(dead=error.ranks, seconds=time.monotonic() - begin)
"""


def test_a_rank_that_cannot_tell_the_others_leaves_and_says_so(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 3, UNTOLD)
    assert "the root is 7" in ranks.told[0]["ConfigError"]
    assert "so this rank has left the group" in ranks.told[0]["ConfigError"]
    assert "an earlier broadcast did not come to its end" in ranks.told[0]["PeerError"]
    for told in ranks.told[1:]:
        assert told["dead"] == (0,)
        assert told["seconds"] < 20  # not the time limit of the call


# Rank 0 gives int32, which has as many bytes as the others' float32.
UNLIKE_DTYPES = """
join()
malt.torch.keep_going(KEEPS_GOING)

def own(count=3):
    return torch.ones(count, dtype=torch.float32 if rank else torch.int32)

def rows():
    return [own() for _ in range(size)]

at_root = lambda root: rows() if rank == root else None
calls = {
    "broadcast": lambda: dist.broadcast(own(), 1),
    "all_gather": lambda: dist.all_gather(rows(), own()),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(own(3 * size), own()),
    "gather": lambda: dist.gather(own(), at_root(1), 1),
    "scatter": lambda: dist.scatter(own(), at_root(1), 1),
    "all_to_all": lambda: dist.all_to_all(rows(), rows()),
    "all_to_all_single": lambda: dist.all_to_all_single(own(size), own(size)),
    "reduce": lambda: dist.reduce(own(), 1),
    "reduce_scatter": lambda: dist.reduce_scatter(own(), rows()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(own(), own(3 * size)),
    "MAX": lambda: dist.all_reduce(own(), dist.ReduceOp.MAX),
    "sum of a new length": lambda: dist.all_reduce(own(500_000)),
}
if not KEEPS_GOING:  # or else each rank waits in another sum, once they are made
    calls["sum"] = lambda: dist.all_reduce(own())
found = {}
for name, call in calls.items():
    try:
        call()
        found[name] = ""
    except malt.ConfigError as error:
        found[name] = str(error)
try:
    dist.all_reduce(torch.ones(2), [dist.ReduceOp.MAX, dist.ReduceOp.MIN][min(rank, 1)])
except malt.ConfigError as error:
    tell(operations=str(error))
for own_dtype in (torch.float32, torch.complex64):  # torch gathers complex numbers as floats
    gathered = [torch.zeros(2, dtype=own_dtype) for _ in range(size)]
    dist.all_gather(gathered, torch.full((2,), float(rank), dtype=own_dtype))
    assert [each[0].real.item() for each in gathered] == list(range(size))
tell(found=found)
"""


@pytest.mark.parametrize("keeps_going", [False, True])
def test_unlike_dtypes_of_the_same_size_are_refused_by_name_on_all_ranks(
    tmp_path: Path, keeps_going: bool
) -> None:
    ranks = run_ranks(tmp_path, 3, f"KEEPS_GOING = {keeps_going}{UNLIKE_DTYPES}")
    for rank, found in enumerate(ranks.each("found")):
        for name, text in found.items():
            assert "torch.float32" in text, (rank, name, text)
            assert "torch.int32" in text, (rank, name, text)
            assert (f"rank {0 if rank else 1} has made") in text, (rank, name, text)
    for text in ranks.each("operations"):
        assert "by MAX" in text
        assert "by MIN" in text


UNLIKE_MESSAGES = """
join()
other = 1 - rank

def error_of(call):
    try:
        call()
    except malt.ConfigError as error:
        return str(error)
    return ""

def receive(values, **options):
    return error_of(lambda: dist.recv(values, **options))

for count in (3, 3_000_000):  # one part, and many
    for values in (torch.ones(count), torch.ones(2 * count), torch.full((count,), 5)):
        dist.isend(values, 1) if rank == 0 else None
    if rank == 1:
        taken = torch.zeros(count, dtype=torch.int64)
        kept = torch.full((count,), 7, dtype=torch.int32)
        texts = [receive(kept, src=0), receive(kept)]
        dist.recv(taken, 0)
        tell(**{f"texts {count}": texts, f"kept {count}": kept.unique().tolist(),
                f"taken {count}": taken.unique().tolist()})
dist.barrier()
# Of tensors that wait, each has the next message of its tag.
if rank == 1:
    first, second = torch.zeros(2, dtype=torch.int32), torch.zeros(2)
    works = [dist.irecv(first, 0, tag=3), dist.irecv(second, 0, tag=3)]
dist.barrier()
if rank == 0:
    dist.send(torch.ones(2), 1, tag=3)
    dist.send(torch.full((2,), 2.0), 1, tag=3)
else:
    tell(waited=error_of(works[0].wait))
    works[1].wait()
    tell(second=second.tolist())
tell(tags=[error_of(lambda: dist.send(torch.ones(1), other, tag=tag)) for tag in (-1, 1 << 27)])
largest = torch.zeros(1, dtype=torch.bool)
dist.send(~largest, other, tag=(1 << 27) - 1) if rank else dist.recv(
    largest, other, tag=(1 << 27) - 1)
tell(largest=largest.item())
"""


def test_a_message_of_another_dtype_is_refused_by_name_and_the_next_arrives(
    tmp_path: Path,
) -> None:
    ranks = run_ranks(tmp_path, 2, UNLIKE_MESSAGES)
    for count in (3, 3_000_000):
        for text in ranks.told[1][f"texts {count}"]:
            assert "the message is of torch.float32" in text
            assert "the tensor to receive it of torch.int32" in text
        assert ranks.told[1][f"kept {count}"] == [7]
        assert ranks.told[1][f"taken {count}"] == [5]
    assert "of torch.float32" in ranks.told[1]["waited"]
    assert ranks.told[1]["second"] == [2.0, 2.0]
    for texts in ranks.each("tags"):
        assert all("it is from 0 to 134217727" in text for text in texts)
    assert ranks.told[0]["largest"] is True
