"""Whose the chunks are, and what ranks make of one another's rows: no processes, seeded deaths."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Iterator

import numpy as np
import pytest

from malt._data.ledger import Ledger, deal, owners, permutation

# Whose


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("chunks", [0, 1, 5, 64, 1000])
def test_every_rank_is_dealt_equally_many_chunks_or_one_more(size: int, chunks: int) -> None:
    counts = np.bincount(deal(chunks, range(size)), minlength=size)

    assert counts.sum() == chunks
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("size", [2, 4, 9])
def test_a_death_moves_only_the_chunks_of_the_dead(size: int) -> None:
    heads = deal(500, range(size))
    before = heads
    living = list(range(size))
    for dead in np.random.default_rng(size).permutation(size)[:-1].tolist():
        living.remove(dead)
        after = owners(heads, living)
        assert (after[before != dead] == before[before != dead]).all()
        assert set(after[before == dead].tolist()) <= set(living)
        before = after


def test_the_chunks_of_the_dead_spread_over_all_survivors() -> None:
    heads = deal(8000, range(8))
    moved = owners(heads, [0, 1, 2, 4, 5, 6, 7])[heads == 3]

    counts = np.bincount(moved, minlength=8)
    expected = len(moved) / 7
    assert counts[3] == 0
    assert (abs(np.delete(counts, 3) - expected) < 4 * expected**0.5).all()


def test_views_that_differ_never_give_one_chunk_to_two_ranks_in_both() -> None:
    rng = np.random.default_rng(0)
    heads = deal(300, range(6))
    for _ in range(50):
        one, other = (
            [int(r) for r in np.flatnonzero(seen | [True, True, *[False] * 4])]
            for seen in rng.random((2, 6)) < 0.5
        )
        assert not ((owners(heads, one) == 0) & (owners(heads, other) == 1)).any()


def test_the_order_is_a_permutation_of_its_own_in_each_pass() -> None:
    orders = [permutation(1000, seed, pass_) for seed in (1, 2) for pass_ in (1, 2)]

    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    # Ranks with another NumPy have the same.
    assert permutation(8, 7, 1).tolist() == [2, 1, 5, 3, 6, 0, 7, 4]


# What is finished

IDLE = -1


class Job:
    """Ranks that work on chunks, step by step, over a network that is slow and may lose last rows.

    One rank alone is sure to get all that another has sent before it died: the `witness`, or who
    is named instead.
    """

    def __init__(
        self, seed: int, size: int, chunks: int, passes: int, *, one_host: bool, lockstep: bool
    ) -> None:
        self.rng = random.Random(seed)
        self.restarts = [0] * size
        self.ledgers = [Ledger(rank, size, chunks, lockstep, self.restarts) for rank in range(size)]
        self.passes, self.one_host = passes, one_host
        self.witness = 0
        self.alive = set(range(size))
        self.seen_alive = [set(range(size)) for _ in range(size)]  # by rank
        self.at_work = set(range(size))  # in a pass
        self.hand: dict[int, int] = {}  # the chunk that each works on
        self.told = [ledger.words[rank].copy() for rank, ledger in enumerate(self.ledgers)]
        self.on_the_way: dict[tuple[int, int], deque[np.ndarray]] = {
            (a, b): deque() for a in range(size) for b in range(size) if a != b
        }
        self.finished: Counter[tuple[int, int]] = Counter()  # (pass, chunk)
        self.left_over: Counter[tuple[int, int]] = Counter()  # in hand of those who died
        self.reported: Counter[tuple[int, int]] = Counter()
        self.turns: Counter[tuple[int, int]] = Counter()  # (rank, pass)
        for ledger in self.ledgers:
            ledger.enter()

    def step(self) -> None:
        rank = self.rng.choice(sorted(self.at_work))
        for dead in self.seen_alive[rank] - self.alive:
            if self.one_host or self.rng.random() < 0.2:
                self.bring(dead, rank, len(self.on_the_way[dead, rank]))
                self.seen_alive[rank].remove(dead)
        for other in range(len(self.ledgers)):
            if other != rank:
                waiting = len(self.on_the_way[other, rank])
                self.bring(other, rank, waiting if self.one_host else self.rng.randint(0, waiting))
        self.turn(rank)

    def turn(self, rank: int) -> None:
        ledger = self.ledgers[rank]
        if ledger.is_rejoining:
            ledger.catch_up(sorted(self.seen_alive[rank]))
            ledger.enter()
        ledger.end_turn()
        if (chunk := self.hand.pop(rank, IDLE)) != IDLE:
            ledger.finish(chunk)
            self.finished[ledger.pass_, chunk] += 1
        turn = ledger.take_turn(sorted(self.seen_alive[rank]))
        self.turns[rank, ledger.pass_] += turn not in ("wait", "over")
        if (ledger.words[rank] != self.told[rank]).any():
            self.tell(rank)
        if turn == "over" and ledger.pass_ == self.passes:
            self.at_work.remove(rank)
        elif turn == "over":
            ledger.enter()
        elif isinstance(turn, int):
            assert turn not in self.hand.values(), "two living ranks have one chunk"
            self.hand[rank] = turn
            self.reported[ledger.pass_, turn] += ledger.was_begun(turn)

    def tell(self, rank: int) -> None:
        self.told[rank] = self.ledgers[rank].words[rank].copy()
        for other in self.alive - {rank}:
            self.on_the_way[rank, other].append(self.told[rank])

    def revive(self, rank: int) -> None:
        """All go over to a group with the rank in it, and tell one another where they are."""
        old, size = self.ledgers[rank], len(self.ledgers)
        for one, other in itertools.permutations(range(size), 2):
            if other in self.alive:
                self.bring(one, other, len(self.on_the_way[one, other]))
            self.on_the_way[one, other].clear()
        self.restarts[rank] += 1
        self.ledgers[rank] = Ledger(
            rank, size, old.chunks, old.lockstep, self.restarts, is_rejoining=True
        )
        self.alive.add(rank)
        self.at_work.add(rank)
        self.seen_alive = [set(self.alive) for _ in range(size)]
        for one in sorted(self.alive):
            self.ledgers[one].note_gone(sorted(self.alive))
            self.tell(one)
        for one in self.alive - {rank}:  # of all that live there is something
            self.bring(one, rank, 1)
            self.bring(rank, one, 1)

    def bring(self, sender: int, receiver: int, count: int) -> None:
        for _ in range(count):
            row = self.on_the_way[sender, receiver].popleft()
            self.ledgers[receiver].words[sender] = row

    def kill(self, rank: int, heir: int | None = None) -> None:
        """`heir`: the one rank that is sure to hear of all; the witness, unless told."""
        self.alive.discard(rank)
        if rank in self.at_work:
            self.at_work.remove(rank)
            if rank in self.hand:
                self.left_over[self.ledgers[rank].pass_, self.hand.pop(rank)] += 1
        for other in self.alive - {self.witness if heir is None else heir}:
            rows = self.on_the_way[rank, other]
            for _ in range(0 if self.one_host else self.rng.randint(0, len(rows))):
                rows.pop()

    def has_noted(self, rank: int, dead: int) -> bool:
        return bool(self.ledgers[rank].rows["gone"][rank][dead])

    def run(self, deaths: dict[int, int], returns: dict[int, int] | None = None) -> None:
        """`deaths`, `returns`: who dies, and who comes back, by the step."""
        for step in range(100_000):
            if step in deaths:
                self.kill(deaths[step])
            rank = (returns or {}).get(step, self.witness)
            if rank not in self.alive and self.at_work:
                self.revive(rank)
            if not self.at_work:
                return
            self.step()
        raise AssertionError("they wait for one another")

    def check(self, chunks: int) -> None:
        every = [(pass_, c) for pass_ in range(1, self.passes + 1) for c in range(chunks)]
        assert self.finished == Counter(every)
        assert +self.reported == self.left_over


def jobs(
    seeds: range, size: int, chunks: int, hosts: tuple[bool, ...] = (True, False)
) -> Iterator[Job]:
    for seed in seeds:
        for one_host in hosts:
            yield Job(seed, size, chunks, 2, one_host=one_host, lockstep=seed % 2 == 0)


@pytest.mark.parametrize(("size", "chunks"), [(1, 3), (2, 0), (3, 2), (4, 21)])
def test_without_deaths_each_chunk_is_finished_once_a_pass(size: int, chunks: int) -> None:
    for job in jobs(range(10), size, chunks):
        job.run({})
        job.check(chunks)
        assert not job.left_over


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_one_death_at_any_step_repeats_only_the_chunk_in_hand(dead: int) -> None:
    for step in range(80):
        for job in jobs(range(step, step + 1), 4, 10):
            job.run({step: dead})
            job.check(10)


def test_several_deaths_repeat_only_the_chunks_in_hand() -> None:
    for job in jobs(range(60), 5, 13):
        rng = random.Random(job.rng.random())
        job.run(dict(zip(rng.sample(range(120), 4), rng.sample([1, 2, 3, 4], 4), strict=True)))
        job.check(13)


def test_report_known_to_one_rank_alone_survives_it_once_another_has_noted_its_death() -> None:
    for job in jobs(range(150), 5, 13, hosts=(False,)):
        line = job.rng.sample(range(5), 4)  # each hears alone of the one before, and dies
        for _ in range(job.rng.randrange(60)):
            if job.at_work:
                job.step()
        for dying, heir in itertools.pairwise(line):
            job.kill(dying, heir)
            while heir in job.at_work and not job.has_noted(heir, dying):
                job.step()
        job.run({})
        job.check(13)


def test_one_that_comes_back_at_any_step_repeats_only_the_chunk_in_hand() -> None:
    for step in range(80):
        for job in jobs(range(step, step + 1), 4, 10):
            dead = 1 + step % 3
            job.run({step: dead}, {step + job.rng.randrange(60): dead})
            job.check(10)


@pytest.mark.parametrize("passes", [2, pytest.param(6, marks=pytest.mark.long)])
def test_many_that_come_back_and_die_again_repeat_only_the_chunks_in_hand(passes: int) -> None:
    for job in jobs(range(150), 5, 13):
        job.passes = passes
        rng = random.Random(job.rng.random())
        events = [(step, rng.choice([1, 2, 3, 4])) for step in rng.sample(range(passes * 70), 12)]
        job.run(dict(events[:6]), dict(events[6:]))
        job.check(13)


def test_rejoined_rank_has_its_chunks_again_in_a_later_pass() -> None:
    for seed in range(20):
        job = Job(seed, 4, 12, 6, one_host=seed % 2 == 0, lockstep=False)
        job.run({20: 2}, {30: 2})
        assert job.turns[2, 6] == 3


@pytest.mark.parametrize("chunks", [2, 11])
def test_in_lockstep_all_survivors_take_equally_many_turns_a_pass(chunks: int) -> None:
    for seed in range(60):
        job = Job(seed, 4, chunks, 3, one_host=True, lockstep=True)
        job.run({seed: 1 + seed % 3})
        for pass_ in range(1, 4):
            assert len({job.turns[rank, pass_] for rank in job.alive}) == 1


def test_in_lockstep_no_turn_is_idle_where_all_have_equally_many_chunks() -> None:
    for seed in range(10):
        job = Job(seed, 4, 12, 3, one_host=True, lockstep=True)
        job.run({})
        assert set(job.turns.values()) == {3}


class ThreeRanks:
    """Rank 1 died after its only chunk of pass 2, and rank 0 has heard nothing of its pass 2."""

    def __init__(self) -> None:
        self.ranks = [Ledger(rank, 3, 3, False, [0] * 3) for rank in range(3)]
        everyone = [0, 1, 2]
        self.mine = {}
        for ledger in self.ranks:
            ledger.enter()
            turn = ledger.take_turn(everyone)
            assert isinstance(turn, int)
            self.mine[ledger.rank] = turn
            ledger.finish(turn)
        for sender, receiver in itertools.permutations(everyone, 2):
            self.tell(sender, receiver)
        for dying_or_ahead in (self.ranks[1], self.ranks[0]):
            assert dying_or_ahead.take_turn(everyone) == "over"
            dying_or_ahead.enter()
            turn = dying_or_ahead.take_turn(everyone)
            assert turn == self.mine[dying_or_ahead.rank]
        self.ranks[1].finish(self.mine[1])
        self.tell(1, 2)

    def tell(self, sender: int, receiver: int) -> None:
        self.ranks[receiver].words[sender] = self.ranks[sender].words[sender]


def test_a_death_noted_in_the_pass_before_does_not_count_in_this() -> None:
    job = ThreeRanks()
    ahead, _, behind = job.ranks
    assert behind.take_turn([0, 2]) == "over"  # notes the death, in pass 1
    job.tell(2, 0)
    ahead.finish(job.mine[0])

    assert ahead.take_turn([0, 2]) == "wait"
    assert ahead.awaited([0, 2]) == (2, [2])

    behind.enter()
    assert behind.take_turn([0, 2]) == job.mine[2]
    behind.finish(job.mine[2])
    job.tell(2, 0)
    assert ahead.take_turn([0, 2]) == "over"


def test_a_rank_goes_on_with_its_own_chunks_until_all_have_noted_a_death() -> None:
    ledger = Ledger(0, 3, 9, False, [0] * 3)
    ledger.enter()
    own = np.flatnonzero(deal(9, range(3)) == 0).tolist()
    for chunk in own:
        assert ledger.take_turn([0, 2]) == chunk
        ledger.finish(chunk)
    assert ledger.take_turn([0, 2]) == "wait"


def test_a_pass_that_was_left_is_entered_again() -> None:
    ledger = Ledger(0, 1, 2, False, [0])
    ledger.enter()
    assert ledger.take_turn([0]) == 0
    ledger.enter()
    assert (ledger.pass_, ledger.take_turn([0])) == (1, 0)
    assert not ledger.was_begun(0)
    for chunk in (0, 1):
        ledger.finish(chunk)
    assert ledger.take_turn([0]) == "over"
    ledger.enter()
    assert (ledger.pass_, ledger.take_turn([0])) == (2, 0)
