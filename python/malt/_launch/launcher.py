"""Starts this host's ranks of a job, and stays with them to the end."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import secrets
import selectors
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from malt._errors import ConfigError, describe_ranks
from malt._launch import orphans
from malt._launch.output import Sink, Stream
from malt._launch.rank_process import Rank
from malt._launch.scale import ScaleServer
from malt._launch.signals import Relay
from malt._launch.tracebacks import Tracebacks
from malt._rendezvous import wire
from malt._rendezvous.exit_code import describe_end, exit_code_of
from malt._rendezvous.node_session import (
    Answer,
    Begin,
    Done,
    Failed,
    Few,
    Kill,
    Leave,
    Lost,
    Node,
    Over,
)
from malt._rendezvous.server import Server

_TICK = 0.02
# Processes that a rank has left running get this long to end by themselves.
_LEFTOVERS_SECONDS = 0.5
# A process outside the rank's group may keep the rank's output open; it is read this long.
_LINGER_SECONDS = 0.3


@dataclass
class Options:
    """How to start the ranks, and what to do when a rank fails."""

    ranks: int  # here, at first
    nnodes: int = 1
    node: int = 0
    rendezvous: str = ""  # for several nodes: the address where node 0 listens
    key: bytes = b""  # for several nodes: the key that all of them know
    start_seconds: float = 30.0
    keep_going: bool = False
    restarts: int | None = None  # of each rank, at most; None: no rank can rejoin the job
    elastic: range = range(0)  # how many ranks may run in the whole job; empty: as many as at first
    prefix: bool | None = None  # None: when there are several ranks
    grace_seconds: float = 5.0
    environ: dict[str, str] = field(default_factory=dict)
    verbose: bool = False

    @property
    def most(self) -> int:
        """How many ranks may run here."""
        return self.elastic[-1] if self.elastic else self.ranks


class Launcher:
    """One job, on this node. Call `run` once; no other code in the process may reap children."""

    def __init__(self, command: Sequence[str], options: Options) -> None:
        self._command = list(command)
        self._options = options
        self._out, self._err = Sink.standard()
        self._tracebacks = Tracebacks()
        self._ranks: list[Rank] = []
        self._starts: Counter[int] = Counter()  # by rank: starts since the job began
        self._restarts: Counter[int] = Counter()  # by rank: starts because it failed
        self._leaving: set[int] = set()  # ranks that have been asked to leave
        self._last_death = 0  # the exit code of the rank that was started again last
        self._late_code: int | None = None  # the exit code for ranks that came too late to rejoin
        self._exit_code = 0
        self._is_stopping = False
        self._stop: list[tuple[float, int]] = []  # when to send which signal to the remaining ranks
        # A single rank may interact with the user, so it stays in the terminal's foreground group.
        self._is_interactive = options.most == options.nnodes == 1 and os.isatty(0)
        self._is_done = False  # no rank is left, on any node, that another could rejoin
        self._is_over = False  # the other nodes will send no more events
        self._scale: ScaleServer | None = None

    def run(self) -> int:
        """Start the ranks and wait for all; return the job's first bad exit code, or 0.

        Raises:
            malt.ConfigError: such a job is impossible.
            malt.TimeoutError: not all nodes have come.
        """
        check_descriptors(self._options.most, self._options.most)
        orphans.adopt_orphans()
        with contextlib.ExitStack() as stack:
            server = self._meet(stack)
            stack.enter_context(warnings.catch_warnings())
            # Python 3.12 warns of forking beside NumPy's threads, which the children do not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._guard = orphans.Guard()
            stack.callback(self._guard.close)
            self._selector = selectors.DefaultSelector()
            stack.callback(self._selector.close)
            relay = Relay(self._ranks, share_terminal=self._is_interactive)
            self._relay = stack.enter_context(relay)
            self._selector.register(relay.wakened, selectors.EVENT_READ)
            self._selector.register(self._node, selectors.EVENT_READ)
            stack.callback(self._kill_all)
            self._limits = _raise_descriptor_limit(self._options.most, self._sessions)
            first = self._node.first
            self._start_all((first + local, local) for local in range(self._options.ranks))
            if server is not None:
                server.start()
            if self._options.elastic:
                self._open_to_scale(stack)
            while self._step():
                pass
            if server is not None and not server.has_met_ranks:
                self._say_nobody_joined()
        return self._exit_code

    # Start

    def _meet(self, stack: contextlib.ExitStack) -> Server | None:
        """Wait for the launchers of the other nodes; node 0's launcher has the server."""
        options = self._options
        server = None
        address, key = options.rendezvous, options.key
        if options.nnodes == 1:
            key = secrets.token_bytes(wire.KEY_BYTES)
            server = Server(1, key)
        elif options.node == 0:
            server = Server(options.nnodes, key, *wire.parse_address(address, "--rendezvous"))
        if server is not None:
            stack.callback(server.close)
            address = server.address
        self._node = Node(address, key, options.node, options.nnodes)
        stack.callback(self._node.abort)
        come_back = options.restarts is not None
        self._node.start(
            options.ranks,
            options.start_seconds,
            server,
            come_back=come_back,
            elastic=options.elastic,
        )
        self._sessions = options.most if server is None else self._node.size + options.nnodes
        check_descriptors(options.most, self._sessions)
        if options.verbose and options.nnodes > 1:
            self._err.say(
                f"malt run: node {options.node} of {options.nnodes} starts {options.ranks} of "
                f"{self._node.size} ranks, from rank {self._node.first} on"
            )
        return server

    def _start_all(self, ranks: Iterable[tuple[int, int]]) -> None:
        """Start ranks, each given as its rank and its number on this host."""
        limits = self._limits
        launcher = os.getpid()
        register = None if self._is_interactive else self._guard.add
        release_signals = self._relay.hold()

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
            for rank, local_rank in ranks:
                self._start(rank, local_rank, prepare)
        finally:
            self._relay.release()

    def _start(self, rank: int, local_rank: int, prepare: Callable[[], None]) -> None:
        options = self._options
        size = self._node.size
        prefix = size > 1 if options.prefix is None else options.prefix
        # A single rank without a prefix writes to the launcher's own output: a terminal stays one.
        piped = size > 1 or prefix
        stdin = None if rank == 0 and (size == 1 or not os.isatty(0)) else subprocess.DEVNULL
        environ = {**os.environ, **options.environ, **self._node.environ(rank, local_rank)}
        if options.restarts is not None:
            environ["MALT_RESTARTS"] = str(self._starts[rank])
        process = subprocess.Popen(
            self._command,
            stdin=stdin,
            stdout=subprocess.PIPE if piped else None,
            stderr=subprocess.PIPE if piped else None,
            bufsize=0,
            env=environ,
            # Safe: the only other thread, the server's, holds no lock that this function needs.
            preexec_fn=prepare,
        )
        streams = []
        for pipe, sink, tracebacks in (
            (process.stdout, self._out, None),
            (process.stderr, self._err, self._tracebacks),
        ):
            if pipe is not None:
                shown_as = rank if prefix else None
                stream = Stream(os.dup(pipe.fileno()), sink, shown_as, tracebacks)
                pipe.close()
                streams.append(stream)
                self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        now = time.monotonic()
        has_group = not self._is_interactive
        self._ranks.append(Rank(rank, local_rank, process, now, has_group, streams))
        if options.verbose:
            self._err.say(f"malt run: rank {rank} is process {process.pid}")

    # The main loop

    def _step(self) -> bool:
        """Wait for the next events and handle them; return False when all is over."""
        for key, _ in self._selector.select(self._seconds_to_next(time.monotonic())):
            if key.fileobj is self._relay.wakened:
                with contextlib.suppress(BlockingIOError):
                    while self._relay.wakened.recv(4096):
                        pass
            elif key.fileobj is self._node:
                self._hear()
            elif key.fileobj is self._scale:
                self._scale.hear()
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
        here = any(rank.ended is None or rank.has_group or rank.streams for rank in self._ranks)
        return here or not self._is_over

    def _seconds_to_next(self, now: float) -> float | None:
        times = [at for at, _ in self._stop[:1]]
        for rank in self._ranks:
            times += [at for at in (stream.show_at() for stream in rank.streams) if at is not None]
            if rank.ended is not None and (rank.has_group or rank.streams):
                times.append(now + _TICK)
        return max(0.0, min(times) - now) if times else None

    def _report_signals(self) -> None:
        if self._relay.ending_unheard and not self._is_over:
            self._leave()  # only other nodes' ranks are left, and the user does not wait for them
            self._exit_code = self._exit_code or 128 + self._relay.ending_unheard
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
            if process in by_process:  # otherwise it is the guard, or an orphan of a rank
                self._rank_ended(by_process[process], os.waitstatus_to_exitcode(status))

    def _rank_ended(self, rank: Rank, code: int) -> None:
        now = time.monotonic()
        rank.ended = now
        rank.process.returncode = code
        for stream in rank.streams:
            stream.drain(now)
        grace = self._options.grace_seconds
        quiet = now + _LEFTOVERS_SECONDS
        rank.leftovers = [(quiet, signal.SIGTERM), (quiet + grace, signal.SIGKILL)]
        what = f"{self._describe(rank.rank, self._node.node)} {describe_end(code)}"
        what += f" after {now - rank.started:.1f} s"
        most = self._options.restarts
        is_wanted = rank.rank not in self._leaving and not self._is_ending()
        if code != 0 and most is not None and is_wanted:
            if self._restarts[rank.rank] == most:
                what += f", and has been started again {most} times" if most else ""
            elif self._is_one_left():
                self._restart(rank, code, what)
                return
            else:
                what += "; not started again: the others have ended"
        if self._late_code is not None:
            code = self._late_code
        self._node.rank_ended(rank.rank, rank.process.pid, code)
        if code != 0:
            self._failed(what, code)

    def _is_ending(self) -> bool:
        return self._is_stopping or self._relay.interrupted is not None

    def _is_one_left(self) -> bool:
        """Return whether a rank may be left to rejoin; a job of one rank needs none."""
        may_be_elsewhere = self._node.nnodes > 1 and not self._is_done
        is_alone = self._node.size == 1
        return is_alone or may_be_elsewhere or any(other.ended is None for other in self._ranks)

    def _restart(self, rank: Rank, code: int, what: str) -> None:
        # Its leftover processes go first: they may hold what the next process needs.
        rank.signal(signal.SIGKILL)
        self._node.rank_restarts(rank.rank, rank.process.pid)
        self._restarts[rank.rank] += 1
        self._starts[rank.rank] += 1
        self._last_death = code
        count, most = self._restarts[rank.rank], self._options.restarts
        self._err.say(f"malt run: {what}; started again, {count} of {most}")
        if not self._is_started(rank.rank, rank.local_rank):
            self._node.rank_ended(rank.rank, rank.process.pid, code)
            self._failed(what, code)

    def _is_started(self, rank: int, local_rank: int) -> bool:
        """Start a rank while others run; they go on if the system cannot start it."""
        try:
            self._start_all([(rank, local_rank)])
        except OSError as error:
            what = self._describe(rank, self._node.node)
            self._err.say(f"malt run: {what} cannot be started: {error}")
            return False
        return True

    def _hear(self) -> None:
        for event in self._node.hear():
            match event:
                case Failed(node, rank, code):
                    self._failed(f"{self._describe(rank, node)} {describe_end(code)}", code)
                case Lost(node):
                    if node == 0:
                        self._leave()
                    what = "its `malt run` was ended, or the network fails"
                    self._failed(f"node {node} is lost: {what}", 1)
                case Kill(rank, process):
                    for one in self._ranks:
                        if (one.rank, one.process.pid) == (rank, process) and one.ended is None:
                            one.signal(signal.SIGKILL)
                case Done():
                    self._is_done = True
                    self._stop_late_ones()
                case Begin(rank, starts):
                    self._begin(rank, starts)
                case Leave(rank):
                    self._leaving.add(rank)
                case Few(left):
                    self._stop_few(left)
                case Answer(is_done, text) if self._scale is not None:
                    self._scale.answer(is_done, text)
                case Over(code):
                    self._exit_code = code
                    self._leave()

    def _leave(self) -> None:
        """Stop listening to events of other nodes."""
        if not self._is_over:
            self._is_over = True
            self._selector.unregister(self._node)
            if self._scale is not None:
                self._scale.refuse_all("the job ends")

    def _describe(self, rank: int, node: int) -> str:
        return f"rank {rank} on node {node}" if self._node.nnodes > 1 else f"rank {rank}"

    def _failed(self, what: str, code: int) -> None:
        """Handle the failure of a rank on any node, or of a whole node with code 1."""
        is_first = self._exit_code == 0
        if is_first:
            self._exit_code = exit_code_of(code)
        # In an elastic job, as long as node 0 is there, it counts the ranks and may send Few.
        is_counted = bool(self._options.elastic) and not self._is_over
        goes_on = self._options.keep_going or is_counted
        self._report(what, goes_on)
        if not goes_on and not self._is_stopping:
            self._stop_all()

    def _stop_all(self) -> None:
        # Ranks that have just got a signal to end have their grace time first.
        grace = self._options.grace_seconds
        start = time.monotonic() + (0 if self._relay.interrupted is None else grace)
        self._is_stopping = True
        self._stop = [(start, signal.SIGTERM), (start + grace, signal.SIGKILL)]

    def _stop_late_ones(self) -> None:
        """Stop the ranks that were to rejoin, now that no rank is left for them."""
        late = [rank.rank for rank in self._ranks if rank.ended is None]
        if not late or self._is_ending():
            return
        names = describe_ranks(late)
        self._err.say(f"malt run: {names} had not come back when the others ended; stopping")
        self._late_code = self._last_death
        self._exit_code = self._exit_code or exit_code_of(self._late_code)
        self._stop_all()

    def _say_nobody_joined(self) -> None:
        """Say that no rank called malt.init(), unless there was one rank or one ended badly."""
        if self._node.size > 1 and self._exit_code == 0 and not self._is_ending():
            self._err.say(
                f"malt run: none of the {self._node.size} processes called malt.init(): each "
                "ran by itself (a program that finds its ranks by MPI takes mpirun or srun)"
            )

    def _report(self, what: str, goes_on: bool) -> None:
        if self._is_ending():
            return  # the rank was told to end
        others = sum(other.ended is None for other in self._ranks)
        several = self._node.nnodes > 1
        then = ""
        if not goes_on and (others or several):
            then = "; stopping the others (--keep-going leaves them running)"
        elif others:
            go_on = "left" if self._options.elastic else "go on" if others > 1 else "goes on"
            then = f"; {others} {go_on}" + (" here" if several else "")
        self._err.say(f"malt run: {what}{then}")

    def _advance_stop(self, now: float) -> None:
        while self._stop and self._stop[0][0] <= now:
            _, number = self._stop.pop(0)
            left = [rank for rank in self._ranks if rank.ended is None]
            for rank in left:
                rank.signal(number)
                rank.signal(signal.SIGCONT)  # a stopped process receives no other signal
            if left and number == signal.SIGKILL:
                names = ", ".join(str(rank.rank) for rank in left)
                self._err.say(
                    f"malt run: killed {'rank' if len(left) == 1 else 'ranks'} {names}: "
                    f"not stopped {self._options.grace_seconds:g} s after SIGTERM"
                )

    # Elastic jobs

    def _open_to_scale(self, stack: contextlib.ExitStack) -> None:
        try:
            self._scale = stack.enter_context(contextlib.closing(ScaleServer(self._rescale)))
        except OSError as error:  # perhaps a launcher of this number in another container
            self._err.say(f"malt run: `malt scale` will not reach this job: {error}")
            return
        self._selector.register(self._scale, selectors.EVENT_READ)

    def _rescale(self, count: int) -> None:
        """Have `count` ranks run in the whole job, not counting those asked to leave."""
        limits = self._options.elastic
        if self._is_ending() or self._is_over:
            raise ConfigError("the job ends")
        if count not in limits:
            raise ConfigError(
                f"{count} ranks are not within the job's {limits[0]} to {limits[-1]} (--elastic)"
            )
        self._node.scale(count)

    def _begin(self, rank: int, starts: int) -> None:
        """Start a rank that is new in the job, or whose last process has ended for good."""
        if self._is_ending():
            self._node.rank_ended(rank, 0, 0)
            return
        taken = {other.local_rank for other in self._ranks if other.ended is None}
        self._leaving.discard(rank)
        self._restarts[rank] = 0
        self._starts[rank] = starts
        if not self._is_started(rank, next(n for n in itertools.count() if n not in taken)):
            self._node.rank_ended(rank, os.getpid(), 0)

    def _stop_few(self, left: int) -> None:
        if not self._is_ending():
            least = self._options.elastic[0]
            self._err.say(f"malt run: {left} of at least {least} are left; stopping the others")
        if not self._is_stopping:
            self._stop_all()

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
        for rank in self._ranks:
            if rank.ended is None:
                rank.signal(signal.SIGKILL)
                rank.process.wait()
            elif rank.has_group:
                orphans.kill_group(rank.process.pid, signal.SIGKILL)


def _descriptors_needed(ranks: int, sessions: int) -> int:
    return 2 * ranks + sessions + 64  # two pipes for each rank


def check_descriptors(ranks: int, sessions: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _descriptors_needed(ranks, sessions)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"{max(ranks, sessions)} ranks need {needed} open files in the launcher, the limit is "
            f"{hard}: fewer ranks, or raise it (ulimit -Hn)"
        )


def _raise_descriptor_limit(ranks: int, sessions: int) -> tuple[int, int]:
    """Allow the launcher the descriptors it needs; return the limits as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _descriptors_needed(ranks, sessions)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft, hard
