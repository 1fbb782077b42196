"""Names and values of other libraries: the message names the call of MALT that is meant."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import malt
from malt._words import no_attribute_of_pool


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("scatter", "malt.shard(data)"),
        ("gather", "malt.allreduce(value, list)"),
        ("allgather", "malt.allreduce(value, list)"),
        ("all_gather_object", "malt.allreduce(value, list)"),
        ("reduce", "malt.allreduce(value)"),
        ("Allreduce", "malt.allreduce"),
        ("all_reduce", "malt.allreduce"),
        ("bcast", "malt.broadcast(value, root=0)"),
        ("broadcast_parameters", "malt.torch.average(model)"),
        ("DistributedOptimizer", "malt.torch.GradientExchange(model)"),
        ("DistributedDataParallel", "malt.torch.average(model)"),
        ("send", "malt.messages.Edge(src, dst)"),
        ("Barrier", "malt.barrier"),
        ("get_rank", "malt.rank()"),
        ("get_world_size", "malt.size()"),
        ("local_rank", "MALT_LOCAL_RANK"),
        ("COMM_WORLD", "malt.init()"),
        ("init_process_group", 'init_process_group("malt")'),
        ("MEAN", "malt.AVG"),
        ("halton", "malt.HALTON"),
        ("Ridge", "malt.learn.Ridge"),
        ("leave", "malt.jobs.leave"),
        ("run", "malt run -n 4"),
        ("DistributedSampler", "malt.shard(data)"),
        ("SparseVector", "malt.sparse_vector"),
    ],
)
def test_a_name_of_another_library_names_the_call_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'malt' has no attribute '{name}'; ") as info:
        getattr(malt, name)
    assert meant in str(info.value)
    assert not hasattr(malt, name)


def test_a_name_that_nobody_has_is_just_missing() -> None:
    with pytest.raises(AttributeError, match=r"^module 'malt' has no attribute 'quux'$"):
        getattr(malt, "quux")  # noqa: B009 - mypy knows that there is none


@pytest.mark.parametrize(
    ("name", "meant"),
    [("map", "pool.sum("), ("imap_unordered", "malt.shard(xs)"), ("submit", "pool.run(")],
)
def test_a_pool_names_the_call_that_is_meant(name: str, meant: str) -> None:
    assert meant in str(no_attribute_of_pool(name))
    with pytest.raises(AttributeError, match=f"malt.Pool has no attribute '{name}'; "):
        getattr(malt.Pool.__new__(malt.Pool), name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _over("HALTON"), "write graph=malt.HALTON, without"),
        (lambda: _over("one_peer"), "write graph=malt.ONE_PEER"),
        (lambda: _over("web"), "or Graph(edges)"),
        (lambda: malt.vector(_sparse()), "malt.sparse_vector(dim, capacity=n)"),
        (lambda: malt.Vector(np.zeros(3)), "malt.vector(w) makes one"),  # type: ignore[call-arg]
        (lambda: malt.vector(_of_torch("zeros(3, dtype=torch.bfloat16)")), "w = w.float()"),
        (lambda: malt.vector(_of_torch("zeros(3, dtype=torch.bool)")), "dtype is torch.bool"),
        (lambda: malt.vector(_of_torch("eye(3).to_sparse()")), "w = w.to_dense()"),
        (lambda: malt.vector(_of_torch("zeros(3, 4).T")), "w = w.contiguous()"),
        (lambda: malt.vector(each for each in [np.zeros(3)]), "list(model.parameters())"),
        (lambda: malt.RANDOM(np.zeros(3), []), "gather() takes a fold"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_names_what_is_meant(alone: None, make: Any, message: str) -> None:
    with pytest.raises(malt.ConfigError) as info:
        make()
    assert message in str(info.value)


def _over(graph: Any) -> None:
    malt.vector(np.zeros(3), graph=graph)


def _sparse() -> Any:
    return pytest.importorskip("scipy.sparse").eye(3, format="csr")


def _of_torch(text: str) -> Any:
    torch = pytest.importorskip("torch")
    return eval(f"torch.{text}", {"torch": torch})


class OnGpu:
    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


def test_calls_that_take_arrays_on_the_cpu_say_so_of_one_on_a_gpu(alone: None) -> None:
    with pytest.raises(malt.ConfigError, match=r"malt\.ps\.Shared takes an array on the CPU"):
        malt.ps.Shared(OnGpu())
    with pytest.raises(malt.ConfigError, match="no number or array of numbers"):
        malt.allreduce(OnGpu())
