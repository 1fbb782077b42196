"""DDP (also compiled, with hooks, in Join), FSDP2, tensors in parts, pipelines, ZeRO, Lightning.

They run unchanged, with gloo's losses.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks, run_script

torch = import_torch()

HAS_FSDP = hasattr(torch.cpu.Stream, "record_event")
# Its pipelines send an int64 to a float32, at which gloo aborts.
HAS_PIPELINES = not torch.__version__.startswith("2.9.")

pytestmark = pytest.mark.xdist_group("torch-backend")

TRAINING = """
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.algorithms import Join
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 300),
                         nn.Tanh(), nn.Linear(300, 4))

torch.manual_seed(rank + 1)
batches = [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(8)]

def train(model, optimizer, given=batches):
    losses = []
    for x, y in given:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def results(name):
    join(name)
    found = {}

    model = DistributedDataParallel(network(), bucket_cap_mb=0.02)
    found["ddp"] = train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    model = DistributedDataParallel(network())
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    found["power"] = train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    model = DistributedDataParallel(network())
    compiled = torch.compile(model, backend="eager")
    found["compiled"] = train(compiled, torch.optim.SGD(model.parameters(), lr=0.1))

    inside = torch.compile(network(), backend="eager")
    model = DistributedDataParallel(inside)
    found["compiled inside"] = train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, fp16_compress_hook)
    found["fp16"] = train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        found["join"] = train(model, optimizer, batches[3 * rank:])

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 64, dropout=0)
    model = nn.Sequential(layer, nn.Linear(16, 4))
    mesh = init_device_mesh("cpu", (size,))
    parallelize_module(layer, mesh, {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()})
    alike = [(x.clone(), y.clone()) for x, y in batches]
    for x, y in alike:
        dist.broadcast(x, 0)
        dist.broadcast(y, 0)
    found["parallel"] = train(model, torch.optim.SGD(model.parameters(), lr=0.1), alike)

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    found["zero"] = train(model, optimizer)

    model = network()
    averager = PeriodicModelAverager(period=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
    found["local"] = train(model, optimizer)

    if hasattr(torch.cpu.Stream, "record_event"):  # FSDP of PyTorch 2.6 takes no CPU tensors
        mesh = init_device_mesh("cpu", (size,))
        model = network()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        found["fsdp"] = train(model, torch.optim.SGD(model.parameters(), lr=0.1))

        state = get_model_state_dict(model)
        checkpoint.save(state, checkpoint_id=here / f"saved-{name}")
        before = {key: value.full_tensor().clone() for key, value in state.items()
                  if hasattr(value, "full_tensor")}
        for value in state.values():
            with torch.no_grad():
                getattr(value, "_local_tensor", value).zero_()
        checkpoint.load(state, checkpoint_id=here / f"saved-{name}")
        found["checkpoint"] = all(torch.equal(state[key].full_tensor(), value)
                                  for key, value in before.items()) and len(before) > 4
        saved = checkpoint.async_save(state, checkpoint_id=here / f"later-{name}")
        saved.result()
        found["later"] = (here / f"later-{name}" / ".metadata").exists()

    if torch.__version__.startswith("2.9."):
        dist.destroy_process_group()
        return found
    layers = network()
    stage = PipelineStage([layers[:3], layers[3:]][rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(5)
    for _ in range(4):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        optimizer.zero_grad()
        schedule.step(*[x][rank:], target=y if rank else None, losses=losses if rank else None)
        optimizer.step()
    found["pipeline"] = [loss.item() for loss in losses]
    dist.destroy_process_group()
    return found

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module,
    )
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    tell(malt=results("malt"), gloo=results("gloo"))
"""


KINDS = (
    *("ddp", "compiled", "compiled inside", "fp16", "join", "parallel", "zero", "local"),
    *(["pipeline"] if HAS_PIPELINES else []),
)


def test_losses_equal_those_of_gloo(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, TRAINING, limit=180)
    for by_gloo, by_malt in zip(ranks.each("gloo"), ranks.each("malt"), strict=True):
        for kind in KINDS:
            assert by_malt[kind] == by_gloo[kind], kind
        # The last bits of PowerSGD's QR factors depend on where its matrices lie, with gloo too.
        assert by_malt["power"] == pytest.approx(by_gloo["power"], rel=1e-5)
        if HAS_FSDP:
            assert by_malt["fsdp"] == by_gloo["ddp"]  # that of PyTorch 2.7 takes gloo's sum for AVG
            assert by_malt["checkpoint"]
            assert by_malt["later"]
    if HAS_PIPELINES:
        assert len(ranks.each("malt")[1]["pipeline"]) == 2  # of the last step's parts


LIGHTNING = """
import lightning, torch
import malt.torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

lightning.seed_everything(1)
x = torch.randn(256, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="malt"),
    max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), data)
loss = trainer.callback_metrics["loss"].item()
print(f"rank {trainer.global_rank} on {torch.distributed.get_backend()}: {loss!r}.\\n", end="")
"""


@pytest.mark.long
def test_lightning_takes_the_backend_by_its_name(tmp_path: Path) -> None:
    if find_spec("lightning") is None:  # to import it costs ten seconds
        pytest.skip("could not import 'lightning'")
    output = run_script(tmp_path, LIGHTNING, limit=200)  # Lightning starts rank 1
    losses = dict(re.findall(r"^rank (\d) on malt: (.*)\.$", output, re.MULTILINE))
    assert set(losses) == {"0", "1"}, output
    assert losses["0"] == losses["1"]  # with which Lightning has reduced over the ranks
    assert float(losses["0"]) < 6  # 8.9 before the training


GOSSIP = """
from torch.nn.parallel import DistributedDataParallel
join()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1), broadcast_buffers=False)
model.register_comm_hook(malt.torch.Gossip(malt.RING), malt.torch.gossip)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank + 1)
losses, slowest = [], 0.0
for step in range(30):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    began = time.monotonic()
    loss.backward()
    if step > 3:
        slowest = max(slowest, time.monotonic() - began)
    optimizer.step()
    losses.append(loss.item())
    if rank == 1 and step == 10:
        time.sleep(5)                        # a straggler, for which nobody waits
dist.barrier()
try:
    malt.torch.gossip(None, None)
except ValueError as error:
    tell(refused=str(error))
tell(losses=losses, slowest=slowest)
dist.destroy_process_group()
"""


def test_gossip_trains_and_waits_for_no_straggler(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, GOSSIP)
    for losses in ranks.each("losses"):
        assert losses[-1] < losses[0] / 4
    assert max(ranks.each("slowest")) < 2.5
    assert all("malt.torch.Gossip" in text for text in ranks.each("refused"))
