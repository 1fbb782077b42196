"""The processes of this host's ranks: their start, output and end, and what they leave running."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from malt._errors import describe_ranks
from malt._launch import orphans
from malt._launch.options import Options
from malt._launch.output import Sink, Stream
from malt._launch.rank_process import Rank
from malt._launch.signals import Relay
from malt._launch.starter import Starter
from malt._launch.tracebacks import Tracebacks
from malt._system_limits import reason, starting

_TICK = 0.02
# Processes that a rank has left running get this long to end by themselves.
_LEFTOVERS_SECONDS = 0.5
# A process outside the rank's group may keep the rank's output open; it is read this long.
_LINGER_SECONDS = 0.3


class HostRanks:
    """This host's ranks, also those that have ended. No other code here may reap children.

    Attributes:
        ranks: all processes that were started, one for each start of a rank.
        err: the launcher's standard error, on which it also writes lines of its own.
        selector: waits for the ranks' output and for signals; the launcher may add to it.
        relay: passes the launcher's signals on to the ranks.
        is_stopping: `stop` was called.
    """

    selector: selectors.BaseSelector
    relay: Relay

    def __init__(self, command: Sequence[str], options: Options) -> None:
        self.ranks: list[Rank] = []
        self.is_stopping = False
        self._command = list(command)
        self._options = options
        self._out, self.err = Sink.standard()
        self._tracebacks = Tracebacks()
        self._signals_due: list[tuple[float, int]] = []  # when to send which to the running ranks
        # A single rank may interact with the user, so it stays in the terminal's foreground group.
        self._is_interactive = options.most == options.nnodes == 1 and os.isatty(0)

    def open(self, stack: contextlib.ExitStack) -> None:
        """Get ready to start ranks; when `stack` is left, no rank is left running."""
        self._guard = orphans.Guard()
        stack.callback(self._guard.close)
        self._starter = Starter(self._command, self._options, self._guard, self._is_interactive)
        stack.callback(self._starter.close)
        if self._options.verbose and self._starter.said:
            self.err.say(f"malt run: {self._starter.said}")
        self.selector = stack.enter_context(selectors.DefaultSelector())
        relay = Relay(self.ranks, share_terminal=self._is_interactive)
        self.relay = stack.enter_context(relay)
        self.selector.register(relay.wakened, selectors.EVENT_READ)
        stack.callback(self._kill_all)

    def running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.ended is None]

    @property
    def is_any_left(self) -> bool:
        """Whether a rank runs, or something of a dead rank: its processes or its output."""
        return any(rank.ended is None or rank.has_group or rank.streams for rank in self.ranks)

    @property
    def is_ending(self) -> bool:
        """Whether the ranks were told to end, by `stop` or by a signal."""
        return self.is_stopping or self.relay.interrupted is not None

    # Start

    def start(
        self,
        ranks: Iterable[tuple[int, int, Mapping[str, str]]],
        size: int,
        limits: tuple[int, int],
    ) -> None:
        """Start ranks of a job of `size`: each one's number, its number here, its environment.

        `limits` are theirs on open files.

        Raises:
            malt.ConfigError: the limit on processes is reached.
        """
        launcher = os.getpid()
        register = None if self._is_interactive else self._guard.add
        release_signals = self.relay.hold()

        def prepare() -> None:  # in the child, between fork and exec
            if not self._is_interactive:
                # A group of its own, so that signals reach a rank once. Not a session: Linux
                # schedules each session as one (autogroup), and ranks on one core must yield to
                # one another.
                os.setpgrp()
            orphans.die_with(launcher)
            if register is not None:
                register(os.getpid())
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            release_signals()

        try:
            for rank, local_rank, environ in ranks:
                self._start(rank, local_rank, environ, size, prepare)
        finally:
            self.relay.release()
        if self._options.restarts is None and not self._options.elastic:
            self._starter.close()  # these are all

    def _start(
        self,
        rank: int,
        local_rank: int,
        environ: Mapping[str, str],
        size: int,
        prepare: Callable[[], None],
    ) -> None:
        options = self._options
        prefix = size > 1 if options.prefix is None else options.prefix
        # A single rank without a prefix writes to the launcher's own output: a terminal stays one.
        piped = size > 1 or prefix
        takes_input = rank == 0 and (size == 1 or not os.isatty(0))
        with starting(f"rank {rank}"):
            process, pipes = self._starter.start(environ, takes_input, piped, prepare)
        streams = []
        sinks = ((self._out, None), (self.err, self._tracebacks))
        for pipe, (sink, tracebacks) in zip(pipes, sinks, strict=False):
            stream = Stream(pipe, sink, rank if prefix else None, tracebacks)
            streams.append(stream)
            self.selector.register(pipe, selectors.EVENT_READ, stream)
        now = time.monotonic()
        has_group = not self._is_interactive
        self.ranks.append(Rank(rank, local_rank, process, now, has_group, streams))
        if options.verbose:
            self.err.say(f"malt run: rank {rank} is process {process.pid}")

    # Output

    def read(self, stream: Stream) -> None:
        """Pass on output that has come."""
        if not stream.read(time.monotonic()):
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        self.selector.unregister(stream.descriptor)
        stream.finish()
        for rank in self.ranks:
            if stream in rank.streams:
                rank.streams.remove(stream)

    # Ends

    def reap(self) -> Iterator[tuple[Rank, int]]:
        """Yield each rank that has ended, with its exit code (below 0: by a signal)."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if process == 0:
                return
            # None: the guard, the nursery, or an orphan of a rank.
            rank = next((one for one in self.running() if one.process.pid == process), None)
            if rank is None:
                self._starter.reaped(process, status)
                continue
            if os.WIFSTOPPED(status):
                self._note_stop(rank, signal.Signals(os.WSTOPSIG(status)).name)
            elif os.WIFCONTINUED(status):
                rank.stopped = None
            else:
                code = os.waitstatus_to_exitcode(status)
                self._note_end(rank, code)
                yield rank, code

    def _note_stop(self, rank: Rank, name: str) -> None:
        rank.stopped = time.monotonic()
        if rank.has_group:  # else the user has stopped it from the terminal, and knows
            self.err.say(
                f"malt run: rank {rank.rank} is stopped by {name}; it goes on after "
                f"kill -CONT {rank.process.pid}"
            )

    def _note_end(self, rank: Rank, code: int) -> None:
        now = time.monotonic()
        rank.ended = now
        rank.process.returncode = code
        for stream in rank.streams:
            stream.drain(now)
        quiet = now + _LEFTOVERS_SECONDS
        grace = self._options.grace_seconds
        rank.leftovers = [(quiet, signal.SIGTERM), (quiet + grace, signal.SIGKILL)]

    def stop(self) -> None:
        """Stop the running ranks: they get SIGTERM, and SIGKILL after their grace time."""
        # Ranks that have just got a signal to end have their grace time first.
        grace = self._options.grace_seconds
        start = time.monotonic() + (0 if self.relay.interrupted is None else grace)
        self.is_stopping = True
        self._signals_due = [(start, signal.SIGTERM), (start + grace, signal.SIGKILL)]

    def _abandoned_at(self) -> float | None:
        """Return when the ranks left, all of them stopped, are to be ended; None: not at all.

        That is once all others have ended. If none has, then something has stopped the whole job,
        and other hosts may have ranks that go on.
        """
        left = self.running()
        numbers = {rank.rank for rank in left}
        ended = [one.ended for one in self.ranks if one.ended and one.rank not in numbers]
        stopped = [rank.stopped for rank in left if rank.stopped]
        if self.is_ending or self._options.nnodes > 1 or not ended or len(stopped) < len(left):
            return None
        return max(ended + stopped) + self._options.grace_seconds if left else None

    def advance(self) -> None:
        """Do what is due: signals of `stop`, unfinished lines, what dead or stopped ranks left."""
        now = time.monotonic()
        if (at := self._abandoned_at()) is not None and at <= now:
            names = describe_ranks([rank.rank for rank in self.running()])
            self.err.say(
                f"malt run: {names}: still stopped {self._options.grace_seconds:g} s after the "
                "others ended; ending the job"
            )
            self.stop()
        self._send_due_signals(now)
        if (failure := self._out.failure) is not None:
            self._out.failure = None
            self.err.say(
                f"malt run: what ranks write is lost from here on: {reason(failure)}; they go on"
            )
        for rank in self.ranks:
            for stream in list(rank.streams):
                at = stream.show_at()
                if at is not None and at <= now:
                    stream.show()
                if stream.sink.has_no_reader:
                    self._finish(stream)  # the rank's next write fails, as the launcher's did
            if rank.ended is not None:
                self._clear_leftovers(rank, now)

    def seconds_to_next(self) -> float | None:
        """Return how long `advance` has nothing to do; None: until something happens."""
        now = time.monotonic()
        times = [at for at, _ in self._signals_due[:1]]
        if (abandoned := self._abandoned_at()) is not None:
            times.append(abandoned)
        for rank in self.ranks:
            times += [at for at in (stream.show_at() for stream in rank.streams) if at is not None]
            if rank.ended is not None and (rank.has_group or rank.streams):
                times.append(now + _TICK)
        return max(0.0, min(times) - now) if times else None

    def _send_due_signals(self, now: float) -> None:
        while self._signals_due and self._signals_due[0][0] <= now:
            _, number = self._signals_due.pop(0)
            left = self.running()
            for rank in left:
                rank.signal(number)
                rank.signal(signal.SIGCONT)  # a stopped process receives no other signal
            if left and number == signal.SIGKILL:
                names = ", ".join(str(rank.rank) for rank in left)
                self.err.say(
                    f"malt run: killed {'rank' if len(left) == 1 else 'ranks'} {names}: "
                    f"not stopped {self._options.grace_seconds:g} s after SIGTERM"
                )

    def _clear_leftovers(self, rank: Rank, now: float) -> None:
        """End the processes that a dead rank left in its process group; close its output."""
        assert rank.ended is not None
        if rank.has_group and (not rank.leftovers or not orphans.kill_group(rank.process.pid, 0)):
            rank.has_group = False
            self._guard.remove(rank.process.pid)
        if rank.has_group and rank.leftovers[0][0] <= now:
            orphans.kill_group(rank.process.pid, rank.leftovers.pop(0)[1])
        if not rank.has_group and now - rank.ended > _LINGER_SECONDS:
            for stream in list(rank.streams):
                stream.drain(now)
                self._finish(stream)

    def _kill_all(self) -> None:
        """Kill all ranks, after an error in the launcher or a start that failed half-way."""
        for rank in self.ranks:
            if rank.ended is None:
                rank.signal(signal.SIGKILL)
                rank.process.wait()
            elif rank.has_group:
                orphans.kill_group(rank.process.pid, signal.SIGKILL)
