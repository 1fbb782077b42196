"""Every public call that waits, with a rank that is dead, stopped or slow: a limit and a name.

Rank 2 meets with the fault just before the call that ranks 0 and 1 make. The call ends within its
limit. It names rank 2, or, where rank 2 is dead, it may go on without it. A peer that is cut off
is in tests/hosts/test_cut_calls.py.

A new public call fails the last test until it has a row here, or is in `WAITS_FOR_NOBODY`.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faulty_ranks import FAULTY, LATE_LIMIT, Order, Script, Told, run_rows

import malt
from malt._core_import import SparseVectorFloat32

LIMIT = 3.0
SILENCE = 20.0  # so that nobody is evicted before the limit
SILENCE_OF_POOLS = 4.0  # bounds their waits
LONG = 30.0  # where rank 2 is dead: nothing may wait for it
SLACK = 10.0  # the machine may be busy


BACKEND_ERRORS = "malt.torch._backend.errors."
OWN_ERRORS = {"ConfigError", "TimeoutError", "PeerError"} | {
    BACKEND_ERRORS + kind for kind in ("TimeoutError", "PeerError")
}
NAMED = re.compile(r"\b[Rr]anks? (\d, )*2\b")


class Row(NamedTuple):
    of: str  # the public names that it is about
    call: str
    setup: str = ""  # after malt.init()
    callers: tuple[int, ...] = (0, 1)
    survives: Any = None  # `got` of a call that goes on without a dead rank 2; None: anything
    is_first: bool = False  # makes the job itself
    goes_on: tuple[str, ...] = ()  # faults that the call need not notice
    names_others: bool = False  # which it waits for too
    cannot_know: bool = False  # that rank 2 is dead: it waits


WAITING = ("stopped", "slow")
VECTOR = "v = malt.vector(np.full(2, 10.0 ** rank))"
TO_2 = "policy='queue', depth=1, graph=malt.Graph([(0, 2), (1, 2), (2, 0), (2, 1)])"
QUEUE = f"q = malt.vector(np.zeros(1), {TO_2}); q.scatter()"
FRONTIER = f"{VECTOR}; f = malt.types.Frontier([v]); v.scatter()"
SPARSE = (
    "s = malt.sparse_vector(10, capacity=4); s.set([rank], [1.0]); s.scatter(); "
    "s.gather(malt.SUM, staleness=0)"
)
EDGE = "to, back = malt.messages.Edge(0, 2, depth=1), malt.messages.Edge(2, 0)"
SHARED = "sums = malt.ps.Shared(np.zeros(3)); sums.array += rank"
CONSENSUS = "c = malt.optimize.Consensus(np.full(2, 1.0 + rank){}); c.exchange(timeout=60)"

JOB = {
    "init": Row("malt.init", "malt.init(timeout=limit)", is_first=True),
    "barrier": Row("malt.barrier", "malt.barrier()"),
    "finalize": Row("malt.finalize", "malt.finalize()", goes_on=WAITING),
    "leave": Row("malt.jobs.leave", "malt.jobs.leave()", goes_on=WAITING),
    "Job": Row("malt.jobs.Job.leave", "job.leave()", goes_on=WAITING),
    "allreduce": Row("malt.allreduce", "got = malt.allreduce(rank, malt.SUM)", survives=1),
    "broadcast": Row("malt.broadcast", "got = malt.broadcast(rank, 0)", survives=0),
    "broadcast of rank 2": Row("malt.broadcast", "malt.broadcast(rank, 2)"),
    "vector": Row("malt.vector", "malt.vector(np.zeros(3))"),
    "sparse_vector": Row("malt.sparse_vector", "malt.sparse_vector(10, capacity=4)"),
    "scatter": Row("malt.Vector.scatter", "q.scatter()", QUEUE),
    "gather": Row(
        "malt.Vector.gather",
        "v.scatter(); got = v.gather(malt.SUM, staleness=0).ranks; got = sorted([rank, *got])",
        VECTOR,
        survives=[0, 1],
    ),
    "Vector.allreduce": Row(
        "malt.Vector.allreduce",
        "v.allreduce(malt.SUM); got = v.array[0]",
        VECTOR,
        survives=11.0,
    ),
    "wait_for": Row("malt.Vector.wait_for", "v.wait_for(1)", f"{VECTOR}; rank == 2 or v.scatter()"),
    "Frontier": Row("malt.types.Frontier.wait_for", "v.scatter(); f.wait_for(2)", FRONTIER),
    "sparse gather": Row("malt.Sparse.gather", "s.scatter(); s.gather(staleness=0)", SPARSE),
    "sparse scatter": Row(
        "malt.Sparse.scatter",
        "s.scatter()",
        f"s = malt.sparse_vector(9, capacity=4, {TO_2}); s.scatter()",
    ),
    "sparse wait_for": Row("malt.Sparse.wait_for", "s.scatter(); s.wait_for(2)", SPARSE),
    "Edge": Row("malt.messages.Edge", "malt.messages.Edge(0, 1)"),
    "Edge to rank 2": Row("malt.messages.Edge", "malt.messages.Edge(0, 2)"),
    "send": Row(
        "malt.messages.Edge.send",
        "to.send(np.ones(3)) if rank == 0 else to.receive()",
        f"{EDGE}; rank == 0 and to.send(np.ones(3))",
        (0,),
    ),
    "receive": Row(
        "malt.messages.Edge.receive",
        "back.receive(timeout=limit) if rank == 0 else back.send(np.ones(3))",
        EDGE,
        (0,),
    ),
    "schedule": Row(
        "malt.optimize.schedule.run",
        "malt.optimize.schedule.run(Program(), length=1, rounds=3)",
        """
class Program:
    def schedule(self, ranks): return list(range(ranks))
    def push(self, part): return [float(part)]
    def pull(self, results): pass
""",
    ),
    "schedule, in a round": Row(
        "malt.optimize.schedule.run",
        "malt.optimize.schedule.run(Program(), length=1, rounds=3)",
        """
class Program:
    def schedule(self, ranks): return list(range(ranks))
    def push(self, part):
        if rank == 2:
            time.sleep(0.1)
        return [float(part)]
    def pull(self, results): pass
malt.optimize.schedule.run(Program(), length=1, rounds=3)
""",
    ),
}

DATA = {
    "save": Row("malt.save", "malt.save('c', {'v': v})", VECTOR),
    "restore": Row(
        "malt.restore", "malt.restore('c', {'v': v})", f"{VECTOR}; malt.save('c', {{'v': v}})"
    ),
    "load_data": Row(
        "malt.load_data",
        "malt.load_data('rows.svm', timeout=limit)",
        "open(f'draft-{rank}', 'w').write('1 1:1\\n0 2:1\\n1 1:2\\n')\n"
        "os.rename(f'draft-{rank}', 'rows.svm')",
    ),
    "shard": Row("malt.shard", "malt.shard(range(12), chunk=2)"),
    "loop over a shard": Row(
        "malt.data.Shard",
        "got = sum(len(part) for part in chunks)",
        "chunks = malt.shard(range(12), chunk=2)",
    ),
    "Shared": Row("malt.ps.Shared", "malt.ps.Shared(np.zeros(3))"),
    "Shared.exchange": Row("malt.ps.Shared.exchange", "sums.exchange(staleness=0)", SHARED),
    "Shared.drain": Row(
        "malt.ps.Shared.drain",
        "sums.drain(); got = sums.array.tolist()",
        SHARED,
        survives=[1.0] * 3,
    ),
    "Consensus": Row("malt.optimize.Consensus", "malt.optimize.Consensus(np.ones(2))"),
    "Consensus.exchange": Row(
        "malt.optimize.Consensus.exchange", "c.exchange(timeout=limit)", CONSENSUS.format("")
    ),
    "asynchronous Consensus.exchange": Row(
        "malt.optimize.Consensus.exchange",
        "c.x += 1; c.exchange(timeout=limit)",
        CONSENSUS.format(", quorum=1.0, max_delay=1"),
    ),
}

TABLE = (
    "t = malt.ps.Table(90, 2{}, timeout=60); t.push(None, 1.0); t.wait(timeout=60); "
    "malt.barrier(60)"
)
ALONE, COPIED = TABLE.format(""), TABLE.format(", replicas=1")


def _of_table(name: str, call: str, *, copied: bool = False, **rest: Any) -> Row:
    """Return the row of a table whose rows have copies on other ranks, or none."""
    return Row(
        f"malt.ps.Table.{name}",
        call,
        COPIED if copied else ALONE,
        goes_on=rest.get("goes_on", ("slow",)),  # its servers need no rank's program
    )


TABLES = {
    "Table": Row("malt.ps.Table", "malt.ps.Table(9)"),
    "Table with a limit": Row("malt.ps.Table", "malt.ps.Table(9, timeout=limit)"),
    "pull": _of_table("pull", "t.pull()", goes_on=WAITING),  # reads shared memory
    "pull of rows with copies": _of_table(
        "pull", "got = float(t.pull().sum())", copied=True, goes_on=WAITING
    )._replace(survives=540.0),
    "pull of a clock": Row(
        "malt.ps.Table.pull",
        "t.clock(); t.pull()",
        TABLE.format(", replicas=1, staleness=0"),
        names_others=True,
    ),
    "push": _of_table("push", "for _ in range(3000): t.push(None, 1.0)"),
    "push_pull": _of_table("push_pull", "t.push_pull(None, 1.0)"),
    "wait": _of_table("wait", "t.push(None, 1.0); t.wait()"),
    "clock": _of_table("clock", "t.push(None, 1.0); t.clock()"),
    "clock far ahead of others": Row(
        "malt.ps.Table.clock",
        "for _ in range(9): t.clock()",
        TABLE.format(", replicas=1, staleness=0"),
        names_others=True,
    ),
    "close": _of_table("close", "t.close()", goes_on=()),
    "push to copies": _of_table("push", "for _ in range(3000): t.push(None, 1.0)", copied=True),
    "push_pull of copies": _of_table("push_pull", "t.push_pull(None, 1.0)", copied=True),
    "wait for copies": _of_table("wait", "t.push(None, 1.0); t.wait()", copied=True),
    "clock with copies": _of_table("clock", "t.push(None, 1.0); t.clock()", copied=True),
    "close with copies": _of_table("close", "t.close()", copied=True, goes_on=()),
    "leave the table": _of_table("leave", "t.leave()", goes_on=WAITING),
    "save a table": Row("malt.save", "malt.save('c', {'t': t})", COPIED),
}

ROWS_XY = "X = np.random.default_rng(0).normal(size=(60, 4)); y = (X[:, 0] > 0).astype(int)"
PARTIAL = f"{ROWS_XY}; model = malt.learn.SGDClassifier(); model.partial_fit(X, y, classes=[0, 1])"


def _fits(names: str, given: str) -> dict[str, Row]:
    return {
        f"{name}.fit": Row(f"malt.learn.{name}.fit", f"malt.learn.{name}().fit({given})", ROWS_XY)
        for name in names.split()
    }


ESTIMATORS = {
    **_fits("SGDClassifier LogisticRegression LinearSVC", "X, y"),
    **_fits("SGDRegressor Ridge LinearSVR Lasso ElasticNet", "X, X[:, 1]"),
    **_fits("LatentDirichletAllocation", "(X > 0).astype(int)"),
    "SGDClassifier.partial_fit": Row(
        "malt.learn.SGDClassifier.partial_fit", "model.partial_fit(X, y)", PARTIAL
    ),
    "SGDRegressor.partial_fit": Row(
        "malt.learn.SGDRegressor.partial_fit",
        "malt.learn.SGDRegressor().partial_fit(X, X[:, 0])",
        ROWS_XY,
    ),
    "LatentDirichletAllocation.partial_fit": Row(
        "malt.learn.LatentDirichletAllocation.partial_fit "
        "malt.learn.LatentDirichletAllocation.fit_transform",
        "malt.learn.LatentDirichletAllocation().partial_fit((X > 0).astype(int))",
        ROWS_XY,
    ),
    "MatrixFactorization.fit": Row(
        "malt.learn.MatrixFactorization.fit",
        "malt.learn.MatrixFactorization().fit(pairs, X[:, 0])",
        f"{ROWS_XY}; pairs = np.stack([np.arange(60) % 6, np.arange(60) // 6], axis=1)",
    ),
    "MatrixFactorization.partial_fit": Row(
        "malt.learn.MatrixFactorization.partial_fit",
        "malt.learn.MatrixFactorization().partial_fit(pairs, X[:, 0])",
        f"{ROWS_XY}; pairs = np.stack([np.arange(60) % 6, np.arange(60) // 6], axis=1)",
    ),
    "wrap": Row(
        "malt.learn.wrap",
        "malt.learn.wrap(Naive()).fit(X, y)",
        f"{ROWS_XY}; from sklearn.linear_model import Perceptron as Naive",
    ),
    "Chunks": Row(
        "malt.data.Chunks malt.data.Chunks.survey",
        "malt.learn.SGDClassifier().fit(data)",
        """
open(f"draft-{rank}", "w").write("1 1:1\\n0 2:1\\n" * 9)
os.rename(f"draft-{rank}", "rows.svm")
data = malt.load_data("rows.svm", chunk_rows=3)
""",
    ),
}

TORCH = """
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
def loss(): return model(torch.ones(2, 3)).sum()
def sgd(): return torch.optim.SGD(model.parameters(), lr=0.1)
"""
MODELS = {
    "average": Row("malt.torch.average", "malt.torch.average(model)", TORCH),
    "Average.step": Row(
        "malt.torch.Average.step",
        "a.step()",
        TORCH + "a = malt.torch.average(model, every=1); a.step()",
    ),
    "Average.allreduce": Row(
        "malt.torch.Average.allreduce", "a.allreduce()", TORCH + "a = malt.torch.average(model)"
    ),
    "Average.join": Row(
        "malt.torch.Average.join",
        "with a.join():\n    a.step()",
        TORCH + "a = malt.torch.average(model, every=1)",
    ),
    "GradientExchange": Row(
        "malt.torch.GradientExchange", "malt.torch.GradientExchange(model, sgd())", TORCH
    ),
    "GradientExchange.step": Row(
        "malt.torch.GradientExchange.step",
        "loss().backward(); o.step()",
        TORCH + "o = malt.torch.GradientExchange(model, sgd())",
    ),
    "GradientExchange.exchange": Row(
        "malt.torch.GradientExchange.exchange",
        "loss().backward(); o.exchange()",
        TORCH + "o = malt.torch.GradientExchange(model, sgd())",
    ),
    "GradientExchange.join": Row(
        "malt.torch.GradientExchange.join",
        "with o.join():\n    loss().backward(); o.step()",
        TORCH + "o = malt.torch.GradientExchange(model, sgd())",
    ),
    "DiLoCo": Row("malt.torch.DiLoCo", "malt.torch.DiLoCo(model, sgd())", TORCH),
    "DiLoCo.step": Row(
        "malt.torch.DiLoCo.step",
        "loss().backward(); o.step()",
        TORCH + "o = malt.torch.DiLoCo(model, sgd(), every=1)",
    ),
    "DiLoCo.outer_step": Row(
        "malt.torch.DiLoCo.outer_step",
        "o.outer_step()",
        TORCH + "o = malt.torch.DiLoCo(model, sgd())",
    ),
    "DiLoCo.join": Row(
        "malt.torch.DiLoCo.join",
        "with o.join():\n    loss().backward(); o.step()",
        TORCH + "o = malt.torch.DiLoCo(model, sgd(), every=1)",
    ),
    "Loader": Row("malt.torch.Loader", "malt.torch.Loader(range(12), batch_size=2, chunk=4)"),
    "loop over a Loader": Row(
        "malt.torch.Loader",
        "for _ in loader: pass",
        "loader = malt.torch.Loader(range(12), batch_size=2, chunk=4)",
    ),
    "Pipeline": Row(
        "malt.torch.Pipeline",
        "malt.torch.Pipeline([torch.nn.Linear(3, 3) for _ in range(3)])",
        "torch.manual_seed(0)",
    ),
    "Pipeline.step": Row(
        "malt.torch.Pipeline.step",
        "p.step(x, x, torch.nn.functional.mse_loss)",
        "torch.manual_seed(0); x = torch.ones(4, 3)\n"
        "p = malt.torch.Pipeline([torch.nn.Linear(3, 3) for _ in range(3)])",
    ),
    "Pipeline.predict": Row(
        "malt.torch.Pipeline.predict",
        "p.predict(x)",
        "torch.manual_seed(0); x = torch.ones(4, 3)\n"
        "p = malt.torch.Pipeline([torch.nn.Linear(3, 3) for _ in range(3)], ranks=[2, 0, 1])",
    ),
}

JOIN = """
import torch.distributed as dist
from datetime import timedelta
def join():
    dist.init_process_group("malt", init_method=f"file://{os.getcwd()}/store", rank=rank,
                            world_size=3, timeout=timedelta(seconds=limit))
"""
GROUP = JOIN + "join(); dist.barrier(); x, *parts = [torch.ones(3) for _ in range(4)]"


def _backend(name: str, call: str, after: str = "", callers: tuple[int, ...] = (0, 1)) -> Row:
    return Row(f"torch.distributed.{name}", call, f"{GROUP}\n{after}", callers, is_first=True)


BACKEND = {
    "init_process_group": Row(
        "torch.distributed.init", "join()", JOIN, is_first=True, cannot_know=True
    ),
    "new_group": _backend(
        "new_group", "dist.new_group([0, 1, 2], timeout=timedelta(seconds=limit))"
    ),
    "dist.all_reduce": _backend("all_reduce", "dist.all_reduce(x)"),
    "large all_reduce": _backend(
        "all_reduce", "dist.all_reduce(large)", "large = torch.ones(10**6)"
    ),
    "async all_reduce": _backend("all_reduce", "dist.all_reduce(x, async_op=True).wait()"),
    "all_reduce of MAX": _backend("all_reduce", "dist.all_reduce(x, dist.ReduceOp.MAX)"),
    "all_reduce that goes on": _backend(
        "all_reduce", "dist.all_reduce(x)", "malt.torch.keep_going()"
    ),
    "dist.broadcast": _backend("broadcast", "dist.broadcast(x, 0)"),
    "dist.broadcast of rank 2": _backend("broadcast", "dist.broadcast(x, 2)"),
    "reduce": _backend("reduce", "dist.reduce(x, 0)"),
    "all_gather": _backend("all_gather", "dist.all_gather(parts, x)"),
    "dist.gather": _backend("gather", "dist.gather(x, parts if rank == 0 else None, 0)"),
    "dist.scatter": _backend("scatter", "dist.scatter(x, parts if rank == 0 else None, 0)"),
    "reduce_scatter": _backend("reduce_scatter", "dist.reduce_scatter(x, parts)"),
    "all_to_all": _backend("all_to_all", "dist.all_to_all([p.clone() for p in parts], parts)"),
    "dist.barrier": _backend("barrier", "dist.barrier()"),
    "monitored_barrier": _backend(
        "monitored_barrier", "dist.group.WORLD.monitored_barrier(timedelta(seconds=limit))"
    ),
    "first recv": _backend("recv", "dist.recv(x, 2) if rank == 0 else dist.send(x, 0)", "", (0,)),
    "recv": _backend(
        "recv",
        "dist.recv(x, 2) if rank == 0 else dist.send(x, 0)",
        "dist.send(x, 0) if rank == 2 else rank or dist.recv(x, 2)",
        (0,),
    ),
    "recv from any": _backend(
        "recv", "dist.recv(x) if rank == 0 else dist.send(x, 0)", "", (0,)
    )._replace(names_others=True, cannot_know=True),
    "first send": _backend("send", "dist.send(x, 2) if rank == 0 else dist.recv(x, 0)", "", (0,)),
    "dist.send": _backend(
        "send",
        "dist.send(large, 2) if rank == 0 else dist.recv(large, 0)",
        "large = torch.ones(10**7); dist.recv(x, 0) if rank == 2 else rank or dist.send(x, 2)",
        (0,),
    ),
    "Gossip": _backend(
        "Gossip.exchange",
        "g.exchange(0, x)",
        "g = malt.torch.Gossip()",
    )._replace(of="malt.torch.Gossip.exchange malt.torch.gossip"),
}

TREES = {
    "jax.average": Row("malt.jax.average", "malt.jax.average(tree)", "tree = {'w': np.ones(3)}"),
    "jax.average, again": Row(
        "malt.jax.average",
        "malt.jax.average(tree)",
        "tree = {'w': np.ones(3)}; malt.jax.average(tree)",
    ),
    "jax.allreduce": Row(
        "malt.jax.allreduce", "malt.jax.allreduce(tree)", "tree = {'w': np.ones(3)}"
    ),
}

POOL = """
def add(theta, x): return float(x.sum())
def rank_of(x): return malt.init().rank
def serve(): malt.Pool(over=job)
if rank == 0:
    pool = malt.Pool(over=job); data = pool.share(np.ones(6), chunks=6)
    pool.sum(add, 0, data)
else:
    threading.Thread(target=serve, daemon=True).start()
"""
# A function may take any time, so a sum waits for a stopped rank until it is evicted.
POOLS = {
    "Pool": Row("malt.Pool", "malt.Pool(over=job).close()"),
    "Pool.share": Row(
        "malt.Pool.share", "rank or pool.share(np.ones(9))", POOL, (0,), goes_on=WAITING
    ),
    "Pool.sum": Row(
        "malt.Pool.sum", "got = rank or pool.sum(add, 0, data)", POOL, (0,), 6.0, goes_on=WAITING
    ),
    "Pool.run": Row("malt.Pool.run", "rank or pool.run(rank_of, 0)", POOL, (0,), goes_on=("slow",)),
    "Pool.close": Row("malt.Pool.close", "rank or pool.close()", POOL, (0,), goes_on=WAITING),
}

IMPORT_TORCH = "import torch; torch.set_num_threads(1); malt.torch\n"

# By topic: what the calls need to be imported, and their rows.
TOPICS: dict[str, tuple[str, dict[str, Row]]] = {
    "job": ("malt.vector, malt.optimize.schedule", JOB),
    "data": ("malt.load_data, malt.optimize.Consensus", DATA),
    "tables": ("malt.ps", TABLES),
    "estimators": (
        "malt.learn.SGDClassifier, malt.learn.Lasso, malt.learn.LatentDirichletAllocation",
        ESTIMATORS,
    ),
    "models": (f"{IMPORT_TORCH}torch.optim.SGD([torch.ones(1)], lr=1.0)", MODELS),
    "backend": (IMPORT_TORCH, BACKEND),
    "trees": ("malt.jax", TREES),
    "pools": ("malt.Pool", POOLS),
}


def _script(row: Row) -> Script:
    setup = row.setup if row.is_first else f"job = malt.init(timeout=limit)\n{row.setup}"
    return Script(setup, row.call, row.callers)


def _run(tmp_path: Path, topic: str, fault: str, transport: str) -> dict[str, Told]:
    imports, rows = TOPICS[topic]
    limit = LONG if fault == "dead" else LIMIT
    scripts = {name: _script(row) for name, row in rows.items()}
    order = Order(imports, fault, limit, SLACK, scripts)
    environ = {
        "MALT_BOOTSTRAP": "malt",
        "MALT_TRANSPORT": transport,
        "MALT_SILENCE": str(SILENCE_OF_POOLS if topic == "pools" else SILENCE),
    }
    return run_rows(tmp_path, order, environ)


def _faults(row: Row, told: Told, fault: str) -> Iterator[str]:
    """Say what is wrong with how a call ended."""
    errors = []
    for rank in row.callers:
        if "first" not in told[rank]:
            yield f"rank {rank} hangs, or failed before: {told[rank]['output']}"
            continue
        error, got = told[rank]["first"], told[rank]["got"]
        if error is None:
            if fault != "dead" and fault not in row.goes_on:
                yield f"rank {rank}: went on with a rank that is {fault}"
            if row.survives is not None and got != row.survives:
                yield f"rank {rank}: {got} without rank 2, not {row.survives}"
            continue
        errors.append(error)
        if error.seconds > SLACK + (LIMIT if fault != "dead" else LONG * row.cannot_know):
            yield f"rank {rank}: too late: {error}"
        if error.kind not in OWN_ERRORS - {"ConfigError"}:
            yield f"rank {rank}: another error: {error}"
        if error.ranks is None or FAULTY not in error.ranks or not NAMED.search(error.text):
            yield f"rank {rank}: does not name rank 2: {error}"
    alone = any(error.ranks == (FAULTY,) for error in errors)
    if errors and not alone and not row.names_others:
        yield f"nobody names rank 2 alone: {errors}"
    for rank in (*row.callers, FAULTY) if fault == "slow" else ():
        if "again" not in told[rank]:
            yield f"rank {rank} hangs in the second call: {told[rank]['output']}"
        elif (again := told[rank]["again"]) is not None:
            limit = LATE_LIMIT if rank == FAULTY else LIMIT
            if again.kind not in OWN_ERRORS or again.seconds > limit + SLACK:
                yield f"rank {rank}: in the second call {again}"


# The calls of the other topics wait in those of these.
BETWEEN_HOSTS = ["job", "data", "tables", "pools"]
CASES = [
    pytest.param(
        *(topic, transport, fault),
        # Where a topic is tried over both, each has one of the faults that end soon.
        marks=pytest.mark.long
        if fault == "slow" or (topic in BETWEEN_HOSTS and (transport == "shm") == (fault == "dead"))
        else (),
    )
    for topic in TOPICS
    for transport in (("shm", "tcp") if topic in BETWEEN_HOSTS else ("shm",))
    for fault in ("dead", "stopped", "slow")
]


@pytest.mark.parametrize(("topic", "transport", "fault"), CASES)
def test_call_ends_in_time_and_names_the_rank(
    tmp_path: Path, topic: str, transport: str, fault: str
) -> None:
    found = _run(tmp_path, topic, fault, transport)
    rows = TOPICS[topic][1]
    wrong = [
        f"{name}: {what}"
        for name, told in found.items()
        for what in _faults(rows[name], told, fault)
    ]
    assert not wrong, "\n".join(wrong)


# Public classes and functions that wait for no other rank, as patterns.
WAITS_FOR_NOBODY = """
malt.jobs.Bootstrap* malt.jobs.Rendezvous*
malt.alive malt.epoch malt.jobs.leaving malt.jobs.on_change malt.rank malt.report malt.jobs.restarts
malt.size malt.types.Codec malt.types.Fold malt.types.Gathered malt.Graph* malt.RANDOM
malt.types.Route malt.types.Stats malt.TOP_K malt.TRIMMED_MEAN malt.types.Update malt.*Error
malt.jobs.Job malt.jobs.Job.deadline malt.jobs.Job.follow malt.jobs.Job.makes_due
malt.jobs.Job.within malt.Vector malt.Vector.await_update malt.Vector.clock_of malt.Vector.regroup
malt.Vector.show malt.Sparse malt.Sparse.clear malt.Sparse.clock_of
malt.Sparse.regroup malt.Sparse.set malt.Sparse.uses malt.types.Frontier malt.*.frontier
malt.*.on_frontier malt.*.stats malt.Vector.close malt.Sparse.close malt.optimize.Consensus.close
malt.messages.Edge.close malt.messages.Edge.leave malt.ps.Shared.close malt.ps.Shared.poll
malt.data.Chunks.read malt.data.Data malt.data.Partition* malt.types.Restored malt.data.Shard.*
malt.data.Traffic malt.data.partition malt.learn.ElasticNet malt.learn.Lasso
malt.learn.LatentDirichletAllocation malt.learn.LinearSVC malt.learn.LinearSVR
malt.learn.LogisticRegression malt.learn.MatrixFactorization malt.learn.Ridge
malt.learn.SGDClassifier malt.learn.SGDRegressor malt.*.decision_function malt.*.perplexity
malt.*.predict malt.*.predict_* malt.*.rmse malt.*.score malt.*.set_* malt.*.transform
malt.ps.AdaGrad* malt.ps.Add* malt.ps.Assign* malt.ps.FTRL* malt.ps.Momentum* malt.ps.Rule*
malt.ps.SGD* malt.ps.Table.alive malt.ps.TableStats* malt.optimize.schedule.Program*
malt.optimize.schedule.Result malt.optimize.schedule.independent malt.torch.Average
malt.torch.Gossip malt.torch.keep_going malt.torch.*.close malt.torch.*.leave
malt.torch.*.*state_dict malt.torch.*.zero_grad malt.torch.Pipeline.parameters
"""
# They start jobs on a cluster, and are not for the ranks of one.
ENGINES = {"dask", "ray", "spark"}
MODULES = (
    *("data", "jax", "jobs", "learn", "messages", "optimize", "ps", "torch", "types"),
    "optimize.schedule",
)


def _public_names() -> Iterator[str]:
    """Return the public functions, classes and methods, without those of other packages."""
    homes = {"malt": [name for name in dir(malt) if name[0] != "_" and name not in ENGINES]}
    homes |= {f"malt.{name}": importlib.import_module(f"malt.{name}").__all__ for name in MODULES}
    found = {
        f"{home}.{name}": getattr(importlib.import_module(home), name)
        for home, names in homes.items()
        for name in names
    }
    for name, each in (found | {"malt.Sparse": SparseVectorFloat32}).items():
        if inspect.isclass(each):
            yield name
            for base in each.__mro__:
                if base.__module__.startswith("malt"):
                    methods = [of for of in vars(base) if of[0] != "_"]
                    yield from (f"{name}.{of}" for of in methods if callable(getattr(each, of)))
        elif inspect.isroutine(each):
            yield name


def test_every_public_call_has_a_row_or_waits_for_nobody() -> None:
    public = set(_public_names())
    rows = {name for _, rows in TOPICS.values() for row in rows.values() for name in row.of.split()}
    assert {name for name in rows - public if name.startswith("malt.")} == set()
    patterns = re.compile("|".join(map(fnmatch.translate, WAITS_FOR_NOBODY.split())))
    assert {name for name in public - rows if not patterns.match(name)} == set()
