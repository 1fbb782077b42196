"""Forms a subgroup: a group of some of a job's ranks, besides the job's own group.

All ranks of the job make the call, so that they agree on its arguments and learn of its failure:
the ranks of the subgroup exchange what they need through the job's group, and the others take part
in these exchanges until that is done.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from malt._alike import check_alike
from malt._core_import import Deadline, Group, Turns
from malt._errors import ConfigError, DamagedError, PeerError, describe_ranks
from malt._job import job as jobs
from malt._job.agreement import Report, Together

Made = TypeVar("Made")


class Subgroups:
    """Forms subgroups, one after the other, for one call. Collective over the live ranks.

    Args:
        call: names the call in errors.
    """

    def __init__(self, call: str) -> None:
        if jobs.current().generations is not None:
            raise ConfigError(
                f"{call}: a rank that rejoins could not enter it; start the job without --respawn "
                "and --elastic, and with --keep-going against deaths"
            )
        self._together = Together(call, None)
        self._job = jobs.current()
        self._steps = itertools.count(1)

    def agree(self, check: Callable[[], Report]) -> list[int]:
        """Check the arguments on all ranks, and that they are the same; return the live ranks.

        Args:
            check: raises ConfigError if an argument is wrong; else returns what must be the same.

        Raises:
            ConfigError: on all ranks, if it was raised on one or the ranks differ.
        """
        reports = self._together.step("the arguments", lambda: (None, check()))[1]
        check_alike(self._together.call, reports)
        return sorted(reports)

    def form(self, members: Sequence[int], build: Callable[[Group], Made]) -> Made | None:
        """Form the subgroup of `members`, the same on all ranks, and return build(group).

        It has the job's numbers of ranks and turns of its own: a call on it may wait in one thread
        while another thread uses the job. Returns None on a rank that is not in it.

        Raises:
            ConfigError: on all ranks, if it or `build` failed on one.
            PeerError: on all ranks, if a rank of the subgroup is dead or has left.
            TimeoutError: the ranks that the error names did not come.
        """
        listed = sorted(set(members))
        if self._job.rank not in listed:
            while not all(report["done"] for report in self._step(listed, None).values()):
                pass
            return None
        with self._together.waiting():
            return self._form(listed, build)

    def _form(self, listed: list[int], build: Callable[[Group], Made]) -> Made:
        in_step = False

        def allgather(data: bytes, _: Deadline) -> list[bytes]:
            nonlocal in_step
            in_step = True
            given = self._step(listed, data)
            in_step = False
            parts = [b""] * self._job.size
            for rank, report in given.items():
                parts[rank] = _data_of(rank, report)
            return parts

        job, group = self._job, None
        try:
            make = job.make_further(job.rank, job.size, Turns(), False)
            group = make(listed, allgather, self._together.deadline())
            with group.within(self._together.deadline()):
                made = build(group)
            in_step = True
            self._step(listed, None)
        except BaseException as error:
            if group is not None:
                group.leave(self._together.deadline().left)
            if isinstance(error, Exception) and not in_step:  # the others do not know of it yet
                failure = error
                self._together.step(self._next_name(), lambda: _raise(failure))
            raise
        return made

    def _step(self, members: Sequence[int], data: bytes | None) -> dict[int, Report]:
        """Give `data` to the others; return what the members gave. None: this rank is done."""
        mine = {"done": data is None, "data": base64.b64encode(data or b"").decode()}
        reports = self._together.step(self._next_name(), lambda: (None, mine))[1]
        if dead := set(members) - reports.keys():
            raise PeerError(f"{self._together.call}: {describe_ranks(dead)} died or left", dead)
        return {rank: reports[rank] for rank in members}

    def _next_name(self) -> str:
        return f"forming a subgroup, part {next(self._steps)}"


def _data_of(rank: int, report: Report) -> bytes:
    try:
        return base64.b64decode(report["data"])
    except (TypeError, ValueError) as error:
        raise DamagedError(f"what rank {rank} gave to form a subgroup is damaged") from error


def _raise(error: Exception) -> tuple[None, Report]:
    raise error
