"""A collector's part in a job of several hosts: what it asks of the others, and answers them."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from malt._recording.collecting import Hosts
from malt._watching import pulls
from malt._watching.other_hosts import OtherHosts
from malt._watching.pulls import Answers, Pull, Puller, Sink

# How long the others may take, once all ranks have ended, until this host goes on without them.
_END_SECONDS = 45.0


class Exchange:
    """Not thread-safe.

    Attributes:
        hosts: this host's place.
        others: what they said last, for the dashboard.
        serving: once all ranks have ended, the node whose launcher keeps the books.
    """

    def __init__(
        self,
        hosts: Hosts,
        send: Callable[[int, bytes], None],
        summary: Callable[[int, bool], bytes],
    ) -> None:
        """`send` sends a message to a node, or drops it; `summary` is as for Answers."""
        self.hosts = hosts
        self._puller = Puller(send)
        self._send = send
        self._answers = Answers(summary)
        self.others = OtherHosts(hosts.node, hosts.nnodes, self._puller)
        self.serving: int | None = None
        self._wanted: list[Pull] = []
        self._ends_at: float | None = None

    def hear(self, node: int, message: bytes) -> None:
        """Handle a message of another host's collector; empty: that host is gone.

        Raises:
            struct.error: it is none.
        """
        if not message:
            self._puller.gone.add(node)
        elif message[:1] == b"?":
            if answer := self._answers.answer(node, message):
                self._send(node, answer)
        else:
            self._puller.hear(node, message)

    def advance(self) -> None:
        """Do what is due; call it again and again."""
        self._puller.advance()
        self.others.advance()
        for pull in list(self._wanted):
            if pull.is_done and pull.kind == pulls.TRACE and not self._is_taken(pull.node):
                self._want(pull.node, pulls.TAKEN, io.BytesIO())
            elif not pull.is_waiting and not pull.is_done and not self._is_hopeless(pull):
                self._puller.go_on(pull)

    # The end of the job

    def offer(self, kind: int, file: BinaryIO) -> None:
        """Let the others ask for this host's part."""
        self._answers.files[kind] = file

    def ask_all(self, kind: int, into: Callable[[int], Sink]) -> None:
        """Ask all others for their parts, each into its file."""
        for node in range(self.hosts.nnodes):
            if node != self.hosts.node and node not in self._puller.gone:
                self._want(node, kind, into(node))
        self._ends_at = self._ends_at or time.monotonic() + _END_SECONDS

    def is_finished(self) -> bool:
        """Return whether this host needs nothing more of the others, or has waited enough."""
        is_late = self._ends_at is not None and time.monotonic() >= self._ends_at
        return is_late or all(pull.is_done or self._is_hopeless(pull) for pull in self._wanted)

    def parts(self, kind: int) -> dict[int, Pull]:
        """Return the parts that have come, by node."""
        wanted = [one for one in self._wanted if one.kind == kind]
        return {one.node: one for one in wanted if one.is_done and one.offset > 0}

    def absent(self, kind: int) -> list[str]:
        """Say of each other host whose part has not come why."""
        asked = {one.node: one for one in self._wanted if one.kind == kind}
        found = []
        for node in sorted({*range(self.hosts.nnodes)} - {self.hosts.node, *self.parts(kind)}):
            if node in asked and asked[node].error:
                why = asked[node].error
            elif node in self._puller.gone:
                why = "it was lost"
            else:
                why = "it did not answer" if node in asked else "it was not asked"
            found.append(f"the ranks of node {node}: {why}")
        return found

    @property
    def has_been_taken(self) -> bool:
        """Whether the node that keeps the books has this host's part of the trace."""
        return self._answers.is_taken

    def shift(self, node: int) -> int:
        return self._puller.shift(node)

    def _want(self, node: int, kind: int, into: Sink) -> None:
        self._wanted.append(self._puller.begin(node, kind, into))

    def _is_taken(self, node: int) -> bool:
        return any(one.node == node and one.kind == pulls.TAKEN for one in self._wanted)

    def _is_hopeless(self, pull: Pull) -> bool:
        return bool(pull.error) or (pull.node in self._puller.gone and not pull.is_waiting)


class Part:
    """A file that is open only while something is written to it, for there may be many."""

    def __init__(self, path: Path) -> None:
        self._path = path
        discard(path)

    def write(self, data: bytes) -> int:
        with self._path.open("ab") as file:
            return file.write(data)


def file_of(data: bytes) -> BinaryIO:
    """Return a file without a name that has these bytes."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
    file.write(data)
    file.flush()
    return file


def packed(path: Path) -> BinaryIO:
    """Return a file without a name that has those of `path`, compressed."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
    with path.open("rb") as plain, gzip.GzipFile("", "wb", 1, file) as zipped:
        shutil.copyfileobj(plain, zipped)
    file.flush()
    return file


def node_file(path: Path, node: int, ending: str = "") -> Path:
    """Return the name of a node's own file, where the job's is `path`."""
    return path.with_name(f"{path.stem}.node{node}{path.suffix}{ending}")


def discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
