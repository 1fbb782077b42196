"""The counters of vectors on GPUs account for each update."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import run_gpu_job


def balance(stats: dict[str, int]) -> bool:
    ends = ("folded", "overwritten", "rejected", "pending", "to_dead")
    return stats["sent"] == sum(stats[name] for name in ends)


@pytest.mark.parametrize(("slots", "depth"), [("ipc", 1), ("host", 3)])
def test_queue_loses_nothing(tmp_path: Path, slots: str, depth: int) -> None:
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
x = on_gpu(np.zeros(1000, np.int64))
v = malt.vector(x, policy="queue", depth=depth)
STEPS = 60
folded = 0
if rank == 0:  # a slow one, who only receives
    while folded < 2 * STEPS:
        folded += v.gather(malt.SUM).count
        time.sleep(0.0005)
else:
    for step in range(STEPS):
        x.set(1000 * rank + step)
        assert v.scatter(malt.STAR) == (0,)
x.get()
malt.barrier()
tell(total=x.get(), stats=counters(v))
malt.barrier()
""",
        slots=slots,
        depth=depth,
    )
    expected = sum(1000 * r + step for r in (1, 2) for step in range(60))
    assert (result.told[0]["total"] == expected).all()
    for rank in (1, 2):
        stats = result.told[rank]["stats"]
        assert (stats["sent"], stats["folded"], stats["overwritten"]) == (60, 60, 0)
        assert balance(stats)
        assert stats["bytes_out"] == 60 * 8000
    assert result.told[0]["stats"]["bytes_in"] == 120 * 8000


@pytest.mark.parametrize(("slots", "policy"), [("ipc", "latest"), ("host", "queue")])
def test_counters_balance_after_a_storm(tmp_path: Path, slots: str, policy: str) -> None:
    """Every rank scatters and gathers as it likes; in the end each update is accounted for."""
    result = run_gpu_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
x = on_gpu(np.ones(100))
v = malt.vector(x, policy=policy, depth=3)
random = np.random.default_rng(rank)
gathered = 0
for step in range(200):
    v.scatter()
    if policy == "queue" or random.random() < 0.4:
        gathered += v.gather(malt.AVG).count
raise_flag(rank)
while policy == "queue" and not all(flag_is_up(r) for r in range(size)):
    gathered += v.gather(malt.AVG).count
x.get()  # the GPU has sent and folded the last
malt.barrier()
tell(stats=counters(v), gathered=gathered, x=x.get())
malt.barrier()
""",
        slots=slots,
        policy=policy,
    )
    stats = result.each("stats")
    assert all(balance(s) for s in stats), stats
    assert all(s["sent"] == 600 and s["to_dead"] == s["rejected"] == 0 for s in stats), stats
    assert sum(s["folded"] for s in stats) == sum(result.each("gathered")) > 0
    assert sum(s["bytes_in"] for s in stats) == 800 * sum(s["folded"] for s in stats)
    if policy == "queue":
        assert all(s["overwritten"] == 0 for s in stats), stats
    assert all((x == 1).all() for x in result.each("x"))
