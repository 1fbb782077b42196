"""`MaltConfig`: the ranks of a job are the workers of Ray Train."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray

try:
    import ray.train
    from ray.train.backend import Backend, BackendConfig
except ImportError as error:
    raise ImportError(
        f'malt.ray.MaltConfig needs Ray Train ({error}): pip install "ray[train]"'
    ) from error

from malt._job import job as jobs
from malt._rendezvous.driver import Rendezvous


@dataclass
class MaltConfig(BackendConfig):
    """Makes the workers of Ray Train the ranks of a job; a worker's rank is its world rank.

        DataParallelTrainer(train, backend_config=malt.ray.MaltConfig(), scaling_config=...).fit()

    In `train`, malt.init() works as under `malt run`. When a worker dies, Ray Train ends all of
    them, and starts them again as often as its FailureConfig says.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend

    @property
    def train_func_context(self) -> Any:
        return _leaving


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """Run the training function, then leave the job."""
    try:
        yield
    finally:
        jobs.finalize()


class _Backend(Backend):
    """Lives in the controller of Ray Train; there is one at a time."""

    def __init__(self) -> None:
        self._rendezvous: Rendezvous | None = None

    def on_training_start(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ARG002
        self._close()
        size = len(worker_group)
        self._rendezvous = Rendezvous(size, host=ray.util.get_node_ip_address())
        worker_group.execute(_set_up, [self._rendezvous.environ(rank) for rank in range(size)])

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ARG002
        self._close()

    def _close(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None


def _set_up(environs: list[dict[str, str]]) -> None:
    """Give this worker its variables; malt.init() takes the key out of them."""
    context = ray.train.get_context()
    os.environ.update(environs[context.get_world_rank()])
    os.environ["MALT_LOCAL_RANK"] = str(context.get_local_rank())
