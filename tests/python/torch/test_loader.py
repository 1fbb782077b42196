"""malt.torch.Loader: each sample goes to one rank, also when a rank dies in the middle."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import refused, run_job

import malt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.xdist_group("torch")

# Runs each job of the list in sys.argv[1] with ranks that it forks, as importing PyTorch takes far
# longer than a job. Prints by job and rank the batches trained on, each with its pass, and whether
# the rank came to the end.
JOBS = """
import json, os, signal, sys
import numpy as np, torch
import malt, malt.torch
from malt._launch import orphans

torch.set_num_threads(1)
RANKS = 3


def train(job, rank, variables, log):
    malt.init(bootstrap=variables, timeout=20)
    elements, chunk, batch_size, shuffle, lockstep, workers, die_at = job
    data = torch.utils.data.TensorDataset(torch.arange(elements))
    process = os.getpid()
    loader = malt.torch.Loader(
        data, batch_size=batch_size, chunk=chunk, shuffle=shuffle, lockstep=lockstep,
        num_workers=workers,
        # A worker of PyTorch's that has just begun would outlive a killed rank for ever.
        worker_init_fn=lambda _: orphans.die_with(process),
    )
    v = malt.vector(np.zeros(1))
    trained = 0
    for number in range(2):
        for (batch,) in loader:
            if rank == 1 and trained == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            v.scatter()
            v.gather(malt.AVG, staleness=0 if lockstep else None)
            os.write(log, json.dumps([number, batch.tolist()]).encode() + b"\\n")
            trained += 1
    assert loader.passes == 2
    os.write(log, b'"ended"\\n')
    malt.finalize()


told = []
for job in json.loads(sys.argv[1]):
    with malt.jobs.Rendezvous(RANKS) as rendezvous:
        logs, processes = [], []
        for rank in range(RANKS):
            logs.append(os.memfd_create("log", os.MFD_CLOEXEC))
            processes.append(os.fork())
            if processes[-1] == 0:
                code = 1
                try:
                    train(job, rank, rendezvous.environ(rank), logs[rank])
                    code = 0
                except BaseException as error:
                    print(job, rank, repr(error), file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
        for process in processes:
            os.waitpid(process, 0)
    told.append([])
    for log in logs:
        with open(log) as lines:
            lines.seek(0)
            told[-1].append([json.loads(line) for line in lines])
print(json.dumps(told))
"""


def run_jobs(directory: Path, jobs: list[Any]) -> list[Any]:
    (directory / "jobs.py").write_text(JOBS)
    done = subprocess.run(
        [sys.executable, "jobs.py", json.dumps(jobs)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
    told: list[Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    ("lockstep", "workers"),
    [
        (False, 0),
        pytest.param(True, 2, marks=pytest.mark.long),
        pytest.param(False, 2, marks=pytest.mark.long),
        pytest.param(True, 0, marks=pytest.mark.long),
    ],
)
def test_every_sample_is_trained_on_in_every_pass(
    tmp_path: Path, lockstep: bool, workers: int
) -> None:
    jobs = [
        [elements, chunk, batch_size, shuffle, lockstep, workers, die_at]
        for (elements, shuffle), (chunk, batch_size), die_at in itertools.product(
            [(24, None), (26, 3)], [(8, 4), (6, 4)], [None, 0, 1, 2, 4]
        )
    ]
    deaths = 0
    for job, ranks in zip(jobs, run_jobs(tmp_path, jobs), strict=True):
        elements, chunk, batch_size, *_, die_at = job
        has_died = ranks[1][-1:] != ["ended"]  # unless it had fewer batches
        assert not has_died or len(ranks[1]) == die_at, job
        deaths += has_died
        live = [ranks[0], ranks[2]] if has_died else ranks
        assert all(rank.pop() == "ended" for rank in live), job
        assert all(len(batch) <= batch_size for rank in ranks for _, batch in rank), job
        for number in range(2):
            seen = Counter(
                sample for rank in ranks for n, batch in rank if n == number for sample in batch
            )
            assert sorted(seen) == list(range(elements)), job
            if lockstep:  # a rank that has nothing to do repeats a batch
                assert len({sum(n == number for n, _ in rank) for rank in live}) == 1, job
            else:
                again = sum(count - 1 for count in seen.values())
                assert again <= (chunk if has_died else 0), job  # those in hand
    assert deaths >= 10


def test_a_rank_without_a_chunk_gets_samples_in_lockstep(tmp_path: Path) -> None:
    ranks = run_jobs(tmp_path, [[5, 8, 4, None, True, 0, None]])[0]

    batches = [[batch for _, batch in rank[:-1]] for rank in ranks]
    assert sorted(batches) == [[[0, 1, 2, 3]] * 4] * 2 + [[[0, 1, 2, 3], [4]] * 2]


def test_a_death_loses_no_sample_and_repeats_those_in_hand(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
import torch
malt.init(timeout=20)
data = torch.utils.data.TensorDataset(torch.arange(1000))
loader = malt.torch.Loader(data, batch_size=10, chunk=20, shuffle=3)
passes = []
for number in range(3):
    seen = []
    for (batch,) in loader:
        time.sleep(0.001)
        if number == 1 and rank == 1 and len(seen) == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += batch.tolist()
        tell(passes=[*passes, seen])
    passes.append(seen)
tell(passes=passes, repeated=loader.repeated, ended=loader.passes)
""",
        "--keep-going",
        code=None,
    )
    passes = [told["passes"] for told in result.told]
    whole = list(range(1000))
    first = sorted(sample for told in passes for sample in told[0])
    assert first == whole
    second = sorted(passes[0][1] + passes[2][1] + passes[1][1])
    assert sorted(set(second)) == whole
    again = [sample for sample in whole if second.count(sample) > 1]
    assert len(again) <= 20  # the chunk that the dead rank had in hand
    assert sorted(passes[0][2] + passes[2][2]) == whole
    assert [told["ended"] for told in (result.told[0], result.told[2])] == [3, 3]


def test_a_batch_size_that_is_wrong_or_differs_is_refused_on_all_ranks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
import malt.torch
malt.init(timeout=60)
tell(errors=[
    error_of(malt.torch.Loader, range(9), batch_size=size, chunk=8) for size in (rank, 4 + rank)
])
""",
    )
    for wrong, differs in result.each("errors"):
        assert refused(wrong, "rank 0: batch_size is 0; it must be a whole number at least 1")
        assert refused(differs, "malt.torch.Loader: batch_size is 4 on rank 0, and 5 on rank 1")


def test_a_break_and_options_of_the_data_loader(alone: None) -> None:
    loader = malt.torch.Loader(range(10), batch_size=2, chunk=4, num_workers=1, collate_fn=list)
    for batch in loader:
        if 2 in batch:
            break

    assert list(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]  # from the chunk in hand on
    assert loader.passes == 1
    with pytest.raises(ValueError, match="mutually exclusive"):
        malt.torch.Loader(range(10), batch_size=2, chunk=4, drop_last=True)
