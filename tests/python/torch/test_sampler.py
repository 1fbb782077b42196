"""malt.torch.Sampler: each sample goes to one rank, also when a rank dies in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.xdist_group("torch")

JOB = """
import torch
from torch.utils.data import DataLoader, TensorDataset
malt.init(timeout=20)
data = TensorDataset(torch.arange(1000))
sampler = malt.torch.Sampler(data, chunk=20, shuffle=3)
passes = []
for number in range(3):
    seen = []
    for (batch,) in DataLoader(data, batch_size=10, sampler=sampler):
        time.sleep(0.001)
        if number == 1 and rank == 1 and len(seen) == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += batch.tolist()
        tell(passes=[*passes, seen])
    passes.append(seen)
tell(passes=passes, repeated=sampler.repeated, ended=sampler.passes)
"""


def test_a_death_loses_no_sample_and_repeats_those_in_hand(tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, JOB, "--keep-going", code=None)
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
