"""Finds the recorders of ranks, by the memory that processes of this host have open."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import Recording
from malt._errors import ConfigError
from malt._recording import recorder_memory
from malt._rendezvous.wire import MAX_RANKS
from malt._watching.series import Point, Series

_MARK = f"/memfd:{recorder_memory.NAME}"


class Look(NamedTuple):
    """Totals of one rank up to a moment. Times are nanoseconds of the monotonic clock."""

    rank: int
    size: int
    process: int
    time: int
    state: str  # "runs", "stopped", "ended"
    totals: dict[str, int]  # since the rank began
    peers: npt.NDArray[np.uint64]  # by rank, as Recording.peers() says
    reports: dict[str, Point]  # by name: the last value of malt.report()

    @property
    def waits_for(self) -> int | None:
        """The rank for which it waits now; None: it does not wait, or not for a known rank."""
        rank = self.totals["waits_for"] - 1
        return rank if self.waits_seconds > 0 and 0 <= rank < self.size else None

    @property
    def waits_seconds(self) -> float:
        """How long the wait in progress has lasted; 0: there is none, or the rank has ended."""
        since = self.totals["waits_since"]
        is_waiting = since != 0 and self.state != "ended"
        return max(0.0, (self.time - since) / 1e9) if is_waiting else 0.0


class Source:
    """One rank's recorder.

    Attributes:
        series: by name: what the program has reported, as of the last look() or read_reports().
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.rank, self.size = recording.rank, recording.size
        self.series: dict[str, Series] = {}

    def look(self) -> Look:
        recording = self.recording
        state = state_of(recording.process)  # first: what an ended rank has recorded is final
        totals = recording.totals()
        return Look(
            rank=self.rank,
            size=self.size,
            process=recording.process,
            time=time.monotonic_ns(),
            state=state,
            totals=totals,
            peers=recording.peers(),
            reports=self.read_reports(),
        )

    def read_reports(self) -> dict[str, Point]:
        """Add what was reported since the last call to the series; return the last values."""
        reports = self.recording.read_reports().tolist()
        names = self.recording.report_names
        for at, update, value, name in reports:
            self.series.setdefault(names[name], Series()).add(Point(at, update, value))
        return {name: series.last for name, series in self.series.items()}


def state_of(process: int) -> str:
    """Return whether a process "runs", is "stopped" (SIGSTOP, a debugger), or has "ended"."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return "ended"
    letter = text.rpartition(")")[2].split()[0]
    return {"Z": "ended", "X": "ended", "T": "stopped", "t": "stopped"}.get(letter, "runs")


def find(process: int | None) -> list[Source]:
    """Return the recorders of a job of this host, by rank; the newest of each rank.

    Args:
        process: `malt run`, a rank, or another ancestor of ranks; None: the only job there is.

    Raises:
        malt.ConfigError: there is no such process or job, or it is not recorded, or there are
            several.
    """
    if process is not None:
        if not Path(f"/proc/{process}").exists():
            raise ConfigError(
                f"process {process} does not run on this host; `malt top` without a number finds "
                "the job, and `pgrep -f 'malt run'` the launchers"
            )
        processes = [process, *_descendants(process)]
        sources = _sources_of(processes)
        if not sources:
            raise ConfigError(_unrecorded(processes, f"by process {process} or what it started"))
        return _newest(sources)
    processes = _processes()
    sources = _sources_of(processes)
    if not sources:
        raise ConfigError(_unrecorded(processes, "on this host, that you may look at"))
    jobs = {_job_of(source) for source in sources.values()}
    if len(jobs) > 1:
        pids = ", ".join(str(pid) for pid in sorted(jobs))
        raise ConfigError(f"several jobs run on this host: name one, of the processes {pids}")
    return _newest(sources)


def _unrecorded(processes: Iterable[int], where: str) -> str:
    users = set()
    for path in _recorders_of(processes):
        with contextlib.suppress(OSError):  # it closes meanwhile
            users.add(os.stat(path).st_uid)
    if os.geteuid() in users:
        return "no rank has begun to record: try again once the ranks have called malt.init()"
    if users:
        others = ", ".join(map(str, sorted(users)))
        return (
            f"what is recorded {where} is of user {others}, and you are user {os.geteuid()}; only "
            "records of your own are read: run this command as that user, with `setpriv "
            f"--reuid={min(users)} --clear-groups`"
        )
    return (
        f"nothing is recorded {where}: start the job with `malt run --record` (or --trace, "
        "--metrics, …), or with MALT_RECORD=1 under another launcher. Only its own user sees it, "
        "in the same container"
    )


def _newest(sources: dict[tuple[int, int], Source]) -> list[Source]:
    """Keep one recorder a rank: a rank that was started again has one for each of its processes."""
    by_rank: dict[int, Source] = {}
    for source in sources.values():
        other = by_rank.get(source.rank)
        if other is None or source.recording.began > other.recording.began:
            by_rank[source.rank] = source
    return [by_rank[rank] for rank in sorted(by_rank)]


def _job_of(source: Source) -> int:
    """Return the process that started the rank, or the rank's own if that has ended."""
    return _parent_of(source.recording.process) or source.recording.process


def _parent_of(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:  # it has ended
        return 0
    return int(text.rpartition(")")[2].split()[1])


def _sources_of(processes: Iterable[int]) -> dict[tuple[int, int], Source]:
    """Open the recorders that these processes have open, once each, by device and inode."""
    sources: dict[tuple[int, int], Source] = {}
    for path in _recorders_of(processes):
        with contextlib.suppress(OSError, ConfigError):  # it closes meanwhile; nobody has begun
            # O_NONBLOCK: another user may have given a pipe the name of a memory file.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                key = (status.st_dev, status.st_ino)
                if key not in sources and _is_believed(status):
                    sources[key] = Source(Recording(descriptor))
            finally:
                os.close(descriptor)
    return sources


def _is_believed(status: os.stat_result) -> bool:
    """Return whether it may be a recorder's memory that a job of this user has made.

    Root looks into the processes of all users, and these may write what they like.
    """
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_own and status.st_size <= recorder_memory.bytes_for(MAX_RANKS)


def _recorders_of(processes: Iterable[int]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(OSError):  # it ends meanwhile, or is another user's
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                path = f"/proc/{process}/fd/{descriptor}"
                with contextlib.suppress(OSError):
                    if os.readlink(path).startswith(_MARK):
                        yield path


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for one in _processes():
        children.setdefault(_parent_of(one), []).append(one)
    found: list[int] = []
    left = [process]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
