"""Scatter and gather: staleness, policies, counters, graphs, and updates that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import PROMPT, run_job


def balance(stats: dict[str, Any]) -> bool:
    ends = ("folded", "overwritten", "rejected", "pending", "to_dead")
    return stats["sent"] == sum(stats[end] for end in ends)


# What a gather does and returns


def test_gather_without_updates_keeps_values(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.array([1.5, -2.5])
v = malt.vector(w)
calls = []
seen = []
for fold in [*FOLDS.values(), lambda mine, updates: calls.append(1)]:
    for staleness in (None, 0, 3):
        g = v.gather(fold, staleness=staleness)
        seen.append((g.count, g.ranks, g.staleness, g.rejected))
tell(w=w, seen=seen, calls=calls)
malt.barrier()
""",
    )
    for told in result.told:
        assert told["w"].tolist() == [1.5, -2.5]
        assert set(told["seen"]) == {(0, (), (), ())}
        assert told["calls"] == []


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_an_update_is_folded_at_most_once(tmp_path: Path, policy: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
w = np.array([1.0])
v = malt.vector(w, policy=policy)
v.scatter()
malt.barrier()
first = v.gather(malt.SUM)
second = v.gather(malt.SUM)
third = v.gather(malt.SUM, staleness=0)
malt.barrier()
tell(counts=(first.count, second.count, third.count), w=w, stats=counters(v))
""",
        policy=policy,
    )
    for told in result.told:
        assert told["counts"] == (2, 0, 0)
        assert told["w"].tolist() == [3.0]
        assert (told["stats"]["sent"], told["stats"]["folded"]) == (2, 2)
        assert (told["stats"]["bytes_out"], told["stats"]["bytes_in"]) == (16, 16)


def test_staleness_k_waits_until_neighbours_are_at_most_k_behind(tmp_path: Path) -> None:
    """Rank 0 is at iteration 3, rank 1 at 1 until told to go on."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
w = np.full(1, 100.0 * (rank + 1))
v = malt.vector(w)
if rank == 0:
    v.scatter(); v.scatter(); v.scatter()
    tell(no_wait=error_of(v.gather, malt.REPLACE, staleness=3, timeout=5))  # 3 - 3: always there
    raise_flag("start")
    await_flag("one")
    g = v.gather(malt.REPLACE, staleness=2, timeout=30)
    tell(two=(g.count, g.staleness, w[0]))
    tell(late=error_of(v.gather, malt.REPLACE, staleness=1, timeout=0.2),
         bsp=error_of(v.gather, malt.REPLACE, staleness=0, timeout=0.2))
    start = time.monotonic()
    g = v.gather(malt.REPLACE)
    tell(asp=(g.count, time.monotonic() - start))
    raise_flag("go on")
    g = v.gather(malt.REPLACE, staleness=0)
    tell(last=(g.count, g.staleness, w[0]))
else:
    await_flag("start")
    v.scatter()
    raise_flag("one")
    await_flag("go on")
    time.sleep(0.1)
    w[0] = 201; v.scatter()
    w[0] = 202; v.scatter()
    v.gather(malt.REPLACE, staleness=0)
malt.barrier()
""",
    )
    told = result.told[0]
    assert told["no_wait"] is None
    assert told["two"] == (1, (2,), 200.0)
    for name, target in (("late", 2), ("bsp", 3)):
        error = told[name]
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.says("rank 1", f"iteration {target}", "at iteration 3")
        assert 0.2 <= error.seconds < PROMPT
    assert told["asp"][0] == 0
    assert told["asp"][1] < PROMPT
    assert told["last"] == (1, (0,), 202.0)


def test_gather_at_staleness_0_folds_its_own_iteration_though_a_neighbour_is_ahead(
    tmp_path: Path,
) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.zeros(1)
v = malt.vector(w)
rounds = []
for step in range(1, 21):
    w[0] = 1000 * rank + step
    v.scatter()
    if rank == 0: time.sleep(0.002)  # rank 1 runs ahead as far as it can
    g = v.gather(malt.REPLACE, staleness=0)
    rounds.append((w[0], g.staleness))
tell(rounds=rounds)
malt.barrier()
""",
    )
    for rank, rounds in enumerate(result.each("rounds")):
        assert rounds == [(1000 * (1 - rank) + step, (0,)) for step in range(1, 21)]


# Policies and counters


def test_latest_keeps_the_newest_and_counts_what_it_replaced(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.zeros(4)
v = malt.vector(w, policy="latest", depth=3)
if rank == 0:
    for step in range(1, 11):
        w[:] = step
        v.scatter()
    tell(before=counters(v))
malt.barrier()
if rank == 1:
    g = v.gather(malt.REPLACE)
    tell(w=w, count=g.count)
malt.barrier()
if rank == 0:
    tell(after=counters(v))
malt.barrier()
""",
    )
    before, after = result.told[0]["before"], result.told[0]["after"]
    assert (before["sent"], before["pending"], before["overwritten"]) == (10, 3, 7)
    assert result.told[1]["w"].tolist() == [10] * 4
    assert result.told[1]["count"] == 1
    assert (after["folded"], after["overwritten"], after["pending"]) == (1, 9, 0)
    assert balance(before)
    assert balance(after)


@pytest.mark.parametrize("depth", [1, 4])
def test_queue_loses_nothing(tmp_path: Path, depth: int) -> None:
    """Depth 1 is NOTIFY-ACK: a sender goes on only when its last update has been folded."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
w = np.zeros(8, dtype=np.int64)
v = malt.vector(w, policy="queue", depth=depth)
STEPS = 300
order = {r: [] for r in range(size)}
total = np.zeros(8, dtype=np.int64)
def add(mine, updates):
    for u in updates:
        order[u.rank].append(u.iteration)
        total[:] += u.values
if rank == 0:  # a slow one, who only receives
    while sum(map(len, order.values())) < 2 * STEPS:
        v.gather(add)
else:
    sent = 0
    while sent < STEPS:
        w[:] = 1000 * rank + sent
        assert v.scatter(malt.STAR) == (0,)
        sent += 1
malt.barrier()
tell(order=order, total=total, stats=counters(v))
malt.barrier()
""",
        depth=depth,
    )
    told = result.told[0]
    assert told["order"][1] == told["order"][2] == list(range(1, 301))
    expected = sum(1000 * r + step for r in (1, 2) for step in range(300))
    assert told["total"].tolist() == [expected] * 8
    for rank in (1, 2):
        stats = result.told[rank]["stats"]
        assert (stats["sent"], stats["folded"], stats["overwritten"]) == (300, 300, 0)
        assert (stats["pending"], stats["to_dead"], stats["rejected"]) == (0, 0, 0)
    assert told["stats"]["bytes_in"] == 600 * 64


def test_notify_ack_makes_the_sender_wait_for_the_receiver(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
w = np.ones(1)
v = malt.vector(w, policy="queue", depth=1)
if rank == 0:
    v.scatter()
    raise_flag("sent")
    start = time.monotonic()
    v.scatter()
    end = time.monotonic()
    tell(waited=end - start, counted=v.stats().wait_seconds, iteration=v.iteration, at=end)
else:
    await_flag("sent")
    time.sleep(0.3)
    tell(at=time.monotonic())
    v.gather(malt.SUM)
malt.barrier()
""",
    )
    told = result.told[0]
    assert told["at"] > result.told[1]["at"]
    assert told["waited"] / 2 < told["counted"] <= told["waited"]
    assert told["iteration"] == 2


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_counters_balance_after_a_storm(tmp_path: Path, policy: str) -> None:
    """Every rank scatters and gathers as it likes; in the end each update is accounted for."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
w = np.ones(100)
v = malt.vector(w, policy=policy, depth=3)
random = np.random.default_rng(rank)
gathered = 0
alone = []
for step in range(400):
    w[:] = rank
    v.scatter()
    if policy == "queue" or random.random() < 0.4:
        gathered += v.gather(malt.AVG).count
    if step % 50 == 0:
        alone.append(counters(v)["sent"] == 3 * (step + 1))
raise_flag(rank)
while policy == "queue" and not all(flag_is_up(r) for r in range(size)):
    gathered += v.gather(malt.AVG).count
malt.barrier()
tell(stats=counters(v), gathered=gathered, alone=alone)
malt.barrier()
""",
        policy=policy,
    )
    stats = result.each("stats")
    assert all(balance(s) for s in stats), stats
    assert all(s["sent"] == 1200 and s["to_dead"] == s["rejected"] == 0 for s in stats), stats
    assert sum(s["folded"] for s in stats) == sum(result.each("gathered")) > 0
    assert sum(s["bytes_in"] for s in stats) == 800 * sum(s["folded"] for s in stats)
    # Under "latest" an update that finds every slot being read is overwritten before it is written.
    assert all(s["bytes_out"] <= 800 * s["sent"] for s in stats)
    if policy == "queue":
        assert all(s["bytes_out"] == 800 * s["sent"] for s in stats)
        assert all(s["overwritten"] == 0 for s in stats), stats
    assert all(all(alone) for alone in result.each("alone"))


# Graphs


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_each_graph_sends_and_waits_along_its_edges(tmp_path: Path, ranks: int) -> None:
    result = run_job(
        tmp_path,
        ranks,
        """
malt.init()
wrong = []
for name, graph in GRAPHS.items():
    w = np.zeros(3)
    v = malt.vector(w, graph=graph)
    for step in range(6):
        w[:] = rank
        to = v.scatter()
        g = v.gather(malt.SUM, staleness=0)
        expected = (tuple(graph.out(rank, size, step)), tuple(graph.in_(rank, size, step)))
        if (to, g.ranks) != expected or (w != rank + sum(expected[1])).any():
            wrong.append((name, step, to, g.ranks, w.tolist()))
    s = v.stats()
    if s.sent != sum(len(graph.out(rank, size, t)) for t in range(6)): wrong.append((name, s.sent))
tell(wrong=wrong)
malt.barrier()
""",
    )
    assert result.each("wrong") == [[]] * ranks


def test_one_scatter_can_go_over_another_graph(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
w = np.zeros(1)
v = malt.vector(w)
circle = malt.Graph([(0, 1), (1, 2), (2, 3), (3, 0)])
rounds = []
for graph in (None, malt.RING, circle, malt.STAR, None):
    w[0] = 10 ** rank
    to = v.scatter(graph) if graph is not None else v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    rounds.append((to, g.ranks, w[0]))
tell(rounds=rounds)
malt.barrier()
""",
    )
    for rank, rounds in enumerate(result.each("rounds")):
        others = tuple(r for r in range(4) if r != rank)
        beside = tuple(sorted({(rank + 1) % 4, (rank - 1) % 4}))
        star = others if rank == 0 else (0,)
        before, after = ((rank - 1) % 4,), ((rank + 1) % 4,)
        everyone = (others, others)
        expected = [everyone, (beside, beside), (after, before), (star, star), everyone]
        assert [(to, came) for to, came, _ in rounds] == expected
        for (_, came), (_, _, value) in zip(expected, rounds, strict=True):
            assert value == 10**rank + sum(10**r for r in came)


# Updates that are not finite


def test_nonfinite_updates_are_refused_counted_and_their_senders_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
bad = {1: np.nan, 2: -np.inf}.get(rank, float(rank))
got = {}
for refuse in (True, False):
    w = np.ones(1001, dtype=np.float32)
    w[1000] = bad
    v = malt.vector(w, reject_nonfinite=refuse)
    v.scatter()
    w[1000] = rank
    g = v.gather(malt.SUM, staleness=0)
    malt.barrier()
    again = v.gather(malt.SUM)
    got[refuse] = g.count, g.ranks, g.rejected, w[0], w[1000], counters(v), again.count
tell(got=got)
malt.barrier()
""",
    )
    for rank, got in enumerate(result.each("got")):
        count, ranks, rejected, ones, last, stats, again = got[True]
        assert rejected == tuple(r for r in (1, 2) if r != rank)
        assert ranks == tuple(r for r in (0, 3) if r != rank)
        assert (count, again) == (len(ranks), 0)
        assert (ones, last) == (1 + count, rank + sum(ranks))
        is_bad = rank in (1, 2)
        assert (stats["rejected"], stats["folded"]) == ((3, 0) if is_bad else (0, 3))
        assert balance(stats)
        count, ranks, rejected, ones, last, stats, _ = got[False]
        assert (count, rejected, stats["rejected"]) == (3, (), 0)
        assert not np.isfinite(last)
