"""Vectors in the memory of a GPU give the bits that vectors in the host's memory give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpus import run_gpu_job
from numpy_folds import fold_with_numpy, inputs, is_close

# The same calls on a vector in the host's memory and on one on a GPU.
FOLDS_SCRIPT = """
from numpy_folds import inputs
def facts(g): return g.count, g.ranks, g.staleness, g.rejected, g.clipped
malt.init(timeout=40)
CODECS = {"none": None, "float16": malt.FLOAT16, "bfloat16": malt.BFLOAT16, "int8": malt.INT8,
          "top-k": malt.TOP_K(0.2)}
plain, wrong, done, slots = {}, [], 0, set()
for dtype in ("float32", "float64", "int32", "int64"):
    for name, codec in CODECS.items():
        if codec is not None and dtype.startswith("int"): continue
        for length in (1, 1003):
            values = inputs(size, dtype, length)[rank]
            w, x = values.copy(), on_gpu(values)
            host, gpu = malt.vector(w, codec=codec), malt.vector(x, codec=codec)
            slots.add(gpu.slots.partition(":")[0])
            for fold in FOLDS:
                w[:] = values
                x.set(values)
                host.scatter(), gpu.scatter()
                a, b = (facts(v.gather(FOLDS[fold], staleness=0)) for v in (host, gpu))
                got = x.get()
                done += 1
                if got.tobytes() != w.tobytes() or b != a or b[0] != size - 1:
                    wrong.append((dtype, name, length, fold, a, b))
                if codec is None: plain[dtype, length, fold] = got
            host.close(), gpu.close()
tell(plain=plain, wrong=wrong, done=done, slots=slots)
malt.barrier()
"""


@pytest.mark.parametrize(("slots", "ranks"), [("ipc", 4), ("host", 3)])
def test_folds_and_codecs_give_the_bits_of_a_vector_on_the_host(
    tmp_path: Path, slots: str, ranks: int
) -> None:
    result = run_gpu_job(tmp_path, ranks, FOLDS_SCRIPT, slots=slots)
    assert result.each("wrong") == [[]] * ranks
    assert result.each("done") == [12 * 2 * 6] * ranks
    assert result.each("slots") == [{slots}] * ranks
    for rank, plain in enumerate(result.each("plain")):
        for (dtype, length, fold), values in plain.items():
            all_values = inputs(ranks, dtype, length)
            expected = fold_with_numpy(fold, all_values, rank)
            assert is_close(values, expected, all_values), (rank, dtype, length, fold)


def test_values_at_the_ends_of_their_range_are_folded_as_on_the_host(tmp_path: Path) -> None:
    """Infinity, zeros of either sign, the smallest numbers, and integers whose sum wraps around."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
wrong = []
for dtype in ("float32", "float64", "int32", "int64"):
    if dtype.startswith("f"):
        info = np.finfo(dtype)
        edges = [0.0, -0.0, np.inf, -np.inf, info.max, -info.max, info.tiny]
        edges.append(info.smallest_subnormal)
    else:
        info = np.iinfo(dtype)
        edges = [0, -1, info.max, info.min, info.max - 1, info.min + 1, 1, 7]
    # Each rank has another order, so that all pairs meet. Infinity meets only itself.
    values = np.array(edges, dtype)[np.random.default_rng(rank).integers(8, size=500)]
    if dtype.startswith("f"):
        values[::5] = edges[2]
        values[np.isinf(values) & (np.arange(500) % 5 != 0)] = 1
    for fold in FOLDS:
        w, x = values.copy(), on_gpu(values)
        host, gpu = malt.vector(w), malt.vector(x)
        for v in (host, gpu): v.scatter(), v.gather(FOLDS[fold], staleness=0)
        if x.get().tobytes() != w.tobytes(): wrong.append((dtype, fold))
        w[:] = values
        x.set(values)
        if fold not in ("WEIGHTED", "REPLACE"):
            host.allreduce(FOLDS[fold]), gpu.allreduce(FOLDS[fold])
            if x.get().tobytes() != w.tobytes(): wrong.append((dtype, fold, "allreduce"))
tell(wrong=wrong)
malt.barrier()
""",
    )
    assert result.each("wrong") == [[]] * 3


@pytest.mark.parametrize("slots", ["ipc", "host"])
def test_several_arrays_are_one_vector_wherever_they_begin(tmp_path: Path, slots: str) -> None:
    """The last begins at an address that no wide load or store of the GPU may use."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
SHAPES = [(3, 5), (7,), (), (2, 300)]
wrong = []
for dtype in ("float32", "float64", "int32"):
    for codec in (None, malt.FLOAT16, malt.INT8, malt.TOP_K(0.1)):
        if codec is not None and dtype == "int32": continue
        random = np.random.default_rng(rank)
        parts = [np.asarray(100 * random.standard_normal(n), dtype) for n in (*SHAPES, 501)]
        xs = [on_gpu(part) for part in parts[:-1]]
        whole = on_gpu(np.full(504, 77, dtype))
        beside = np.full(504, 77, dtype)
        beside[1:502] = parts[-1]
        whole.set(beside)
        xs.append(Part(whole, 1, 501))
        host, gpu = malt.vector(parts, codec=codec), malt.vector(xs, codec=codec)
        assert len(gpu) == len(host) == 15 + 7 + 1 + 600 + 501
        for fold in FOLDS:
            for v in (host, gpu): v.scatter(), v.gather(FOLDS[fold], staleness=0)
            got = [x.get() for x in xs[:-1]]
            last = whole.get()
            got.append(last[1:502])
            if any(a.tobytes() != b.tobytes() for a, b in zip(got, parts)):
                wrong.append((dtype, codec, fold))
            if (last[[0, 502, 503]] != 77).any(): wrong.append((dtype, codec, fold, "beside"))
tell(wrong=wrong)
malt.barrier()
""",
        slots=slots,
    )
    assert result.each("wrong") == [[]] * 3


def test_weighted_uses_the_mixing_weights_of_the_graph(tmp_path: Path) -> None:
    """At a chain's ends one neighbour, in its middle two: weights differ between ranks."""
    result = run_gpu_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
chain = malt.Graph([(a, a + d) for a in range(4) for d in (-1, 1) if 0 <= a + d < 4])
got = {}
for name, graph in {**GRAPHS, "chain": chain}.items():
    if name == "RANDOM": continue  # its weights are those of the ranks that send in the round
    x = on_gpu(np.eye(4)[rank])
    v = malt.vector(x, graph=graph)
    v.scatter()
    g = v.gather(malt.WEIGHTED, staleness=0)
    got[name] = x.get(), graph.in_(rank, size, 0), graph.weights(rank, size, 0), g.ranks
tell(got=got)
malt.barrier()
""",
    )
    for rank, told in enumerate(result.each("got")):
        for name, (mixed, senders, weights, ranks) in told.items():
            expected = np.zeros(4)
            expected[list(senders)] = weights
            expected[rank] = 1 - sum(weights)
            np.testing.assert_allclose(mixed, expected, atol=1e-15, err_msg=f"{name}, rank {rank}")
            assert tuple(senders) == tuple(ranks)


def test_replace_takes_the_newest_of_several_senders(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = DeviceArray(2, np.float64)
v = malt.vector(x)
for step in range((0, 3, 1)[rank]):
    x.set(10 * rank + step)
    v.scatter()
    x.get()
malt.barrier()
if rank == 0:
    g = v.gather(malt.REPLACE)
    tell(x=x.get(), ranks=g.ranks, staleness=g.staleness)
malt.barrier()
""",
    )
    told = result.told[0]
    assert told["x"].tolist() == [12, 12]
    assert (told["ranks"], told["staleness"]) == ((1, 2), (-3, -1))


def test_one_rank_alone_keeps_its_values(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        1,
        """
malt.init()
x = on_gpu([1.0, 2.0])
v = malt.vector(x)
tell(to=v.scatter(), g=v.gather(staleness=0).count, all=v.allreduce().count, x=x.get(),
     shown=repr(v), length=len(v), dtype=v.dtype, same=v.array is x, read=v.read())
""",
    )
    told = result.told[0]
    assert (told["to"], told["g"], told["all"]) == ((), 0, 0)
    assert told["x"].tolist() == told["read"].tolist() == [1.0, 2.0]
    assert (told["length"], told["dtype"], told["same"]) == (2, np.float64, True)
    assert "float64 x 2 on GPUs" in told["shown"]


def test_staleness_and_quorum_are_waits_for_the_others(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
x = DeviceArray(1, np.float64)
v = malt.vector(x)
rounds = []
for step in range(1, 21):
    x.set(1000 * rank + step)
    v.scatter()
    if rank == 0: time.sleep(0.002)  # rank 1 runs ahead as far as it can
    g = v.gather(malt.REPLACE, staleness=0)
    rounds.append((x.get()[0], g.staleness))
tell(rounds=rounds)
malt.barrier()
x.set(5)
if rank == 0:
    v.scatter()
    late = error_of(v.gather, malt.SUM, staleness=0, timeout=0.2)
    tell(late=late, kept=x.get()[0])
    raise_flag("go on")
    v.gather(malt.SUM, staleness=0)
else:
    await_flag("go on")
    v.scatter(), v.gather(malt.SUM, staleness=0)
tell(summed=x.get()[0])
malt.barrier()
""",
    )
    for rank, rounds in enumerate(result.each("rounds")):
        assert rounds == [(1000 * (1 - rank) + step, (0,)) for step in range(1, 21)]
    late = result.told[0]["late"]
    assert (late.kind, late.ranks) == ("TimeoutError", (1,))
    assert late.says("rank 1", "iteration 21")
    assert result.told[0]["kept"] == 5
    assert result.each("summed") == [10.0, 10.0]


def test_one_scatter_can_go_over_another_graph(tmp_path: Path) -> None:
    result = run_gpu_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
x = DeviceArray(1, np.float64)
v = malt.vector(x)
circle = malt.Graph([(0, 1), (1, 2), (2, 3), (3, 0)])
rounds = []
for graph in (None, malt.RING, circle, malt.STAR, None):
    x.set(10 ** rank)
    to = v.scatter(graph) if graph is not None else v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    rounds.append((to, g.ranks, x.get()[0]))
tell(rounds=rounds)
malt.barrier()
""",
    )
    for rank, rounds in enumerate(result.each("rounds")):
        others = tuple(r for r in range(4) if r != rank)
        beside = tuple(sorted({(rank + 1) % 4, (rank - 1) % 4}))
        star = others if rank == 0 else (0,)
        expected = [others, beside, ((rank + 1) % 4,), star, others]
        assert [to for to, _, _ in rounds] == expected
        for _, came, value in rounds:
            assert value == 10**rank + sum(10**r for r in came)
