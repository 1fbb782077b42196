"""A PyTorch network whose layers are divided among ranks, its stages, with replicas of each stage.

    malt run -n 2 examples/pipeline.py                          # two stages
    malt run -n 4 examples/pipeline.py --replicas 2             # two stages, each on two ranks
    malt run -n 2 examples/pipeline.py --schedule gpipe --microbatches 8
    python examples/pipeline.py                                 # one rank: the undivided network

Each rank prints the layers that it has. The losses are the same on any number of stages, bit for
bit, at the same number of micro-batches and replicas. Needs PyTorch: pip install "malt-sgd[torch]".
"""

import argparse

import torch
from torch import nn

import malt

features, hidden, depth, classes = 20, 64, 6, 4
examples, batch, rate = 2048, 64, 0.05

arguments = argparse.ArgumentParser()
arguments.add_argument("--replicas", type=int, default=1, help="ranks of each stage")
arguments.add_argument("--microbatches", type=int, default=4)
arguments.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
arguments.add_argument("--epochs", type=int, default=4)
arguments = arguments.parse_args()

malt.init()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same layers and data on all ranks

layers = nn.Sequential(nn.Linear(features, hidden))
for _ in range(depth):
    layers += nn.Sequential(nn.Tanh(), nn.Linear(hidden, hidden))
layers += nn.Sequential(nn.Tanh(), nn.Linear(hidden, classes))

x = torch.randn(examples, features)
y = (x @ torch.randn(features, classes)).argmax(1)  # what the network is to learn

replicas = arguments.replicas
stages = malt.size() // replicas
pipe = malt.torch.Pipeline(
    layers,
    ranks=[tuple(range(s * replicas, (s + 1) * replicas)) for s in range(stages)],
    microbatches=arguments.microbatches,
    schedule=arguments.schedule,
)
print(f"stage {pipe.stage}, replica {pipe.replica}: layers {', '.join(pipe.state_dict())}")

optimizer = torch.optim.SGD(pipe.parameters(), lr=rate, momentum=0.9)
mine_x, mine_y = x[pipe.replica :: replicas], y[pipe.replica :: replicas]  # a replica's examples
for epoch in range(arguments.epochs):
    total = 0.0
    for rows in torch.randperm(len(mine_x)).split(batch):  # the same order on all ranks
        total += pipe.step(mine_x[rows], mine_y[rows], nn.functional.cross_entropy) * len(rows)
        optimizer.step()
        optimizer.zero_grad()
    if pipe.is_last and pipe.replica == 0:
        print(f"epoch {epoch}: loss {total / len(mine_x):.17g}")

outputs = pipe.predict(x)  # on the last stage
if outputs is not None and pipe.replica == 0:
    right = (outputs.argmax(1) == y).float().mean()
    print(f"{right:.1%} of the examples are right")
