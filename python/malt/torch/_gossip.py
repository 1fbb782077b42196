"""Gossip of gradients: a communication hook for DistributedDataParallel that waits for no rank."""

# No postponed annotations: DDP looks at those of the hook.
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from malt._core_import import ALL, AVG, Deadline, Graph, Vector
from malt._errors import ConfigError
from malt.torch._backend.core import Core
from malt.torch._backend.errors import translated
from malt.torch._backend.limits import deadline_in, time_left
from malt.torch._backend.process_group import core_of


class _Exchange(NamedTuple):
    """The vector through which a bucket of gradients is exchanged."""

    vector: Vector
    values: torch.Tensor  # the vector's memory


class Gossip:
    """The state of gossip(): over which graph, and of which process group.

    Args:
        graph: which ranks send to which; a rank sends to its out-neighbours of the round.
        group: a process group of the backend malt; None: that of init_process_group().

    Raises:
        ConfigError: the process group has another backend.
    """

    def __init__(self, graph: Graph = ALL, group: dist.ProcessGroup | None = None) -> None:
        self._core: Core = core_of(dist.group.WORLD if group is None else group)
        self._graph = graph
        self._buckets: dict[int, _Exchange] = {}

    def exchange(self, index: int, gradients: torch.Tensor) -> None:
        """Replace gradients by their mean with those that have arrived. See gossip()."""
        core = self._core
        if core.members.size == 1:
            return
        core.line.call(lambda: self._exchange(index, gradients), [], False).wait()

    def _exchange(self, index: int, gradients: torch.Tensor) -> None:
        with translated("gossip", self._core.members.names):
            vector, values = self._bucket(index, gradients)
            values.copy_(gradients)
            vector.scatter()
            vector.gather(AVG)
            gradients.copy_(values)

    def _bucket(self, index: int, gradients: torch.Tensor) -> _Exchange:
        """Return the bucket's vector. DDP changes its buckets on all ranks at the same step."""
        found = self._buckets.get(index)
        if found is not None and len(found.vector) == gradients.numel():
            return found
        if found is not None:
            found.vector.close()
        members, count = self._core.members, gradients.numel()
        dtype = "float64" if gradients.dtype == torch.float64 else "float32"
        deadline = deadline_in(members.timeout)
        with members.in_step("gossip", deadline):
            # Ranks with another bucket are named, and the making below is a part of the call.
            members.run([], [], f"gossip of bucket {index}, {count} elements of {dtype}", deadline)
            with members.group.within(Deadline(time_left(deadline))):
                vector = Vector(
                    group=members.group,
                    dtype=np.dtype(dtype),
                    arrays=[],
                    own_count=count,
                    shown=None,
                    name=f"gossip-{self._core.next_number()}",
                    graph=self._graph,
                    policy="latest",
                    depth=2,
                    reject_nonfinite=False,
                    max_norm=None,
                    rejoins=False,
                )
            made = _Exchange(vector, torch.from_numpy(vector.array))
            self._buckets[index] = made
        return made


def gossip(state: Gossip, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients with those that other ranks have sent here so far.

        model.register_comm_hook(malt.torch.Gossip(malt.RANDOM(2, seed=7)), malt.torch.gossip)

    A rank sends its gradients to its out-neighbours, and takes the mean of its own and of what has
    arrived from its in-neighbours since its last step: the newest of each. It waits for no rank, so
    a slow one does not hold up the others, and ranks may take unequal numbers of steps. Only in the
    first step, and where DDP changes its buckets (after the second, as a rule), do the ranks wait
    for one another, to make memory: that is a collective call of the process group, with its time
    limit. The ranks' models differ a little; average them now and then (malt.torch.average, or
    torch.distributed.algorithms.model_averaging).

    Args:
        state: made once on each rank, before the first step.
        bucket: given by DDP; float32, float64, or a smaller floating-point type.

    Raises:
        ConfigError: `state` is no Gossip; or ranks have made different calls, or buckets.
        TimeoutError: in those steps, the ranks that the error names did not come. This rank has
            then left the group, as after any collective call that has not come to its end.
        PeerError: ranks have died in those steps, or this rank has been evicted.
    """
    if not isinstance(state, Gossip):
        raise ConfigError(
            f"the state is a {type(state).__name__}; it is malt.torch.Gossip(graph): "
            "model.register_comm_hook(malt.torch.Gossip(malt.RING), malt.torch.gossip)"
        )
    gradients = bucket.buffer()
    state.exchange(bucket.index(), gradients)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done
