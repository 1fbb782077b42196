"""torch.distributed with the backend malt and with gloo: all_reduce, and training with DDP.

    . .venv/bin/activate                                  # after ./dev build
    pip install torch==2.13.0 deepspeed                   # the latter may be missing
    python benchmarks/torch_backend.py                    # about six minutes
    sudo -E python benchmarks/torch_backend.py --hosts --output docs/performance.md

With --hosts it also measures all_reduce between two hosts, which are network namespaces
(tests/hosts/). Small calls are also measured beside busy processes. In each job all ranks are in a
process group of either backend. The backends take turns, run of calls by run of calls and block of
steps by block of steps, so that both meet the same machine. Each rank has one thread. DeepSpeed's
all-reduce is its inference_all_reduce(), through shared memory on one host; its process group is
gloo's. A window's put and signal are measured beside Tensor.copy_() into memory of the rank's own,
and send() and recv() beside gloo's.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import report
from report import KB, MB, microseconds, parser_with_output, say, size_text, table, times

BACKENDS = ("gloo", "malt")
SIZES = {4 * KB: (20, 15), 256 * KB: (10, 6), 25 * MB: (2, 3.5)}  # calls in a run, least ratio
TOKENS = 2 * 4096  # bfloat16 values: what tensor parallelism adds up for two tokens
TOKENS_LEAST = 10
DEEPSPEED_LEAST = {4 * KB: 1, 256 * KB: 1.5}  # on two ranks
BUSY = {1: 5, 2: 5, 8: 2, 20: 1.2}  # other processes, which compute; least ratio of 4 KB
BUSY_RANKS = (2, 3)
BUSY_CALLS = 50  # in a run
BETWEEN_HOSTS = {4 * KB: 1, 256 * KB: 1, 25 * MB: 2}  # least ratio
RUNS = 24
WIDTHS = {256: 1.8, 2800: 1.5}  # of the network's layers, least ratio
BATCH = 64
STEPS = 10  # in a block
PUTS = {4 * KB: (500, 2), 1 * MB: (50, 1.2)}  # in a run, most ratio to a copy
MESSAGES = {4 * KB: (50, 1.5), 1 * MB: (20, 1.5)}  # there and back in a run, least ratio to gloo
LIMIT_SECONDS = 300


def parse():
    parser = parser_with_output(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--blocks", type=int, default=6, help="of steps of a training")
    parser.add_argument("--hosts", action="store_true", help="also between two hosts (needs root)")
    parser.add_argument("--job", nargs=3, help=report.argparse.SUPPRESS)  # rank, size, folder
    parser.add_argument("--interface", default="lo", help=report.argparse.SUPPRESS)
    parser.add_argument("--busy", action="store_true", help=report.argparse.SUPPRESS)
    return parser.parse_args()


# A rank


def join(rank, size, folder, interface):
    """A process group of each backend."""
    from torch import distributed

    import malt.torch  # noqa: F401 - registers the backend

    os.environ["GLOO_SOCKET_IFNAME"] = interface
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=2),
    )
    return {"gloo": distributed.group.WORLD, "malt": distributed.new_group(backend="malt")}


def deepspeed_all_reduce(rank, size):
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE=str(size), LOCAL_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")
    deepspeed = importlib.import_module("deepspeed")
    deepspeed.init_distributed("gloo")
    if deepspeed.comm.comm.cdb.shm_comm_op is None:
        raise SystemExit("DeepSpeed's shared-memory all-reduce could not be built")
    return deepspeed.comm.inference_all_reduce


def time_calls(ways, group, tensor, calls, runs):
    """Seconds of an all-reduce, by way: of runs of so many calls, one after the other."""
    from torch import distributed

    seconds = {name: [] for name in ways}
    for run in range(runs + 2):  # the first two warm up
        for name, reduce in ways.items():
            distributed.barrier(group)
            start = time.perf_counter()
            for _ in range(calls):
                reduce(tensor)
            if run > 1:
                seconds[name].append((time.perf_counter() - start) / calls)
    return seconds


def time_puts(rank, window, size, puts, runs):
    """Seconds of a put and a signal from rank 0 to rank 1, and of a copy on rank 0: of runs."""
    import torch
    from torch import distributed

    given, copy = torch.ones(size // 4), torch.zeros(size // 4)
    seconds = {"put and signal": [], "copy": []}
    for run in range(runs + 2):  # the first two warm up
        distributed.barrier()
        if rank == 1:
            for _ in range(puts):
                window.wait_signal(0)
        if rank != 0:
            continue
        start = time.perf_counter()
        for _ in range(puts):
            window.put(given, 1, 0)
            window.signal(1)
        middle = time.perf_counter()
        for _ in range(puts):
            copy.copy_(given)
        if run > 1:
            seconds["put and signal"].append((middle - start) / puts)
            seconds["copy"].append((time.perf_counter() - middle) / puts)
    return seconds


def time_messages(rank, groups, size, messages, runs):
    """Seconds of a message from rank 0 to rank 1 or back, by backend: of runs."""
    import torch
    from torch import distributed

    tensor = torch.ones(size // 4)
    seconds = {name: [] for name in groups}
    for run in range(runs + 2):
        for name, group in groups.items():
            distributed.barrier()
            start = time.perf_counter()
            for _ in range(messages if rank < 2 else 0):
                for sender in range(2):
                    if rank == sender:
                        distributed.send(tensor, 1 - rank, group)
                    else:
                        distributed.recv(tensor, 1 - rank, group)
            if run > 1:
                seconds[name].append((time.perf_counter() - start) / messages / 2)
    return seconds


def network(width):
    from torch import nn

    return nn.Sequential(
        *(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 10),
    )


def time_training(groups, width, blocks):
    """Seconds of blocks of steps of SGD under DDP, by backend, until all ranks have made theirs.

    "alone" are those of ranks that exchange nothing.
    """
    import torch
    from torch import distributed, nn

    x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    models = {
        name: nn.parallel.DistributedDataParallel(
            network(width), process_group=group, gradient_as_bucket_view=True
        )
        for name, group in groups.items()
    }
    models["alone"] = network(width)
    optimizers = {name: torch.optim.SGD(m.parameters(), lr=0.01) for name, m in models.items()}
    seconds = {name: [] for name in models}
    for block in range(blocks + 1):  # the first one warms up
        for name, model in models.items():
            group = groups.get(name, groups["malt"])
            distributed.barrier(group)
            start = time.perf_counter()
            for _ in range(STEPS):
                optimizers[name].zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizers[name].step()
            distributed.barrier(group)
            if block:
                seconds[name].append(time.perf_counter() - start)
    return seconds, sum(p.numel() for p in models["malt"].parameters())


def work(rank, size, folder, options):
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    groups = join(rank, size, folder, options.interface)
    is_one_host = options.interface == "lo"
    ways = {name: partial(distributed.all_reduce, group=group) for name, group in groups.items()}
    if is_one_host and not options.busy and importlib.util.find_spec("deepspeed"):
        ways["deepspeed"] = deepspeed_all_reduce(rank, size)
    few = 1 if size <= report.CORES else 3  # where ranks share cores, calls take far longer
    found = {"calls": {}, "tokens": {}, "puts": {}, "messages": {}, "training": {}}
    if options.busy:
        tensor = torch.zeros(KB)
        found["busy"] = time_calls(ways, groups["malt"], tensor, BUSY_CALLS, RUNS // 3)
        return finish(rank, folder, found, groups["malt"])
    for length, (calls, _) in SIZES.items():
        tensor = torch.zeros(length // 4)
        found["calls"][length] = time_calls(ways, groups["malt"], tensor, calls, RUNS // few)
    if is_one_host:
        tensor = torch.zeros(TOKENS, dtype=torch.bfloat16)
        found["tokens"] = time_calls(ways, groups["malt"], tensor, 20, RUNS // few)
    if is_one_host and size == 2:
        window = groups["malt"].new_window(torch.zeros(max(PUTS) // 4))
        for length, (puts, _) in PUTS.items():
            found["puts"][length] = time_puts(rank, window, length, puts, RUNS)
        window.tensor_deregister()
        for length, (messages, _) in MESSAGES.items():
            found["messages"][length] = time_messages(rank, groups, length, messages, RUNS)
    for width in WIDTHS if is_one_host else ():
        seconds, parameters = time_training(groups, width, max(options.blocks // few, 3))
        found["training"][width] = {"seconds": seconds, "parameters": parameters}
    return finish(rank, folder, found, groups["malt"])


def finish(rank, folder, found, group):
    from torch import distributed

    if rank == 0:
        (Path(folder) / "result.json").write_text(json.dumps(found))
    distributed.barrier(group)
    distributed.destroy_process_group()


# The report


def run(size, *options):
    """What rank 0 of a job of so many ranks has measured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *options, "--job"]
        ranks = [subprocess.Popen([*command, str(rank), str(size), folder]) for rank in range(size)]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SystemExit("a rank failed")
        return json.loads((Path(folder) / "result.json").read_text())


def run_beside_busy(size, count):
    """The same, of small calls beside so many processes that compute."""
    say(f"{size} ranks beside {count} busy processes")
    with report.busy_processes(count):
        return run(size, "--busy")["busy"]


def run_between_hosts():
    """What rank 0 of a job of two ranks on two hosts has measured."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    sys.path += [str(tests / "hosts"), str(tests / "harness")]
    hosts = importlib.import_module("hosts")
    if reason := hosts.why_not():
        sys.exit(reason)
    say("2 ranks on 2 hosts")
    with tempfile.TemporaryDirectory() as folder, hosts.Hosts(Path(folder), 2) as two:
        command = [sys.executable, __file__, "--interface", "eth0", "--job"]
        ranks = [two.start(rank, [*command, str(rank), "2", folder]) for rank in range(2)]
        for rank in ranks:
            if rank.wait(LIMIT_SECONDS):
                raise SystemExit(f"a rank failed:\n{rank.output}")
        return json.loads((Path(folder) / "result.json").read_text())


class Report(report.Report):
    def calls(self, measured, between):
        rows = []
        jobs = [
            (str(size), found, {length: least for length, (_, least) in SIZES.items()})
            for size, found in measured.items()
        ]
        if between is not None:
            jobs.append(("2, between hosts", between, BETWEEN_HOSTS))
        for ranks, found, goals in jobs:
            for length, least in goals.items():
                gloo, malt = (
                    statistics.median(found["calls"][str(length)][name]) for name in BACKENDS
                )
                verdict = self._verdict(
                    f"all_reduce of {size_text(length)}, ranks: {ranks}",
                    gloo < least * malt and times(gloo / malt),
                )
                row = [size_text(length), ranks, microseconds(gloo), microseconds(malt)]
                rows.append([*row, times(gloo / malt), f"{least:g}", verdict])
        header = ["float32", "ranks", "gloo", "malt", "x gloo", "at least", ""]
        self._sections.append(
            "Microseconds of `torch.distributed.all_reduce`, a sum in place: in runs of 20, 10 and "
            "2 calls, each run after a barrier. Between hosts, which are network namespaces, both "
            "use TCP.\n\n" + table(header, rows)
        )

    def beside_deepspeed(self, measured):
        rows = []
        for size, found in measured.items():
            for length in SIZES:
                seconds = found["calls"][str(length)]
                if "deepspeed" not in seconds:
                    return
                peer, malt = (statistics.median(seconds[name]) for name in ("deepspeed", "malt"))
                row = [size_text(length), str(size), microseconds(peer), microseconds(malt)]
                row.append(times(peer / malt))
                least = DEEPSPEED_LEAST.get(length) if size == 2 else None
                if least is None:
                    rows.append([*row, "", ""])
                    continue
                verdict = self._verdict(
                    f"all_reduce of {size_text(length)} beside DeepSpeed",
                    peer < least * malt and times(peer / malt),
                )
                rows.append([*row, f"{least:g}", verdict])
        header = ["float32", "ranks", "DeepSpeed", "malt", "x DeepSpeed", "at least", ""]
        self._sections.append(
            "The same calls beside DeepSpeed's `inference_all_reduce`, which calls C++ without "
            "torch's process groups.\n\n" + table(header, rows)
        )

    def tokens(self, measured):
        rows = []
        for size, found in measured.items():
            gloo, malt = (statistics.median(found["tokens"][name]) for name in BACKENDS)
            verdict = self._verdict(
                f"all_reduce of two tokens, ranks: {size}",
                gloo < TOKENS_LEAST * malt and times(gloo / malt),
            )
            row = [str(size), microseconds(gloo), microseconds(malt), times(gloo / malt)]
            rows.append([*row, str(TOKENS_LEAST), verdict])
        header = ["ranks", "gloo", "malt", "x gloo", "at least", ""]
        self._sections.append(
            f"Microseconds of an all_reduce of {TOKENS:,} bfloat16 values, as tensor parallelism "
            "makes it for two tokens.\n\n" + table(header, rows)
        )

    def busy(self, measured):
        rows = []
        for (size, count), found in measured.items():
            gloo, malt = (statistics.fmean(found[name]) for name in BACKENDS)
            verdict = self._verdict(
                f"all_reduce beside {count} busy processes, ranks: {size}",
                gloo < BUSY[count] * malt and times(gloo / malt),
            )
            row = [str(count), str(size), microseconds(gloo), microseconds(malt)]
            rows.append([*row, times(gloo / malt), f"{BUSY[count]:g}", verdict])
        header = ["busy processes", "ranks", "gloo", "malt", "x gloo", "at least", ""]
        self._sections.append(
            "Microseconds of an all_reduce of 4 KB beside other processes that compute: means, as "
            "a rank that waits for a core waits long and seldom.\n\n" + table(header, rows)
        )

    def pairs(self, found):
        """What rank 0 of two on one host has measured with rank 1 alone."""
        rows = []
        for length, (_, most) in PUTS.items():
            put, copy = (
                statistics.median(found["puts"][str(length)][name])
                for name in ("put and signal", "copy")
            )
            verdict = self._verdict(
                f"put and signal of {size_text(length)}",
                put > most * copy and times(put / copy),
            )
            row = [size_text(length), microseconds(put), microseconds(copy)]
            rows.append([*row, times(put / copy), f"{most:g}", verdict])
        header = ["bytes", "put and signal", "copy", "x copy", "at most", ""]
        self._sections.append(
            "Microseconds of a window's `put` and `signal` to the other rank of a host, in runs of "
            "500 and 50, and of `Tensor.copy_()` to memory of the rank itself.\n\n"
            + table(header, rows)
        )
        rows = []
        for length, (_, least) in MESSAGES.items():
            gloo, malt = (
                statistics.median(found["messages"][str(length)][name]) for name in BACKENDS
            )
            verdict = self._verdict(
                f"a message of {size_text(length)}", gloo < least * malt and times(gloo / malt)
            )
            row = [size_text(length), microseconds(gloo), microseconds(malt)]
            rows.append([*row, times(gloo / malt), f"{least:g}", verdict])
        header = ["bytes", "gloo", "malt", "x gloo", "at least", ""]
        self._sections.append(
            "Microseconds of a message on one host: `send` and `recv` in turn.\n\n"
            + table(header, rows)
        )

    def training(self, measured):
        rows = []
        for size, found in measured.items():
            for width, least in WIDTHS.items():
                each = found["training"][str(width)]
                gloo, malt, alone = (
                    STEPS * BATCH * size / statistics.median(each["seconds"][name])
                    for name in (*BACKENDS, "alone")
                )
                verdict = self._verdict(
                    f"DDP with {each['parameters']:,} parameters on {size} ranks",
                    malt < least * gloo and times(malt / gloo),
                )
                row = [f"{each['parameters']:,}", str(size), f"{gloo:,.0f}", f"{malt:,.0f}"]
                row += [times(malt / gloo), f"{least:g}", verdict]
                rows.append([*row, f"{alone:,.0f}", times(alone / gloo)])
        header = ["parameters", "ranks", "gloo", "malt", "x gloo", "at least", ""]
        header += ["no exchange", "x gloo"]
        self._sections.append(
            f"Examples a second of all ranks: DistributedDataParallel, SGD, {BATCH} examples a "
            "step and rank. Ranks that train apart, with no exchange at all, show the most that a "
            "backend can reach.\n\n" + table(header, rows)
        )


def main():
    options = parse()
    if options.job:
        rank, size, folder = options.job
        return work(int(rank), int(size), folder, options)
    measured = {}
    for size in options.ranks:
        say(f"{size} ranks")
        measured[size] = run(size, "--blocks", str(options.blocks))
    beside_busy = {
        (size, count): run_beside_busy(size, count) for size in BUSY_RANKS for count in BUSY
    }
    made = Report("torch_backend.py", "A backend for torch.distributed", "all runs and blocks")
    made.calls(measured, run_between_hosts() if options.hosts else None)
    made.beside_deepspeed(measured)
    made.tokens(measured)
    made.busy(beside_busy)
    if 2 in measured:
        made.pairs(measured[2])
    made.training(measured)
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
