"""The calls of a process group, under the names by which torch calls them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

from malt._errors import ConfigError
from malt.torch._backend import collectives
from malt.torch._backend.core import Core
from malt.torch._backend.members import Members, deadline_in
from malt.torch._backend.work import Call, torch_waits

Tensors = list[torch.Tensor]


def _op(opts: Any) -> ReduceOp:
    """Return the operation of a call's options, or the one given in their place."""
    if isinstance(opts, ReduceOp | ReduceOp.RedOpType):
        return opts
    return getattr(opts, "reduceOp", ReduceOp.SUM)


def _one(tensors: Any) -> torch.Tensor:
    """Return the only tensor of a list; torch also gives one without a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ConfigError(f"there are {len(tensors)} tensors; this call takes one on each rank")
    return tensors[0]


def _parts(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Tensors:
    """Cut a tensor along its first dimension: at these sizes, or for each rank alike."""
    if not sizes:
        if tensor.shape[0] % ranks:
            raise ConfigError(
                f"the first dimension is {tensor.shape[0]}, which {ranks} ranks do not share "
                "evenly; give the sizes"
            )
        return list(tensor.chunk(ranks)) if tensor.shape[0] else [tensor] * ranks
    return list(tensor.split(list(sizes)))


class Operations:
    """The calls of a process group, under the names by which torch calls them."""

    core: Core

    def allreduce(self, tensors: Any, opts: Any = None) -> Call:
        tensor = _one(tensors)
        return self.core.call(
            "all_reduce", opts, [tensor], collectives.all_reduce, tensor, _op(opts)
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Call:
        op = _op(opts)

        def each(members: Members, deadline: float) -> None:
            for tensor in tensors:
                collectives.all_reduce(members, tensor, op, deadline)

        return self.core.call("all_reduce", opts, tensors, each)

    def broadcast(self, tensors: Any, opts: Any = None) -> Call:
        tensor = _one(tensors)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        return self.core.call("broadcast", opts, [tensor], collectives.broadcast, tensor, root)

    def reduce(self, tensors: Any, opts: Any = None) -> Call:
        tensor = _one(tensors)
        return self.core.call(
            "reduce", opts, [tensor], collectives.reduce, tensor, _op(opts), opts.rootRank
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Call:
        into = outputs[0] if isinstance(outputs[0], list) else outputs
        own = _one(inputs)
        return self.core.call(
            "all_gather", opts, outputs, collectives.all_gather, into, own, shown=[own]
        )

    def allgather_coalesced(
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> Call:
        def each(members: Members, deadline: float) -> None:
            for place, own in enumerate(inputs):
                into = [of_rank[place] for of_rank in outputs]
                collectives.all_gather(members, into, own, deadline)

        return self.core.call("all_gather", opts, outputs, each, shown=inputs)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Call:
        def gather(members: Members, deadline: float) -> None:
            self._gather_into(members, output, own, deadline)

        return self.core.call("all_gather", opts, [output], gather, shown=[own])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Call:
        def each(members: Members, deadline: float) -> None:
            for output, own in zip(outputs, inputs, strict=True):
                self._gather_into(members, output, own, deadline)

        return self.core.call("all_gather", opts, outputs, each, shown=inputs)

    @staticmethod
    def _gather_into(
        members: Members, output: torch.Tensor, own: torch.Tensor, deadline: float
    ) -> None:
        if output.numel() != own.numel() * members.size:
            raise ConfigError(
                f"the output has {output.numel()} elements; it is {members.size} ranks times "
                f"{own.numel()}"
            )
        into = output if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)
        rows = list(into.view(members.size, -1).unbind()) if own.numel() else []
        if rows:
            collectives.all_gather(members, rows, own.contiguous().view(-1), deadline)
        if into is not output:
            output.copy_(into)

    def gather(self, outputs: list[Tensors], inputs: Any, opts: Any = None) -> Call:
        into = outputs[0] if outputs else []
        own = _one(inputs)
        return self.core.call(
            "gather", opts, outputs, collectives.gather, into, own, opts.rootRank, shown=[own]
        )

    def scatter(self, outputs: Any, inputs: list[Tensors], opts: Any = None) -> Call:
        given = inputs[0] if inputs else []
        output = _one(outputs)
        return self.core.call(
            "scatter",
            opts,
            [output],
            collectives.scatter,
            output,
            given,
            opts.rootRank,
            shown=given,
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Call:
        given = inputs[0] if isinstance(inputs[0], list) else inputs
        output = _one(outputs)
        return self.core.call(
            "reduce_scatter",
            opts,
            [output],
            collectives.reduce_scatter,
            output,
            given,
            _op(opts),
            shown=given,
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> Call:
        def reduce(members: Members, deadline: float) -> None:
            self._reduce_from(members, output, given, _op(opts), deadline)

        return self.core.call("reduce_scatter", opts, [output], reduce, shown=[given])

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Call:
        def each(members: Members, deadline: float) -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._reduce_from(members, output, given, _op(opts), deadline)

        return self.core.call("reduce_scatter", opts, outputs, each, shown=inputs)

    @staticmethod
    def _reduce_from(
        members: Members, output: torch.Tensor, given: torch.Tensor, op: ReduceOp, deadline: float
    ) -> None:
        if given.numel() != output.numel() * members.size:
            raise ConfigError(
                f"the input has {given.numel()} elements; it is {members.size} ranks times "
                f"{output.numel()}"
            )
        if not output.numel():
            return
        rows = list(given.contiguous().view(members.size, -1).unbind())
        collectives.reduce_scatter(members, output, rows, op, deadline)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Call:
        return self.core.call(
            "all_to_all", opts, outputs, collectives.all_to_all, outputs, inputs, shown=inputs
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Call:
        ranks = self.core.members.size
        into = output if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)
        outputs = _parts(into, output_sizes, ranks)
        inputs = _parts(given, input_sizes, ranks)

        def exchange(members: Members, deadline: float) -> None:
            collectives.all_to_all(members, outputs, inputs, deadline)
            if into is not output:
                output.copy_(into)

        return self.core.call("all_to_all", opts, [output], exchange, shown=[given])

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Call:
        tensor = _one(tensors)
        awaits = torch_waits()
        return self.core.recorded(
            "send", [tensor], lambda: self.core.mail.send(tensor, dst, tag, awaits)
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Call:
        tensor = _one(tensors)
        awaits = torch_waits()
        return self.core.recorded(
            "recv", [tensor], lambda: self.core.mail.receive(tensor, src, tag, awaits)
        )

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Call:
        tensor = _one(tensors)
        awaits = torch_waits()
        return self.core.recorded(
            "recvAnySource", [tensor], lambda: self.core.mail.receive_any(tensor, tag, awaits)
        )

    def barrier(self, opts: Any = None) -> Call:
        return self.core.call("barrier", opts, [], collectives.barrier)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have called it; the error names those that did not come."""
        members = self.core.members
        limit = members.timeout if timeout is None else timeout.total_seconds()
        deadline = deadline_in(limit)
        self.core.line.call(
            lambda: members.monitored_barrier(limit, deadline, wait_all_ranks), [], False
        ).wait()

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the core checks by itself that all ranks make the same calls."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def shutdown(self) -> None:
        self.core.close()

    def abort(self) -> None:
        self.core.close()

    # The names that these calls had before PyTorch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
