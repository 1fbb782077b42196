"""The rules of malt/_shared/streams.py, simulated: ranks in one process, with a network between.

MALT_SEEDS=20000 pytest tests/python/shared/test_streams.py    so many random schedules
MALT_SEED=17 pytest tests/python/shared/test_streams.py        this one
"""

from __future__ import annotations

import os
import random
from collections import deque

import numpy as np
import pytest

from malt._errors import DamagedError
from malt._shared import deltas, wire
from malt._shared.streams import Part, Streams, are_equal

SEED = os.environ.get("MALT_SEED")
SEEDS = [int(SEED)] if SEED else range(int(os.environ.get("MALT_SEEDS", 300)))
ELEMENTS = 12


class Rank:
    def __init__(self, rank: int, size: int) -> None:
        self.streams = Streams(rank, size)
        self.array = np.zeros(ELEMENTS, np.int64)
        self.copy = self.array.copy()
        self.sums = [self.array.copy()]  # what this rank has added, by the number of its delta
        self.clocks = [0]  # by the number of its delta


class Job:
    """Ranks, and the messages on their way from each to each other."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.size = self.draw.randrange(1, 6)
        self.ranks = [Rank(rank, self.size) for rank in range(self.size)]
        self.live = list(range(self.size))
        self.dead: dict[int, int] = {}  # by rank: exchanges acknowledged when it died
        self.ways: dict[tuple[int, int], deque[bytes]] = {
            (a, b): deque() for a in self.live for b in self.live if a != b
        }

    def send(self, sender: int, part: Part) -> None:
        message = wire.Message(wire.DELTA, self.ranks[sender].streams.held, part)
        for rank in self.live:
            if rank != sender:
                self.ways[sender, rank].append(wire.pack(message))

    def exchange(self, rank: int) -> None:
        one = self.ranks[rank]
        for _ in range(self.draw.randrange(3)):
            one.array[self.draw.randrange(ELEMENTS)] += self.draw.randrange(-9, 10)
        change = one.array - one.copy
        payloads = deltas.difference(one.array, one.copy)
        if self.draw.random() < 0.5:  # a second part
            payloads.append(b"")
        one.streams.exchanges += 1
        delta = one.streams.begin(payloads)
        deltas.add(deltas.changes(payloads, one.copy), one.copy)
        assert np.array_equal(one.array, one.copy)
        one.sums.append(one.sums[-1] + change)
        one.clocks.append(delta.clock)
        for part in delta.parts():
            self.send(rank, part)
            if self.draw.random() < 0.02:
                return self.kill(rank)  # in the middle of a delta
        one.streams.forget_known(self.live)

    def deliver(self, sender: int, to: int) -> None:
        _, held, part = wire.unpack(self.ways[sender, to].popleft(), self.size)
        one = self.ranks[to]
        if delta := one.streams.arrive(sender, part):
            deltas.add(deltas.changes(delta.payloads, one.copy), one.array, one.copy)
            one.streams.add(delta)
        one.streams.hear(sender, held)

    def kill(self, rank: int) -> None:
        """It has sent what has been sent, of which each receiver gets the first part only."""
        if len(self.live) == 1:
            return
        self.live.remove(rank)
        self.dead[rank] = self.ranks[rank].streams.acknowledged
        for to in self.live:
            way = self.ways[rank, to]
            for _ in range(self.draw.randrange(len(way) + 1)):
                way.pop()

    def step(self) -> None:
        choice = self.draw.random()
        if choice < 0.3:
            self.exchange(self.draw.choice(self.live))
        elif choice < 0.33:
            self.kill(self.draw.choice(self.live))
        elif ways := [way for way in self.ways if self.ways[way] and way[1] in self.live]:
            self.deliver(*self.draw.choice(ways))

    def drain(self) -> None:
        for _ in range(self.size + 1):  # only a death makes another comparison necessary
            while ways := [w for w in self.ways if self.ways[w] and {*w} <= {*self.live}]:
                self.deliver(*self.draw.choice(ways))
            rows = {rank: self.ranks[rank].streams.held.copy() for rank in self.live}
            if are_equal(rows):
                for rank in self.live:
                    self.ranks[rank].streams.even_out()
                return
            for rank in [*self.live]:
                for delta in self.ranks[rank].streams.to_pass_on(rows):
                    for part in delta.parts():
                        if rank in self.live:
                            self.send(rank, part)
                        if self.draw.random() < 0.05:
                            self.kill(self.draw.choice(self.live))
        raise AssertionError("the drain does not end")

    def check(self) -> None:
        held = self.ranks[self.live[0]].streams.held
        total = sum(one.sums[held[rank]] for rank, one in enumerate(self.ranks))
        for rank in self.live:
            assert np.array_equal(self.ranks[rank].array, total)
            assert held[rank] == len(self.ranks[rank].sums) - 1
            assert self.ranks[rank].streams.kept == 0
        for rank, acknowledged in self.dead.items():
            assert self.ranks[rank].clocks[held[rank]] >= acknowledged


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_after_a_drain_all_ranks_have_the_same_sum_and_all_that_was_acknowledged(
    first: int,
) -> None:
    deaths = 0
    for seed in SEEDS[first : first + 100]:
        job = Job(seed)
        for _ in range(3):
            for _ in range(job.draw.randrange(60)):
                job.step()
            job.drain()
            job.check()
        deaths += len(job.dead)
    assert deaths > 0 or SEED


def test_a_delta_is_kept_until_every_live_rank_has_told_that_it_has_it() -> None:
    streams = Streams(0, 3)
    streams.exchanges = 1
    delta = streams.begin([b""])
    streams.hear(1, np.array([1, 0, 0]))
    streams.forget_known([0, 1, 2])
    assert (streams.kept, streams.acknowledged) == (1, 0)
    assert streams.to_pass_on({0: streams.held, 2: np.zeros(3)}) == [delta]
    streams.forget_known([0, 1])  # rank 2 has died
    assert (streams.kept, streams.acknowledged) == (0, 1)


def test_only_the_lowest_rank_that_has_most_passes_a_delta_on() -> None:
    rows = {rank: np.array([0, 0, held]) for rank, held in enumerate([0, 1, 1])}
    passed_on = []
    for rank in (1, 2):
        streams = Streams(rank, 3)
        part = Part(2, 1, 1, 0, 1, b"")
        delta = streams.arrive(2, part)
        assert delta is not None
        streams.add(delta)
        passed_on.append(len(streams.to_pass_on(rows)))
    assert passed_on == [1, 0]


def test_a_delta_that_comes_twice_counts_once() -> None:
    streams = Streams(0, 3)
    first = Part(1, 1, 1, 0, 2, b"")
    assert streams.arrive(1, first) is None
    assert streams.arrive(2, first) is None
    delta = streams.arrive(2, first._replace(place=1))
    assert delta is not None
    streams.add(delta)
    assert streams.arrive(1, first._replace(place=1)) is None


@pytest.mark.parametrize("wrong", [{"number": 2}, {"place": 1}])
def test_a_sender_that_skips_a_delta_or_a_part_is_found_out(wrong: dict[str, int]) -> None:
    streams = Streams(0, 2)
    with pytest.raises(DamagedError, match="rank 1 sent part"):
        streams.arrive(1, Part(1, 1, 1, 0, 2, b"")._replace(**wrong))
