"""DiLoCo: local steps of one optimizer, and from time to time a common step of another.

After Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023),
algorithm 1; Nesterov's momentum in the form of torch.optim.SGD, where the rate is no part of the
velocity (Sutskever et al. 2013 have it there; at a constant rate both take the same steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from malt._arguments import whole
from malt._errors import ConfigError
from malt._vectors.averaging import Averaging
from malt._vectors.progress import Progress
from malt.torch import _model
from malt.torch._flat import Flat
from malt.torch._optimizer import Around

_STATE = "diloco"  # the outer optimizer's key in the inner one's state


class _OuterStep(Progress):
    """An outer step.

    Attributes:
        taken: by dtype, the velocity and the parameters after it, once these are known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}


class DiLoCo(Around):
    """Local steps, and after every `every` of them an outer step with Nesterov's momentum.

        optimizer = malt.torch.DiLoCo(model, torch.optim.AdamW(model.parameters()), every=500)

    The rest of the loop stays as it is. Let p be the parameters right after the last outer step,
    and d the mean over the ranks of what their steps have subtracted from p since then. The outer
    step is: v = momentum v + d; p = p - rate (d + momentum v). It is the same on all ranks, so all
    have the same model after it. The inner optimizer's state stays each rank's own. All ranks begin
    with the lowest rank's values, and must take equally many steps.

    Args:
        model: the module whose parameters the optimizer has, in float32 or float64, on the CPU or
            an NVIDIA GPU. Do not move or convert it afterwards: its parameters are in the vectors'
            memory.
        optimizer: the inner one, from torch.optim.
        every: inner steps from one outer step to the next (the paper's H, 500).
        outer_lr: of the outer steps, above 0 (the paper's: 0.7).
        outer_momentum: from 0 to below 1 (the paper's: 0.9). With 0, and a rate of 1, an outer step
            is an average of the models.
        buffers: also average the buffers in float32 or float64, such as BatchNorm's statistics.

    Raises:
        ConfigError: an argument is wrong, a parameter is on another device or of another dtype, or,
            on every rank, the ranks' models differ.
        TimeoutError: the ranks that the error names did not make the optimizer.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 500,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        buffers: bool = True,
    ) -> None:
        self._every = whole("every", every, 1)
        if not 0 < outer_lr < math.inf:
            raise ConfigError(f"outer_lr is {outer_lr!r}; it is a number above 0")
        if not 0 <= outer_momentum < 1:
            raise ConfigError(f"outer_momentum is {outer_momentum!r}; it is from 0 to below 1")
        averaging = Averaging(None, 0)
        super().__init__(model, optimizer, averaging)
        self._rate, self._momentum = outer_lr, outer_momentum
        statistics = _model.statistics(model, buffers)
        settings = f"every {self._every}, outer_lr {outer_lr}, outer_momentum {outer_momentum}"
        _model.check_alike(
            "malt.torch.DiLoCo",
            self._parameters | statistics,
            _model.kept(model, self._parameters),
            settings,
        )
        self._flat = Flat(self._parameters, averaging)
        self._statistics = Flat(statistics, averaging)
        for flat in self._flats:
            flat.start_alike()
            flat.adopt()
        memory = self._flat.memory
        self._anchors = {dtype: here.clone() for dtype, here in memory.items()}
        self._velocities = {dtype: torch.zeros_like(here) for dtype, here in memory.items()}
        self._steps = 0  # since the last outer step
        self._outer: _OuterStep | None = None  # that an exception has ended on this rank

    @property
    def _flats(self) -> tuple[Flat, ...]:
        return self._flat, self._statistics

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of the inner optimizer, and after every `every` steps the outer one.

        Raises:
            ConfigError: a parameter was moved, converted or replaced, or the optimizer has been
                given other parameters.
            TimeoutError: the ranks that the error names did not come to this outer step. The inner
                step is taken: go on with outer_step(), also after Ctrl-C, and then with the next
                step().
        """
        loss = self._inner.step(closure)
        self._steps += 1
        if self._steps >= self._every:
            self.outer_step()
        return loss

    def outer_step(self) -> None:
        """Take the outer step now; call it after the last inner step. Collective.

        Raises:
            ConfigError: as step().
            TimeoutError: the ranks that the error names did not come to this outer step. Call it
                again: it goes on where it has ended, also after Ctrl-C.
        """
        self._outer = self._outer or _OuterStep()
        self._check()
        for flat in self._flats:
            flat.check_adopted()
        self._join.before_exchange(self._outer)
        self._take(self._outer)
        self._outer = None

    def join(self) -> AbstractContextManager[None]:
        """Wrap a loop in which ranks may have unequal numbers of batches. Collective.

            with optimizer.join():
                for batch in batches: ...; optimizer.step()

        A rank that has finished its batches takes the others' outer steps until all ranks have
        finished. It contributes what its own steps have subtracted since its last outer step.
        """
        return self._join.loop(lambda: self._take(_OuterStep()))

    def _take(self, step: _OuterStep) -> None:
        for flat in self._flats:
            flat.exchange(step)
        for dtype, here in self._flat.memory.items():
            if dtype not in step.taken:
                step.taken[dtype] = self._next(dtype, here)
            self._velocities[dtype], self._anchors[dtype] = step.taken[dtype]
            here.copy_(self._anchors[dtype])
        self._steps = 0

    def _next(self, dtype: torch.dtype, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the velocity and the parameters after an outer step."""
        anchor = self._anchors[dtype]
        gradient = anchor - mean
        velocity = self._velocities[dtype].mul(self._momentum).add_(gradient)
        moved = anchor.sub(gradient, alpha=self._rate)
        return velocity, moved.sub_(velocity, alpha=self._rate * self._momentum)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, with the outer one's under "diloco" by parameter."""
        outer = {
            "steps": self._steps,
            "anchors": self._by_name(self._anchors),
            "velocities": self._by_name(self._velocities),
        }
        return super().state_dict() | {_STATE: outer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from this rank's own state; call it after model.load_state_dict().

        Raises:
            ConfigError: the state is of another optimizer, or of a model with other parameters.
        """
        outer = state_dict.get(_STATE)
        if outer is None:
            raise ConfigError(
                f"the state has {sorted(state_dict)}, without {_STATE!r}: it was saved by another "
                "optimizer; load it into that one before malt.torch.DiLoCo is made around it"
            )
        shapes = {name: tuple(tensor.shape) for name, tensor in self._parameters.items()}
        for key in ("anchors", "velocities"):
            found = {name: tuple(tensor.shape) for name, tensor in outer[key].items()}
            if found != shapes:
                differ = sorted(set(found.items()) ^ set(shapes.items()))
                raise ConfigError(
                    f"the {key} in the state are of a model with other parameters: {differ[0][0]} "
                    f"of shape {differ[0][1]} is in one alone"
                )
        inner = {key: value for key, value in state_dict.items() if key != _STATE}
        super().load_state_dict(inner)
        for key, memory in (("anchors", self._anchors), ("velocities", self._velocities)):
            for name, view in self._flat.views(memory):
                view.copy_(outer[key][name])
        self._steps = int(outer["steps"])

    def _by_name(self, memory: Mapping[torch.dtype, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: view.clone() for name, view in self._flat.views(memory)}
