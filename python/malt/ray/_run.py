"""`malt.ray.run`: a function on actors, which are the ranks of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from malt import _errors as errors
from malt._engines import rank as ranks_here
from malt._errors import ConfigError, PeerError
from malt._rendezvous.driver import Rendezvous

_ONE_CPU: Mapping[str, float] = {"CPU": 1}


class _Rank:
    """The actor of one rank; its process is the rank."""

    def run(self, *args: Any) -> Any:
        return ranks_here.run(*args)


def run(
    function: Callable[..., Any],
    *args: Any,
    ranks: int,
    resources: Mapping[str, float] = _ONE_CPU,
    strategy: str = "PACK",
    keep_going: bool = False,
    timeout: float = 30.0,
    **kwargs: Any,
) -> list[Any]:
    """Run `function(*args, **kwargs)` on actors as the ranks of a job; return their results.

    In the function malt.init() works as under `malt run`. All ranks begin at once, or none does.

    Args:
        function: what each rank runs.
        *args: its arguments.
        ranks: how many.
        resources: what each rank takes of Ray's resources, such as {"CPU": 2, "GPU": 1}.
        strategy: how Ray spreads the ranks over its nodes: "PACK" (on few, where they share
            memory), "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        keep_going: whether the others go on when a rank fails. Without it they are killed.
        timeout: the most seconds to wait for the resources, and until all ranks have begun.
        **kwargs: the function's arguments by name.

    Returns:
        The results by rank; with `keep_going`, the error in the place of a rank that failed.

    Raises:
        ConfigError: Ray is not initialised in this process, or is reached by Ray Client.
        TimeoutError: Ray did not have the resources in time; names the ranks.
        PeerError: a rank's actor has died; names the rank.
        Exception: the function's own, from the first rank that failed. No actor is left.
    """
    if not ray.is_initialized():
        raise ConfigError("malt.ray.run() needs a Ray cluster: call ray.init() first")
    if ray.util.client.ray.is_connected():
        raise ConfigError(
            "malt.ray.run() works in a process of the cluster, not through Ray Client (ray://): "
            "submit the program as a job (ray job submit), or call it in a remote function"
        )
    host = ray.util.get_node_ip_address()
    with (
        Rendezvous(ranks, host=host) as rendezvous,
        _reserved(ranks, resources, strategy, timeout) as reserved,
        _actors(ranks, resources, reserved) as actors,
    ):
        running = {
            actor.run.remote(rendezvous.environ(rank), timeout, function, args, kwargs): rank
            for rank, actor in enumerate(actors)
        }
        return _results(running, rendezvous, keep_going)


@contextlib.contextmanager
def _reserved(
    ranks: int, resources: Mapping[str, float], strategy: str, timeout: float
) -> Iterator[Any]:
    """Reserve the resources of all ranks, or of none."""
    group = placement_group([dict(resources)] * ranks, strategy=strategy)
    try:
        if not group.wait(timeout):
            there = {name: ray.cluster_resources().get(name, 0) for name in resources}
            raise errors.TimeoutError(
                f"{ranks} ranks of {dict(resources)} each did not find room in Ray's cluster "
                f"within {timeout:g} s; it has {there} in all: ask for fewer, wait for other jobs "
                "to end, or give a longer limit (timeout=)",
                range(ranks),
            )
        yield group
    finally:
        remove_placement_group(group)


@contextlib.contextmanager
def _actors(ranks: int, resources: Mapping[str, float], group: Any) -> Iterator[list[Any]]:
    others = {name: count for name, count in resources.items() if name not in ("CPU", "GPU")}
    actor = ray.remote(_Rank)
    made: list[Any] = []
    try:
        for rank in range(ranks):
            options = actor.options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                resources=others,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank
                ),
            )
            made.append(options.remote())
        yield made
    finally:
        for each in made:
            ray.kill(each)


def _results(running: dict[Any, int], rendezvous: Rendezvous, keep_going: bool) -> list[Any]:
    results: list[Any] = [None] * len(running)
    failed = 0
    while running:
        for reference in ray.wait(list(running), num_returns=1)[0]:
            rank = running.pop(reference)
            try:
                results[rank] = ray.get(reference)
                continue
            except ray.exceptions.RayActorError as error:
                failure: Exception = PeerError(f"rank {rank} died with its actor: {error}", [rank])
            except Exception as error:  # of the function
                failure = error
            rendezvous.fail(rank)
            failed += 1
            if not keep_going or failed == len(results):
                raise failure
            results[rank] = failure
    return results
