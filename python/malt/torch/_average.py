"""Model averaging: each rank trains by itself, and from time to time they average their models."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from malt._arguments import whole
from malt._core_import import Graph, Vector
from malt._errors import ConfigError
from malt._vectors.averaging import Averaging
from malt._vectors.progress import Progress
from malt.torch import _model
from malt.torch._flat import Flat
from malt.torch._join import Join


def average(
    model: torch.nn.Module,
    every: int = 32,
    *,
    graph: Graph | None = None,
    staleness: int | None = 0,
    buffers: bool = True,
) -> Average:
    """Average a model over the ranks after every `every` steps. Collective.

    MALT moves the parameters into the memory of a malt.vector, one after the other, with one vector
    for each dtype. `.data` of each parameter is then a view of that memory, so an exchange copies
    nothing to or from the model. Optimizers, schedulers, autocast, gradient clipping and
    state_dict() work as before. All ranks begin with the lowest rank's values. Tied weights stay
    tied.

    Parameters that do not require gradients are not exchanged; they must be the same on all ranks.
    Optimizers' moments stay each rank's own, as in local SGD (Stich, 2019).

    Args:
        model: with parameters in float32 or float64, on the CPU or an NVIDIA GPU. Do not move or
            convert it afterwards.
        every: steps from one exchange to the next.
        graph: which ranks send to which; None: every rank to every rank.
        staleness: how many exchanges an in-neighbour may be behind; 0: an exchange waits for theirs
            of the same number (BSP); None: it waits for none.
        buffers: also average the buffers in float32 or float64, such as BatchNorm's running
            statistics; other buffers, such as its num_batches_tracked, stay each rank's own.

    Returns:
        An object whose step() is called after each optimizer.step().

    Raises:
        ConfigError: an argument is wrong, a parameter is on another device or of another dtype, or,
            on every rank, the ranks' models differ.
        TimeoutError: the ranks that the error names did not make this call.
    """
    return Average(model, every, Averaging(graph, staleness), buffers)


class Average:
    """A model that is averaged over the ranks. Made by malt.torch.average()."""

    def __init__(
        self, model: torch.nn.Module, every: int, averaging: Averaging, buffers: bool
    ) -> None:
        self._every = whole("every", every, 1)
        self._model = model
        parameters = _model.trained(model)
        tensors = parameters | _model.statistics(model, buffers)
        self._frozen = _model.kept(model, parameters)
        settings = f"every {self._every}"
        _model.check_alike("malt.torch.average", tensors, self._frozen, settings)
        self._flat = Flat(tensors, averaging)
        self._flat.start_alike()
        self._flat.adopt()
        self._join = Join(averaging)
        self._steps = 0  # since the last exchange
        # In an exchange, and in an allreduce, that an exception has ended on this rank.
        self._exchanging: Progress | None = None
        self._ending: Progress | None = None

    def join(self) -> AbstractContextManager[None]:
        """Wrap a loop in which ranks may have unequal numbers of batches. Collective.

            with average.join():
                for batch in batches: ...; average.step()

        A rank that has finished its batches takes part in the others' exchanges until all ranks
        have finished. It contributes the average that it has, as if its steps had length 0. For
        staleness=0.
        """
        return self._join.loop(lambda: self._flat.exchange(Progress()))

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The vectors, one for each dtype: their stats() count bytes and waiting."""
        return tuple(self._flat.vectors.values())

    def step(self) -> bool:
        """Count a step of the optimizer, and exchange after every `every` steps.

        Returns:
            Whether this step exchanged.

        Raises:
            ConfigError: a parameter was moved, converted, replaced or unfrozen meanwhile.
            TimeoutError: the ranks that the error names did not come to this exchange. Call step()
                again: it goes on with the exchange, also after Ctrl-C.
        """
        if self._exchanging is None:
            steps = self._steps + 1
            if steps < self._every:
                self._steps = steps
                return False
            self._exchanging = Progress()
        self._check()
        self._join.before_exchange(self._exchanging)
        self._flat.exchange(self._exchanging)
        self._steps = 0
        self._exchanging = None
        return True

    def allreduce(self) -> None:
        """Average exactly over all live ranks, now. Collective: call it after the last step.

        Raises:
            ConfigError: as step(). Also, on all ranks, if one rank is still in its loop, in an
                exchange of step(): see join() and malt.shard(even=True).
            TimeoutError: the ranks that the error names did not come to this call, which is to be
                made again.
        """
        self._ending = self._ending or Progress()
        self._check()
        self._flat.allreduce(self._ending)
        self._steps = 0
        self._ending = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume, beside that of the model and of the optimizer."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`; load the model and the optimizer separately, in place."""
        if set(state) != {"steps"}:
            raise ConfigError(f"the state has {sorted(state)}; that of average() has 'steps' alone")
        self._steps = int(state["steps"])

    def close(self) -> None:
        """Leave: the others' exchanges no longer wait for this rank. The model stays usable."""
        self._flat.close()
        self._join.close()

    def _check(self) -> None:
        _model.check_same(self._model, self._flat.tensors)
        self._flat.check_adopted()
        for name, tensor in self._frozen.items():
            if tensor.requires_grad:
                raise ConfigError(
                    f"{name} has come to require gradients, and is not exchanged: close() this "
                    "and call malt.torch.average() again after unfreezing"
                )
