"""Which rank has which layers."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from malt._errors import ConfigError, describe_ranks

Ranks = tuple[tuple[int, ...], ...]  # by stage: the ranks of its replicas


def layers_of(layers: Any) -> OrderedDict[str, torch.nn.Module]:
    """Return the layers by their names in the undivided network.

    Raises:
        ConfigError: they are no list of modules.
    """
    if isinstance(layers, torch.nn.Sequential):
        if type(layers).forward is not torch.nn.Sequential.forward:
            raise ConfigError(
                f"the network is a {type(layers).__name__}, whose forward() is its own; give "
                "nn.Sequential of its layers, or a list of them"
            )
        named = [(name, layers[place]) for place, name in enumerate(layers._modules)]
    elif isinstance(layers, Sequence):
        named = [(str(place), layer) for place, layer in enumerate(layers)]
    else:
        raise ConfigError(
            f"the network is a {type(layers).__name__}; it is an nn.Sequential or a list of "
            "modules, which are called one after the other"
        )
    for name, layer in named:
        if not isinstance(layer, torch.nn.Module):
            raise ConfigError(f"layer {name} is a {type(layer).__name__}, and no torch.nn.Module")
    return OrderedDict(named)


def ranks_of(ranks: Any, size: int) -> Ranks:
    """Return the ranks of each stage. None: each rank is a stage.

    Raises:
        ConfigError: a stage has no rank, the stages have different numbers, or a rank is out of
            range or in two of them.
    """
    listed = range(size) if ranks is None else ranks
    if not isinstance(listed, Sequence) or not listed:
        raise ConfigError(
            f"ranks is {ranks!r}; give one entry a stage: a rank, or a tuple of ranks"
        )
    stages = tuple(_stage(stage, entry) for stage, entry in enumerate(listed))
    counts = {len(stage) for stage in stages}
    if len(counts) > 1:
        raise ConfigError(
            f"ranks is {ranks!r}: a stage has {min(counts)} ranks, another {max(counts)}; all "
            "stages have the same number of replicas"
        )
    every = sorted(rank for stage in stages for rank in stage)
    if not 0 <= every[0] <= every[-1] < size:
        raise ConfigError(f"ranks is {ranks!r}; the job has ranks from 0 to {size - 1}")
    if twice := {rank for rank, after in pairwise(every) if rank == after}:
        raise ConfigError(
            f"ranks is {ranks!r}: {describe_ranks(twice)} has two stages; a rank has one"
        )
    return stages


def _stage(stage: int, entry: Any) -> tuple[int, ...]:
    try:
        ranks = tuple(operator.index(rank) for rank in entry)
    except TypeError:
        try:
            ranks = (operator.index(entry),)
        except TypeError:
            raise ConfigError(
                f"stage {stage} has {entry!r}; it has a rank, or a tuple of ranks"
            ) from None
    if not ranks:
        raise ConfigError(
            f"stage {stage} is empty: it has no rank; give it one in ranks=, or leave it out"
        )
    return ranks


def cut(layers: OrderedDict[str, torch.nn.Module], stages: int) -> list[list[str]]:
    """Divide the layers into stages; the largest one has as few parameters as possible.

    Of the divisions for which this is so, the one is taken in which each stage, from the first on,
    has as many layers as fit. With as many layers as stages, each layer is a stage.

    Raises:
        ConfigError: there are fewer layers than stages, or a parameter would be in two stages.
    """
    if len(layers) < stages:
        raise ConfigError(
            f"{stages} stages for {len(layers)} layers: stage {len(layers)} would be empty; name "
            f"at most {len(layers)} stages in ranks=, or divide the network into more layers"
        )
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers.values()]
    sums = [0, *accumulate(sizes)]
    low, high = max(sizes), sums[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_filled(sizes, middle, stages)) <= stages:
            high = middle
        else:
            low = middle + 1
    names = list(layers)
    ends = _filled(sizes, low, stages)
    divided = [names[begin:end] for begin, end in pairwise([0, *ends])]
    _check_apart(layers, divided)
    return divided


def _filled(sizes: Sequence[int], most: int, stages: int) -> list[int]:
    """Return where stages of at most `most` end, each with as many layers as fit.

    A layer is left for each further stage, so that none is empty.
    """
    ends: list[int] = []
    total = 0
    for place, size in enumerate(sizes):
        is_short = len(sizes) - place < stages - len(ends)
        if place > 0 and (total + size > most or is_short):
            ends.append(place)
            total = 0
        total += size
    return [*ends, len(sizes)]


def _check_apart(layers: OrderedDict[str, torch.nn.Module], divided: list[list[str]]) -> None:
    """Raise ConfigError if a parameter is in two stages, which would train it twice."""
    first: dict[torch.nn.Parameter, tuple[int, str]] = {}
    for stage, names in enumerate(divided):
        for name in names:
            for inner, parameter in layers[name].named_parameters():
                own = f"{name}.{inner}"
                before, other = first.setdefault(parameter, (stage, own))
                if before != stage:
                    raise ConfigError(
                        f"parameters {other} of stage {before} and {own} of stage {stage} are one "
                        "tied parameter, and each stage would train its own: put both layers into "
                        "one stage (give a list of one module a stage), or untie them"
                    )
