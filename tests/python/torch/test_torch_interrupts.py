"""A step of malt.torch that an exception out of a signal handler ends is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

# Rank 1 is interrupted once in each step, every two steps a moment later in the code under test.
BODY = """
import torch
import malt.torch
from interrupts import Moments

PARTS = ("_gradients.py", "_diloco.py", "_average.py", "_flat.py", "_join.py", "_optimizer.py",
         "progress.py")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.scale = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return (self.norm(self.linear(x)).double() * self.scale).pow(2).sum()

def train(at):
    torch.manual_seed(1)
    model = Model()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    if what == "gradients":
        exchanging = malt.torch.GradientExchange(model, inner, graph=graph, staleness=0)
        exchange = exchanging.exchange
    elif what == "diloco":
        exchanging = malt.torch.DiLoCo(model, inner, every=1000)
        exchange = exchanging.outer_step
    else:
        exchanging = malt.torch.average(model, 1, graph=graph)
        exchange = exchanging.step
    interrupts = 0
    for step in range(STEPS):
        inner.zero_grad()
        generator = torch.Generator().manual_seed(2 * step + rank)
        model(torch.randn(5, 3, generator=generator)).backward()
        if what != "gradients":
            inner.step()
        moments = Moments(step // 2 + 1 if at == rank else -1, PARTS)
        while True:
            try:
                moments.run(exchange)
                break
            except KeyboardInterrupt:
                interrupts += 1
                moments = Moments(-1, PARTS)
        if what == "gradients":
            exchanging.step()
    values = {name: value.tolist() for name, value in model.state_dict().items()}
    malt.barrier()
    exchanging.close()
    return values, interrupts, moments.count

torch.set_num_threads(1)
malt.init(timeout=20)
graph = malt.RING if on_ring else None
expected, _, _ = train(None)
values, interrupts, moments = train(1)
tell(same=values == expected, interrupts=interrupts, moments=moments)
malt.barrier()
"""


@pytest.mark.parametrize(
    ("what", "on_ring"),
    [
        pytest.param("gradients", False, marks=pytest.mark.long),
        ("gradients", True),
        pytest.param("diloco", False, marks=pytest.mark.long),
        pytest.param("average", False, marks=pytest.mark.long),
    ],
)
def test_a_step_that_is_interrupted_at_any_moment_is_repeated(
    tmp_path: Path, what: str, on_ring: bool
) -> None:
    """The models are as without the interrupts, whether others have ended the exchange or not."""
    body = BODY.replace("STEPS", "700")
    result = run_job(tmp_path, 2, body, what=what, on_ring=on_ring)
    assert result.each("same") == [True, True]
    assert result.told[0]["interrupts"] == 0
    interrupts, moments = result.told[1]["interrupts"], result.told[1]["moments"]
    assert 20 < moments < 350  # so each of a step had its interrupts, two in a row
    assert interrupts >= moments, (interrupts, moments)
