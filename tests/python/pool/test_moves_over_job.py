"""Sums of a pool over a job whose ranks are not equally fast."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jobs import PROMPT, refused, run_job
from nodes import Nodes

SEEDS = range(int(os.environ.get("MALT_SEEDS", 2)))

# Each chunk has one bit, so a sum shows which one was lost or counted twice.
FUNCTIONS = """
import threading

def chunk_of(x):
    return int(x[0]).bit_length() - 1

def work(slow, x):                    # the slow rank's first chunk ends after all other ones
    if rank == slow[0]:
        deadline = time.monotonic() + 60
        others = set(range(chunks)) - {chunk_of(x)}
        while not all(flag_is_up(f"{slow} {each}") for each in others):
            time.sleep(0.01)
            if time.monotonic() > deadline:
                break
    time.sleep(0.02)                  # long enough for a chunk to be worth moving
    raise_flag(f"{slow} {chunk_of(x)}")
    return int(x[0]), np.eye(size, dtype=int)[rank]

def first(theta, x):
    return int(x[0])
"""


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_idle_ranks_do_the_chunks_that_a_slow_one_has_not_begun(
    tmp_path: Path, transport: str, slow: int
) -> None:
    body = """
chunks = 12
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(2 ** np.arange(chunks), chunks=chunks)
        bits, done = pool.sum(work, (slow, 0), data)
        tell(bits=bits, done=done.tolist(), stats=pool.stats()._asdict())
        shown = []
        bits_again, _ = pool._calls.sum(work, (slow, 1), data, shown.append)
        tell(bits_again=bits_again, shown=shown[-1])
        tell(fast=pool.sum(first, None, data))
"""
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(tmp_path, 3, FUNCTIONS + body, environ=environ, slow=slow)
    told = result.told[0]
    assert told["bits"] == told["bits_again"] == told["fast"] == 2**12 - 1
    assert told["shown"] == 12
    assert told["done"][slow] == 1
    assert sum(told["done"]) == 12
    assert told["stats"]["chunks_taken"] >= 3


def test_chunk_that_was_moved_is_not_sent_again(tmp_path: Path) -> None:
    body = """
chunks = 10
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(2 ** np.arange(chunks), chunks=chunks)
        for each in range(3):
            pool.sum(work, (0, each), data)
            stats = pool.stats()
            tell(**{f"sent{each}": stats.chunks_sent, f"bytes{each}": stats.bytes_sent,
                    f"taken{each}": stats.chunks_taken})
        tell(nbytes=data.nbytes)
"""
    told = run_job(tmp_path, 2, FUNCTIONS + body).told[0]
    for each in range(3):
        assert told[f"taken{each}"] == 4 * (each + 1)  # all of rank 0's but the first
        assert told[f"sent{each}"] == 5 + 4
        assert told[f"bytes{each}"] * 10 == told["nbytes"] * 9


def test_chunk_that_is_done_sooner_than_sent_is_not_moved(tmp_path: Path) -> None:
    body = """
def wait(theta, x):
    if rank == 0 and x[0] == 0:       # while rank 1 is idle
        time.sleep(1)
    return int(x[0])

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(np.arange(8), chunks=8)
        tell(sum=pool.sum(wait, None, data), stats=pool.stats()._asdict())
"""
    told = run_job(tmp_path, 2, FUNCTIONS + body).told[0]
    assert told["sum"] == 28
    assert told["stats"]["chunks_taken"] == 0
    assert told["stats"]["chunks_sent"] == 4


def test_rank_0_takes_no_chunk_in_which_a_rank_has_died(tmp_path: Path) -> None:
    body = """
def die_in_last(theta, x):
    time.sleep(0.02)
    if chunk_of(x) == chunks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(x[0])

chunks = 16
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(2 ** np.arange(chunks), chunks=chunks)
        tell(error=error_of(lambda: pool.sum(die_in_last, None, data)))
        tell(sum=pool.sum(first, None, data), alive=malt.alive())
"""
    told = run_job(tmp_path, 4, FUNCTIONS + body, "--keep-going", code=None).told[0]
    assert told["error"].kind == "PeerError"
    assert told["error"].says("3 ranks have ended in chunk")
    assert (told["sum"], told["alive"]) == (2**16 - 1, (0,))


def test_chunks_move_between_nodes(tmp_path: Path) -> None:
    body = f"""
{FUNCTIONS}
chunks = 16
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(2 ** np.arange(chunks), chunks=chunks)
        tell(sums=[pool.sum(work, (slow, 0), data) for slow in range(size)])
"""
    nodes = Nodes(tmp_path, body, [""] * 2, ranks=2, MALT_TRANSPORT="tcp")
    try:
        (sums,) = nodes.await_told("sums", ranks=[0])
        for slow, (bits, done) in enumerate(sums):
            assert bits == 2**16 - 1
            assert done[slow] == 1
    finally:
        nodes.close()


UNEVEN = """
def uneven(theta, x):
    time.sleep(0.006 * (1 + rank) ** 2)
    return theta + int(x[0])

chunks = 24
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_may_be_killed_while_chunks_move(tmp_path: Path, transport: str, seed: int) -> None:
    body = """
def kill_soon():
    time.sleep(np.random.default_rng([seed, rank]).uniform(0.2, 1.5))
    os.kill(os.getpid(), signal.SIGKILL)

job = malt.init(timeout=60)
if rank in (1, 3):
    threading.Thread(target=kill_soon).start()
with malt.Pool(over=job) as pool:
    if pool:
        theta, wrong, number = np.zeros(30_000), 0, 0
        data = pool.share(2 ** np.arange(chunks), chunks=chunks)
        while len(malt.alive()) > 2:
            number += 1
            wrong += not (pool.sum(uneven, theta, data) == 2**chunks - 1).all()
        tell(wrong=wrong, number=number, taken=pool.stats().chunks_taken)
        tell(last=pool.sum(first, None, data))
"""
    result = run_job(
        tmp_path,
        4,
        FUNCTIONS + UNEVEN + body,
        "--keep-going",
        code=None,
        environ={"MALT_TRANSPORT": transport},
        seed=seed,
    )
    told = result.told[0]
    assert (told["wrong"], told["last"]) == (0, 2**24 - 1)
    assert told["number"] > 0
    assert told["taken"] > 0


def test_sums_stand_interrupts_while_chunks_move(tmp_path: Path) -> None:
    body = """
def interrupt(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(2 ** np.arange(chunks), chunks=chunks)
        draw, sums, interrupts = np.random.default_rng(seed), [], 0
        for _ in range(15):
            try:
                thread = threading.Thread(target=interrupt, args=[draw.uniform(0, 0.2)])
                thread.start()
                pool.sum(uneven, 0, data)
                thread.join()
            except KeyboardInterrupt:
                interrupts += 1
            thread.join()
            sums.append(pool.sum(uneven, 0, data))
        tell(sums=sums, interrupts=interrupts, taken=pool.stats().chunks_taken)
"""
    for seed in SEEDS:
        told = run_job(tmp_path, 3, FUNCTIONS + UNEVEN + body, seed=seed).told[0]
        assert told["sums"] == [2**24 - 1] * 15
        assert told["interrupts"] > 0
        assert told["taken"] > 0


def test_exception_comes_out_also_if_it_arrives_while_rank_0_computes(tmp_path: Path) -> None:
    body = """
def fail(kind, x):
    if rank == 1:
        if kind == "result":
            return object()
        raise ValueError("rank 1")
    time.sleep(0.3)
    return 0

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(np.arange(400), chunks=400)
        for kind in ("value", "result"):
            tell(**{kind: error_of(lambda: pool.sum(fail, kind, data))})
        tell(sum=pool.sum(first, None, data))
"""
    told = run_job(tmp_path, 2, FUNCTIONS + body).told[0]
    assert told["value"].kind == "builtins.ValueError"
    assert told["value"].seconds < PROMPT
    assert refused(told["result"], "rank 1", "cannot be added")
    assert told["sum"] == 399 * 200
