"""Frameworks that make the process group themselves take the one that a program has made.

DeepSpeed makes one by the name of the backend. All are trained with malt and with gloo, on two
ranks under torchrun, and end alike. Of Accelerate its own tests run too, but for two:
test_ddp_comm_hook needs GPUs, and in test_distributed_data_loop ranks make different calls where
there is no GPU (gloo then hangs).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch_ranks import run_script, torchrun

GROUP = """\
import torch
import torch.distributed as dist
dist.init_process_group("{backend}")
"""
TELL = """
print(f"rank {dist.get_rank()} on {dist.get_backend()}: {told}.\\n", end="")
dist.destroy_process_group()
"""

TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        tokens = torch.arange(i, i + 16) % 40
        return {"input_ids": tokens, "labels": tokens}

torch.manual_seed(0)
config = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2)
options = TrainingArguments(
    output_dir="HERE", use_cpu=True, per_device_train_batch_size=4, max_steps=8, logging_steps=1,
    save_steps=8, report_to=[], disable_tqdm=True,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config), args=options, train_dataset=Texts(), eval_dataset=Texts()
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
told = options.world_size, len(losses), losses, trainer.evaluate()["eval_loss"]
"""

IGNITE = """
import ignite.distributed as idist
from ignite.engine import Engine
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
generator = torch.Generator().manual_seed(idist.get_rank())

def step(engine, x):
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

engine = Engine(step)
engine.run([torch.randn(8, 4, generator=generator) for _ in range(10)], max_epochs=2)
said = idist.broadcast("hello" if idist.get_rank() == 0 else None, src=0, safe_mode=True)
ranks = idist.all_gather(torch.tensor([idist.get_rank()])).tolist()
idist.barrier()
told = idist.all_reduce(engine.state.output), ranks, said, model.module.weight.tolist()
"""

DEEPSPEED = """
import deepspeed

deepspeed.init_distributed(dist_backend="{backend}")
told = []
for stage in range(4):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(),
        config={{
            "train_micro_batch_size_per_gpu": 8, "bf16": {{"enabled": stage > 0}},
            "optimizer": {{"type": "Adam", "params": {{"lr": 0.01, "torch_adam": True}}}},
            "zero_optimization": {{"stage": stage}},
        }},
    )
    torch.manual_seed(dist.get_rank() + 1)
    dtype = torch.bfloat16 if stage else torch.float32
    for _ in range(6):
        x, y = torch.randn(8, 16, dtype=dtype), torch.randint(4, (8,))
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        told.append(loss.item())
"""

ACCELERATE = """
import runpy
runpy.run_module("accelerate.test_utils.scripts.{name}", run_name="__main__")
"""


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def told_by_backend(tmp_path: Path, text: str) -> dict[str, dict[str, str]]:
    """By backend and rank. `text` has the backend's name as `{backend}`."""
    told = {}
    for backend in ("malt", "gloo"):
        output = torchrun(tmp_path, text.format(backend=backend) + TELL)
        said = re.findall(rf"^rank (\d) on {backend}: (.*)\.$", output, re.MULTILINE)
        told[backend] = dict(said)
        assert told[backend].keys() == {"0", "1"}, output
    return told


@pytest.mark.parametrize("program", [TRAINER, IGNITE], ids=["transformers", "ignite"])
def test_a_program_ends_as_with_gloo(tmp_path: Path, program: str) -> None:
    text = program.replace("HERE", str(tmp_path)).replace("{", "{{").replace("}", "}}")
    told = told_by_backend(tmp_path, GROUP + text)
    assert told["malt"] == told["gloo"]
    assert told["malt"]["0"] == told["malt"]["1"]  # both tell the loss and weights of all


def test_deepspeeds_stages_train_as_with_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    # It compiles a part of itself when it is first used.
    compiled = "from deepspeed.comm.torch import build_shm_op\nbuild_shm_op()\n"
    run_script(tmp_path, compiled, limit=200)
    imports = "import torch\nimport torch.distributed as dist\n"
    told = told_by_backend(tmp_path, imports + DEEPSPEED)
    assert told["malt"] == told["gloo"]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("test_ops", "testing sending tensors across devices"),
        ("test_sync", "Test `accumulate` gradient accumulation"),
        ("test_script", "**Test reinstantiated state**"),
    ],
)
def test_accelerates_own_tests_pass(tmp_path: Path, name: str, last: str) -> None:
    output = torchrun(tmp_path, GROUP.format(backend="malt") + ACCELERATE.format(name=name))
    assert last in output
