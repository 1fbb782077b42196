"""How ranks average a vector: over which graph, and how long one rank waits for another."""

from __future__ import annotations

from collections.abc import Iterable

from malt._arguments import whole
from malt._core_import import ALL, AVG, LOWEST, Fold, Graph, Vector
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._mistakes import missed
from malt._rendezvous.wire import MAX_RANKS

_GRAPHS = ("ALL", "HALTON", "RING", "EXPONENTIAL", "ONE_PEER", "STAR")


class Averaging:
    """An estimator's `graph=` and `staleness=` settings.

    Args:
        graph: which ranks send to which; None: every rank to every rank.
        staleness: how many exchanges an in-neighbour may be behind; 0: each exchange waits for the
            updates of all (BSP); None: it waits for none.

    Raises:
        ConfigError: `graph` or `staleness` has another value.
    """

    def __init__(self, graph: Graph | None, staleness: int | None) -> None:
        if graph is not None:
            check_graph(graph, "None, ")
        self.graph = ALL if graph is None else graph
        if staleness is not None:
            staleness = whole("staleness", staleness, 0, why=", or None, which waits for nobody")
        self.staleness = staleness
        # An allreduce leaves the same bits on all ranks, and reads the vector's memory in place.
        self.is_exact = graph is None and self.staleness == 0

    def exchange(self, vector: Vector, fold: Fold = AVG) -> int:
        """Send this rank's values, fold the others' into them, and return the oldest one's age."""
        missed.note_exchange(vector)
        if self.is_exact:
            vector.allreduce(fold)
            return 0
        vector.scatter()
        ages = vector.gather(fold, staleness=self.staleness).staleness
        return max(ages, default=0)


def check_graph(graph: object, otherwise: str = "") -> None:
    """Raise ConfigError if `graph` is not a graph; `otherwise` names other values it may have."""
    if isinstance(graph, Graph):
        return
    meant = next((name for name in _GRAPHS if name == str(graph).upper()), "")
    raise ConfigError(
        f"graph is {graph!r}; it is {otherwise}malt.{', '.join(_GRAPHS)}, RANDOM(k, seed) or "
        f"Graph(edges){meant and f': write graph=malt.{meant}, without quotes'}"
    )


def _name_wrong_edges() -> None:
    """Have malt.Graph name what is no edge."""
    make = Graph.__init__

    def init(self: Graph, edges: Iterable[tuple[int, int]]) -> None:
        try:
            pairs = [(source, target) for source, target in edges]
        except (TypeError, ValueError):
            raise ConfigError(
                f"edges is {edges!r:.50}; it is a list of (from, to) pairs of ranks"
            ) from None
        try:
            make(self, pairs)
        except TypeError:
            for pair in pairs:
                for rank in pair:
                    whole(f"a rank of the edge {pair}", rank, 0, MAX_RANKS - 1)
            raise

    init.__doc__, init.__qualname__ = make.__doc__, "Graph.__init__"
    setattr(Graph, "__init__", init)  # noqa: B010 - mypy forbids the assignment


_name_wrong_edges()


def start_alike(vector: Vector) -> None:
    """Give all ranks the values of the lowest live rank. Collective.

    A rejoining rank does nothing here: it gets the others' values in its first exchange.
    """
    job = jobs.current()
    if job.size == 1 or job.is_rejoining:
        return
    vector.scatter(ALL)
    vector.gather(LOWEST, staleness=0)
    missed.note_alike(vector)
