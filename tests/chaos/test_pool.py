"""A pool whose ranks, and the process that forks them, are killed and interrupted at random times.

Each chunk is a bit of its own, so a sum shows which chunk was lost or counted twice.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

import malt

CHUNKS = 48
ALL = 2**CHUNKS - 1
SECONDS = 8.0


def work(theta: float, x: npt.NDArray[np.int64]) -> tuple[int, npt.NDArray[np.int64]]:
    time.sleep(theta)
    return int(x.sum()), np.full(2000, x.sum())


class Killer(threading.Thread):
    """Kills a rank now and then, and sometimes the process that forks them."""

    def __init__(self, pool: malt.Pool, seed: int, interrupts: bool) -> None:
        super().__init__()
        self.over = threading.Event()
        self.kills = 0
        self._pool = pool
        self._draw = random.Random(seed)
        self._interrupts = interrupts

    def run(self) -> None:
        crew = self._pool._calls._crew
        while not self.over.wait(self._draw.uniform(0.05, 0.3)):
            target = self._draw.choice(crew.ranks).process
            if self._draw.random() < 0.1 and crew._nursery is not None:
                target = crew._nursery.pid
            try:
                if target:
                    os.kill(target, signal.SIGKILL)
                    self.kills += 1
            except ProcessLookupError:
                pass
            if self._interrupts:
                os.kill(os.getpid(), signal.SIGINT)


class Interrupts:
    """SIGINT raises KeyboardInterrupt once in each call that is made under it, and nowhere else."""

    def __init__(self) -> None:
        self._is_armed = False
        self._before = signal.signal(signal.SIGINT, self._raise)

    def arm(self) -> None:
        self._is_armed = True

    def disarm(self) -> None:
        self._is_armed = False

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _raise(self, _number: int, _frame: object) -> None:
        if self._is_armed:
            self._is_armed = False
            raise KeyboardInterrupt


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    made = Interrupts()
    yield made
    made.close()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_no_chunk_is_lost_or_counted_twice(is_interrupted: bool, interrupts: Interrupts) -> None:
    sums = 0
    with malt.Pool(3) as pool:
        data = pool.share(np.left_shift(1, np.arange(CHUNKS), dtype=np.int64), chunks=CHUNKS)
        killer = Killer(pool, 1, is_interrupted)
        killer.start()
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end:
                try:
                    interrupts.arm()
                    total, array = pool.sum(work, 0.002, data)
                    interrupts.disarm()
                except malt.ConfigError:  # results that cannot be added: a chunk was counted twice
                    raise
                except (malt.Error, KeyboardInterrupt):  # three kills in one chunk, or of a start
                    continue
                assert total == ALL, bin(total ^ ALL)
                assert (array == ALL).all()
                sums += 1
        finally:
            interrupts.disarm()
            killer.over.set()
            killer.join()
        assert killer.kills > 10
        assert sums > 0
        total, _ = pool.sum(work, 0.0, data)
        assert total == ALL
        assert pool.run(lambda: 1) == [1, 1, 1]
