"""The order in which a stage works through the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SCHEDULES = ("1f1b", "gpipe")


class Work(NamedTuple):
    """One piece of a stage's work: the forward or the backward pass of a micro-batch."""

    is_forward: bool
    microbatch: int


def order_of(schedule: str, stage: int, stages: int, microbatches: int) -> Iterator[Work]:
    """Yield the work of a stage, in order.

    Both schedules keep the micro-batches in order in either direction, so a stage's gradients are
    summed up as when the micro-batches are accumulated one after the other.

    "gpipe" (Huang et al. 2019, GPipe, section 2.3): all forward passes, then all backward passes.
    "1f1b" (Narayanan et al. 2019, PipeDream, section 3.2; in this synchronous form Narayanan et
    al. 2021, Megatron-LM, section 2.2.1): a stage begins with as many forward passes as there are
    stages after it, then does one forward and one backward pass in turn. So it keeps the
    activations of at most `stages - stage` micro-batches.
    """
    ahead = microbatches if schedule == "gpipe" else min(microbatches, stages - 1 - stage)
    for microbatch in range(ahead):
        yield Work(True, microbatch)
    for microbatch in range(ahead, microbatches):
        yield Work(True, microbatch)
        yield Work(False, microbatch - ahead)
    for microbatch in range(microbatches - ahead, microbatches):
        yield Work(False, microbatch)
