"""The collective calls, as exchanges of bytes between the members of a process group.

Each function here makes one call at once, in the thread that calls it; `deadline` is the
time.monotonic() at which it gives up. All ranks of the group make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

from malt.torch._backend import members as _members
from malt.torch._backend import reductions
from malt.torch._backend.errors import ConfigError
from malt.torch._backend.members import NATIVE, SLOT_BYTES, Held, Members
from malt.torch._backend.streams import staged
from malt.torch._backend.tensors import bytes_of, check_writable

Tensors = Sequence[torch.Tensor]


class _Landing:
    """Tensors to write to: those with gaps are written through a copy that has none."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def at(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, or what settle() copies to it."""
        if tensor.is_contiguous():
            return tensor
        check_writable(tensor)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._copies.append((tensor, copy))
        return copy

    def settle(self) -> None:
        for tensor, copy in self._copies:
            tensor.copy_(copy)


def _copy(to: torch.Tensor, values: torch.Tensor) -> None:
    """Copy this rank's own part, unless it is the same memory.

    Raises:
        ConfigError: they differ in size. The others must have made the call by then.
    """
    _check_own(to, values)
    if to.data_ptr() != values.data_ptr() or to.stride() != values.stride():
        to.copy_(values.view(to.shape))


def barrier(members: Members, deadline: float) -> None:
    """Return when all ranks have called it."""
    members.run([], [], "barrier", deadline, _members.goes_on())


@staged
def broadcast(members: Members, tensor: torch.Tensor, root: int, deadline: float) -> None:
    """Give all ranks the root's values."""
    _check_root(root, members.size)
    if _members.goes_on() and members.size > 1:
        _broadcast_to_living(members, tensor, root, deadline)
        return
    what = f"broadcast of {tensor.dtype} from rank {members.names[root]}"
    if members.rank == root:
        given = tensor.contiguous()
        members.run([(given.data_ptr(), bytes_of(given))], [], what, deadline)
        return
    landing = _Landing()
    here = landing.at(tensor)
    size = bytes_of(here)
    members.run([], [(root, 0, size, here.data_ptr(), size)], what, deadline)
    landing.settle()


def _broadcast_to_living(
    members: Members, tensor: torch.Tensor, root: int, deadline: float
) -> None:
    """Give all living ranks the root's values; if it dies meanwhile, either all get them or none.

    A rank that has them gives them to those that do not, until all live ranks have them.
    """
    what = f"broadcast of {tensor.dtype} from rank {members.names[root]}"
    has, source = members.rank == root, root
    if not has:
        check_writable(tensor)
    here = tensor.contiguous() if has else torch.empty(tensor.shape, dtype=tensor.dtype)
    while True:
        if members.rank == source:
            members.run([(here.data_ptr(), bytes_of(here))], [], what, deadline, may_miss=True)
        else:  # also if it has them, as all ranks make the same rounds
            takes = [(source, 0, bytes_of(here), here.data_ptr(), bytes_of(here))]
            has = source not in members.run([], takes, what, deadline, may_miss=True) or has
        held = members.held_by(has, deadline)
        if Held.MISSES not in held:
            break
        if Held.HAS not in held:
            return
        source = held.index(Held.HAS)
    if members.rank != root:
        tensor.copy_(here)


@staged
def all_gather(members: Members, outputs: Tensors, own: torch.Tensor, deadline: float) -> None:
    """Give all ranks the values of all; `outputs` has a tensor for each rank."""
    _all_gather(members, outputs, own, f"all_gather of {own.dtype}", deadline)


def _all_gather(
    members: Members, outputs: Tensors, own: torch.Tensor, what: str, deadline: float
) -> None:
    _check_count(outputs, members.size, "output tensors")
    _check_dtype(outputs, own.dtype)
    own = own.contiguous()
    landing = _Landing()
    takes = []
    for rank, output in enumerate(outputs):
        if rank != members.rank:
            here = landing.at(output)
            takes.append((rank, 0, bytes_of(here), here.data_ptr(), bytes_of(here)))
    members.run([(own.data_ptr(), bytes_of(own))], takes, what, deadline)
    landing.settle()
    _copy(outputs[members.rank], own)


@staged
def gather(
    members: Members, outputs: Tensors, own: torch.Tensor, root: int, deadline: float
) -> None:
    """Give the root the values of all; there, `outputs` has a tensor for each rank."""
    _check_root(root, members.size)
    what = f"gather of {own.dtype} to rank {members.names[root]}"
    own = own.contiguous()
    if members.rank != root:
        members.run([(own.data_ptr(), bytes_of(own))], [], what, deadline)
        return
    _check_count(outputs, members.size, "output tensors")
    _check_dtype(outputs, own.dtype)
    landing = _Landing()
    here = [landing.at(output) for output in outputs]
    takes = [
        (rank, 0, bytes_of(each), each.data_ptr(), bytes_of(each))
        for rank, each in enumerate(here)
        if rank != root
    ]
    members.run([], takes, what, deadline)
    _copy(here[root], own)
    landing.settle()


@staged
def scatter(
    members: Members, output: torch.Tensor, inputs: Tensors, root: int, deadline: float
) -> None:
    """Give each rank its tensor of the root's `inputs`."""
    _check_root(root, members.size)
    what = f"scatter of {output.dtype} from rank {members.names[root]}"
    if members.rank == root:
        _check_count(inputs, members.size, "input tensors")
        _check_dtype(inputs, output.dtype)
        parts = [each.contiguous() for each in inputs]
        gives = [(each.data_ptr(), bytes_of(each)) for each in parts]
        members.run(gives, [], what, deadline)
        _copy(output, parts[root])
        return
    landing = _Landing()
    here = landing.at(output)
    size = bytes_of(here)
    take = root, members.rank * size, size, here.data_ptr(), members.size * size
    members.run([], [take], what, deadline)
    landing.settle()


@staged
def all_to_all(members: Members, outputs: Tensors, inputs: Tensors, deadline: float) -> None:
    """Give each rank its tensor of every rank's `inputs`, in the order of the ranks."""
    _check_count(inputs, members.size, "input tensors")
    _check_count(outputs, members.size, "output tensors")
    dtype = inputs[0].dtype
    _check_dtype([*inputs, *outputs], dtype)
    size, rank = members.size, members.rank
    parts = [each.contiguous() for each in inputs]
    # A rank finds its part by the lengths of those before it, which it learns first.
    lengths = torch.zeros(size, size, dtype=torch.int64)
    lengths[rank] = torch.tensor([bytes_of(each) for each in parts])
    lengths[rank, rank] = 0  # stays here
    what = f"all_to_all of {dtype}"
    _all_gather(members, list(lengths.unbind()), lengths[rank].clone(), what, deadline)
    starts = (lengths.cumsum(1) - lengths)[:, rank].tolist()
    landing = _Landing()
    takes, wrong = [], ""
    for other, output in enumerate(outputs):
        if other == rank:
            continue
        here = landing.at(output)
        takes.append((other, starts[other], bytes_of(here), here.data_ptr(), 0))
        if bytes_of(here) != lengths[other, rank]:
            wrong = (
                f"rank {members.names[other]} gives {int(lengths[other, rank])} bytes, and the "
                f"tensor for it has {bytes_of(here)}"
            )
    gives = [(each.data_ptr(), bytes_of(each)) for other, each in enumerate(parts) if other != rank]
    members.run(gives, [] if wrong else takes, f"{what}, its values", deadline)
    if wrong:  # found after the call, so that the others' next calls do not meet it
        raise ConfigError(wrong)
    landing.settle()
    _copy(outputs[rank], parts[rank])


def all_reduce(members: Members, tensor: torch.Tensor, op: ReduceOp, deadline: float) -> None:
    """Replace the values by the reduction of all ranks' values, the same bits on all ranks."""
    if tensor.is_cuda and members.folds_on_gpu(tensor, op):
        members.reduce(tensor, op == ReduceOp.AVG, deadline)
    else:
        _all_reduce(members, tensor, op, deadline)


@staged
def _all_reduce(members: Members, tensor: torch.Tensor, op: ReduceOp, deadline: float) -> None:
    if tensor.layout is not torch.strided:
        return _all_reduce_sparse(members, tensor, op, deadline)
    mean = op == ReduceOp.AVG
    if not mean and op != ReduceOp.SUM:
        return _fold(members, tensor, op, range(members.size), "all_reduce", deadline)
    folded = tensor.dtype
    if _members.goes_on():  # what makes up for the dead is rounded too
        folded = reductions.WIDE.get(folded, folded)
    if folded in NATIVE and folded is tensor.dtype and tensor.is_contiguous():
        return members.reduce(tensor, mean, deadline)
    check_writable(tensor)
    if folded in NATIVE:
        copy = tensor.to(folded, copy=True).contiguous()
        members.reduce(copy, mean, deadline)
        tensor.copy_(copy)
        return None
    return _fold(members, tensor, op, range(members.size), "all_reduce", deadline)


@staged
def reduce(
    members: Members, tensor: torch.Tensor, op: ReduceOp, root: int, deadline: float
) -> None:
    """Give the root the reduction of all ranks' values."""
    _check_root(root, members.size)
    _fold(members, tensor, op, [root], f"reduce to rank {members.names[root]}", deadline)


@staged
def reduce_scatter(
    members: Members, output: torch.Tensor, inputs: Tensors, op: ReduceOp, deadline: float
) -> None:
    """Give each rank the reduction of all ranks' tensors for it."""
    _check_count(inputs, members.size, "input tensors")
    _check_dtype(inputs, inputs[0].dtype)
    size, rank = members.size, members.rank
    own = inputs[rank].contiguous()
    reduction = reductions.reduction(op, own.dtype)
    length = bytes_of(own)
    # The tensors for different ranks may differ in size, but not those of one rank.
    parts = [each.contiguous() for each in inputs]
    start = sum(bytes_of(each) for each in parts[:rank])
    whole = sum(map(bytes_of, parts))
    rows = torch.empty((size, *own.shape), dtype=own.dtype)
    rows[rank].copy_(own)
    gives = [(each.data_ptr(), bytes_of(each)) for each in parts]
    takes = [
        (other, start, length, rows[other].data_ptr(), whole)
        for other in range(size)
        if other != rank
    ]
    what = f"reduce_scatter of {own.dtype} by {reductions.name_of(op)}"
    members.run(gives, takes, what, deadline)
    _copy(output, reduction(rows))


def _fold(
    members: Members,
    tensor: torch.Tensor,
    op: ReduceOp,
    roots: Sequence[int],
    name: str,
    deadline: float,
) -> None:
    """Reduce a slot's worth of all ranks' values at a time, on the ranks `roots`."""
    reduction = reductions.reduction(op, tensor.dtype)
    flat = tensor.contiguous().view(-1)
    is_root = members.rank in roots
    if is_root:
        check_writable(tensor)
    result = torch.empty_like(flat) if is_root else flat
    step = SLOT_BYTES // flat.element_size()
    # Tensors of other lengths would be reduced in another number of parts.
    what = f"{name} of {flat.numel()} elements of {flat.dtype} by {reductions.name_of(op)}"
    for begin in range(0, max(flat.numel(), 1), step):
        part = flat[begin : begin + step]
        gives = [(part.data_ptr(), bytes_of(part))]
        if not is_root:
            members.run(gives, [], what, deadline)
            continue
        rows = torch.empty((members.size, part.numel()), dtype=part.dtype)
        rows[members.rank].copy_(part)
        takes = [
            (rank, 0, bytes_of(part), rows[rank].data_ptr(), bytes_of(part))
            for rank in range(members.size)
            if rank != members.rank
        ]
        members.run(gives, takes, what, deadline)
        result[begin : begin + step].copy_(reduction(rows))
    if is_root:
        tensor.copy_(result.view(tensor.shape))


def _all_reduce_sparse(
    members: Members, tensor: torch.Tensor, op: ReduceOp, deadline: float
) -> None:
    """Sum sparse tensors: all ranks get the indices and values of all."""
    _check_reducible(tensor, op)
    own = tensor.coalesce()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(members.size)]
    what = (
        f"all_reduce of sparse {own.dtype} of shape {tuple(own.shape)} with "
        f"{own.sparse_dim()} sparse dimensions"
    )
    _all_gather(members, counts, torch.tensor([own.values().shape[0]]), what, deadline)
    of = own.indices().shape[0], own.values().shape[1:]
    indices = [torch.empty((of[0], int(n)), dtype=torch.int64) for n in counts]
    values = [torch.empty((int(n), *of[1]), dtype=own.dtype) for n in counts]
    all_gather(members, indices, own.indices(), deadline)
    all_gather(members, values, own.values(), deadline)
    total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), own.shape)
    tensor.copy_(total.coalesce())


def all_reduce_coalesced(members: Members, tensors: Tensors, op: ReduceOp, deadline: float) -> None:
    """Make the call all_reduce of each tensor."""
    for tensor in tensors:
        _check_reducible(tensor, op)
    _agree(members, f"all_reduce by {reductions.name_of(op)}", tensors, deadline)
    for tensor in tensors:
        all_reduce(members, tensor, op, deadline)


def all_gather_coalesced(
    members: Members, outputs: Sequence[Tensors], inputs: Tensors, deadline: float
) -> None:
    """Make the call all_gather of each of `inputs`; `outputs` has as many tensors for each rank."""
    _check_count(outputs, members.size, "lists of output tensors")
    for of_rank in outputs:
        _check_pairs(of_rank, inputs)
        for output, own in zip(of_rank, inputs, strict=True):
            _check_dtype([output], own.dtype)
    for output, own in zip(outputs[members.rank], inputs, strict=True):
        _check_own(output, own)
    _agree(members, "all_gather", [each for of_rank in outputs for each in of_rank], deadline)
    for into, own in zip(zip(*outputs, strict=True), inputs, strict=True):
        all_gather(members, into, own, deadline)


def all_gather_into(members: Members, outputs: Tensors, inputs: Tensors, deadline: float) -> None:
    """Give all ranks the values of all, one after the other in one tensor, for each of `inputs`."""
    _check_pairs(outputs, inputs)
    for output, own in zip(outputs, inputs, strict=True):
        _check_times(members.size, output, own, "the output")
        _check_dtype([output], own.dtype)
    if len(inputs) != 1:
        _agree(members, "all_gather_into_tensor", inputs, deadline)
    for output, own in zip(outputs, inputs, strict=True):
        into = output if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)
        rows = list(into.view(members.size, own.numel()).unbind())
        all_gather(members, rows, own.contiguous().view(-1), deadline)
        if into is not output:
            output.copy_(into)


def reduce_scatter_from(
    members: Members, outputs: Tensors, inputs: Tensors, op: ReduceOp, deadline: float
) -> None:
    """Make the call reduce_scatter of each of `inputs`, which has a row for each rank."""
    _check_pairs(outputs, inputs)
    for output, given in zip(outputs, inputs, strict=True):
        _check_times(members.size, given, output, "the input")
        reductions.reduction(op, given.dtype)
    if len(inputs) != 1:
        _agree(members, f"reduce_scatter_tensor by {reductions.name_of(op)}", inputs, deadline)
    for output, given in zip(outputs, inputs, strict=True):
        rows = list(given.contiguous().view(members.size, output.numel()).unbind())
        reduce_scatter(members, output, rows, op, deadline)


def _agree(members: Members, call: str, tensors: Tensors, deadline: float) -> None:
    """Begin a call of several tensors, whose number, dtypes and lengths are alike on all ranks."""
    each = ", ".join(f"{one.numel()} of {one.dtype}" for one in tensors)
    members.run([], [], f"coalesced {call}: {each}", deadline, _members.goes_on())


def _check_root(root: int, size: int) -> None:
    if not 0 <= root < size:
        raise ConfigError(f"the root is {root}; the group has the ranks 0 to {size - 1}")


def _check_pairs(outputs: Tensors, inputs: Tensors) -> None:
    if len(outputs) != len(inputs):
        raise ConfigError(f"there are {len(inputs)} tensors, and {len(outputs)} outputs for them")


def _check_times(size: int, large: torch.Tensor, small: torch.Tensor, what: str) -> None:
    if large.numel() != size * small.numel():
        raise ConfigError(
            f"{what} has {large.numel()} elements; it is {size} ranks times {small.numel()}"
        )


def _check_own(to: torch.Tensor, values: torch.Tensor) -> None:
    if to.numel() != values.numel():
        raise ConfigError(
            f"this rank gives {values.numel()} elements, and its tensor for them has {to.numel()}"
        )


def _check_dtype(tensors: Tensors, dtype: torch.dtype) -> None:
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise ConfigError(
                f"there are tensors of {dtype} and of {tensor.dtype}; it is one dtype"
            )


def _check_reducible(tensor: torch.Tensor, op: ReduceOp) -> None:
    if tensor.layout is torch.strided:
        reductions.reduction(op, tensor.dtype)
    elif op != ReduceOp.SUM:
        raise ConfigError("of sparse tensors there is only SUM; make them dense for another")
    elif tensor.layout is not torch.sparse_coo:
        raise ConfigError(f"the layout is {tensor.layout}; it is strided, or sparse_coo for SUM")


def _check_count(tensors: Sequence[object], size: int, what: str) -> None:
    if len(tensors) != size:
        raise ConfigError(f"there are {len(tensors)} {what}; it is one for each of {size} ranks")
