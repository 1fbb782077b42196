"""Ranks that are killed while a GPU copies or folds for them: the others go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gpus import controls_the_driver, run_gpu_job
from jobs import PROMPT

both_kinds = pytest.mark.parametrize("slots", ["ipc", "host"])
KILLED = 128 + signal.SIGKILL


@controls_the_driver
@pytest.mark.parametrize(("slots", "policy"), [("ipc", "queue"), ("host", "latest")])
def test_an_update_whose_sender_is_killed_in_the_middle_of_the_copy_never_comes(
    tmp_path: Path, slots: str, policy: str
) -> None:
    """Its copy takes half a second, and it dies after 0.15. Its update before that is whole."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
if rank == 2: os.environ["FAKE_CUDA_COPY_DELAY_US"] = "125000"
malt.init(timeout=60)
x = DeviceArray(4 * 16384, np.int32).fill(1 + rank)
v = malt.vector(x, policy=policy)
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(first=(g.ranks, set(x.get()[::999].tolist())))
x.fill(10 + rank)
if rank == 2:
    threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGKILL)).start()
    v.scatter()
    time.sleep(100)
start = time.monotonic()
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(second=(g.ranks, set(x.get().tolist())), seconds=time.monotonic() - start)
while malt.alive() != (0, 1): time.sleep(0.001)
x.fill(20 + rank)
v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(third=(g.ranks, set(x.get().tolist())), none=v.gather(malt.SUM).count)
y = on_gpu(np.full(9, 10.0 ** rank))
new = malt.vector(y, name="made by the survivors")
new.scatter(), new.gather(malt.SUM, staleness=0)
new.allreduce(malt.SUM)
tell(new=set(y.get().tolist()), slots=new.slots.partition(":")[0])
malt.barrier()
tell(stats=counters(v))
malt.barrier()
""",
        "--keep-going",
        code=KILLED,
        slots=slots,
        policy=policy,
    )
    for rank, told in enumerate(result.told[:2]):
        other = 1 - rank
        assert told["first"] == ((other, 2) if rank == 0 else (0, 2), {6 * 0x01010101})
        assert told["second"] == ((other,), {21 * 0x01010101})
        assert told["seconds"] < PROMPT
        assert told["third"] == ((other,), {41 * 0x01010101})
        assert told["none"] == 0
        assert (told["new"], told["slots"]) == ({22.0}, slots)
        stats = told["stats"]
        ends = ("folded", "overwritten", "rejected", "pending", "to_dead")
        assert stats["sent"] == sum(stats[end] for end in ends), stats


@controls_the_driver
@both_kinds
def test_slots_of_a_rank_that_is_killed_in_the_middle_of_a_fold_are_free_again(
    tmp_path: Path, slots: str
) -> None:
    """Rank 2 reads the only slot of rank 0 for half a second, and dies after 0.15."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
if rank == 2: os.environ["FAKE_CUDA_COPY_DELAY_US"] = "125000"
malt.init(timeout=60)
x = DeviceArray(4 * 16384, np.int32).fill(1 + rank)
v = malt.vector(x, policy="queue", depth=1, graph=malt.STAR)
if rank == 0:
    v.scatter()
    await_flag("dying")
    start = time.monotonic()
    x.fill(5)
    to = [v.scatter()]
    tell(seconds=time.monotonic() - start)
    while malt.alive() != (0, 1): time.sleep(0.001)
    for byte in (6, 7):
        x.fill(byte)
        to.append(v.scatter())
    tell(to=to)
else:
    while v.clock_of(0) < 1: time.sleep(0.001)
    seen = []
    if rank == 2:
        threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGKILL)).start()
        raise_flag("dying")
        v.gather(malt.REPLACE)
        time.sleep(100)
    while len(seen) < 4:
        if v.gather(malt.REPLACE).count: seen.append(x.get()[[0, 40_000, -1]].tolist())
    tell(seen=seen)
malt.barrier()
""",
        "--keep-going",
        code=KILLED,
        slots=slots,
    )
    assert result.told[0]["seconds"] < PROMPT
    assert result.told[0]["to"][1:] == [(1,), (1,)]
    assert result.told[1]["seen"] == [[byte * 0x01010101] * 3 for byte in (1, 5, 6, 7)]


STORM = """
malt.init(timeout=60)
x = DeviceArray(5 * 16384, np.int32)
v = malt.vector(x, policy=policy)
random = np.random.default_rng(seed + rank)
dying = rank - 2  # ranks 2, 3, ... die one after the other
if dying >= 0:
    pause = 0.2 + 0.15 * dying + 0.15 * random.random()
    threading.Timer(pause, os.kill, (os.getpid(), signal.SIGKILL)).start()
wrong, folded = [], set()
alone = 0
while alone < 20 or any(r not in folded for r in range(size) if r != rank) and alone < 400:
    x.fill(10 + rank)
    v.scatter()
    x.fill(1)
    g = v.gather(malt.REPLACE)
    values = np.unique(x.get()).tolist()
    if g.count:
        folded.update(g.ranks)
        if values not in [[0x01010101 * (10 + r)] for r in g.ranks]: wrong.append(values[:3])
    elif values != [0x01010101]:
        wrong.append(values[:3])
    if malt.alive() == (0, 1): alone += 1
start = time.monotonic()
raise_flag(rank)
while not (flag_is_up(0) and flag_is_up(1)): v.gather(malt.REPLACE)
y = on_gpu(np.full(1000, 10.0 ** rank))
new = malt.vector(y, name="made by the survivors")
new.scatter(), new.gather(malt.SUM, staleness=0)
tell(wrong=wrong, folded=folded, alive=malt.alive(), new=set(y.get().tolist()),
     seconds=time.monotonic() - start)
malt.barrier()
"""


@pytest.mark.parametrize(
    ("slots", "policy", "seed"), [("ipc", "latest", 1), ("ipc", "queue", 2), ("host", "latest", 3)]
)
def test_survivors_of_deaths_at_any_moment_see_whole_updates_only(
    tmp_path: Path, slots: str, policy: str, seed: int
) -> None:
    """Four of six ranks die, each in the middle of a copy or a fold: their GPUs do little else."""
    result = run_gpu_job(
        tmp_path,
        6,
        STORM,
        "--keep-going",
        code=KILLED,
        slots=slots,
        policy=policy,
        seed=seed,
        environ={"FAKE_CUDA_COPY_DELAY_US": "2000"},
    )
    for rank, told in enumerate(result.told[:2]):
        assert told["wrong"] == []
        assert 1 - rank in told["folded"]
        assert told["alive"] == (0, 1)
        assert told["new"] == {11.0}
        assert told["seconds"] < PROMPT


@both_kinds
def test_update_of_a_rank_that_died_before_others_had_mapped_its_memory_spoils_nothing(
    tmp_path: Path, slots: str
) -> None:
    """Nobody can map the memory of a process that has ended: its update may be left out."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
x = on_gpu(np.full(1000, 10.0 ** rank))
v = malt.vector(x)
v.scatter()
x.get()
meet("scattered")
if rank == 2: os.kill(os.getpid(), signal.SIGKILL)
while malt.alive() != (0, 1): time.sleep(0.001)
g = v.gather(malt.SUM)
tell(ranks=g.ranks, x=set(x.get().tolist()))
malt.barrier()
v.scatter()
tell(again=v.gather(malt.SUM, staleness=0).ranks, stats=counters(v))
malt.barrier()
""",
        "--keep-going",
        code=KILLED,
        slots=slots,
    )
    for rank, told in enumerate(result.told[:2]):
        assert told["ranks"] in [(1 - rank, 2), *[(1 - rank,)] * (slots == "ipc")]
        assert told["x"] == {111.0 if 2 in told["ranks"] else 11.0}
        assert told["again"] == (1 - rank,)


@controls_the_driver
@both_kinds
def test_survivors_of_a_death_in_the_first_allreduce_have_the_same_bits(
    tmp_path: Path, slots: str
) -> None:
    """Rank 2 dies when it has sent, while the others, which then fold, still copy for 0.4 s."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
if rank < 2: os.environ["FAKE_CUDA_COPY_DELAY_US"] = str(50_000 * (1 + rank))
malt.init(timeout=60)
x = DeviceArray(4 * 16384, np.int32).fill((1, 3, 9)[rank])
v = malt.vector(x)
def die():
    while not v.stats().bytes_out: time.sleep(0.001)
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 2: threading.Thread(target=die).start()
v.allreduce(malt.SUM)
if rank == 2: time.sleep(100)
tell(first=set((x.get() & 255).tolist()))
x.fill((1, 3, 9)[rank])
v.allreduce(malt.SUM)
tell(second=set((x.get() & 255).tolist()))
malt.barrier()
""",
        "--keep-going",
        code=KILLED,
        slots=slots,
    )
    first = [told["first"] for told in result.told[:2]]
    assert first[0] == first[1]
    assert first[0] in ({4}, {13})
    assert [told["second"] for told in result.told[:2]] == [{4}, {4}]
