"""malt.torch.Pipeline: a network in stages trains as the undivided one does, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import PROMPT, Result, refused, run_job

torch = pytest.importorskip("torch")

from malt._errors import ConfigError  # noqa: E402
from malt.torch._pipeline import division  # noqa: E402
from malt.torch._pipeline.order import order_of  # noqa: E402

nn = torch.nn

# They share jobs, which a worker runs once.
pytestmark = pytest.mark.xdist_group("pipeline")

HEAD = """
import torch
from torch import nn
torch.set_num_threads(1)

def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.BatchNorm1d(16),
        nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3),
    )

def linears():
    torch.manual_seed(0)
    return [nn.Linear(5, 5), nn.Linear(5, 5)]

def batches(count=4, rows=22, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(rows, 5, generator=generator),
             torch.randint(3, (rows,), generator=generator)) for _ in range(count)]

def accumulate(model, x, y, microbatches):
    total = None
    for part, marks in zip(x.tensor_split(microbatches), y.tensor_split(microbatches)):
        loss = nn.functional.cross_entropy(model(part), marks)
        if microbatches > 1:
            loss = loss * (len(part) / len(x))
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    return total.item()

def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

def numbers(state):
    return {name: tensor.numpy().copy() for name, tensor in state.items()}

def refuse(*args, **options):
    return error_of(malt.torch.Pipeline, *args, **options)
"""

JOB = (
    HEAD
    + """
malt.init(timeout=60)

for schedule in ("1f1b", "gpipe"):
    for microbatches in (1, 2, 7):
        whole = network()
        pipe = malt.torch.Pipeline(network(), microbatches=microbatches, schedule=schedule)
        one, other = sgd(whole.parameters()), sgd(pipe.parameters())
        losses, expected = [], []
        for x, y in batches():
            losses.append(pipe.step(x if pipe.is_first else None, y if pipe.is_last else None,
                                    nn.functional.cross_entropy))
            expected.append(accumulate(whole, x, y, microbatches))
            for optimizer in (one, other):
                optimizer.step()
                optimizer.zero_grad()
        tell(**{f"{schedule} {microbatches}": {
            "losses": losses, "expected": expected, "state": numbers(pipe.state_dict()),
            "whole": numbers(whole.state_dict()),
        }})

# A larger batch than before, and one with fewer rows
x, y = batches(1, rows=3000)[0]
loss = pipe.step(x, y, nn.functional.cross_entropy)
tell(larger=(loss, accumulate(whole, x, y, 7)))
pipe.module.eval(), whole.eval()
outputs = [pipe.predict(x), pipe.predict(x[:3])]
with torch.no_grad():
    tell(predicted=[None if output is None else torch.allclose(output, whole(part))
                    for output, part in zip(outputs, (x, x[:3]))])

# The state of the undivided network, and what does not fit it
other = network(seed=5).state_dict()
pipe.load_state_dict(other)
tell(loaded=all(torch.equal(other[name], each) for name, each in pipe.state_dict().items()),
     unfit=[error_of(pipe.load_state_dict, {**other, "9.weight": 1}),
            error_of(pipe.load_state_dict, {}),
            error_of(pipe.load_state_dict, {name: torch.zeros(9, 9) for name in other})])

# Wrong arguments: the same error on all ranks
tied = network()
tied[7] = tied[0]
tell(wrong=[
    refuse(network()[:2]), refuse(network(), ranks=[0, (), 1]), refuse(network(), ranks=[0, 1]),
    refuse(network(), ranks=[0, 1, 1]), refuse(network(), ranks=[0, 1, 3]),
    refuse(network(), ranks=[(0, 1), 2]), refuse(network(), microbatches=0),
    refuse(network(), schedule="zero"), refuse(5), refuse(tied),
    refuse(network(seed=rank)), refuse(network(), microbatches=rank + 1),
    refuse(network() if rank else 5), refuse(network(), ranks=[0, 1.5, 2]),
])

# A frozen stage, and one of dtype bfloat16
frozen = network()
frozen[0].requires_grad_(False)
whole = network()
whole[0].requires_grad_(False)
pipe = malt.torch.Pipeline(frozen, microbatches=2)
x, y = batches(1)[0]
tell(frozen=(pipe.step(x, y, nn.functional.cross_entropy), accumulate(whole, x, y, 2),
             [p.grad is None for p in pipe.parameters()][:2]))
half = malt.torch.Pipeline(network().bfloat16(), microbatches=2)
tell(half=(half.step(x.bfloat16(), y, nn.functional.cross_entropy),
           accumulate(network().bfloat16(), x.bfloat16(), y, 2)))

# Tensors that are conjugated or negated only when they are read
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    def forward(self, x):
        return x * self.weight
class Conjugate(nn.Module):
    def forward(self, x):
        return x.conj()
class Imaginary(nn.Module):
    def forward(self, x):
        return x.conj().imag
def lazy():
    return [nn.Sequential(Scale(), Conjugate()), nn.Sequential(Conjugate(), Scale(), Imaginary()),
            nn.Tanh()]
z = torch.tensor([[1 + 1j, 2 - 1j]])
def summed(output, _):
    return output.sum()
pipe, whole = malt.torch.Pipeline(lazy()), nn.Sequential(*lazy())
loss, expected = pipe.step(z, z, summed), whole(z).sum()
expected.backward()
state = dict(whole.named_parameters())
tell(lazy=(loss, expected.item(), [torch.equal(p.grad, state[name].grad)
                                   for name, p in pipe.module.named_parameters()]))

# How many micro-batches' activations a stage keeps: live tensors that a layer has saved
import weakref
class Count(nn.Module):
    live, most = weakref.WeakSet(), 0
    def forward(self, x):
        class Saved(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                Count.live.add(ctx)
                Count.most = max(Count.most, len(Count.live))
                return x.clone()
            @staticmethod
            def backward(ctx, gradient):
                return gradient
        return Saved.apply(x)
most = {}
for schedule in ("1f1b", "gpipe"):
    layers = [nn.Sequential(nn.Linear(5, 5), Count()) for _ in range(3)]
    torch.manual_seed(0)
    [nn.init.normal_(layer[0].weight) for layer in layers]
    [nn.init.zeros_(layer[0].bias) for layer in layers]
    pipe = malt.torch.Pipeline(layers, microbatches=11, schedule=schedule)
    Count.most = 0
    pipe.step(x, x, nn.functional.mse_loss)
    most[schedule] = Count.most
tell(most=most)
"""
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Result:
    result = run_job(tmp_path_factory.mktemp("pipeline"), 3, JOB)
    assert result.code == 0, result.output
    return result


@pytest.mark.parametrize("microbatches", [1, 2, 7])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_losses_and_parameters_are_those_of_the_undivided_network(
    job: Result, schedule: str, microbatches: int
) -> None:
    names = set()
    for told in job.each(f"{schedule} {microbatches}"):
        assert told["losses"] == told["expected"]
        for name, values in told["state"].items():
            assert np.array_equal(values, told["whole"][name]), name
        names |= told["state"].keys()
    assert names == told["whole"].keys()


def test_a_batch_may_be_larger_than_those_before(job: Result) -> None:
    for loss, expected in job.each("larger"):
        assert loss == expected


def test_the_last_stage_has_the_predictions(job: Result) -> None:
    assert job.each("predicted") == [[None, None], [None, None], [True, True]]


def test_a_state_is_that_of_the_undivided_network(job: Result) -> None:
    assert job.each("loaded") == [True] * 3
    for stage, unfit in enumerate(job.each("unfit")):
        assert refused(unfit[0], "9.weight")
        assert refused(unfit[1], f"of stage {stage}", "lacks")
        assert refused(unfit[2], f"does not fit stage {stage}")


def test_wrong_arguments_are_refused_on_all_ranks(job: Result) -> None:
    for wrong in job.each("wrong"):
        assert refused(wrong[0], "3 stages for 2 layers", "stage 2 would be empty", "at most 2")
        assert refused(wrong[1], "stage 1 is empty")
        assert refused(wrong[2], "rank 2 has no stage", "ranks=")
        assert refused(wrong[3], "rank 1 has two stages")
        assert refused(wrong[4], "ranks from 0 to 2")
        assert refused(wrong[5], "1 ranks, another 2", "same number")
        assert refused(wrong[6], "microbatches is 0")
        assert refused(wrong[7], "schedule is 'zero'", "'gpipe'")
        assert refused(wrong[8], "a int", "nn.Sequential")
        assert refused(wrong[9], "0.weight", "7.weight", "tied")
        assert refused(
            wrong[10], "the digest of parameters and buffers is", "on rank 0, and", "one seed"
        )
        assert refused(wrong[11], "microbatches is 1 on rank 0, and 2 on rank 1")
        assert refused(wrong[12], "rank 0", "a int")
        assert refused(wrong[13], "stage 1 has 1.5")


def test_frozen_layers_and_other_dtypes_train_too(job: Result) -> None:
    for rank, (loss, expected, is_none) in enumerate(job.each("frozen")):
        assert loss == expected
        assert is_none == [rank == 0] * 2
    for loss, expected in job.each("half"):
        assert loss == expected


def test_tensors_that_are_conjugated_when_they_are_read_arrive_so(job: Result) -> None:
    for loss, expected, is_same in job.each("lazy"):
        assert loss == expected
        assert all(is_same)


def test_1f1b_keeps_the_activations_of_no_more_microbatches_than_stages(job: Result) -> None:
    assert [most["1f1b"] for most in job.each("most")] == [3, 2, 1]
    assert [most["gpipe"] for most in job.each("most")] == [11, 11, 11]


def test_replicas_of_a_stage_are_averaged(tmp_path: Path) -> None:
    body = (
        HEAD
        + """
malt.init(timeout=60)
pipe = malt.torch.Pipeline(network(), ranks=[(0, 1), (3, 2)], microbatches=2)
optimizer = sgd(pipe.parameters())
whole = [network(), network()]
optimizers = [sgd(each.parameters()) for each in whole]
losses = []
for left, right in zip(batches(seed=1), batches(seed=2)):
    x, y = (left, right)[pipe.replica]
    losses.append(pipe.step(x, y, nn.functional.cross_entropy))
    expected = [accumulate(model, *part, 2) for model, part in zip(whole, (left, right))]
    assert losses[-1] == expected[pipe.replica], (losses, expected)
    with torch.no_grad():
        for pair in zip(*(model.parameters() for model in whole)):
            mean = (pair[0].grad + pair[1].grad) / 2
            for each in pair:
                each.grad.copy_(mean)
        for one, other in zip(*(model.buffers() for model in whole)):
            if one.is_floating_point():
                mean = (one + other) / 2
                one.copy_(mean), other.copy_(mean)
    for each in (optimizer, *optimizers):
        each.step()
        each.zero_grad()
    assert pipe.replicas == 2
tell(place=(pipe.stage, pipe.replica), state=numbers(pipe.state_dict()),
     whole=numbers(whole[0].state_dict()))
"""
    )
    result = run_job(tmp_path, 4, body)

    assert result.code == 0, result.output
    assert result.each("place") == [(0, 0), (0, 1), (1, 1), (1, 0)]
    for told in result.told:
        for name, values in told["state"].items():
            assert np.array_equal(values, told["whole"][name]), name


FAILURES = {
    "a short batch": (
        "pipe.step(torch.ones(2, 5), y, nn.functional.cross_entropy)",
        ("ConfigError", "rank 0: inputs has 2 rows for 4 micro-batches", "drop_last"),
    ),
    "a loss that raises": (
        "pipe.step(x, y, lambda output, target: 1 / 0)",
        ("ConfigError", "rank 2: ZeroDivisionError"),
    ),
    "a loss that raises much": (
        "pipe.step(x, y, fails)",
        ("ConfigError", "rank 2: ValueError: \nééé", "é" * 1000),
    ),
    "a loss that is no number": (
        "pipe.step(x, y, lambda output, target: output)",
        ("ConfigError", "rank 2: loss_fn returned", "one number"),
    ),
    "other calls": (
        "pipe.predict(x) if rank == 2 else pipe.step(x, y, nn.functional.cross_entropy)",
        ("ConfigError", "rank 2: rank 1 calls step()", "this rank predict()", "same calls"),
    ),
    "a layer that fails": (
        "pipe.step(x, y, nn.functional.cross_entropy)",
        ("ConfigError", "rank 1: a stage returned a int"),
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_an_error_of_one_rank_comes_out_on_all(tmp_path: Path, case: str) -> None:
    call, (kind, *says) = FAILURES[case]
    body = f"""{HEAD}
malt.init(timeout=60)
pipe = malt.torch.Pipeline(network(), microbatches=4)
x, y = batches(1)[0]
if {case != "a short batch"}:
    pipe.step(x, y, nn.functional.cross_entropy)
if {case == "a layer that fails"} and rank == 1:
    pipe.module[-1].register_forward_hook(lambda *_: rank)
def fails(*_):
    raise ValueError("\\n" + "\\xe9" * 3000)
def call():
    {call}
tell(error=error_of(call), again=error_of(pipe.step, x, y, nn.functional.cross_entropy))
malt.barrier()
"""
    result = run_job(tmp_path, 3, body)

    assert result.code == 0, result.output
    for rank, error in enumerate(result.each("error")):
        assert error.seconds < PROMPT
        if case.startswith("a loss that raises") and rank == 2:
            assert error.kind in ("builtins.ZeroDivisionError", "builtins.ValueError")
            continue
        assert error.kind == kind, error
        assert error.says(*says), error
        assert refused(result.told[rank]["again"], "has ended", "make a new one")


def test_a_rank_that_waits_for_one_neighbour_learns_of_the_other(tmp_path: Path) -> None:
    body = f"""{HEAD}
malt.init(timeout=60)
pipe = malt.torch.Pipeline(network(), microbatches=4)
x, y = batches(1)[0]
if rank == 0:
    await_flag("learnt")
error = error_of(pipe.step, x, y[:2] if rank == 2 else y, nn.functional.cross_entropy)
if rank == 1:
    raise_flag("learnt")
tell(error=error)
malt.barrier()
"""
    for error in run_job(tmp_path, 3, body).each("error"):
        assert refused(error, "rank 2: targets has 2 rows")


def test_an_error_comes_out_on_all_ranks_while_all_slots_hold_messages(tmp_path: Path) -> None:
    body = f"""{HEAD}
malt.init(timeout=60)
class Fails(nn.Module):
    count = 0
    def forward(self, x):
        self.count += 1
        if rank == 0 and self.count == 6:  # four are in slots, one has been received
            raise ValueError("in micro-batch 6")
        if rank == 1:
            await_flag("failed")
        return x
pipe = malt.torch.Pipeline([nn.Sequential(linears()[0], Fails()), Fails()], microbatches=8,
                           schedule="gpipe")
x = torch.ones(8, 5)
error = error_of(pipe.step, x, x, nn.functional.mse_loss)
raise_flag("failed")
tell(error=error)
malt.barrier()
"""
    first, second = run_job(tmp_path, 2, body).each("error")

    assert first.kind == "builtins.ValueError"
    assert refused(second, "rank 0: ValueError: in micro-batch 6")


def test_an_error_of_one_replica_comes_out_on_all_ranks(tmp_path: Path) -> None:
    body = f"""{HEAD}
malt.init(timeout=60)
x = torch.ones(8, 5)
for failing, places in ((2, [(0, 1), (2, 3)]), (0, [(0, 1, 2, 3)])):
    layers = linears()
    pipe = malt.torch.Pipeline(layers, ranks=places, microbatches=2)
    def loss(output, target):
        if rank == failing:
            raise ValueError("a bad row")
        return nn.functional.mse_loss(output, target)
    tell(**{{str(failing): error_of(pipe.step, x, x, loss)}})
    malt.barrier()

# A replica leaves the pipeline, and not the job
pipe = malt.torch.Pipeline(layers, ranks=[(0, 1, 2, 3)])
if rank == 3:
    pipe.close()
else:
    tell(left=error_of(pipe.step, x, x, nn.functional.mse_loss))
malt.barrier()

# Frozen while the pipeline is made
layers[0].requires_grad_(False)
pipe = malt.torch.Pipeline(layers, ranks=[(0, 1), (2, 3)])
pipe.step(x, x, nn.functional.mse_loss)
layers[0].requires_grad_(True)
tell(unfrozen=error_of(pipe.step, x, x, nn.functional.mse_loss))
malt.barrier()
"""
    result = run_job(tmp_path, 4, body)

    for failing in (2, 0):
        for rank, error in enumerate(result.each(str(failing))):
            if rank == failing:
                assert error.kind == "builtins.ValueError"
            else:
                assert refused(error, f"rank {failing}: ValueError: a bad row")
    for told in result.told[:3]:
        assert (told["left"].kind, told["left"].ranks) == ("PeerError", (3,))
        assert told["left"].says("rank 3 has left the pipeline")
        assert told["left"].seconds < PROMPT
    for error in result.each("unfrozen"):
        assert refused(error, "0.weight was frozen", "make a new pipeline")


def test_ranks_that_are_left_make_a_pipeline_of_their_own(tmp_path: Path) -> None:
    body = f"""{HEAD}
malt.init(timeout=60)
if rank == 2:
    malt.finalize()
else:
    while len(malt.alive()) > 2:
        time.sleep(0.01)
    error = error_of(malt.torch.Pipeline, network())
    pipe = malt.torch.Pipeline(network(), ranks=malt.alive())
    x, y = torch.ones(8, 5), torch.ones(8, 3)
    tell(error=error, loss=pipe.step(x, y, nn.functional.mse_loss))
"""
    told = run_job(tmp_path, 3, body).told[:2]

    assert told[0]["loss"] == told[1]["loss"]
    for each in told:
        assert (each["error"].kind, each["error"].ranks) == ("PeerError", (2,))
        assert each["error"].says("rank 2 died or left", "ranks=malt.alive()")


@pytest.mark.parametrize("wait", [0, pytest.param(6, marks=pytest.mark.long)])
def test_a_slow_rank_is_named_as_late_and_not_as_dead(tmp_path: Path, wait: int) -> None:
    body = f"""{HEAD}
meet("start")
malt.init(timeout=5)
pipe = malt.torch.Pipeline(linears(), microbatches=2)
if rank == 0:
    pipe._look = lambda: time.sleep({wait})  # beyond the limit: as if it did not run meanwhile
def loss(output, target):
    await_flag("late")
    return nn.functional.mse_loss(output, target)
x = torch.ones(8, 5)
error = error_of(pipe.step, x, x, loss)
raise_flag("late")
tell(error=error)
"""
    result = run_job(tmp_path, 2, body)

    for error in result.each("error"):
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.says("no message of rank 1 came within 5 s")


def test_numbers_in_messages_are_checked(tmp_path: Path) -> None:
    body = f"""{HEAD}
from malt._messages.array_head import Head
from malt.torch._pipeline import wire
malt.init(timeout=60)
x = torch.ones(8, 5)
errors = []
for number in (float("nan"), float("inf"), -5.0, 1e300):
    for kind in (wire.GROW, wire.ACTIVATION, wire.PREDICTION, wire.FAILURE):
        pipe = malt.torch.Pipeline(linears(), microbatches=2)
        if rank == 0:
            head = Head(kind, "float32" if kind in wire._NAMES else "", (0, 5), number)
            pipe._after._duplex.send(head.pack(), 0, 0)
        call = pipe.predict if kind == wire.PREDICTION else pipe.step
        given = [x] if kind == wire.PREDICTION else [x, x, nn.functional.mse_loss]
        errors.append(error_of(call, *given))
        malt.barrier()
tell(errors=[error and error.kind for error in errors])
"""
    result = run_job(tmp_path, 2, body)

    kinds = result.told[1]["errors"]
    assert kinds == ["malt._errors.DamagedError"] * 16


def test_one_rank_is_the_whole_network(tmp_path: Path) -> None:
    body = (
        HEAD
        + """
malt.init()
pipe, whole = malt.torch.Pipeline(network(), microbatches=3), network()
x, y = batches(1)[0]
tell(losses=(pipe.step(x, y, nn.functional.cross_entropy), accumulate(whole, x, y, 3)),
     same=all(torch.equal(a.grad, b.grad) for a, b in zip(pipe.parameters(), whole.parameters())))
"""
    )
    result = run_job(tmp_path, 1, body)

    loss, expected = result.told[0]["losses"]
    assert loss == expected
    assert result.told[0]["same"]


def sized(*sizes: int) -> Any:
    """Layers with so many parameters."""
    layers = []
    for size in sizes:
        layer = nn.Module()
        if size:
            layer.weight = nn.Parameter(torch.zeros(size))
        layers.append(layer)
    return division.layers_of(layers)


@pytest.mark.parametrize(
    ("sizes", "stages", "expected"),
    [
        ((1, 1, 1, 1), 2, [2, 2]),
        ((4, 0, 4, 0), 2, [2, 2]),
        ((9, 1, 1, 1), 2, [1, 3]),
        ((1, 1, 1, 9), 2, [3, 1]),
        ((1, 9, 1, 1), 3, [1, 1, 2]),
        ((0, 0, 0), 3, [1, 1, 1]),
        ((0, 0, 0, 5), 2, [3, 1]),
        ((5, 5, 5, 5, 5, 5), 4, [2, 2, 1, 1]),
        ((7,), 1, [1]),
    ],
)
def test_layers_are_cut_such_that_the_largest_stage_is_as_small_as_can_be(
    sizes: tuple[int, ...], stages: int, expected: list[int]
) -> None:
    assert [len(names) for names in division.cut(sized(*sizes), stages)] == expected


def test_a_layer_may_come_twice_in_a_stage() -> None:
    twice = nn.ReLU()
    layers = nn.Sequential(nn.Linear(2, 2), twice, nn.Linear(2, 2), twice)

    assert division.cut(division.layers_of(layers), 2) == [["0", "1"], ["2", "3"]]


def test_a_network_with_a_forward_of_its_own_is_refused() -> None:
    class Own(nn.Sequential):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(ConfigError, match="Own, whose forward"):
        division.layers_of(Own(nn.Linear(1, 1)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_every_stage_does_each_pass_once_and_in_order(
    schedule: str, stages: int, microbatches: int
) -> None:
    for stage in range(stages):
        order = list(order_of(schedule, stage, stages, microbatches))
        for is_forward in (True, False):
            passes = [work.microbatch for work in order if work.is_forward == is_forward]
            assert passes == list(range(microbatches))
        kept = most = 0
        for work in order:
            kept += 1 if work.is_forward else -1
            most = max(most, kept)
        assert most <= (microbatches if schedule == "gpipe" else stages - stage)
