"""The backend malt when an exception of a signal handler ends a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks

torch = import_torch()

pytestmark = pytest.mark.xdist_group("torch-backend")

# Rank 1's first call on a group is interrupted, and made again. It is not if torch had waited for
# its end: that is as an interrupt behind the call. What the ranks give tells the calls apart.
CALLS = """
import contextlib
from malt.torch._backend.process_group import core_of
from interrupts import Moments
join(timeout=20)
traced = (*(os.path.dirname(each.__file__) for each in (malt, dist)), contextlib.__file__)
dist.all_reduce(torch.ones(1))
found, over, at = [], torch.zeros(1), 1
while not over:
    group = dist.new_group([0, 1])
    moments = Moments(at, traced=traced)
    sums = {}
    for turn in (1, 2):
        given = 10.0 ** turn * (rank + 1)
        x = torch.tensor([given])
        def call():
            dist.all_reduce(x, group=group)
        try:
            try:
                moments.run(call) if rank == 1 and turn == 1 else call()
            except KeyboardInterrupt:
                if x.item() == given or core_of(group)._untaken: call()
            sums[turn] = x.item()
        except RuntimeError as error:
            sums[turn] = str(error)
    found.append((moments.where, sums))
    over = torch.tensor([float(rank == 1 and not moments.where)])
    dist.all_reduce(over)
    dist.destroy_process_group(group)
    at += 1
tell(found=found)
"""


def test_a_repeated_call_is_never_paired_with_a_later_one(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, CALLS)
    left = 0
    for (_, there), (where, here) in zip(*ranks.each("found"), strict=True):
        for sums in (there, here):
            for turn, got in sums.items():
                assert got == 3 * 10.0**turn or "did not come" in got or "left" in got, (where, got)
        left += isinstance(here[1], str)
    assert len(ranks.each("found")[0]) > 40
    assert left > 5, "an interrupt behind the exchange ends the group on this rank"
