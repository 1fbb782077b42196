"""What it costs to survive: heartbeats, the ledger, checkpoints; and how soon the others go on.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/survive.py --rounds 1               # a minute or two
    sudo -E python benchmarks/survive.py --output docs/performance.md

In each round all jobs run once, one after the other, in an order that moves on by one a round;
ratios are made of medians over passes and rounds. Heartbeats are what a rank computes while its
program sleeps: far less than two jobs differ by, with heartbeats or without. The ledger
(`malt.shard(chunk=)`) takes turns, in the same job, with slices of the same data. Other hosts are
network namespaces (tests/hosts/), which take root to make.
"""

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "hosts"), str(TESTS / "harness")]

import report  # noqa: E402 # after the path
from host_jobs import HostJob  # noqa: E402
from jobs import run_job, start_job  # noqa: E402
from report import KB, MB, over, parser_with_output, say, size_text, table, times  # noqa: E402

from hosts import Hosts, why_not  # noqa: E402

TRANSPORTS = ("shm", "tcp")
SILENCE = 5.0  # seconds; the usual
SIZES = [64 * KB, 1 * MB, 16 * MB, 64 * MB]  # of a saved vector
LIMIT = 600  # seconds that a job may take
MOST = 1.02  # times as long as without, or as much of a processor

REST = """
malt.init(silence=silence)
malt.barrier()
begin = time.process_time()
time.sleep(seconds)
tell(share=(time.process_time() - begin) / seconds)
"""
REST_SECONDS = 5

TRAIN = """
malt.init()
rng = np.random.default_rng(0)
x = rng.standard_normal((examples, features), dtype=np.float32)
y = np.sign(x @ rng.standard_normal(features, dtype=np.float32))
w = np.zeros(features, dtype=np.float32)
m = malt.vector(w)
begins = range(rank * examples // size, (rank + 1) * examples // size, chunk)
slices = [(x[begin : begin + chunk], y[begin : begin + chunk]) for begin in begins]
ways = {"slices": slices, "ledger": malt.shard(x, y, chunk=chunk, lockstep=True)}
taken = {way: [] for way in ways}
for _ in range(1 + passes):
    for way, parts in ways.items():
        malt.barrier()
        begin = np.array([time.perf_counter(), time.process_time()])
        for xs, ys in parts:
            for i in range(0, len(xs), batch):
                bx, by = xs[i : i + batch], ys[i : i + batch]
                w += np.float32(0.01) * (((bx @ w) * by < 1) * by) @ bx
            m.scatter()
            m.gather(malt.AVG, staleness=0)
        malt.barrier()
        taken[way].append([time.perf_counter(), time.process_time()] - begin)
tell(passes={way: rows[1:] for way, rows in taken.items()})  # the first warms up
"""
KNOBS = {"examples": 1 << 16, "features": 512, "chunk": 1 << 12, "batch": 16, "passes": 10}
TURNS = KNOBS["examples"] // KNOBS["chunk"] // 2  # of a rank, in a pass

SAVE = """
malt.init()
v = malt.vector(np.random.default_rng(rank).random(items))

def savez(is_synced):
    with open(f"rank-{rank}.npz", "wb") as file:
        np.savez(file, v=v.array)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())

seconds = []
for call in (lambda: malt.save("saved", {"v": v}), lambda: savez(True), lambda: savez(False)):
    malt.barrier()
    begin = time.perf_counter()
    call()
    malt.barrier()
    seconds.append(time.perf_counter() - begin)
tell(seconds=seconds)
"""

# When the first gather was through without rank `lost`, and when a new epoch was agreed on.
LOSE = """
malt.init(timeout=60)
m = malt.vector(np.zeros(1000, dtype=np.float32))
first, step, ranks = malt.epoch(), 0, (lost,)
while rank == lost or lost in ranks:
    m.scatter()
    ranks = m.gather(malt.AVG, staleness=0).ranks
    step += 1
    if step == 100:
        tell(ready=True)
    if rank == lost and flag_is_up("die"):
        tell(at=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
went_on = time.monotonic()
m.scatter()  # for the other, which may have had one update more, and be a round ahead
while malt.epoch() == first:
    time.sleep(0.001)
tell(times=(went_on, time.monotonic()))
time.sleep(60)  # until this has been read
"""
LOST, OTHERS = 2, (0, 1)  # a majority


def rest(directory, transport):
    """Of each rank: the part of a core that it takes."""
    given = {"environ": {"MALT_TRANSPORT": transport}, "limit": LIMIT}
    job = run_job(directory, 2, REST, silence=SILENCE, seconds=REST_SECONDS, **given)
    return {(transport, "rest"): [[share] for share in job.each("share")]}


def train(directory, transport):
    """Of each pass: seconds, and seconds of processors."""
    environ = {"MALT_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    passes = run_job(directory, 2, TRAIN, environ=environ, limit=LIMIT, **KNOBS).each("passes")[0]
    return {(transport, way): rows for way, rows in passes.items()}


def save(directory, size):
    """Seconds of malt.save, and of np.savez with fsync and without."""
    result = run_job(directory, 2, SAVE, limit=LIMIT, items=size // 8)
    return {size: [result.each("seconds")[0]]}


def lose(job, cut=None):
    """Seconds until the last of the others has gone on, and has a new epoch."""
    job.await_told("ready")
    if cut:
        at = time.monotonic()
        cut()
    else:
        job.raise_flag("die")
        [at] = job.await_told("at", ranks=[LOST])
    seen = job.await_told("times", ranks=OTHERS)
    return [[max(column) - at for column in zip(*seen, strict=True)]]


def lose_rank(directory, transport):
    body, environ = f"lost = {LOST}\n{LOSE}", {"MALT_TRANSPORT": transport}
    with start_job(directory, 3, body, "--keep-going", environ=environ) as job:
        return {f"SIGKILL, same host, {transport}": lose(job)}


def lose_host(directory, fault):
    with Hosts(directory) as hosts:
        job = HostJob(hosts, LOSE, "--keep-going", ranks=1, lost=LOST)
        cut = partial(hosts.link, LOST, up=False) if fault == "cable cut" else None
        return {f"{fault}, another host, tcp": lose(job, cut)}


def measure(jobs, rounds):
    """Medians of columns, by key."""
    found = defaultdict(list)
    for number in range(rounds):
        first = number % len(jobs)
        for count, job in enumerate(jobs[first:] + jobs[:first], start=1):
            say(f"round {number + 1} of {rounds}, job {count} of {len(jobs)}")
            with tempfile.TemporaryDirectory() as directory:
                for key, rows in job(Path(directory)).items():
                    found[key] += rows
    return {key: [*map(statistics.median, zip(*rows, strict=True))] for key, rows in found.items()}


def milliseconds(seconds):
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


class Report(report.Report):
    def _add(self, text, header, rows):
        self._sections.append(f"{text}\n\n{table(header, rows)}")

    def training(self, medians):
        rows = []
        for transport in TRANSPORTS:
            costly, plain = (medians[transport, way] for way in ("ledger", "slices"))
            ratio, processors = (a / b for a, b in zip(costly, plain, strict=True))
            row = [f"ledger, {transport}", milliseconds(costly[0]), milliseconds(plain[0])]
            row += [milliseconds((costly[0] - plain[0]) / TURNS), f"{ratio:.3f}"]
            row += [f"{processors:.3f}", f"{MOST:g}"]
            rows.append([*row, self._verdict(row[0], not over(MOST, ratio) and "time")])
        for transport in TRANSPORTS:
            [share] = medians[transport, "rest"]
            row = [f"heartbeats, {transport}", "", "", "", "", f"{1 + share:.4f}", f"{MOST:g}"]
            rows.append([*row, self._verdict(row[0], not over(MOST, 1 + share) and "time")])
        self._add(
            f"Milliseconds a pass of a linear SVM on 2 ranks in lockstep, {TURNS} turns with an "
            "exchange each. Ledger: `malt.shard(chunk=, lockstep=True)` by slices. *x* is the time "
            "with by that without. Heartbeats: the processor time of a rank that sleeps, beside "
            f"that of a core; silence {SILENCE:g} s. "
            "Checksums have no row: over shm and tcp there are none, over verbs they are part of "
            "the protocol and of what `transport.py` measures.",
            ["cost", "with", "without", "more a turn", "x", "x processor time", "at most", ""],
            rows,
        )

    def saving(self, medians):
        rows = [
            [size_text(size), *map(milliseconds, medians[size])]
            + [times(medians[size][0] / numpy) for numpy in medians[size][1:]]
            for size in SIZES
        ]
        self._add(
            "Milliseconds to save a vector on each of 2 ranks, until both are done. `malt.save` "
            "makes checksums too, and waits for the disk (fsync).",
            ["vector", "`malt.save`", "`np.savez`, fsync", "`np.savez`", "x fsync", "x"],
            rows,
        )

    def losing(self, medians, reason):
        self._add(
            "Milliseconds from the loss of one of 3 ranks, in lockstep, until both others had gone "
            "on, and until they had agreed on a new epoch; silence 5 s."
            + (f" Other hosts are not measured: {reason}." if reason else ""),
            ["loss", "gone on", "new epoch"],
            [[key, *map(milliseconds, medians[key])] for key in medians if "host" in str(key)],
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    reason = why_not()
    jobs = [partial(job, transport=t) for job in (train, rest) for t in TRANSPORTS]
    jobs += [partial(save, size=size) for size in SIZES]
    jobs += [partial(lose_rank, transport=transport) for transport in TRANSPORTS]
    jobs += [partial(lose_host, fault=fault) for fault in ("SIGKILL", "cable cut") if not reason]
    made = Report("survive.py", "Surviving", f"{options.rounds} rounds")
    medians = measure(jobs, options.rounds)
    made.training(medians)
    made.saving(medians)
    made.losing(medians, reason)
    say("")
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
