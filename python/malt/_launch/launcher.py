"""Starts this host's ranks of a job, and stays with them to the end."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import selectors
import signal
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

from malt._errors import ConfigError, describe_ranks
from malt._launch import orphans
from malt._launch.descriptors import check_descriptors, raise_descriptor_limit
from malt._launch.host_ranks import HostRanks
from malt._launch.options import Options
from malt._launch.rank_process import Rank
from malt._launch.scale import ScaleServer
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


class Launcher:
    """One job, on this node. Call `run` once; no other code in the process may reap children."""

    def __init__(self, command: Sequence[str], options: Options) -> None:
        self._options = options
        self._host = HostRanks(command, options)
        self._starts: Counter[int] = Counter()  # by rank: starts since the job began
        self._restarts: Counter[int] = Counter()  # by rank: starts because it failed
        self._leaving: set[int] = set()  # ranks that have been asked to leave
        self._last_death = 0  # the exit code of the rank that was started again last
        self._late_code: int | None = None  # the exit code for ranks that came too late to rejoin
        self._exit_code = 0
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
            self._host.open(stack)
            self._host.selector.register(self._node, selectors.EVENT_READ)
            self._limits = raise_descriptor_limit(self._options.most, self._sessions)
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
        self._node.start(
            options.ranks,
            options.start_seconds,
            server,
            rejoins=options.restarts is not None,
            elastic=options.elastic,
        )
        self._sessions = options.most if server is None else self._node.size + options.nnodes
        check_descriptors(options.most, self._sessions)
        if options.verbose and options.nnodes > 1:
            self._say(
                f"node {options.node} of {options.nnodes} starts {options.ranks} of "
                f"{self._node.size} ranks, from rank {self._node.first} on"
            )
        return server

    def _start_all(self, ranks: Iterable[tuple[int, int]]) -> None:
        """Start ranks, each given as its rank and its number on this host."""
        described = [(rank, local, self._environ(rank, local)) for rank, local in ranks]
        self._host.start(described, self._node.size, self._limits)

    def _environ(self, rank: int, local_rank: int) -> dict[str, str]:
        environ = self._node.environ(rank, local_rank)
        if self._options.restarts is not None:
            environ["MALT_RESTARTS"] = str(self._starts[rank])
        return environ

    # The main loop

    def _step(self) -> bool:
        """Wait for the next events and handle them; return False when all is over."""
        host = self._host
        for key, _ in host.selector.select(host.seconds_to_next()):
            if key.fileobj is host.relay.wakened:
                with contextlib.suppress(BlockingIOError):
                    while host.relay.wakened.recv(4096):
                        pass
            elif key.fileobj is self._node:
                self._hear()
            elif key.fileobj is self._scale:
                self._scale.hear()
            else:
                host.read(key.data)
        self._report_signals()
        for rank, code in host.reap():
            self._rank_ended(rank, code)
        host.advance()
        return host.is_any_left or not self._is_over

    def _report_signals(self) -> None:
        relay = self._host.relay
        if relay.ending_unheard and not self._is_over:
            self._leave()  # only other nodes' ranks are left, and the user does not wait for them
            self._exit_code = self._exit_code or 128 + relay.ending_unheard
        while relay.received:
            name = signal.Signals(relay.received.pop(0)).name
            if name == "SIGINT" and self._host.running():
                self._say("SIGINT passed on to the ranks; once more kills them")
            elif self._options.verbose:
                self._say(f"{name} passed on to the ranks")

    # Ends

    def _rank_ended(self, rank: Rank, code: int) -> None:
        assert rank.ended is not None
        what = f"{self._describe(rank.rank, self._node.node)} {describe_end(code)}"
        what += f" after {rank.ended - rank.started:.1f} s"
        most = self._options.restarts
        is_wanted = rank.rank not in self._leaving and not self._host.is_ending
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

    def _is_one_left(self) -> bool:
        """Return whether a rank may be left to rejoin; a job of one rank needs none."""
        may_be_elsewhere = self._node.nnodes > 1 and not self._is_done
        is_alone = self._node.size == 1
        return is_alone or may_be_elsewhere or bool(self._host.running())

    def _restart(self, rank: Rank, code: int, what: str) -> None:
        # Its leftover processes go first: they may hold what the next process needs.
        rank.signal(signal.SIGKILL)
        self._node.rank_restarts(rank.rank, rank.process.pid)
        self._restarts[rank.rank] += 1
        self._starts[rank.rank] += 1
        self._last_death = code
        count, most = self._restarts[rank.rank], self._options.restarts
        self._say(f"{what}; started again, {count} of {most}")
        if not self._is_started(rank.rank, rank.local_rank):
            self._node.rank_ended(rank.rank, rank.process.pid, code)
            self._failed(what, code)

    def _is_started(self, rank: int, local_rank: int) -> bool:
        """Start a rank while others run; they go on if the system cannot start it."""
        try:
            self._start_all([(rank, local_rank)])
        except OSError as error:
            what = self._describe(rank, self._node.node)
            self._say(f"{what} cannot be started: {error}")
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
                    what = "its `malt run` has ended, or the network has failed"
                    self._failed(f"node {node} is lost: {what}", 1)
                case Kill(rank, process):
                    for one in self._host.running():
                        if (one.rank, one.process.pid) == (rank, process):
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
            self._host.selector.unregister(self._node)
            if self._scale is not None:
                self._scale.refuse_all("the job ends")

    def _say(self, text: str) -> None:
        self._host.err.say(f"malt run: {text}")

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
        if not goes_on and not self._host.is_stopping:
            self._host.stop()

    def _stop_late_ones(self) -> None:
        """Stop the ranks that were to rejoin, now that no rank is left for them."""
        late = [rank.rank for rank in self._host.running()]
        if not late or self._host.is_ending:
            return
        names = describe_ranks(late)
        self._say(f"{names} had not rejoined when the other ranks ended; stopping")
        self._late_code = self._last_death
        self._exit_code = self._exit_code or exit_code_of(self._late_code)
        self._host.stop()

    def _say_nobody_joined(self) -> None:
        """Say that no rank called malt.init(), unless there was one rank or one ended badly."""
        if self._node.size > 1 and self._exit_code == 0 and not self._host.is_ending:
            self._say(
                f"none of the {self._node.size} processes called malt.init(): each "
                "ran by itself (a program that finds its ranks by MPI takes mpirun or srun)"
            )

    def _report(self, what: str, goes_on: bool) -> None:
        if self._host.is_ending:
            return  # the rank was told to end
        others = len(self._host.running())
        several = self._node.nnodes > 1
        then = ""
        if not goes_on and (others or several):
            then = "; stopping the others (--keep-going leaves them running)"
        elif others:
            go_on = "left" if self._options.elastic else "go on" if others > 1 else "goes on"
            then = f"; {others} {go_on}" + (" here" if several else "")
        self._say(f"{what}{then}")

    # Elastic jobs

    def _open_to_scale(self, stack: contextlib.ExitStack) -> None:
        try:
            self._scale = stack.enter_context(contextlib.closing(ScaleServer(self._rescale)))
        except OSError as error:  # perhaps a launcher of this number in another container
            self._say(f"`malt scale` will not reach this job: {error}")
            return
        self._host.selector.register(self._scale, selectors.EVENT_READ)

    def _rescale(self, count: int) -> None:
        """Have `count` ranks run in the whole job, not counting those asked to leave."""
        limits = self._options.elastic
        if self._host.is_ending or self._is_over:
            raise ConfigError("the job ends")
        if count not in limits:
            raise ConfigError(
                f"{count} ranks are not within the job's {limits[0]} to {limits[-1]} (--elastic)"
            )
        self._node.scale(count)

    def _begin(self, rank: int, starts: int) -> None:
        """Start a rank that is new in the job, or whose last process has ended for good."""
        if self._host.is_ending:
            self._node.rank_ended(rank, 0, 0)
            return
        taken = {other.local_rank for other in self._host.running()}
        self._leaving.discard(rank)
        self._restarts[rank] = 0
        self._starts[rank] = starts
        if not self._is_started(rank, next(n for n in itertools.count() if n not in taken)):
            self._node.rank_ended(rank, os.getpid(), 0)

    def _stop_few(self, left: int) -> None:
        if not self._host.is_ending:
            least = self._options.elastic[0]
            self._say(f"{left} of at least {least} are left; stopping the others")
        if not self._host.is_stopping:
            self._host.stop()
