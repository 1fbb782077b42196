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
from functools import partial

from malt._errors import ConfigError, describe_ranks
from malt._launch import orphans
from malt._launch.descriptors import check_descriptors, raise_descriptor_limit
from malt._launch.host_ranks import HostRanks
from malt._launch.options import Options
from malt._launch.rank_process import Rank
from malt._launch.recorders import Recorders
from malt._launch.scale import LEAVE, ScaleServer
from malt._launch.succession import Succession
from malt._recording.collecting import STOP
from malt._rendezvous import node_session, wire
from malt._rendezvous.exit_code import describe_end, exit_code_of
from malt._rendezvous.server import Server


class Launcher:
    """One job, on this node. Call `run` once; no other code in the process may reap children."""

    def __init__(self, command: Sequence[str], options: Options) -> None:
        self._options = options
        self._command = command
        self._host = HostRanks(command, options)
        self._starts: Counter[int] = Counter()  # by rank: starts since the job began
        self._restarts: Counter[int] = Counter()  # by rank: starts because it failed
        self._leaving: set[int] = set()  # ranks that have been asked to leave
        self._has_asked_to_stop = False
        self._last_death = 0  # the exit code of the rank that was started again last
        self._late_code: int | None = None  # the exit code for ranks that came too late to rejoin
        self._exit_code = 0
        self._is_done = False  # no rank is left, on any node, that another could rejoin
        self._is_over = False  # the other nodes will send no more events
        self._scale: ScaleServer | None = None
        self._standby: Server | None = None  # takes over when the one in another launcher is lost
        self._succession: Succession | None = None  # the search for the server that takes over
        self._lost_nodes: set[int] = set()

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
            self._recorders = Recorders(self._options, self._command, self._node)
            stack.callback(self._recorders.close)
            self._host.open(stack)
            self._host.selector.register(self._node, selectors.EVENT_READ)
            if self._recorders.collecting is not None:
                self._host.selector.register(self._recorders.collecting, selectors.EVENT_READ)
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
        self._node = node_session.Node(
            address, key, options.node, options.nnodes, awaits_name=options.awaits_name
        )
        stack.callback(self._node.abort)
        self._node.start(
            options.ranks,
            options.start_seconds,
            server,
            rejoins=options.restarts is not None,
            elastic=options.elastic,
            watched=options.watched,
            stand_by=partial(self._stand_by, stack) if options.may_take_over else None,
        )
        has_server = server is not None or self._standby is not None
        self._sessions = self._node.size + options.nnodes if has_server else options.most
        check_descriptors(options.most, self._sessions)
        if options.verbose and options.nnodes > 1:
            self._say(
                f"node {options.node} of {options.nnodes} starts {options.ranks} of "
                f"{self._node.size} ranks, from rank {self._node.first} on"
            )
        return server

    def _stand_by(self, stack: contextlib.ExitStack, host: str) -> int:
        server = self._standby = Server(self._options.nnodes, self._options.key, host)
        stack.callback(server.close)
        return int(server.port)

    def _start_all(self, ranks: Iterable[tuple[int, int]]) -> None:
        """Start ranks, each given as its rank and its number on this host."""
        described = [(rank, local, self._environ(rank, local)) for rank, local in ranks]
        self._host.start(described, self._node.size, self._limits)

    def _environ(self, rank: int, local_rank: int) -> dict[str, str]:
        environ = dict(self._node.environ(rank, local_rank))
        environ |= self._recorders.add(rank, self._node.size)
        if self._options.restarts is not None:
            environ["MALT_RESTARTS"] = str(self._starts[rank])
        return environ

    # The main loop

    def _step(self) -> bool:
        """Wait for the next events and handle them; return False when all is over."""
        host = self._host
        for key, _ in host.selector.select(self._recorders.limit(host.seconds_to_next())):
            if key.fileobj is host.relay.wakened:
                with contextlib.suppress(BlockingIOError):
                    while host.relay.wakened.recv(4096):
                        pass
            elif key.fileobj is self._node:
                self._hear()
            elif key.fileobj is self._succession:
                self._resume()
            elif key.fileobj is self._scale:
                self._scale.hear()
            elif key.fileobj is self._recorders.collecting:
                self._hear_collector()
            else:
                host.read(key.data)
        self._report_signals()
        for rank, code in host.reap():
            self._rank_ended(rank, code)
        host.advance()
        if self._recorders.is_late:
            self._leave()
        return host.is_any_left or not self._is_over

    def _hear_collector(self) -> None:
        """Have all ranks stopped if the dashboard asks for it."""
        collecting = self._recorders.collecting
        said = self._recorders.hear(self._node)
        if collecting is not None and not said:
            self._host.selector.unregister(collecting)
            what = "dashboard" if self._options.dashboard is not None else "collector"
            self._say(f"the {what} has ended; the job goes on")
        elif said == STOP:
            self._has_asked_to_stop = True
            self._node.stop()
            self._stop()  # also while the server is out of reach

    def _stop(self) -> None:
        if self._host.is_stopping:
            return
        self._say("stopped from the dashboard")
        self._exit_code = self._exit_code or 128 + signal.SIGTERM
        self._host.stop()
        if not self._host.running():
            self._leave()

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
        except (ConfigError, OSError) as error:
            what = self._describe(rank, self._node.node)
            self._say(f"{what} cannot be started: {error}")
            return False
        return True

    def _hear(self) -> None:
        for event in self._node.hear():
            match event:
                case node_session.Failed(node, rank, code):
                    self._failed(f"{self._describe(rank, node)} {describe_end(code)}", code)
                case node_session.Lost(node):
                    self._lost(node)
                case node_session.Kill(rank, process):
                    for one in self._host.running():
                        if (one.rank, one.process.pid) == (rank, process):
                            one.signal(signal.SIGKILL)
                case node_session.Done():
                    self._is_done = True
                    self._stop_late_ones()
                case node_session.Begin(rank, starts):
                    self._begin(rank, starts)
                case node_session.Leave(rank):
                    self._leaving.add(rank)
                case node_session.Few(left):
                    self._stop_few(left)
                case node_session.Answer(is_done, text) if self._scale is not None:
                    self._scale.answer(is_done, text)
                case node_session.Relayed(node, message):
                    self._recorders.deliver(node, message)
                case node_session.Over(code):
                    self._exit_code = code
                    if not self._recorders.end(self._node.serving):
                        self._leave()
                case node_session.Finished():
                    self._leave()
                case node_session.Stop():
                    self._stop()

    def _lost(self, node: int) -> None:
        if self._recorders.stays_until is not None:  # the job has ended
            self._leave()
            return
        self._recorders.deliver(node, b"")
        self._lost_nodes.add(node)
        has_server = node == self._node.serving
        if has_server and self._options.goes_on_without_a_node and not self._host.is_stopping:
            self._search()
        elif has_server:
            self._leave()
        what = "its `malt run` has ended, or the network has failed"
        self._failed(f"node {node} is lost: {what}", 1)

    def _search(self) -> None:
        """Begin to look for the launcher that takes over from the lost one."""
        self._host.selector.unregister(self._node)
        self._succession = Succession(
            self._node, self._standby, self._options.elastic, self._lost_nodes
        )
        self._host.selector.register(self._succession, selectors.EVENT_READ)

    def _resume(self) -> None:
        """Go on with the launcher that has taken over, if there is one."""
        found = self._succession
        assert found is not None
        self._host.selector.unregister(found)
        found.close()
        self._succession = None
        if found.node is None:
            self._host.selector.register(self._node, selectors.EVENT_READ)
            self._leave()
            if found.refusal:
                self._failed(f"this node is no longer in the job: {found.refusal}", 1)
                self._host.stop()
            else:
                self._say("no node takes over: ranks here go on, but none can rejoin them")
            return
        self._node.abort()
        self._node = found.node
        self._host.selector.register(self._node, selectors.EVENT_READ)
        self._say(f"node {self._node.serving} has taken over the job's books")
        self._node.resume(
            [
                node_session.Resumed(one.rank, self._starts[one.rank], one.rank in self._leaving)
                for one in self._host.running()
            ],
            rejoins=self._options.restarts is not None,
            starts_more=not self._host.is_ending,
            code=self._exit_code,
        )
        if self._has_asked_to_stop:
            self._node.stop()  # the lost server may not have passed it on
        if self._node.serving == self._node.node:
            assert self._standby is not None
            self._standby.start()

    def _leave(self) -> None:
        """Stop listening to events of other nodes."""
        if not self._is_over:
            self._is_over = True
            if self._succession is not None:
                self._host.selector.unregister(self._succession)
                self._succession.close()
            else:
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
        # In an elastic job the server, as long as there is one, counts the ranks and may send Few.
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
                f"none of the {self._node.size} processes called malt.init(): each ran by "
                "itself, unless they have found one another without malt, as by a store of torch "
                "(a program that finds its ranks by MPI takes mpirun or srun)"
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
            self._scale = stack.enter_context(contextlib.closing(ScaleServer(self._change)))
        except OSError as error:
            self._say(
                f"`malt scale` will not reach this job: {error}; set TMPDIR to a folder of this "
                "host that can be written"
            )
            return
        self._host.selector.register(self._scale, selectors.EVENT_READ)

    def _change(self, what: str, number: int) -> None:
        """Pass on a request for a number of ranks, or that this rank leave (`scale.ask`)."""
        if self._succession is not None:
            raise ConfigError("a node is lost, and another one takes over: try again in a second")
        if self._host.is_ending or self._is_over:
            raise ConfigError("the job ends")
        if what == LEAVE:
            self._node.ask_to_leave(number)
        else:
            self._node.scale(number)

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
