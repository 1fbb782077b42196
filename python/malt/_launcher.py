"""Starts the ranks of a job on this host, and stays with them to the end."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from malt import _guard
from malt._errors import ConfigError
from malt._output import Sink, Stream
from malt._rank import Rank, describe_end
from malt._relay import Relay
from malt._rendezvous_server import Server

_TICK = 0.02
# What a rank has left running may end by itself, before it is told to.
_LEFTOVERS_SECONDS = 0.5
# A process outside the rank's group may hold its output open.
_LINGER_SECONDS = 0.3


@dataclass
class Options:
    """How to start the ranks, and what to do when one fails."""

    size: int
    keep_going: bool = False
    prefix: bool | None = None  # None: when there are several ranks
    grace_seconds: float = 5.0
    environ: dict[str, str] = field(default_factory=dict)
    verbose: bool = False


class Launcher:
    """One job. `run` once; it must be the only one in its process that reaps children."""

    def __init__(self, command: Sequence[str], options: Options) -> None:
        self._command = list(command)
        self._options = options
        self._out, self._err = Sink.standard()
        self._ranks: list[Rank] = []
        self._exit_code = 0
        self._is_stopping = False
        self._stop: list[tuple[float, int]] = []  # what to send to the ranks that are left, when
        # A single rank may talk with the user: it stays in the terminal's foreground group.
        self._is_interactive = options.size == 1 and os.isatty(0)

    def run(self) -> int:
        """Start the ranks and wait for all; returns the first bad exit code, or 0."""
        _check_descriptors(self._options.size)
        _guard.adopt_orphans()
        with contextlib.ExitStack() as stack:
            self._server = Server(self._options.size)
            stack.callback(self._server.close)
            stack.enter_context(warnings.catch_warnings())
            # Python 3.12 warns of forking with NumPy's threads, which the children do not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._guard = _guard.Guard()
            stack.callback(self._guard.close)
            self._selector = selectors.DefaultSelector()
            stack.callback(self._selector.close)
            relay = Relay(self._ranks, share_terminal=self._is_interactive)
            self._relay = stack.enter_context(relay)
            self._selector.register(relay.wakened, selectors.EVENT_READ)
            stack.callback(self._kill_all)
            self._start_all()
            self._server.start()  # a thread: only now that nothing is forked any more
            while self._step():
                pass
        return self._exit_code

    # Start

    def _start_all(self) -> None:
        limits = _raise_descriptor_limit(self._options.size)
        launcher = os.getpid()
        register = None if self._is_interactive else self._guard.add
        release_signals = self._relay.hold()

        def prepare() -> None:  # in the child, between fork and exec
            if not self._is_interactive:
                # A group, so that signals reach a rank once; not a session, since Linux schedules
                # each session as one (autogroup) and ranks on one core must yield to one another.
                os.setpgrp()
            _guard.die_with(launcher)
            if register is not None:
                register(os.getpid())
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            release_signals()

        try:
            for rank in range(self._options.size):
                self._start(rank, prepare)
        finally:
            self._relay.release()

    def _start(self, rank: int, prepare: Callable[[], None]) -> None:
        options = self._options
        prefix = options.size > 1 if options.prefix is None else options.prefix
        # One rank without a prefix writes to the launcher's own output: a terminal stays one.
        piped = options.size > 1 or prefix
        stdin = (
            None if rank == 0 and (options.size == 1 or not os.isatty(0)) else subprocess.DEVNULL
        )
        process = subprocess.Popen(
            self._command,
            stdin=stdin,
            stdout=subprocess.PIPE if piped else None,
            stderr=subprocess.PIPE if piped else None,
            bufsize=0,
            env={**os.environ, **options.environ, **self._server.environ(rank)},
            preexec_fn=prepare,  # safe: there is one thread
        )
        streams = []
        for pipe, sink in ((process.stdout, self._out), (process.stderr, self._err)):
            if pipe is not None:
                stream = Stream(os.dup(pipe.fileno()), sink, rank if prefix else None)
                pipe.close()
                streams.append(stream)
                self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        now = time.monotonic()
        self._ranks.append(Rank(rank, process, now, not self._is_interactive, streams))
        if options.verbose:
            self._err.say(f"malt run: rank {rank} is process {process.pid}")

    # The main loop

    def _step(self) -> bool:
        """Wait for the next thing to happen and deal with it; False when all is over."""
        for key, _ in self._selector.select(self._seconds_to_next(time.monotonic())):
            if key.fileobj is self._relay.wakened:
                with contextlib.suppress(BlockingIOError):
                    while self._relay.wakened.recv(4096):
                        pass
            elif not key.data.read(time.monotonic()):
                self._finish(key.data)
        self._report_signals()
        self._reap()
        now = time.monotonic()
        self._advance_stop(now)
        for rank in self._ranks:
            for stream in list(rank.streams):
                at = stream.show_at()
                if at is not None and at <= now:
                    stream.show()
                if stream.sink.is_broken:
                    self._finish(stream)  # the rank's next write fails, as the launcher's did
            if rank.ended is not None:
                self._clear_leftovers(rank, now)
        return any(rank.ended is None or rank.has_group or rank.streams for rank in self._ranks)

    def _seconds_to_next(self, now: float) -> float | None:
        times = [at for at, _ in self._stop[:1]]
        for rank in self._ranks:
            times += [at for at in (stream.show_at() for stream in rank.streams) if at is not None]
            if rank.ended is not None and (rank.has_group or rank.streams):
                times.append(now + _TICK)
        return max(0.0, min(times) - now) if times else None

    def _report_signals(self) -> None:
        while self._relay.received:
            name = signal.Signals(self._relay.received.pop(0)).name
            if name == "SIGINT" and any(rank.ended is None for rank in self._ranks):
                self._err.say("malt run: SIGINT passed on to the ranks; once more kills them")
            elif self._options.verbose:
                self._err.say(f"malt run: {name} passed on to the ranks")

    def _finish(self, stream: Stream) -> None:
        self._selector.unregister(stream.descriptor)
        stream.finish()
        for rank in self._ranks:
            if stream in rank.streams:
                rank.streams.remove(stream)

    # Ends

    def _reap(self) -> None:
        by_process = {rank.process.pid: rank for rank in self._ranks}
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            if process in by_process:  # else the guard, or an orphan of a rank's
                self._rank_ended(by_process[process], os.waitstatus_to_exitcode(status))

    def _rank_ended(self, rank: Rank, code: int) -> None:
        now = time.monotonic()
        rank.ended = now
        rank.process.returncode = code
        for stream in rank.streams:
            stream.drain(now)
        self._server.rank_ended(rank.rank, rank.process.pid, describe_end(code))
        grace = self._options.grace_seconds
        quiet = now + _LEFTOVERS_SECONDS
        rank.leftovers = [(quiet, signal.SIGTERM), (quiet + grace, signal.SIGKILL)]
        if code == 0:
            return
        is_first = self._exit_code == 0
        if is_first:
            self._exit_code = code if code > 0 else 128 - code
        self._report(rank, code, now)
        if is_first and not self._options.keep_going:
            # Ranks that have just been told to end get their time first.
            start = now if self._relay.interrupted is None else now + grace
            self._is_stopping = True
            self._stop = [(start, signal.SIGTERM), (start + grace, signal.SIGKILL)]

    def _report(self, rank: Rank, code: int, now: float) -> None:
        if self._is_stopping or self._relay.interrupted is not None:
            return  # it was told to
        others = sum(other.ended is None for other in self._ranks)
        what = f"rank {rank.rank} {describe_end(code)} after {now - rank.started:.1f} s"
        if others == 0:
            then = ""
        elif self._options.keep_going:
            then = f"; {others} go on" if others > 1 else "; 1 goes on"
        else:
            then = "; stopping the others (--keep-going leaves them running)"
        self._err.say(f"malt run: {what}{then}")

    def _advance_stop(self, now: float) -> None:
        while self._stop and self._stop[0][0] <= now:
            _, number = self._stop.pop(0)
            left = [rank for rank in self._ranks if rank.ended is None]
            for rank in left:
                rank.signal(number)
                rank.signal(signal.SIGCONT)  # a stopped process takes no other
            if left and number == signal.SIGKILL:
                names = ", ".join(str(rank.rank) for rank in left)
                self._err.say(
                    f"malt run: killed {'rank' if len(left) == 1 else 'ranks'} {names}: "
                    f"not stopped {self._options.grace_seconds:g} s after SIGTERM"
                )

    def _clear_leftovers(self, rank: Rank, now: float) -> None:
        """End what a rank that has ended left running in its process group; close its output."""
        assert rank.ended is not None
        if rank.has_group and (not rank.leftovers or not _guard.kill_group(rank.process.pid, 0)):
            rank.has_group = False
            self._guard.remove(rank.process.pid)
        if rank.has_group and rank.leftovers[0][0] <= now:
            _guard.kill_group(rank.process.pid, rank.leftovers.pop(0)[1])
        if not rank.has_group and now - rank.ended > _LINGER_SECONDS:
            for stream in list(rank.streams):
                stream.drain(now)
                self._finish(stream)

    def _kill_all(self) -> None:
        """After an error of the launcher's own, or of a start that failed half-way."""
        for rank in self._ranks:
            if rank.ended is None:
                rank.signal(signal.SIGKILL)
                rank.process.wait()
            elif rank.has_group:
                _guard.kill_group(rank.process.pid, signal.SIGKILL)


def _descriptors_needed(size: int) -> int:
    return 3 * size + 64  # two pipes and a session each


def _check_descriptors(size: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _descriptors_needed(size)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"{size} ranks need {needed} open files in the launcher, the limit is {hard}: fewer "
            "ranks, or raise it (ulimit -Hn)"
        )


def _raise_descriptor_limit(size: int) -> tuple[int, int]:
    """Allow the launcher the descriptors it needs; returns the limits as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _descriptors_needed(size):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors_needed(size), hard))
    return soft, hard
