"""The recorder of this process: MALT_RECORD, MALT_TRACE, MALT_TENSORBOARD or a launcher asks."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from malt._arguments import variable
from malt._core_import import Group, Recorder
from malt._errors import ConfigError
from malt._recording import recorder_memory, tensorboard
from malt._recording.collecting import Collecting

log = logging.getLogger("malt")

# How long the rank that started the collector waits at its end, for the other ranks of its host to
# end and for the file. The collector goes on if that is too short.
_END_SECONDS = 10.0

_made: tuple[int, Recorder] | None = None  # by which process, and its recorder
_present: Recorder | None = None  # the one in use: as _made, or none in a job that is not recorded
_is_collected = False  # a launcher collects what is recorded
_collecting: tuple[int, Collecting] | None = None  # by which process it was started


def recorder_of(rank: int, size: int) -> Recorder | None:
    """Return the recorder of this process, which is a rank, or None if it is not to be recorded.

    A process keeps its recorder to its end, also from one job to the next.

    Raises:
        ConfigError: MALT_RECORD is wrong, there is no memory for a recorder, or no file for
            TensorBoard can be written.
    """
    global _made, _present
    _present = None
    asked = variable("MALT_RECORD")
    if asked not in ("0", "1", ""):
        raise ConfigError(f"MALT_RECORD is {asked!r}; it is 1 (record) or 0")
    others = ("MALT_TRACE", "MALT_TENSORBOARD")
    if asked != "1" and not any(map(variable, others)):
        return None
    if _made is None or _made[0] != os.getpid():
        _made = (os.getpid(), _make(rank, size))
    recorder = _made[1]
    if (recorder.rank, recorder.size) != (rank, size):
        log.warning(
            "malt: this process recorded as rank %d of %d, and is not recorded as rank %d of %d",
            *(recorder.rank, recorder.size, rank, size),
        )
        return None
    tensorboard.open_for(rank)
    _present = recorder
    return recorder


def present() -> Recorder | None:
    """Return the recorder of the job that this process has joined last, or None."""
    return _present


def _make(rank: int, size: int) -> Recorder:
    """Use the memory that the launcher gave, or make some. The rank's children get neither."""
    global _is_collected
    given = os.environ.pop("MALT_RECORD_FD", "")
    _is_collected = bool(given)
    descriptor = int(given) if given else recorder_memory.make(size)
    try:
        return Recorder(descriptor, rank, size)  # it keeps a descriptor of its own
    finally:
        os.close(descriptor)


def collect(recorder: Recorder | None, group: Group) -> None:
    """Start what writes MALT_TRACE, in the lowest rank of each host. Collective.

    Raises:
        ConfigError: the file cannot be written.
    """
    global _collecting
    path = variable("MALT_TRACE")
    if recorder is None or not path or _is_collected or _collecting is not None:
        return
    posts = group.exchange("MALT_TRACE", f"{os.getpid()} {recorder.fd}".encode())
    here = [r for r in range(group.size) if group.route(r).transport in ("self", "shm")]
    if here[0] != group.rank:
        return
    file = Path(path).absolute()
    if group.rank != 0:
        file = file.with_name(f"{file.stem}.rank{group.rank}{file.suffix}")
    recorder_memory.check_writable(file, "MALT_TRACE")
    _collecting = (os.getpid(), Collecting(str(file)))
    for post in (posts[r] for r in here):
        if post is not None:  # else it is dead
            _add(*map(int, post.split()))


def _add(process: int, descriptor: int) -> None:
    assert _collecting is not None
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # it has died meanwhile
    _collecting[1].add(opened)
    os.close(opened)


def finish() -> None:
    """Let TensorBoard's file be written, and the trace by the process that began to collect."""
    global _collecting
    tensorboard.close()
    if _collecting is not None and _collecting[0] == os.getpid():
        _collecting[1].close(_END_SECONDS)
        _collecting = None
