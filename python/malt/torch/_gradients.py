"""Gradient exchange: every optimizer step uses the mean of the ranks' gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from malt._core_import import AVG, Fold, Graph
from malt._errors import ConfigError
from malt._vectors.averaging import Averaging
from malt._vectors.progress import Progress
from malt.torch import _model
from malt.torch._flat import Flat
from malt.torch._optimizer import Around


class GradientExchange(Around):
    """An optimizer whose steps use the gradients of all ranks. Making it is collective.

        optimizer = malt.torch.GradientExchange(model, torch.optim.SGD(model.parameters(), lr=0.1))

    The rest of the loop stays as it is. With graph=None and staleness=0 every rank takes the same
    step, so all have the same model: the mini-batch is that of all ranks together. Otherwise a step
    uses the gradients that have arrived, some of them late; the models then differ. All ranks begin
    with the lowest rank's values.

    A parameter without a gradient counts as having a gradient of zeros. If it has none (or zeros)
    on every rank, it stays without one.

    Args:
        model: the module whose parameters the optimizer has, in float32 or float64, on the CPU or
            an NVIDIA GPU.
        optimizer: one of torch.optim.
        graph: which ranks send to which; None: every rank to every rank.
        staleness: how many steps an in-neighbour may be behind; 0: a step waits for theirs of the
            same number (BSP); None: it waits for none. No gradient is lost: unless graph=None and
            staleness=0, a rank that is two steps ahead of a rank it sends to waits for it.
        fold: malt.AVG, or SUM, MEDIAN or TRIMMED_MEAN(f), over the ranks, element by element.
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
        graph: Graph | None = None,
        staleness: int | None = 0,
        fold: Fold = AVG,
        buffers: bool = True,
    ) -> None:
        averaging = Averaging(graph, staleness)
        if not isinstance(fold, Fold):
            raise ConfigError(f"fold is {fold!r}; it is malt.AVG, SUM, MEDIAN or TRIMMED_MEAN(f)")
        super().__init__(model, optimizer, averaging)
        self._fold = fold
        statistics = _model.statistics(model, buffers)
        _model.check_alike(
            "malt.torch.GradientExchange",
            self._parameters | statistics,
            _model.kept(model, self._parameters),
            f"fold {fold!r}",
        )
        self._gradients = Flat(
            self._parameters,
            averaging,
            "latest" if averaging.is_exact else "queue",
            tied=False,
        )
        self._gradients.start_alike()
        self._views = dict(self._gradients.views(self._gradients.memory))
        self._statistics = Flat(statistics, averaging)
        self._statistics.start_alike()
        self._statistics.adopt()
        self._has_exchanged = False
        self._exchanging: Progress | None = None  # in an exchange that an exception has ended

    @property
    def _flats(self) -> tuple[Flat, ...]:
        return self._gradients, self._statistics

    def exchange(self) -> None:
        """Fold the ranks' gradients now, for example to clip the result; step() then does not.

        Raises:
            ConfigError: a gradient is sparse, a buffer was moved, or the optimizer has been given
                other parameters.
            TimeoutError: the ranks that the error names did not come to this step. Call this again,
                or step(), with the same gradients: it goes on with the exchange, also after Ctrl-C.
        """
        self._exchanging = self._exchanging or Progress()
        self._check()
        self._statistics.check_adopted()
        self._join.before_exchange(self._exchanging)
        self._fold_gradients(self._exchanging)
        self._exchanging = None

    @contextmanager
    def join(self) -> Iterator[None]:
        """Wrap a loop in which ranks may have unequal numbers of batches. Collective.

            with optimizer.join():
                for batch in batches: ...; optimizer.step()

        A rank that has finished its batches takes the others' steps, with gradients of zeros, until
        all ranks have finished. At the end all get the model of a rank that made the last step. For
        staleness=0.
        """
        with self._join.loop(self._take_part):
            yield
        if self._join.last is not None:
            self._gradients.give(self._join.last)

    def _take_part(self) -> None:
        self.zero_grad()
        self._fold_gradients(Progress())
        self._inner.step()
        self._has_exchanged = False

    def _fold_gradients(self, progress: Progress) -> None:
        without = self._collect(progress)
        self._gradients.exchange(progress, self._fold)
        self._statistics.exchange(progress)
        for name, parameter in self._parameters.items():
            if name not in without or self._views[name].any():
                parameter.grad = self._views[name]
        self._has_exchanged = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange, unless exchange() was called since the last step, and take the step.

        Args:
            closure: computes gradients and returns the loss; called once.

        Raises:
            ConfigError: as exchange().
            TimeoutError: as exchange().
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._has_exchanged or self._exchanging is not None:
            self.exchange()
        self._inner.step()
        self._has_exchanged = False
        return loss

    def _collect(self, progress: Progress) -> set[str]:
        """Copy the gradients to where they are sent from; return the parameters without one.

        Those that this exchange has folded already, before an exception ended it, stay as they are.
        """
        without = set()
        vectors = self._gradients.vectors
        folded = {dtype for dtype in vectors if progress.has_exchanged(vectors[dtype])}
        for name, parameter in self._parameters.items():
            gradient, view = parameter.grad, self._views[name]
            if gradient is None:
                without.add(name)
            if parameter.dtype in folded:
                continue
            if gradient is None:
                view.zero_()
            elif gradient.layout != torch.strided:
                raise ConfigError(
                    f"the gradient of {name} is {gradient.layout}; only dense ones are exchanged: "
                    "make the layer with sparse=False"
                )
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
        return without
