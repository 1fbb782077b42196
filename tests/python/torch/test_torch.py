"""malt.torch: PyTorch models that several ranks train together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Result, run_job

import malt

torch = pytest.importorskip("torch")
nn = torch.nn

# They share one job, which a worker runs once.
pytestmark = pytest.mark.xdist_group("torch")

JOB = """
import copy, io
import torch
from torch import nn
torch.set_num_threads(1)
malt.init(timeout=20)

def network(seed=0, hidden=6):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, 2)]
    return nn.Sequential(*layers)

def plain(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

def numbers(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()

def backward(model, batch):
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()

def train(model, optimizer, batches, after=lambda: None):
    for batch in batches:
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()
        after()

def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})

generator = torch.Generator().manual_seed(1)
data = [[(torch.randn(8, 4, generator=generator), torch.randint(2, (8,), generator=generator))
         for _ in range(8)] for _ in range(2)]
mine = data[rank]

# Averaging: all start as rank 0, train by themselves for 4 steps, and are averaged
model = plain(seed=rank)
average = malt.torch.average(model, every=4)
places = [p.data_ptr() for p in model.parameters()]
start = numbers(model)
part = malt.shard(torch.utils.data.TensorDataset(torch.arange(5)))
tell(part=[int(row) for row, in part], kind=type(part).__name__)
optimizer = sgd(model)
train(model, optimizer, mine[:3], average.step)
apart = numbers(model)
train(model, optimizer, mine[3:4], average.step)
expected = []
for batches in data:
    alone = plain(seed=0)
    train(alone, sgd(alone), batches[:4])
    expected.append(numbers(alone))
tell(average={
    "start": start, "apart": apart, "result": numbers(model), "expected": np.mean(expected, 0),
    "places": places == [p.data_ptr() for p in model.parameters()],
    "whole": average.vectors[0].array.sum(), "sum": numbers(model).sum(),
})

# Buffers
model = network()
average = malt.torch.average(model, every=1)
model(mine[0][0] + rank)
if rank: model(mine[1][0])
own = model[1].running_mean.clone()
average.step()
tell(buffers=(own.numpy(), model[1].running_mean.numpy(), int(model[1].num_batches_tracked)))

# Gradients: two ranks' half batches are one batch
model = plain(seed=rank)
optimizer = malt.torch.GradientExchange(model, sgd(model, weight_decay=0.01))
train(model, optimizer, mine[:4])
alone = plain(seed=0)
both = [tuple(torch.cat(parts) for parts in zip(*pair)) for pair in zip(*data)]
train(alone, sgd(alone, weight_decay=0.01), both[:4])
tell(gradients=(numbers(model), numbers(alone)))

# ... clipped, scheduled, in bfloat16; then summed, late, and not of one parameter
model = network()
optimizer = malt.torch.GradientExchange(model, torch.optim.AdamW(model.parameters(), lr=0.1))
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for batch in mine[:4]:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        backward(model, batch)
    optimizer.exchange()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    optimizer.step()
    schedule.step()
tell(mixed=(numbers(model), norm, optimizer.param_groups[0]["lr"]))
late = nn.Linear(4, 2)
late.unused = nn.Parameter(torch.ones(3))
optimizer = malt.torch.GradientExchange(
    late, sgd(late, weight_decay=0.1), fold=malt.SUM, graph=malt.RING, staleness=None)
train(late, optimizer, mine)
stats = optimizer.vectors[0].stats()
tell(late=(stats.sent, late.unused.detach().numpy()))
raise_flag(f"late-{rank}")
while not flag_is_up(f"late-{1 - rank}"):  # nothing is sent to a rank that has closed
    optimizer.vectors[0].gather(malt.SUM)  # makes room for what the other still sends
optimizer.close()

# DiLoCo beside the same by hand
def by_hand(rounds):
    shared = plain(seed=0)
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    inner = [copy.deepcopy(shared) for _ in data]
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.05) for each in inner]
    for at in range(0, 2 * rounds, 2):
        for each, optimizer, batches in zip(inner, optimizers, data):
            each.load_state_dict(shared.state_dict())
            train(each, optimizer, batches[at:at + 2])
        for p, *others in zip(shared.parameters(), *(each.parameters() for each in inner)):
            p.grad = p.detach() - torch.stack([other.detach() for other in others]).mean(0)
        outer.step()
    return numbers(shared)

def diloco(model):
    return malt.torch.DiLoCo(model, torch.optim.AdamW(model.parameters(), lr=0.05), every=2)

model = plain(seed=rank)
optimizer = diloco(model)
train(model, optimizer, mine[:5])
saved = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
train(model, optimizer, mine[5:])
again = plain(seed=5)
resumed = diloco(again)
saved.seek(0)
state = torch.load(saved, weights_only=True)
again.load_state_dict(state["model"])
resumed.load_state_dict(state["optimizer"])
train(again, resumed, mine[5:])
tell(diloco=(numbers(model), by_hand(4), numbers(again)))

# Models that differ
frozen = plain(seed=rank).requires_grad_(False)
partly = nn.Sequential(frozen, nn.Linear(2, 2))
tell(errors={
    "layout": error_of(malt.torch.average, network(hidden=6 + rank)),
    "settings": error_of(malt.torch.average, network(), every=1 + rank),
    "frozen": error_of(malt.torch.average, partly),
})
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_job(tmp_path_factory.mktemp("torch"), 2, JOB, limit=250)


# On two ranks


def test_ranks_train_apart_from_one_start_and_are_averaged(job: Result) -> None:
    first, second = job.each("average")

    assert np.array_equal(first["start"], second["start"])
    assert not np.array_equal(first["apart"], second["apart"])
    assert np.array_equal(first["result"], second["result"])
    np.testing.assert_allclose(first["result"], first["expected"], rtol=1e-5, atol=1e-7)


def test_parameters_stay_in_the_vectors_memory(job: Result) -> None:
    for told in job.each("average"):
        assert told["places"]
        assert told["whole"] == pytest.approx(told["sum"], rel=1e-5)


def test_running_statistics_are_averaged_and_counts_are_not(job: Result) -> None:
    (own, mean, count), (other, same, other_count) = job.each("buffers")

    np.testing.assert_allclose(mean, (own + other) / 2, rtol=1e-5)
    assert np.array_equal(mean, same)
    assert (count, other_count) == (1, 2)


def test_a_step_by_all_gradients_is_that_of_one_large_batch(job: Result) -> None:
    (first, expected), (second, _) = job.each("gradients")

    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_scheduled_and_of_mixed_precision(job: Result) -> None:
    (first, norm, rate), (second, same_norm, _) = job.each("mixed")

    assert np.array_equal(first, second)
    assert norm == same_norm > 0.1
    assert rate == pytest.approx(0.001)


def test_late_gradients_are_all_sent_and_none_is_made_up(job: Result) -> None:
    for sent, unused in job.each("late"):
        assert sent == 9  # one for the common start
        assert unused.tolist() == [1, 1, 1]  # no gradient on any rank: not even weight decay


def test_diloco_is_the_published_algorithm(job: Result) -> None:
    (first, expected, _), (second, _, _) = job.each("diloco")

    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-6)


def test_diloco_goes_on_from_its_state_with_the_same_bits(job: Result) -> None:
    for unbroken, _, resumed in job.each("diloco"):
        assert np.array_equal(unbroken, resumed)


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("layout", ["elements is 68 on rank 0, and 79 on", "make one model on all ranks"]),
        ("settings", ["what it is called with is every 1", "on rank 0, and every 2"]),
        ("frozen", ["the digest of parameters that are not trained is"]),
    ],
)
def test_models_that_differ_are_refused_on_all_ranks(
    job: Result, what: str, parts: list[str]
) -> None:
    for errors in job.each("errors"):
        assert errors[what] is not None
        assert errors[what].kind == "ConfigError"
        assert errors[what].says("malt.torch.average", *parts), errors[what].text


# On one


def test_tied_weights_stay_tied(alone: None) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[1].bias.data = model[0].bias.data

    average = malt.torch.average(model)

    assert model[1].weight is model[0].weight
    assert model[1].bias.data_ptr() == model[0].bias.data_ptr()
    assert len(average.vectors[0]) == 12


def test_each_dtype_and_memory_format_is_kept(alone: None) -> None:
    model = nn.ModuleDict(
        {
            "a": nn.Linear(3, 2).double(),
            "b": nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last),
        }
    )
    before = [p.detach().clone() for p in model.parameters()]

    average = malt.torch.average(model)

    assert sorted(str(v.dtype) for v in average.vectors) == ["float32", "float64"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert model["b"].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_trained_model_outlives_the_job() -> None:
    with malt.init():
        model = nn.Linear(2, 2)
        malt.torch.average(model, every=1).step()
    with torch.no_grad():
        model.weight.fill_(3)
    assert model(torch.ones(1, 2)).shape == (1, 2)


def test_average_resumes_in_the_middle_of_a_round(alone: None) -> None:
    first, second = (malt.torch.average(nn.Linear(2, 2), every=3) for _ in range(2))
    first.step()

    second.load_state_dict(first.state_dict())

    assert [second.step() for _ in range(3)] == [False, True, False]


def lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d())


def transposed() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
    model[1].weight.data = model[0].weight.data.t()
    return model


def overlapping() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    model[1].weight.data = model[0].weight.data[1:3]
    return model


def columns() -> nn.Module:
    """Parameters whose elements lie between one another's, but are none of them."""
    both = torch.arange(8.0).reshape(4, 2)
    model = nn.Module()
    model.left, model.right = nn.Parameter(both[:, :1]), nn.Parameter(both[:, 1:])
    return model


def test_parameters_that_lie_between_one_anothers_elements_share_nothing(alone: None) -> None:
    model = columns()
    malt.torch.average(model)
    assert model.left.flatten().tolist() == [0, 2, 4, 6]
    assert model.right.flatten().tolist() == [1, 3, 5, 7]


def test_gradients_of_two_parameters_over_one_memory_stay_two(alone: None) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight.data = model[0].weight.data
    optimizer = malt.torch.GradientExchange(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for place, layer in enumerate(model):
        layer.weight.grad = torch.full((2, 2), float(place + 1))
    optimizer.exchange()
    assert [layer.weight.grad[0, 0].item() for layer in model] == [1, 2]


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(2, 2).bfloat16(), "parameter weight is torch.bfloat16.*autocast"),
        (lambda: nn.Linear(2, 2, device="meta"), "on device meta.*model.cpu"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no parameter .* requires gradients"),
        (lambda: nn.Linear(2, 2).weight, "the model is a Parameter"),
        (lazy, "parameter 1.weight has no shape yet: run the model on one batch"),
        (transposed, "parameter 1.weight shares memory with parameter 0.weight"),
        (overlapping, "parameter 1.weight shares memory with parameter 0.weight.*another part"),
    ],
)
def test_a_model_that_cannot_be_exchanged_is_refused(
    alone: None, model: Callable[[], Any], words: str
) -> None:
    with pytest.raises(malt.ConfigError, match=words):
        malt.torch.average(model())


def test_a_model_that_was_converted_or_unfrozen_meanwhile_is_refused(alone: None) -> None:
    converted, unfrozen = nn.Linear(2, 2), nn.Linear(2, 2)
    unfrozen.bias.requires_grad_(False)
    averages = [malt.torch.average(model, every=1) for model in (converted, unfrozen)]
    converted.double()
    unfrozen.bias.requires_grad_(True)

    with pytest.raises(malt.ConfigError, match="parameter weight no longer lies in the memory"):
        averages[0].step()
    with pytest.raises(malt.ConfigError, match="parameter bias has come to require gradients"):
        averages[1].step()


@pytest.mark.parametrize("replace", ["assign", "layer", "buffer"])
@pytest.mark.parametrize("way", ["average", "GradientExchange", "DiLoCo"])
def test_a_model_whose_tensors_were_replaced_is_refused(
    alone: None, way: str, replace: str
) -> None:
    """What is exchanged would not be what is trained."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if way == "average":
        made = malt.torch.average(model, every=1)
    elif way == "GradientExchange":
        made = malt.torch.GradientExchange(model, optimizer)
    else:
        made = malt.torch.DiLoCo(model, optimizer, every=1)
    model(torch.ones(4, 3)).sum().backward()
    made.step()
    if replace == "assign":
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    elif replace == "layer":
        model[0] = nn.Linear(3, 3)
    else:
        model[1].running_mean = torch.zeros(3)
    model(torch.ones(4, 3)).sum().backward()

    name = "buffer 1.running_mean" if replace == "buffer" else "parameter 0.weight"
    with pytest.raises(malt.ConfigError, match=f"the model has replaced {name}"):
        made.step()


def test_an_optimizer_that_does_not_fit_is_refused(alone: None) -> None:
    model, other, sparse = nn.Linear(2, 2), nn.Linear(2, 2), nn.Embedding(4, 2, sparse=True)

    with pytest.raises(malt.ConfigError, match="is not of the model"):
        malt.torch.GradientExchange(model, torch.optim.SGD(other.parameters(), lr=1))
    with pytest.raises(malt.ConfigError, match=r"outer_momentum is 1\.0; it is from 0 to below 1"):
        malt.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1), outer_momentum=1.0)
    optimizer = malt.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1), every=1)
    with pytest.raises(malt.ConfigError, match="without 'diloco'"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=1).state_dict())
    optimizer.add_param_group({"params": list(other.parameters())})
    with pytest.raises(malt.ConfigError, match="has 4 parameters, and had 2"):
        optimizer.step()
    exchange = malt.torch.GradientExchange(sparse, torch.optim.SGD(sparse.parameters(), lr=1))
    sparse(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(
        malt.ConfigError, match=r"gradient of parameter weight is torch\.sparse_coo"
    ):
        exchange.step()


def test_a_dataset_is_shared_out_as_subsets(job: Result) -> None:
    assert job.each("part") == [[0, 2, 4], [1, 3]]
    assert job.each("kind") == ["Subset", "Subset"]


UNEQUAL = """
import contextlib
import torch
from torch import nn
torch.set_num_threads(1)
malt.init(timeout=20)
torch.manual_seed(0)
data = torch.randn(8, 4, 3)

def train(make, how):
    torch.manual_seed(rank)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    exchanged = make(model, optimizer)
    optimizer = optimizer if hasattr(exchanged, "allreduce") else exchanged
    batches = data[:4] if rank == 1 else data  # rank 1 has half as many
    with exchanged.join() if how == "join" else contextlib.nullcontext():
        for batch in batches:
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            if optimizer is not exchanged:
                exchanged.step()
    if optimizer is not exchanged:
        exchanged.allreduce()
    return model.weight.detach().numpy().copy()

def average(model, optimizer): return malt.torch.average(model, every=1)
def gradients(model, optimizer): return malt.torch.GradientExchange(model, optimizer)
def diloco(model, optimizer): return malt.torch.DiLoCo(model, optimizer, every=2)

for make in (average, gradients, diloco):
    tell(**{make.__name__: train(make, "join")})
tell(
    refused=error_of(malt.torch.average(nn.Linear(1, 1), staleness=None).join().__enter__),
    unequal=error_of(train, average, "nothing"),
)
"""


def test_ranks_with_unequal_numbers_of_batches_join_the_others(tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, UNEQUAL)
    for name in ("average", "gradients", "diloco"):
        first, *others = result.each(name)
        for other in others:
            np.testing.assert_array_equal(first, other)
    for told in result.told:
        assert told["refused"].says("join() is for staleness=0")
        assert told["unequal"].kind == "ConfigError"
        assert told["unequal"].says("unequal numbers of batches: give each rank equally many")
