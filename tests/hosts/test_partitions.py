"""A network that falls apart: one side goes on, in one epoch, and the other is out for good."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from host_jobs import HostJob

from hosts import Hosts

SILENCE = 1.5

# Queues lose nothing: who goes on has every update of every other that does.
SCRIPT = """
malt.init(timeout=30, silence=silence, tie=tie)
w = np.zeros(100)
v = malt.vector(w, policy="queue", depth=4)
seen = {r: [] for r in range(size)}
def fold(mine, updates):
    for update in updates: seen[update.rank].append(int(update.values[0]))
malt.barrier()
epoch, sent = malt.epoch(), 0
tell(underway=True, epochs=[])
try:
    while not flag_is_up("over"):
        sent += 1
        w[:] = sent
        v.scatter()
        v.gather(fold)
        if malt.epoch() != epoch:
            epoch = malt.epoch()
            tell(epoch=epoch)
        time.sleep(0.01)
    raise_flag(f"{rank} sends no more")
    while not all(flag_is_up(f"{r} sends no more") for r in malt.alive()):
        v.gather(fold)
    malt.barrier()
    v.gather(fold)
    tell(sent=sent, seen=seen, end=(malt.epoch(), malt.alive()))
    malt.barrier()
except malt.PeerError as error:
    tell(out=Err("PeerError", str(error), error.ranks, 0))
    await_flag("healed")
    tell(later=[error_of(call) for call in (v.scatter, v.gather, malt.barrier)])
"""

Links = Iterable[tuple[int, int]]  # of which the second host does not hear the first


def between(one: Iterable[int], other: Iterable[int]) -> list[tuple[int, int]]:
    """Both ways, between all of one side and all of the other."""
    pairs = list(itertools.product(one, other))
    return pairs + [(b, a) for a, b in pairs]


class Partition(NamedTuple):
    cut: Links
    stays: set[int]  # ranks
    out: str  # what the others are told: "is cut off" where they reach none who goes on
    hosts: int = 4
    ranks: int = 1  # of each
    fault: str = "drop"
    tie: str = "lowest"
    # Seconds until it heals; None: when all who do not go on have been told so; and "agreed": when
    # the others are in the next epoch.
    heals: float | str | None = None


PARTITIONS = {
    "halves": Partition(between([0, 1], [2, 3]), {0, 1}, "is cut off"),
    "halves, neither": Partition(between([0, 1], [2, 3]), set(), "is cut off", tie="neither"),
    "three and the last": Partition(between([0, 1, 2], [3]), {0, 1, 2}, "is cut off"),
    "the first and three": Partition(between([0], [1, 2, 3]), {1, 2, 3}, "is cut off"),
    # Two that lost each other, and others who see both: the higher goes.
    "one way": Partition([(1, 2)], {0, 1, 3}, "was evicted from the job"),
    "one way, up": Partition([(3, 0)], {0, 1, 2}, "was evicted from the job"),
    # Two pairs, and a fifth who sees all.
    "bridge": Partition(between([0, 1], [3, 4]), {0, 1, 2}, "was evicted from the job", hosts=5),
    "heals in time": Partition(between([0, 1], [2, 3]), {0, 1, 2, 3}, "", heals=SILENCE / 4),
    "heals too late": Partition(between([0, 1, 2], [3]), {0, 1, 2}, "rank 3", heals="agreed"),
}

# Something on the way says that nobody listens where ranks do. Nobody may believe it.
LIES = {
    "halves": Partition(between([0, 1], [2, 3]), {0, 1}, "is cut off"),
    "one way": Partition([(1, 2)], {0, 1, 3}, "was evicted from the job"),
    "two": Partition(between([0], [1]), {0}, "is cut off", hosts=2),
    "two, neither": Partition(between([0], [1]), set(), "is cut off", hosts=2, tie="neither"),
    "two, one way": Partition([(1, 0)], {0}, "is cut off", hosts=2),
    "two, one way, up": Partition([(0, 1)], {0}, "is cut off", hosts=2),
    "two of two": Partition(between([0], [1]), {0, 1}, "is cut off", hosts=2, ranks=2),
    "two of two, one way": Partition([(1, 0)], {0, 1}, "is cut off", hosts=2, ranks=2),
}
PARTITIONS |= {
    f"{name}: {fault}": row._replace(fault=fault)
    for name, row in LIES.items()
    for fault in ("reset", "refuse")
}


@pytest.mark.usefixtures("_hosts_can_be_made")
@pytest.mark.parametrize("name", PARTITIONS)
def test_one_side_goes_on_in_one_epoch_and_the_other_stays_out(tmp_path: Path, name: str) -> None:
    row = PARTITIONS[name]
    ranks = range(row.hosts * row.ranks)
    lost = set(ranks) - row.stays
    with Hosts(tmp_path, row.hosts) as hosts:
        job = HostJob(
            hosts,
            SCRIPT,
            "--keep-going",
            on=range(row.hosts),
            ranks=row.ranks,
            silence=SILENCE,
            tie=row.tie,
        )
        job.await_told("underway")
        start = time.monotonic()
        hosts.cut(*row.cut, fault=row.fault)
        if isinstance(row.heals, float):
            time.sleep(max(start + row.heals - time.monotonic(), 0))
        else:
            job.await_told("epoch", ranks=row.stays)
            if row.heals is None:
                job.await_told("out", ranks=lost)
        hosts.heal(*row.cut, fault=row.fault)
        job.await_told("out", ranks=lost)
        took = time.monotonic() - start
        job.raise_flag("healed")
        time.sleep(SILENCE)  # for whatever the healed links may bring
        job.raise_flag("over")
        told = job.finish()
    epochs = {told[rank]["end"][0] for rank in row.stays}
    print(f"row {name}: {sorted(row.stays)} go on, in epoch {epochs}; all told in {took:.2f} s")
    assert len(epochs) == bool(row.stays)
    assert (epochs == {0}) == (not lost)
    for rank in row.stays:
        assert set(told[rank]["end"][1]) == row.stays
        for other in row.stays - {rank}:
            assert told[rank]["seen"][other] == list(range(1, told[other]["sent"] + 1))
    for rank in lost:
        for error in (told[rank]["out"], *told[rank]["later"]):
            assert error.kind == "PeerError"
            assert error.says(f"rank {rank} ", row.out), error
            assert set(error.ranks) == set(ranks) - {rank}
