"""Training on the chunks of malt.shard, and a check of which rank took which chunk how often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Turn(NamedTuple):
    chunk: tuple[int, ...]  # the pass, and its elements
    life: str  # the rank, and how often it has been started again
    is_repeat: bool  # as reported
    is_whole: bool  # it came to the end of the loop's body
    to_come: int  # turns of this life after it


# Given: transport, elements, chunk, shuffle, lockstep, passes, and deaths: seconds by life.
TRAIN = """
malt.init(transport=transport, timeout=60)
life = f"{rank}-{malt.jobs.restarts()}"
w = np.zeros(1)
m = malt.vector(w)
parts = malt.shard(np.arange(elements), chunk=chunk, shuffle=shuffle, lockstep=lockstep)
taken = open(f"taken-{life}", "w", buffering=1)
if life in deaths:
    threading.Timer(deaths[life], os.kill, (os.getpid(), signal.SIGKILL)).start()
repeats = 0
while parts.passes < passes:
    n = parts.passes + 1
    for part in parts:
        print(len(parts.repeated) - repeats, n, *part, file=taken)
        repeats = len(parts.repeated)
        time.sleep(0.01)
        m.scatter()
        m.gather(staleness=0 if lockstep else None)
        print("whole", file=taken)
"""


def turns_taken(path: Path) -> dict[tuple[int, ...], list[Turn]]:
    """By chunk, those of all ranks."""
    by_chunk: dict[tuple[int, ...], list[Turn]] = defaultdict(list)
    for file in path.glob("taken-*"):
        lines = file.read_text().splitlines()
        begun = [i for i, line in enumerate(lines) if line != "whole"]
        for i in begun:
            repeats, *chunk = map(int, lines[i].split())
            life = file.name.removeprefix("taken-")
            to_come = sum(later > i for later in begun)
            turn = Turn(
                tuple(chunk), life, repeats == 1, lines[i + 1 : i + 2] == ["whole"], to_come
            )
            if len(chunk) > 1:  # else it was idle
                by_chunk[turn.chunk].append(turn)
    return by_chunk


def check_turns(
    by_chunk: dict[tuple[int, ...], list[Turn]],
    elements: int,
    passes: int,
    dead: Iterable[str],
    transport: str = "shm",
) -> None:
    """Each element came once a pass, but for those that the dead had in hand.

    Over a network nobody may have heard that a dead rank had finished its turn and begun another:
    that one it has in hand then, and the other is no repeat to anybody.
    """
    every = Counter((n, element) for n in range(1, passes + 1) for element in range(elements))
    assert Counter((n, element) for n, *part in by_chunk for element in part) == every
    dead = set(dead)
    unseen = 0  # begun by a rank that was killed before it could write so
    unheard = 0  # begun by one that was killed before anybody heard so
    unheard_turns = 0 if transport == "shm" else 1
    for turns in by_chunk.values():
        in_hand = [turn for turn in turns if turn.life in dead and turn.to_come <= unheard_turns]
        assert len(turns) - len(in_hand) <= 1
        # Killed between two turns, a rank may have finished its last one or not.
        assert len(turns) > len(in_hand) or any(turn.is_whole for turn in in_hand)
        first_ones = sum(not turn.is_repeat for turn in turns)
        assert first_ones <= 1 + sum(turn.to_come == 0 for turn in in_hand) * unheard_turns
        unseen += max(1 - first_ones, 0)
        unheard += max(first_ones - 1, 0)
    assert unseen <= len(dead)
    assert unheard <= len(dead)
    assert sum(turn.is_repeat for turns in by_chunk.values() for turn in turns) <= len(dead)
