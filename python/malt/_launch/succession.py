"""Finds the launcher that goes on with the job's books, once the one that had them is lost.

The server of the rendezvous (`_rendezvous/server.py`) runs in node 0's launcher. It knows which
ranks run where, which generation stands, and who asks for the next one. Nothing of this is copied
while all is well: each launcher and each rank knows its own part. Nodes 1 to 16 have a server that
stands by. When the server is lost, the lowest of these nodes that is left takes over: launchers and
ranks turn to it and say what they know (RESUME, HOLD), and it builds the books from that.

    N1  A launcher takes over only when it has lost the server, and neither the lost server nor the
        one of any node between can be reached. As long as another one answers, or may answer
        within REACH_SECONDS, it waits for that one. A launcher that is merely stopped (SIGSTOP)
        keeps its connections, so nobody takes over from it: all waits until it goes on.
    N2  A launcher whom the server that it has lost refuses was itself given up by a server that
        is well: it stops its ranks.
    N3  Two servers at once can be: after a cut of the network, or when a host stops for longer
        than every limit and then goes on. They cannot split the job. A rank joins the next
        generation only when its present group has evicted every rank that the next one lacks
        (`_rejoining/forming.py`). The group evicts by majority, or by proof of a death, never by
        silence alone (docs/membership.md), so of two parts only one can evict the other. Ranks of
        the other part end with PeerError; a server there has no rank that could hand values on,
        and starts none from the beginning.
    N4  A server that takes over begins no generation before all launchers that may be left and all
        their ranks have come, or RESUME_SECONDS are over. Launchers that come later are refused;
        ranks that come later, or whose launcher has not come, are dropped and killed.
    N5  A rank that has formed a generation, and does not know whether it stands for the others,
        ends with PeerError, as do ranks that missed an answer which others have got. So no two
        ranks go on from different states, at the price of a process that is started again.
    N6  State that the lost server had not passed on is lost with it: requests of `malt scale`, and
        how often ranks of lost nodes had been started.
"""

from __future__ import annotations

import socket
import threading

from malt import _errors as errors
from malt._errors import ConfigError
from malt._rendezvous import wire
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server
from malt._rendezvous.session import REACH_SECONDS, RefusedError

# How long the lost server may take to answer. With the 30 s within which all notice that a host has
# failed, it must be less than REACH_SECONDS.
_ASK_SECONDS = 5.0


class Succession:
    """This launcher's part in the search, after the loss of the server of `node`'s session.

    A thread searches, because that may take long. `fileno` is readable once it is done.

    Attributes:
        node: the session with the server that takes over; None: there is none.
        refusal: why this node is no longer in the job, or empty.
    """

    def __init__(
        self, node: Node, standby: Server | None, limits: range, lost_nodes: set[int]
    ) -> None:
        """`limits` is of --elastic; `lost_nodes` are those that are certainly not left."""
        self.node: Node | None = None
        self.refusal = ""
        self._last = node
        self._standby = standby
        self._limits = limits
        self._lost_nodes = lost_nodes
        self._done, self._at_end = socket.socketpair()
        self._thread = threading.Thread(target=self._search, name="malt-succession", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._done.fileno()

    def close(self) -> None:
        """Give up the search, if it still goes on; idempotent."""
        self._done.close()

    def _search(self) -> None:
        try:
            self.node = self._find()
        except RefusedError as error:
            self.refusal = str(error)
        finally:
            self._at_end.close()

    def _find(self) -> Node | None:
        last = self._last
        for number in range(last.serving, min(last.nnodes, wire.MAX_STANDBYS + 1)):
            if number == last.node:
                return self._take_over()
            is_last = number == last.serving  # if that one answers, it refuses (N2)
            is_gone = number in self._lost_nodes or not last.successors[number - 1]
            if is_gone and not is_last:
                continue
            other = last.next_of(number, None)
            try:
                other.reach(_ASK_SECONDS if is_last else REACH_SECONDS)
                return other
            except RefusedError:
                raise
            except (ConfigError, errors.TimeoutError):
                continue
        return None

    def _take_over(self) -> Node | None:
        server, last = self._standby, self._last
        if server is None:
            return None
        nodes = set(range(last.node, last.nnodes)) - self._lost_nodes
        server.succeed(last.size, self._limits, nodes)
        return last.next_of(last.node, server)
