"""The base of the optimizers that exchange: each wraps another optimizer."""

from __future__ import annotations

import abc
from typing import Any

import torch

from malt._core_import import Vector
from malt._errors import ConfigError
from malt._vectors.averaging import Averaging
from malt.torch import _model
from malt.torch._flat import Flat
from malt.torch._join import Join


class Around(torch.optim.Optimizer):  # type: ignore[misc] # PyTorch is no dependency
    """An optimizer around another, whose parameter groups and state it shares.

    So learning rate schedulers, gradient clipping and gradient scalers can use it like the inner
    one.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, averaging: Averaging
    ) -> None:
        self._model = model
        self._join = Join(averaging)
        self._parameters = _model.optimized(model, optimizer)
        self._inner = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()

    @property
    @abc.abstractmethod
    def _flats(self) -> tuple[Flat, ...]: ...

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The vectors of parameters or gradients, then those of the buffers, one for each dtype."""
        return tuple(each for flat in self._flats for each in flat.vectors.values())

    def close(self) -> None:
        """Leave: the other ranks no longer wait for this one. The model stays usable."""
        for flat in self._flats:
            flat.close()
        self._join.close()

    def _share(self) -> None:
        self.state = self._inner.state
        self.param_groups = self._inner.param_groups

    def _check(self) -> None:
        exchanged = {name: each for flat in self._flats for name, each in flat.tensors.items()}
        _model.check_same(self._model, exchanged)
        count = sum(len(group["params"]) for group in self.param_groups)
        if count != len(self._parameters):
            raise ConfigError(
                f"the optimizer has {count} parameters, and had {len(self._parameters)} when the "
                "exchange was made; add parameter groups before that"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as the inner optimizer does."""
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, which that optimizer can load without MALT too."""
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state into the inner optimizer."""
        self._inner.load_state_dict(state_dict)
        self._share()
