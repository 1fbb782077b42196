"""Vectors in the memory of a GPU: exchanges beside gloo, the copies they are made of, a training.

    . .venv/bin/activate                                  # after ./dev build; PyTorch with CUDA
    python benchmarks/gpu.py
    python benchmarks/gpu.py --output docs/performance.md

All ranks are on one GPU. An exchange is scatter and gather at staleness 0 of float32 elements. All
that is compared is measured in one job, in turns: exchanges with the slots in the GPU's memory
("ipc") and in the host's ("host"), gloo's all_reduce of the same CUDA tensor, and plain copies by
rank 0 alone. Where nvidia-cuda-mps-control is installed, this is measured once more under NVIDIA's
MPS, which lets processes share the GPU without switching between them. The training is that of a
transformer as large as GPT-2 (124 million parameters, nanoGPT's default), in blocks of steps
without and with malt.torch.average(every=32).
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from report import MB, Report, microseconds, parser_with_output, run_ranks, size_text, table, times

SIZES = {1 * MB: 100, 64 * MB: 20, 1024 * MB: 3}  # exchanges in a run
TURNS = 5
LEAST = {"ipc": 0.6, "host": 0.8, "gloo": 10}
STEPS, EVERY, BLOCKS = 64, 32, 4  # of the training: steps in a block; blocks of each kind
MOST_LOSS = 0.03


def parse():
    parser = parser_with_output(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step and rank")
    parser.add_argument("--skip-training", action="store_true")
    parser.add_argument("--worker", choices=["exchange", "training"])
    parser.add_argument("--out")
    return parser.parse_args()


# A rank


def timed(call, repeats):
    """Seconds a call, of the slowest rank."""
    import torch

    import malt

    torch.cuda.synchronize()
    malt.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    malt.barrier()
    return (time.perf_counter() - start) / repeats


def vector_with(slots, values):
    import malt

    os.environ["MALT_DEVICE_SLOTS"] = slots
    return malt.vector(values)


def copies(size):
    """Bytes a second of plain copies: on the GPU, from it and to it, while the others wait."""
    import torch

    import malt

    found = {}
    if malt.rank() == 0:
        here, there = (torch.empty(size // 4, device="cuda") for _ in range(2))
        host = torch.empty(size // 4, pin_memory=True)
        for name, to, of in (("gpu", there, here), ("down", host, here), ("up", here, host)):
            to.copy_(of, non_blocking=True)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                to.copy_(of, non_blocking=True)
            torch.cuda.synchronize()
            found[name] = 5 * size * (2 if name == "gpu" else 1) / (time.perf_counter() - start)
    malt.barrier()
    return found


def exchange_worker():
    import torch
    from torch import distributed

    import malt

    malt.init()
    port = malt.broadcast(free_port() if malt.rank() == 0 else None)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=malt.rank(),
        world_size=malt.size(),
    )
    found = {"gpu": torch.cuda.get_device_name(), "copies": copies(256 * MB), "sizes": {}}
    for size, repeats in SIZES.items():
        values = torch.full((size // 4,), float(malt.rank()), device="cuda")
        vectors = {slots: vector_with(slots, values) for slots in ("ipc", "host")}

        def exchange(vector):
            vector.scatter()
            vector.gather(malt.AVG, staleness=0)

        calls = {slots: lambda v=vector: exchange(v) for slots, vector in vectors.items()}
        calls |= {f"{slots} allreduce": v.allreduce for slots, v in vectors.items()}
        calls["gloo"] = lambda tensor=values: distributed.all_reduce(tensor)
        seconds = {name: [] for name in calls}
        for call in calls.values():
            call()
        assert bool((values == values[0]).all())
        for _ in range(TURNS):
            for name, call in calls.items():
                count = max(1, repeats // 10) if name == "gloo" else repeats
                seconds[name].append(timed(call, count))
                values.fill_(1.0)
        found["sizes"][size] = seconds
        for vector in vectors.values():
            vector.close()
        del vectors, calls, values, vector
        torch.cuda.empty_cache()
    distributed.destroy_process_group()
    return found


def free_port():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def transformer():
    """As large as GPT-2: 12 layers of 768 units, 12 heads, contexts of 512 tokens."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self, words=50304, units=768, context=512):
            super().__init__()
            self.words, self.context = words, context
            self.token = nn.Embedding(words, units)
            self.place = nn.Embedding(context, units)
            layer = nn.TransformerEncoderLayer(
                units, 12, 4 * units, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(units)
            self.head = nn.Linear(units, words, bias=False)
            self.head.weight = self.token.weight
            mask = nn.Transformer.generate_square_subsequent_mask(context)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, tokens):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            seen = self.token(tokens) + self.place(places)
            return self.head(self.norm(self.layers(seen, mask=self.mask, is_causal=True)))

    return Transformer()


def training_worker(batch):
    import torch
    from torch.nn import functional

    import malt
    import malt.torch

    malt.init()
    torch.manual_seed(0)
    model = transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    average = malt.torch.average(model, every=EVERY, buffers=False)
    generator = torch.Generator("cuda").manual_seed(malt.rank())

    def step():
        tokens = torch.randint(
            model.words, (batch, model.context + 1), device="cuda", generator=generator
        )
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def step_and_average():
        step()
        average.step()

    seconds = {"alone": [], "average": []}
    for call in (step, step_and_average):
        timed(call, EVERY)
    for _ in range(BLOCKS):
        for name, call in (("alone", step), ("average", step_and_average)):
            seconds[name].append(timed(call, STEPS))
    average.allreduce()
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"seconds": seconds, "parameters": count, "gpu": torch.cuda.get_device_name()}


# The report


class Gpu(Report):
    def exchanges(self, measured):
        rows = []
        for (ranks, under_mps), found in measured.items():
            rate = found["copies"]
            for size, seconds in found["sizes"].items():
                size = int(size)
                ms = {name: statistics.median(each) for name, each in seconds.items()}
                mps = "yes" if under_mps else ""
                what = f"{size_text(size)} on {ranks} ranks" + (" under MPS" if mps else "")
                # A scatter reads and writes the vector, a gather reads all and writes it.
                moved = ranks * (ranks + 3) * size / ms["ipc"] / rate["gpu"]
                # Each vector once to the host, and once to each other rank.
                over_bus = ranks * size / rate["down"] + ranks * (ranks - 1) * size / rate["up"]
                staged = over_bus / ms["host"]
                faster = ms["gloo"] / ms["ipc"]
                verdict = self._verdict(
                    what,
                    moved < LEAST["ipc"] and f"ipc {moved:.0%}",
                    staged < LEAST["host"] and f"host {staged:.0%}",
                    faster < LEAST["gloo"] and f"gloo {times(faster)}",
                )
                row = [size_text(size), str(ranks), mps, verdict]
                row += [microseconds(ms[name]) for name in ("ipc", "ipc allreduce", "host")]
                row += [microseconds(ms["host allreduce"]), microseconds(ms["gloo"])]
                rows.append([*row, f"{moved:.0%}", f"{staged:.0%}", times(faster)])
        header = ["float32", "ranks", "MPS", "", "ipc", "ipc allreduce", "host", "host allreduce"]
        header += ["gloo", "of the GPU's copy", "of the pinned copy", "x gloo"]
        one = next(iter(measured.values()))
        rates = {name: f"{rate / 1e9:,.0f}" for name, rate in one["copies"].items()}
        self._sections.append(
            f"All ranks on one {one['gpu']}, whose plain copies run at {rates['gpu']} GB/s on it "
            f"(read and written), and at {rates['down']} and {rates['up']} GB/s to and from "
            "page-locked memory. Microseconds an exchange: `scatter` and `gather` at staleness 0 "
            "with the slots in the GPU's memory (ipc) and in the host's (host), `allreduce`, and "
            "gloo's `all_reduce` of the same tensor. *Of the GPU's copy*: the least bytes that an "
            "exchange has to read and write, of all ranks together, by its time and the rate of "
            f"plain copies (wanted: {LEAST['ipc']:.0%}). *Of the pinned copy*: likewise over the "
            f"bus, one direction after the other, with the slots in the host's memory (wanted: "
            f"{LEAST['host']:.0%}). *x gloo*: gloo's time by ipc's (wanted: {LEAST['gloo']}). "
            "*MPS*: under NVIDIA's Multi-Process Service; without it the GPU runs the ranks in "
            "turn.\n\n" + table(header, rows)
        )

    def training(self, measured):
        rows = []
        for ranks, found in measured.items():
            alone, average = (
                statistics.median(found["seconds"][name]) for name in ("alone", "average")
            )
            loss = average / alone - 1
            verdict = self._verdict(
                f"training on {ranks} ranks", loss > MOST_LOSS and f"{loss:.1%} longer"
            )
            row = [str(ranks), verdict, f"{alone * 1e3:.1f}", f"{average * 1e3:.1f}"]
            rows.append([*row, f"{loss:+.1%}"])
        one = next(iter(measured.values()))
        self._sections.append(
            f"Milliseconds a step of a transformer with {one['parameters']:,} parameters (AdamW, "
            f"bfloat16 autocast), without exchange and with `malt.torch.average(every={EVERY})`: "
            f"medians of {BLOCKS} blocks of {STEPS} steps each, in turns (wanted: at most "
            f"{MOST_LOSS:.0%} longer).\n\n"
            + table(["ranks", "", "alone", "with average", "longer by"], rows)
        )


@contextlib.contextmanager
def mps():
    """The environment of a job under MPS, whose daemon runs meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        control = "nvidia-cuda-mps-control"
        subprocess.run([control, "-d"], env=os.environ | environ, check=True)
        try:
            yield environ
        finally:
            subprocess.run([control], input=b"quit\n", env=os.environ | environ, check=True)


def main():
    options = parse()
    if options.worker:
        import malt

        found = (
            exchange_worker() if options.worker == "exchange" else training_worker(options.batch)
        )
        if malt.rank() == 0:
            with open(options.out, "w") as file:
                json.dump(found, file)
        malt.barrier()
        return 0
    made = Gpu("gpu.py", "Vectors on GPUs", f"{TURNS} turns")
    worker = (__file__, "--worker", "exchange")
    exchanges = {(ranks, False): run_ranks(ranks, *worker) for ranks in options.ranks}
    if shutil.which("nvidia-cuda-mps-control"):
        with mps() as environ:
            exchanges |= {
                (ranks, True): run_ranks(ranks, *worker, **environ) for ranks in options.ranks
            }
    made.exchanges(exchanges)
    if not options.skip_training:
        arguments = ("--worker", "training", "--batch", options.batch)
        made.training({ranks: run_ranks(ranks, __file__, *arguments) for ranks in options.ranks})
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
