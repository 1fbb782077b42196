"""A network divided among ranks by its layers: malt.torch.Pipeline."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from malt import _errors as errors
from malt._arguments import whole
from malt._errors import ConfigError, DamagedError, Error, PeerError, describe_ranks
from malt._job import job as jobs
from malt._job.agreement import Report
from malt._job.parting import shares
from malt._messages.subgroup import Subgroups
from malt.torch import _model
from malt.torch._flat import DTYPES
from malt.torch._pipeline import division
from malt.torch._pipeline.order import SCHEDULES, order_of
from malt.torch._pipeline.replicas import Replicas
from malt.torch._pipeline.stage import LossFunction, Stage, check_tensor
from malt.torch._pipeline.wire import ACTIVATION, GRADIENT, PREDICTION, Failure, FailureError, Wire

_CALL = "malt.torch.Pipeline"
_MOST_DEPTH = 8
_NEWS_SECONDS = 2.0  # how long it may take to become known why a neighbour has left


class Pipeline:
    """A network whose layers are divided among ranks, its stages. Making it is collective.

        pipe = malt.torch.Pipeline(layers, microbatches=4)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        for x, y in batches:                            # the same on all ranks
            loss = pipe.step(x, y, torch.nn.functional.cross_entropy)
            optimizer.step()
            optimizer.zero_grad()

    Every rank makes the same layers, from the same seed or file, and trains those of its stage. A
    step cuts the batch into micro-batches; while a stage works on one, the next stage works on the
    one before. The gradients are those of the undivided network with the micro-batches accumulated
    one after the other, bit for bit (without dropout, whose random numbers each rank draws itself).

    With several ranks a stage, its replicas, there are as many pipelines side by side. Each takes
    batches of its own, and gradients are averaged over them.

    Args:
        layers: an nn.Sequential or a list of modules on the CPU, called one after the other. Each
            takes one tensor and returns one.
        ranks: for each stage its rank, or a tuple of the ranks of its replicas: [0, 1], or
            [(0, 1), (2, 3)], where rank 0 sends to rank 2. All live ranks have a stage. None: each
            rank is a stage.
        microbatches: how many a batch is cut into, along its first dimension.
        schedule: "1f1b", in which a stage keeps the activations of at most as many micro-batches
            as there are stages, or "gpipe", in which it keeps all of a batch.

    Attributes:
        module: this rank's stage, an nn.Sequential whose layers have the names of the whole one.
        stage: its number, from 0.
        stages: how many there are.
        replica: which of the pipelines side by side this rank is in, from 0.
        replicas: how many there are.

    Raises:
        ConfigError: on all ranks: an argument is wrong, a stage would be empty, a parameter would
            be in two stages, or the ranks' layers or arguments differ.
        PeerError: on all ranks: a rank of a stage is dead or has left.
        TimeoutError: the ranks that the error names did not make the pipeline.
    """

    def __init__(
        self,
        layers: torch.nn.Sequential | Sequence[torch.nn.Module],
        *,
        ranks: Sequence[int | Sequence[int]] | None = None,
        microbatches: int = 1,
        schedule: str = "1f1b",
    ) -> None:
        job = jobs.current()
        subgroups = Subgroups(_CALL)
        named: OrderedDict[str, torch.nn.Module] = OrderedDict()
        places: division.Ranks = ()
        divided: list[list[str]] = []

        def check() -> Report:
            nonlocal named, places, divided
            named = division.layers_of(layers)
            places = division.ranks_of(ranks, job.size)
            divided = division.cut(named, len(places))
            if schedule not in SCHEDULES:
                raise ConfigError(f"schedule is {schedule!r}; it is '1f1b' or 'gpipe'")
            _check_tensors(named, has_replicas=len(places[0]) > 1)
            return {
                "ranks": [list(stage) for stage in places],
                "the division of the layers": divided,
                "microbatches": whole("microbatches", microbatches, 1),
                "schedule": schedule,
            }

        live = set(subgroups.agree(check))
        every = {rank for stage in places for rank in stage}
        if dead := every - live:
            raise PeerError(
                f"{_CALL}: {describe_ranks(dead)} died or left; divide the layers among "
                "the others: ranks=malt.alive()",
                dead,
            )
        if idle := live - every:
            raise ConfigError(
                f"{_CALL}: {describe_ranks(idle)} has no stage; give each rank one in ranks="
            )
        network = torch.nn.Sequential(named)
        tensors = dict(network.named_parameters()) | dict(network.named_buffers())
        _model.check_alike(_CALL, {}, tensors, "one network")
        self.stage, self.replica = next(
            (stage, replicas.index(job.rank))
            for stage, replicas in enumerate(places)
            if job.rank in replicas
        )
        self.stages, self.replicas = len(places), len(places[0])
        self.module = torch.nn.Sequential(
            OrderedDict((name, named[name]) for name in divided[self.stage])
        )
        self._names = set(network.state_dict())
        self._microbatches, self._schedule = microbatches, schedule
        self._stage = Stage(self.module)
        self._ranks = every
        self._ended = ""  # why no more calls can be made
        self._before: Wire | None = None
        self._after: Wire | None = None
        self._beside: list[Wire] = []  # to replicas of this stage; they carry failures alone
        self._replicas: Replicas | None = None  # if there are several
        self._form(subgroups, places)
        job.companions.add(self)

    def _form(self, subgroups: Subgroups, places: division.Ranks) -> None:
        """Form the groups of neighbours, and of the replicas of each stage, in the same order."""
        job = jobs.current()
        self._timeout = timeout = job.settings.timeout
        depth = min(self._microbatches, self.stages, _MOST_DEPTH - 2) + 2
        for replica in range(self.replicas):
            for stage in range(self.stages - 1):
                ends = places[stage][replica], places[stage + 1][replica]
                peer = ends[0] if job.rank == ends[1] else ends[1]
                wire = subgroups.form(ends, partial(Wire, peer=peer, depth=depth, timeout=timeout))
                if wire is not None and peer == ends[0]:
                    self._before = wire
                elif wire is not None:
                    self._after = wire
        for replicas in places if self.replicas > 1 else ():
            averaged = subgroups.form(
                replicas, partial(Replicas, module=self.module, timeout=timeout)
            )
            self._replicas = averaged or self._replicas
            for ends in pairwise(replicas):
                peer = ends[0] if job.rank == ends[1] else ends[1]
                wire = subgroups.form(ends, partial(Wire, peer=peer, depth=1, timeout=timeout))
                if wire is not None:
                    self._beside.append(wire)

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage, which takes the inputs."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, which takes the targets."""
        return self.stage == self.stages - 1

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Return the parameters of this rank's stage, for the optimizer."""
        return iter(self.module.parameters())

    def step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> float:
        """Compute a batch's loss, and add its gradients to those of the parameters. Collective.

        The optimizer's step and zero_grad() are the caller's.

        Args:
            inputs: (rows, ...) a tensor; used by the first stage, and may be None on others.
            targets: (rows, ...) a tensor; used by the last stage, and may be None on others.
            loss_fn: loss_fn(output, target) returns the mean loss of a micro-batch, a scalar
                tensor; called on the last stage.

        Returns:
            The loss of the batch, the same bits on all ranks of a pipeline: the sum of the
            micro-batches' losses, each times its share of the rows.

        Raises:
            ConfigError: an argument is wrong, a layer or loss_fn of another rank raised, or a
                parameter was frozen when the pipeline was made and is trained now (with replicas).
            PeerError: a rank is dead or has left; it names that rank.
            TimeoutError: a rank did not come in time; it is named, and gets the same error.

        After an exception no rank can use the pipeline any more. Some stages may have taken one
        step more than others: put back a checkpoint, and make a new pipeline.
        """
        with self._call("step"), torch.enable_grad():
            if self._replicas is not None:
                self._replicas.check()
            parts = self._split("inputs", inputs) if self.is_first else ()
            marks = self._split("targets", targets) if self.is_last else ()
            rows = sum(map(len, marks))
            total = 0.0
            self._stage.begin()
            for wire in self._wires():
                wire.owed = self._microbatches
            for is_forward, each in order_of(
                self._schedule, self.stage, self.stages, self._microbatches
            ):
                if is_forward:
                    self._forward(each, parts[each] if self.is_first else None)
                    if self.is_last:
                        share = len(marks[each]) / rows
                        self._stage.finish(each, loss_fn, marks[each], share)
                else:
                    total = self._backward(each)
            if self._replicas is not None:
                self._replicas.average()
            return total

    def _forward(self, microbatch: int, part: torch.Tensor | None) -> None:
        given, needs_gradient = part, False
        if self._before is not None:
            given, head = self._before.receive(ACTIVATION, self._look)
            needs_gradient = head.whole(0, 1) == 1
        assert given is not None
        output = self._stage.forward(microbatch, given, has_arrived=needs_gradient)
        if self._after is not None:
            self._after.send(
                ACTIVATION, output, float(output.requires_grad), may_grow=microbatch == 0
            )

    def _backward(self, microbatch: int) -> float:
        """Do a micro-batch's backward pass; return the loss of the step up to it, or beyond."""
        gradient = None
        if self._after is not None:
            gradient, head = self._after.receive(GRADIENT, self._look)
            total = head.number
        else:
            assert self._stage.loss is not None
            total = self._stage.loss.item()
        further = self._stage.backward(microbatch, gradient, is_last=self.is_last)
        if self._before is not None:
            self._before.send(GRADIENT, further, total, may_grow=False)
        return total

    def predict(self, inputs: Any) -> torch.Tensor | None:
        """Return the network's outputs on the last stage, and None on others. Collective.

        Call pipe.module.eval() on all ranks first if the layers have a mode of their own.

        Args:
            inputs: (rows, ...) a tensor; used by the first stage, and may be None on others.

        Raises:
            ConfigError: as step().
            PeerError: as step().
            TimeoutError: as step().
        """
        with self._call("predict"), torch.no_grad():
            parts = list(self._split("inputs", inputs, at_least=1)) if self.is_first else []
            outputs: list[torch.Tensor] = []
            left = len(parts)
            may_grow = True
            while left or not outputs:
                if self._before is None:
                    given: torch.Tensor | None = parts[-left]
                else:
                    given, head = self._before.receive(PREDICTION, self._look)
                    left = head.whole(1, self._microbatches)
                assert given is not None
                output = check_tensor(self.module(given))
                if self._after is not None:
                    self._after.send(PREDICTION, output, left, may_grow=may_grow)
                    may_grow = False
                outputs.append(output if self.is_last else output[:0])
                left -= 1
            return torch.cat(outputs) if self.is_last else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's stage, under the names of the undivided network's."""
        return dict(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of a state: that of the undivided network, or of this stage.

        Raises:
            ConfigError: the state lacks tensors of this stage, has some that the network has not,
                or of other shapes.
        """
        if unknown := sorted(set(state) - self._names):
            raise ConfigError(f"the state has {unknown[:5]}, which the network has not")
        own = set(self.module.state_dict())
        if missing := sorted(own - set(state)):
            raise ConfigError(f"the state lacks {missing[:5]} of stage {self.stage}")
        try:
            self.module.load_state_dict({name: state[name] for name in own})
        except RuntimeError as error:
            raise ConfigError(f"the state does not fit stage {self.stage}: {error}") from error

    def close(self) -> None:
        """Leave the pipeline; the layers stay usable. Idempotent."""
        self.leave()

    def leave(self, *, timeout: float | None = None) -> None:
        """Close it within `timeout` seconds; when the job is left."""
        if not self._ended:
            self._end("it has been closed", timeout)

    def _end(self, why: str, timeout: float | None = None) -> None:
        self._ended = why
        parts: list[Wire | Replicas] = [*self._all_wires()]
        if self._replicas is not None:
            parts.append(self._replicas)
        limit = self._timeout if timeout is None else timeout
        for part, share in zip(parts, shares(limit, len(parts)), strict=True):
            part.close(share)

    def _look(self) -> None:
        for wire in self._wires():
            wire.look()

    def _wires(self) -> list[Wire]:
        """Return those to the stages before and after."""
        return [wire for wire in (self._before, self._after) if wire is not None]

    def _all_wires(self) -> list[Wire]:
        return [*self._wires(), *self._beside]

    def _split(
        self, name: str, batch: Any, at_least: int | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Cut a batch into micro-batches: `microbatches`, or fewer if it has fewer rows."""
        least = self._microbatches if at_least is None else at_least
        if not isinstance(batch, torch.Tensor) or batch.dim() == 0:
            raise ConfigError(
                f"{name} is a {type(batch).__name__}; stage {self.stage} needs a tensor of rows"
            )
        if len(batch) < least:
            raise ConfigError(
                f"{name} has {len(batch)} rows for {least} micro-batches; give it at least one "
                "row each (drop_last=True in the DataLoader), or make the pipeline with fewer "
                "microbatches"
            )
        parts: tuple[torch.Tensor, ...] = batch.tensor_split(min(self._microbatches, len(batch)))
        return parts

    @contextlib.contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """Make a call. If it fails, tell the neighbours why, and leave."""
        if self._ended:
            raise ConfigError(f"{_CALL}.{name}(): {self._ended}; make a new one")
        try:
            yield
        except BaseException as error:
            failure = self._failure_of(error)
            for wire in self._all_wires():
                wire.tell(failure)
            self._end(f"it has ended: {failure.text}")
            is_late = isinstance(error, errors.TimeoutError) and failure.ranks == error.ranks
            kinds = ConfigError, PeerError, errors.TimeoutError, FailureError
            if isinstance(error, kinds) and not is_late:
                raise failure.error() from error
            raise

    def _failure_of(self, error: BaseException) -> Failure:
        """Return why the call failed: also where a neighbour has left because of another rank."""
        if isinstance(error, FailureError):
            return error.failure
        if isinstance(error, PeerError):
            return self._await_news(error)
        rank = jobs.current().rank
        if isinstance(error, errors.TimeoutError):
            failure = Failure(errors.TimeoutError, f"rank {rank}: {error}", error.ranks)
            awaited = [wire for wire in self._all_wires() if wire.peer in error.ranks]
            for wire in self._all_wires():
                if wire not in awaited:
                    wire.tell(failure)
            # A neighbour that itself waits for another rank knows more a moment later.
            return self._await_told(awaited, _NEWS_SECONDS) or failure
        if isinstance(error, ConfigError):
            kind: type[Error] = DamagedError if isinstance(error, DamagedError) else ConfigError
            return Failure(kind, f"rank {rank}: {error}")
        return Failure(ConfigError, f"rank {rank}: {type(error).__name__}: {error}")

    def _await_news(self, error: PeerError) -> Failure:
        """Return why a neighbour has left: what it has told, or which rank is dead."""
        job = jobs.current()
        if job.group.is_left_out(job.rank):  # it is not the others that are dead
            return Failure(PeerError, f"{_CALL}: {error}", error.ranks)
        deadline = time.monotonic() + _NEWS_SECONDS
        while True:
            if (told := self._await_told(self._all_wires(), 0.01)) is not None:
                return told
            if dead := self._ranks - set(jobs.alive()):
                text = f"{describe_ranks(dead)} died or left the job"
                return Failure(PeerError, f"{_CALL}: {text}", tuple(sorted(dead)))
            if time.monotonic() > deadline:
                text = f"{describe_ranks(error.ranks)} has left the pipeline"
                return Failure(PeerError, f"{_CALL}: {text}", error.ranks)

    def _await_told(self, wires: list[Wire], seconds: float) -> Failure | None:
        """Return the failure that a neighbour tells within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            for wire in wires:
                if (told := wire.heard()) is not None:
                    return told
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)


def _check_tensors(named: Mapping[str, torch.nn.Module], *, has_replicas: bool) -> None:
    """Raise ConfigError if a parameter or buffer is not on the CPU, or cannot be averaged."""
    for layer_name, layer in named.items():
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if tensor.device.type != "cpu":
                raise ConfigError(
                    f"{layer_name}.{name} is on device {tensor.device}; stages exchange memory of "
                    "the CPU: call .cpu() on the layers first"
                )
            if has_replicas and tensor.requires_grad and tensor.dtype not in DTYPES:
                raise ConfigError(
                    f"{layer_name}.{name} is {tensor.dtype}; gradients in float32 and float64 can "
                    "be averaged over replicas: convert the layers, or give each stage one rank"
                )
