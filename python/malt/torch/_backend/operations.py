"""The calls of a process group, under the names by which torch calls them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from malt.torch._backend import collectives
from malt.torch._backend.core import Core
from malt.torch._backend.errors import ConfigError
from malt.torch._backend.limits import deadline_in
from malt.torch._backend.members import Members
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
        tensors = [tensors]
    if len(tensors) != 1:
        raise ConfigError(f"there are {len(tensors)} tensors; this call takes one on each rank")
    one: torch.Tensor = tensors[0]
    return one.trigger_wait() if isinstance(one, AsyncCollectiveTensor) else one


def _parts(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Tensors:
    """Cut a tensor along its first dimension: at these sizes, or for each rank alike."""
    if not sizes:
        if tensor.shape[0] % ranks:
            raise ConfigError(
                f"the first dimension is {tensor.shape[0]}, which {ranks} ranks do not share "
                "evenly; give the sizes"
            )
        return list(tensor.chunk(ranks)) if tensor.shape[0] else [tensor] * ranks
    if sum(sizes) != tensor.shape[0]:
        raise ConfigError(
            f"the first dimension is {tensor.shape[0]}, and the sizes add up to {sum(sizes)}"
        )
    return list(tensor.split(list(sizes)))


def _refuse(_: Members, error: ConfigError, _deadline: float) -> None:
    raise error


class Operations:
    """The calls of a process group, under the names by which torch calls them."""

    core: Core

    def _one(self, name: str, tensors: Any, opts: Any) -> torch.Tensor:
        """Return the only tensor of a collective call, which fails on all ranks if it has more."""
        try:
            return _one(tensors)
        except ConfigError as error:
            self.core.call(name, opts, [], _refuse, error).wait()
            raise

    def allreduce(self, tensors: Any, opts: Any = None) -> Call | None:
        if self.core.sum_at_once(tensors, opts):
            return self.core.summed(tensors, sys._getframe(1).f_code)
        tensor = self._one("all_reduce", tensors, opts)
        return self.core.call(
            "all_reduce", opts, [tensor], collectives.all_reduce, tensor, _op(opts)
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Call:
        return self.core.call(
            "all_reduce", opts, tensors, collectives.all_reduce_coalesced, tensors, _op(opts)
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> Call:
        tensor = self._one("broadcast", tensors, opts)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        return self.core.call("broadcast", opts, [tensor], collectives.broadcast, tensor, root)

    def reduce(self, tensors: Any, opts: Any = None) -> Call:
        tensor = self._one("reduce", tensors, opts)
        return self.core.call(
            "reduce", opts, [tensor], collectives.reduce, tensor, _op(opts), opts.rootRank
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Call:
        into = outputs[0] if isinstance(outputs[0], list) else outputs
        own = self._one("all_gather", inputs, opts)
        return self.core.call(
            "all_gather", opts, outputs, collectives.all_gather, into, own, shown=[own]
        )

    def allgather_coalesced(
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> Call:
        return self.core.call(
            "all_gather",
            opts,
            outputs,
            collectives.all_gather_coalesced,
            outputs,
            inputs,
            shown=inputs,
        )

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Call:
        return self.all_gather_single_coalesced([output], [own], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Call:
        return self.core.call(
            "all_gather", opts, outputs, collectives.all_gather_into, outputs, inputs, shown=inputs
        )

    def gather(self, outputs: list[Tensors], inputs: Any, opts: Any = None) -> Call:
        into = outputs[0] if outputs else []
        own = self._one("gather", inputs, opts)
        return self.core.call(
            "gather", opts, outputs, collectives.gather, into, own, opts.rootRank, shown=[own]
        )

    def scatter(self, outputs: Any, inputs: list[Tensors], opts: Any = None) -> Call:
        given = inputs[0] if inputs else []
        output = self._one("scatter", outputs, opts)
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
        output = self._one("reduce_scatter", outputs, opts)
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
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Call:
        return self.core.call(
            "reduce_scatter",
            opts,
            outputs,
            collectives.reduce_scatter_from,
            outputs,
            inputs,
            _op(opts),
            shown=inputs,
        )

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
        def exchange(members: Members, deadline: float) -> None:
            is_plain = output.is_contiguous()
            into = output if is_plain else torch.empty(output.shape, dtype=output.dtype)
            outputs = _parts(into, output_sizes, members.size)
            inputs = _parts(given, input_sizes, members.size)
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
