"""Collective calls that go on in the next group when their group is superseded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from malt._core_import import Deadline, Group
from malt._errors import ConfigError, SupersededError
from malt._job import job as jobs
from malt._job.numbering import recount
from malt._mistakes import missed
from malt._vector_types import AnyVector, Movable

Result = TypeVar("Result")
Made = TypeVar("Made", bound=Movable)


def call(name: str, step: Callable[[Group], Result]) -> Result:
    """Run a collective step of the call `name`, again in the next group if it is superseded."""
    with jobs.current().turns.hold(name):
        while True:
            try:
                return step(jobs.current().group)
            except SupersededError:
                jobs.regroup()


def make(
    build: Callable[[Group, bool], Made],
    description: str,
    *,
    has_shared_values: bool = True,
    is_of_loop: bool = True,
    deadline: Deadline | None = None,
) -> Made:
    """Make a vector by `build(group, rejoins)` and count it; a failed one uses up no name.

    With `has_shared_values`, a rejoining rank gets its values from another rank (handover.py). With
    `is_of_loop`, a rejoining rank that has used it is where the others are.

    All waits for other ranks end by the deadline, or within the job's time limit. If ranks rejoin,
    each wait has that limit, since the group may change meanwhile.
    """
    job = jobs.current()
    with job.turns.hold("making a vector"):
        generations = job.generations
        try:
            if generations is None:
                with job.within(job.deadline() if deadline is None else deadline):
                    made = build(job.group, False)
            else:

                def step(group: Group) -> Made:
                    made = build(group, False)
                    generations.add(made, description, has_shared_values, is_of_loop)
                    return made

                made = generations.rejoin(
                    build, description, has_shared_values, is_of_loop
                ) or call("making a vector", step)
        except ConfigError as error:
            job.vectors = recount(job.vectors, error)
            raise
        job.vectors += 1
        if has_shared_values and job.size > 1:
            missed.note_made(cast(AnyVector, made))
        return made
