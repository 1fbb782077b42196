"""malt.jax: pytrees that several ranks fold, between jitted functions and inside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import Result, run_job

pytest.importorskip("jax")

# They share one job, which a worker runs once.
pytestmark = [pytest.mark.xdist_group("jax"), pytest.mark.timeout(120)]

JOB = """
import jax
import jax.numpy as jnp
malt.init(timeout=20)

tree = {
    "w": jnp.full((3, 2), float(rank)),
    "half": [jnp.full(4, 2 * rank, jnp.bfloat16)],
    "number": np.float64(rank),
    "empty": jnp.zeros((0, 5)),
    "count": jnp.int32(7 + rank),
}
mean = malt.jax.average(tree)
tell(mean={k: np.asarray(v, np.float64) for k, v in
           zip(("count", "empty", "half", "number", "w"), jax.tree.leaves(mean))},
     kinds=[leaf.dtype.name for leaf in jax.tree.leaves(mean)],
     same=jax.tree.structure(mean) == jax.tree.structure(tree))

jitted = jax.jit(lambda t: malt.jax.average(jax.tree.map(lambda x: 2 * x, t)))
tell(twice=[np.asarray(jitted(tree)["w"])[0, 0].item() for _ in range(3)])

large = jnp.full(3_000_000, float(rank + 1))
summed = jax.jit(lambda x: malt.jax.allreduce({"x": x + 1}, malt.SUM)["x"] - 1)(large)
tell(summed=(float(summed[0]), float(summed[-1])),
     integers=int(malt.jax.allreduce(jnp.int32(10 ** rank), malt.SUM)))

# Training with the mean gradient is training with the batches of all ranks
rng = np.random.default_rng(0)
X, w = rng.normal(size=(2, 40, 3)).astype(np.float32), jnp.zeros(3)
loss = lambda w, X: ((X @ w - X.sum(axis=1)) ** 2).mean()

@jax.jit
def step(w, X):
    return w - 0.1 * malt.jax.allreduce(jax.grad(loss)(w, X))

for _ in range(20):
    w = step(w, X[rank])
whole = jnp.zeros(3)
for _ in range(20):
    whole = whole - 0.1 * jax.grad(loss)(whole, X.reshape(80, 3))
tell(trained=np.asarray(w), whole=np.asarray(whole))

# Each graph has a vector of its own; asynchronous trees are told apart by their names
ring = malt.jax.average(jnp.float32(rank), graph=malt.RING)
for _ in range(20):
    a = malt.jax.average(jnp.float32(100.0), staleness=None, name="a")
    b = malt.jax.average(jnp.float32(200.0), staleness=None, name="b")
tell(ring=float(ring), apart=(float(a), float(b)))

tell(flag=error_of(malt.jax.allreduce, {"layer": [jnp.zeros(3, bool)]}),
     staleness=error_of(malt.jax.average, tree, staleness="sometimes"),
     unlike=error_of(malt.jax.average, jnp.zeros(3 + rank)))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_job(tmp_path_factory.mktemp("jax"), 2, JOB)


def test_average_returns_the_mean_of_each_floating_leaf(job: Result) -> None:
    for rank, told in enumerate(job.told):
        mean = told["mean"]
        assert (mean["w"] == 0.5).all()
        assert mean["w"].shape == (3, 2)
        assert (mean["half"] == 1).all()
        assert mean["number"] == 0.5
        assert mean["empty"].shape == (0, 5)
        assert mean["count"] == 7 + rank
        assert told["kinds"] == ["int32", "float32", "bfloat16", "float32", "float32"]
        assert told["same"]


def test_calls_work_inside_jit(job: Result) -> None:
    for told in job.told:
        assert told["twice"] == [1.0, 1.0, 1.0]
        assert told["summed"] == (4.0, 4.0)


def test_allreduce_folds_integers_too(job: Result) -> None:
    assert [told["integers"] for told in job.told] == [11, 11]


def test_the_mean_gradient_trains_as_all_batches_together(job: Result) -> None:
    for told in job.told:
        np.testing.assert_allclose(told["trained"], told["whole"], atol=1e-6)
    np.testing.assert_array_equal(job.told[0]["trained"], job.told[1]["trained"])


def test_graphs_and_names_have_vectors_of_their_own(job: Result) -> None:
    for told in job.told:
        assert told["ring"] == 0.5
        assert told["apart"] == (100.0, 200.0)


def test_unfit_trees_and_settings_are_refused(job: Result) -> None:
    for told in job.told:
        assert told["flag"].kind == "ConfigError"
        assert told["flag"].says("['layer'][0] has dtype bool", ".astype()")
        assert told["staleness"].says("staleness is 'sometimes'")
        assert told["unlike"].kind == "ConfigError"


def test_one_process_alone_gets_its_tree_back() -> None:
    program = """
import jax, jax.numpy as jnp, malt
malt.init()
tree = {"a": jnp.ones(3), "n": 2}
assert malt.jax.average(tree) is tree
assert jax.jit(malt.jax.allreduce)(jnp.ones(3)).sum() == 3
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_the_survivors_of_a_death_go_on_inside_jit(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
import jax
import jax.numpy as jnp
malt.init(timeout=20)
step = jax.jit(lambda x: malt.jax.allreduce(x, malt.SUM))
for n in range(60):
    if rank == 2 and n == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    total = float(step(jnp.float32(1)))
tell(total=total)
""",
        "--keep-going",
        code=None,
    )
    assert [told["total"] for told in result.told[:2]] == [2.0, 2.0]


def test_a_call_that_is_interrupted_at_any_line_is_repeated(tmp_path: Path) -> None:
    """A tree of two dtypes goes in two exchanges, of which the others may have ended the first."""
    result = run_job(
        tmp_path,
        2,
        """
import jax
import jax.numpy as jnp
malt.init(timeout=20)

class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

def on_call(frame, event, _):
    if not frame.f_code.co_filename.endswith(("malt/jax.py", "_vectors/progress.py")):
        return None
    caller = frame  # before the exchange and after it, there is only this rank's own work
    while caller is not None and caller.f_code.co_name != "on_host":
        caller = caller.f_back
    return caller and on_line

def on_line(frame, event, _):
    global lines, due
    # Python runs no handler between the last line of a call and its return.
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    if event == "line" and source != "return result":
        lines += 1
        if lines == due:
            due = 0
            signal.raise_signal(signal.SIGUSR1)
    return on_line

import linecache
signal.signal(signal.SIGUSR1, interrupt)
lines = due = interrupts = 0
wrong = []
for step in range(200):
    tree = {"x": jnp.full(3, float(step)), "n": jnp.full(2, step, jnp.int32)}
    lines, due = 0, step + 1 if rank == 1 else 0
    while True:
        sys.settrace(on_call)
        try:
            found = malt.jax.allreduce(tree, malt.SUM)
            break
        except Interrupt:
            interrupts += 1
        finally:
            sys.settrace(None)
    if float(found["x"][0]) != 2 * step or int(found["n"][1]) != 2 * step:
        wrong.append((step, float(found["x"][0]), int(found["n"][1])))
tell(wrong=wrong, interrupts=interrupts, lines=lines)
malt.barrier()
""",
    )
    assert result.each("wrong") == [[], []]
    assert 50 < result.told[1]["lines"] < 200  # so each line has had an interrupt
    assert result.told[1]["interrupts"] > 50
