"""
The compiled core of MALT. Use the package malt.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['ALL', 'AVG', 'BFLOAT16', 'Call', 'Codec', 'CoordinateDescentFloat32', 'CoordinateDescentFloat64', 'Deadline', 'DeviceReducer', 'DeviceVector', 'DualAscentFloat32', 'DualAscentFloat64', 'Duplex', 'EXPONENTIAL', 'ExamplesFloat32', 'ExamplesFloat64', 'Exchange', 'FLOAT16', 'Fold', 'Gathered', 'Graph', 'Group', 'HALTON', 'Held', 'INT8', 'Interface', 'LOWEST', 'LinearFloat32', 'LinearFloat64', 'Link', 'Listener', 'MEDIAN', 'Mail', 'Messages', 'ONE_PEER', 'REPLACE', 'RING', 'RatingBlocks', 'RdmaPort', 'Recorder', 'Recording', 'Reducer', 'Route', 'RowVector', 'STAR', 'SUM', 'SparseUpdateFloat32', 'SparseUpdateFloat64', 'SparseUpdateInt32', 'SparseUpdateInt64', 'SparseVectorFloat32', 'SparseVectorFloat64', 'SparseVectorInt32', 'SparseVectorInt64', 'Stats', 'SvmlightParserFloat32', 'SvmlightParserFloat64', 'Table', 'TlsContext', 'TopicTokens', 'Turns', 'Update', 'Uses', 'Vector', 'WEIGHTED', 'Window', 'WindowMemory', 'Within', 'add_changes', 'add_linear_gradient', 'address_of', 'announce_faults', 'announce_no_faults', 'available_bytes', 'check_tls', 'checksum', 'cuda_version', 'dealt_list_length', 'describe_gpus', 'find_changes', 'forecast_gap', 'has_gpu', 'infer_topics', 'interfaces', 'linear_decisions', 'look_for_nvrtc_in', 'memory_of', 'nvrtc_library', 'partition_columns', 'partition_rows', 'partition_traffic', 'predict_ratings', 'random_graph', 'rdma_port_of', 'rdma_ports', 'set_callbacks', 'shuffle', 'simd_level', 'sum_of_digamma_rises', 'top_k', 'trimmed_mean']
class Graph:
    """
    The ranks to which each rank sends in each round. ``Graph(edges)`` makes one from (from, to) pairs of ranks; ALL, HALTON, RING, EXPONENTIAL, ONE_PEER, STAR and RANDOM(k, seed) are ready-made.
    """
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __hash__(self) -> int:
        ...
    def __init__(self, edges: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> None:
        ...
    def __reduce__(self) -> typing.Any:
        ...
    def __repr__(self) -> str:
        ...
    def check(self, size: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Raise ConfigError, naming the unreachable ranks, unless every rank can reach every other over one period.
        """
    def in_(self, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, round: typing.SupportsInt | typing.SupportsIndex = 0) -> list[int]:
        """
        The ranks that send to `rank` in this round, sorted.
        """
    def out(self, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, round: typing.SupportsInt | typing.SupportsIndex = 0) -> list[int]:
        """
        The ranks that `rank` sends to in this round, sorted.
        """
    def period(self, size: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Rounds after which the graph repeats.
        """
    def spectral_gap(self, size: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        How fast averaging over the graph agrees, per round: 1 at once, 0 never.
        """
    def weights(self, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, round: typing.SupportsInt | typing.SupportsIndex = 0) -> list[float]:
        """
        Mixing weight of each rank of in_(); what is missing to 1 is the rank's own.
        """
class Recorder:
    """
    Records what this rank does, for other processes to read.
    """
    def __init__(self, fd: typing.SupportsInt | typing.SupportsIndex, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def report(self, name: str, value: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Keeps a value with time and iteration; false if there is no place for another name.
        """
    @property
    def fd(self) -> int:
        """
        Of its memory, for other processes.
        """
    @property
    def rank(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def update(self) -> int:
        """
        Of the last scatter, or the number of allreduces before any.
        """
class Recording:
    """
    The record of a process, finished or in progress.
    """
    def __init__(self, fd: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def peers(self) -> numpy.typing.NDArray[numpy.uint64]:
        """
        By rank: nanoseconds waited for it, updates folded, staleness; calls to it that failed since the last that did not, the last one's error (errno) and port.
        """
    def read(self) -> numpy.ndarray:
        """
        The events since the last call, oldest first: calls, then deaths and epochs.
        """
    def read_reports(self) -> numpy.ndarray:
        """
        The values reported since the last call, by name, then oldest first.
        """
    def totals(self) -> dict[str, int]:
        """
        Counters since the beginning; times are nanoseconds.
        """
    @property
    def began(self) -> int:
        """
        When the rank began to record: nanoseconds, monotonic clock.
        """
    @property
    def missed(self) -> int:
        """
        How many events were written over before they were read.
        """
    @property
    def process(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def report_names(self) -> list[str]:
        """
        Of what read_reports() has returned, by index.
        """
    @property
    def size(self) -> int:
        ...
    @property
    def wall_offset(self) -> int:
        """
        Nanoseconds from the events' clock (monotonic) to the time of day.
        """
class Deadline:
    """
    The time limit of a call that waits several times, from here on.
    """
    def __init__(self, limit: typing.SupportsFloat | typing.SupportsIndex, left: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        ...
    @property
    def left(self) -> float:
        """
        Seconds; 0 if it is over.
        """
    @property
    def limit(self) -> float:
        """
        Seconds, as given.
        """
class Within:
    """
    A call of several waits, as a context manager.
    """
    def __enter__(self) -> None:
        ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None:
        ...
class Held:
    """
    A call in progress, as a context manager.
    """
    def __enter__(self) -> None:
        ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None:
        ...
class Turns:
    """
    The calls of a job, which go one at a time; for the package.
    """
    def __init__(self) -> None:
        ...
    def await_end(self, limit: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait until no other thread's call is in progress. False: it still is.
        """
    def check(self, call: str) -> None:
        """
        Raise ConfigError where a call could not begin, but in a wait.
        """
    def hold(self, call: str) -> Held:
        """
        A call that is made up of several. ConfigError as of one.
        """
class Route:
    """
    How this rank reaches another.
    """
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    @property
    def transport(self) -> str:
        """
        'shm', 'verbs', 'tcp', or 'self' for this rank.
        """
    @property
    def why(self) -> str:
        ...
class Group:
    """
    The ranks of a job.
    """
    def __init__(self, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, members: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], allgather: collections.abc.Callable[[bytes, Deadline], list[bytes]], timeout: typing.SupportsFloat | typing.SupportsIndex, deadline: Deadline, transport: str, silence: typing.SupportsFloat | typing.SupportsIndex, lowest_wins: bool, interface: str, toward: str, secret: bytes, slow_after: typing.SupportsFloat | typing.SupportsIndex, turns: Turns, recorder: Recorder | None, *, in_background: bool) -> None:
        """
        timeout: the limit of a wait that has none of its own. deadline: of joining. in_background: its waits run no Python, neither for signals nor for news.
        """
    def alive(self) -> tuple[int, ...]:
        ...
    def await_posts(self, by_rank: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def barrier(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        ...
    def check_standing(self) -> None:
        """
        Raise the error of a rank that has left, or has been evicted or cut off.
        """
    def exchange(self, what: str, mine: bytes, timeout: typing.SupportsFloat | typing.SupportsIndex | Deadline | None = None, kept: list[list[bytes | None]] | None = None) -> list[bytes | None]:
        """
        Return what the live ranks give, by rank. `kept` gets it too, before an exception of a signal handler can end the call.
        """
    def is_left_out(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether the rank has been evicted; its process may still live.
        """
    def keep_round(self, segment: str) -> None:
        """
        Note that the result of its gather or allreduce is kept, so this rank may move.
        """
    def leave(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        ...
    def restore(self) -> None:
        """
        Call the move off: the group goes on as before.
        """
    def route(self, rank: typing.SupportsInt | typing.SupportsIndex) -> Route:
        ...
    def supersede(self, call: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Have every rank of this host move to another group. Any thread.
        """
    def within(self, deadline: Deadline) -> Within:
        """
        A context in which the waits of this thread that have no limit of their own end by the deadline.
        """
    @property
    def epoch(self) -> int:
        ...
    @property
    def has_left(self) -> bool:
        ...
    @property
    def is_one_host(self) -> bool:
        """
        Whether all ranks share one memory.
        """
    @property
    def is_superseded(self) -> bool:
        ...
    @property
    def pending(self) -> str:
        """
        Purpose of the exchange that an exception has ended; '': none.
        """
    @property
    def posted(self) -> int:
        """
        To how many exchanges this rank has posted.
        """
    @property
    def rank(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def superseded_by(self) -> int:
        """
        By which call, the first since it was made or restored, or 0.
        """
class Interface:
    """
    One address of a network interface.
    """
    @property
    def address(self) -> str:
        ...
    @property
    def is_loopback(self) -> bool:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def prefix_bits(self) -> int:
        ...
class RdmaPort:
    """
    One port of an RDMA network adapter.
    """
    def __str__(self) -> str:
        ...
    @property
    def trouble(self) -> str:
        """
        Why it cannot be used; empty if it can.
        """
class Fold:
    """
    A built-in fold. Of integers AVG, MEDIAN and TRIMMED_MEAN are exact, rounded toward zero. SUM wraps around, as NumPy's sums do, since its bits then do not depend on the order of the ranks; take a wider dtype, or floats, where that can happen.
    """
    def __repr__(self) -> str:
        ...
    @property
    def fraction(self) -> float:
        """
        Of TRIMMED_MEAN; 0 of the others.
        """
class Codec:
    """
    How a vector of floats goes over the wire in fewer bytes.
    """
    def __repr__(self) -> str:
        ...
class Gathered:
    """
    A gather's result.
    """
    def __repr__(self) -> str:
        ...
    @property
    def clipped(self) -> tuple[int, ...]:
        """
        Senders of updates scaled down to max_norm, and then folded.
        """
    @property
    def count(self) -> int:
        """
        Updates folded.
        """
    @property
    def ranks(self) -> tuple[int, ...]:
        """
        Their senders, in the order of the fold.
        """
    @property
    def rejected(self) -> tuple[int, ...]:
        """
        Senders of updates refused as not finite.
        """
    @property
    def staleness(self) -> tuple[int, ...]:
        """
        This rank's iteration less the update's, for each; below 0: from ahead.
        """
class Uses:
    """
    How a rank has used one vector; for the package.
    """
    @property
    def allreduces(self) -> int:
        ...
    @property
    def folded(self) -> int:
        """
        This rank's updates that others have folded.
        """
    @property
    def found(self) -> int:
        """
        Updates folded here.
        """
    @property
    def gathers(self) -> int:
        ...
    @property
    def scatters(self) -> int:
        ...
class Stats:
    """
    Counters of one vector. Of the updates this rank has sent (one to three ranks counts three): sent = folded + overwritten + rejected + pending + to_dead.
    """
    def __repr__(self) -> str:
        ...
    @property
    def bytes_in(self) -> int:
        """
        Payload bytes folded here, and those received by allreduce.
        """
    @property
    def bytes_out(self) -> int:
        """
        Payload bytes sent, once per receiver; those of allreduce too, which on one host the others read in place.
        """
    @property
    def clipped_from(self) -> dict[int, int]:
        """
        By rank: its updates that were scaled down to max_norm here, if there were any.
        """
    @property
    def folded(self) -> int:
        ...
    @property
    def memory_bytes(self) -> int:
        """
        Memory that the vector has taken on this host, for all ranks here together.
        """
    @property
    def overwritten(self) -> int:
        ...
    @property
    def pending(self) -> int:
        ...
    @property
    def rejected(self) -> int:
        ...
    @property
    def rejected_from(self) -> dict[int, int]:
        """
        By rank: its updates that were refused here, if there were any.
        """
    @property
    def routes(self) -> dict[int, Route]:
        """
        How this rank reaches each of the others.
        """
    @property
    def sent(self) -> int:
        ...
    @property
    def to_dead(self) -> int:
        ...
    @property
    def wait_seconds(self) -> float:
        """
        Time spent waiting in scatter, gather and allreduce.
        """
class Update:
    """
    One update, as a fold of the user's own sees it.
    """
    @property
    def iteration(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def values(self) -> numpy.ndarray:
        """
        Read-only; valid during the fold.
        """
class Vector:
    """
    A dense vector that is scattered and gathered. Made by malt.vector().
    """
    def __init__(self, *, group: Group, dtype: numpy.dtype[typing.Any], arrays: collections.abc.Sequence[numpy.ndarray], own_count: typing.SupportsInt | typing.SupportsIndex, shown: typing.Any, name: str, graph: Graph, policy: str, depth: typing.SupportsInt | typing.SupportsIndex, reject_nonfinite: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex | None, rejoins: bool, codec: Codec | None = None, watch: typing.Any = None) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __repr__(self) -> str:
        ...
    def allreduce(self, fold: Fold = ..., *, timeout: typing.SupportsFloat | None = None, last: bool = False) -> Gathered:
        """
        The exact fold of the vectors of all live ranks, on all of them. Collective.

        If an exception ends the call (a time limit, Ctrl-C), the vector is unchanged. Call it again: others may have ended it, and this rank then gets the same result. If they have not, theirs end with a TimeoutError, which names this rank. After another collective call, such as malt.barrier(), it is a new call on all ranks.

        Args:
            fold: AVG (the default), SUM, MEDIAN or TRIMMED_MEAN(f); of integers as in gather().
            timeout: seconds to wait; that of malt.init() if None.
            last: True for the call after the loop. It takes part in one allreduce only with
                calls of other ranks that say so too.

        Raises:
            TimeoutError: the named ranks did not come; the vector is unchanged.
            ConfigError: on all ranks: they name different folds, or only some are at their last; the vector is unchanged.
        """
    def await_update(self, live: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait for an update to gather, or until more or fewer ranks are alive; for the package.
        """
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The rank's last iteration that has arrived here; for the package.
        """
    def close(self) -> None:
        """
        Leave the vector: the other ranks no longer wait for this one. Idempotent.
        """
    def frontier(self) -> int:
        """
        The highest iteration of which every live in-neighbour's update has arrived.

        Within an epoch, no update of it or of an earlier one arrives any more. It never goes back.
        """
    def gather(self, fold: Fold | collections.abc.Callable[[numpy.ndarray, list[Update]], typing.Any] = ..., *, staleness: typing.SupportsIndex | None = None, timeout: typing.SupportsFloat | None = None, quorum: typing.SupportsFloat | None = None, deadline: typing.SupportsFloat | str | None = None) -> Gathered:
        """
        Fold what has arrived into this vector. Asks no peer for anything.

        Args:
            fold: AVG (the default), SUM, WEIGHTED, REPLACE, MEDIAN, TRIMMED_MEAN(f), or a
                function fold(mine, updates) that changes `mine` or returns what it becomes.
                Of integers AVG, MEDIAN and TRIMMED_MEAN are exact, rounded toward zero; SUM wraps
                around, as NumPy's does; WEIGHTED is computed in double precision.
            staleness: 0 waits for this iteration's update of every live in-neighbour (BSP),
                k lets them be k iterations behind (SSP), None does not wait (ASP).
            timeout: seconds to wait; that of malt.init() if None.
            quorum: the share of the live in-neighbours (above 0, at most 1; rounded up) to wait
                for until they have scattered this iteration; then fold who is there. None:
                nobody, or with a deadline all. Not with staleness=0, which waits for all.
            deadline: seconds after which to fold who is there although the quorum is not;
                "auto": three times as long as quorums took in the last gathers. None: the
                timeout, which is an error.

        Returns:
            Gathered: count, ranks and staleness of the updates folded.

        Raises:
            TimeoutError: the named ranks did not come; nothing was folded.
            ConfigError: an argument is out of range; another thread's call waits, or a fold makes the call (malt.vector() says more).
        """
    def on_frontier(self, iteration: typing.SupportsInt | typing.SupportsIndex, function: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the vector, when that call has done its work. An error in it comes out of that call.

        Raises:
            ConfigError: `iteration` is below 0.
        """
    def regroup(self, group: Group) -> None:
        """
        Move to another group. Collective; for the package.
        """
    def scatter(self, graph: Graph | None = None) -> tuple[int, ...]:
        """
        Write this vector into the memory of this round's out-neighbours.

        Under policy 'latest' it never waits; under 'queue' it waits for a free slot.

        Args:
            graph: over which to send, this once, instead of the vector's own.

        Returns:
            The ranks written to.

        Raises:
            TimeoutError: every slot holds an update that the named ranks have yet to gather.
        """
    def show(self, array: typing.Any) -> None:
        """
        Have `array` return this view of the vector's own memory; for the package.
        """
    def stats(self) -> Stats:
        """
        This vector's counters. Any thread, at any time.
        """
    def wait_for(self, iteration: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait; that of malt.init() if None.

        Raises:
            TimeoutError: the named ranks did not scatter it.
            ConfigError: `iteration` is below 0.
        """
    @property
    def array(self) -> typing.Any:
        """
        The caller's array (or a sequence of them), or the vector's own memory.

        Assigning to it (`v.array = x`) copies the values into that memory.

        Raises:
            ConfigError: the values have another shape, or do not fit the dtype.
        """
    @array.setter
    def array(self, arg1: typing.Any) -> None:
        ...
    @property
    def dtype(self) -> numpy.dtype[typing.Any]:
        ...
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        """
        Whether this rank has scattered, gathered or reduced it.
        """
    @property
    def iteration(self) -> int:
        """
        How often this rank has scattered it.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def uses(self) -> Uses:
        """
        How often this rank has used it: calls that have ended, such as uses.allreduces.
        """
class RowVector(Vector):
    """
    A vector over this rank's row of `rows`, one for each rank; for the package.
    """
    def __init__(self, *, group: Group, rows: numpy.typing.NDArray[numpy.int64], name: str, depth: typing.SupportsInt | typing.SupportsIndex, rejoins: bool) -> None:
        ...
    def gather_rows(self, *, staleness: typing.SupportsIndex | None = None) -> tuple[int, ...]:
        """
        Gather each update into the row of its sender.

        Without a staleness, move to the next group if there is one.

        Returns:
            The ranks that were alive before. The last rows of the other ranks have arrived.
        """
    def scatter_row(self) -> tuple[int, ...]:
        """
        Scatter. Other hosts may get the update only together with this rank's next one.

        Returns:
            The ranks written to.
        """
class DeviceReducer:
    """
    A vector that is reduced wherever it lies on a GPU; for the package.
    """
    def __init__(self, group: Group, dtype: str, count: typing.SupportsInt | typing.SupportsIndex, name: str, data: typing.SupportsInt | typing.SupportsIndex, slots: str, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def allreduce(self, data: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, mean: bool, timeout: typing.SupportsFloat | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
        """
        Replace `count` elements by the sum or mean of the live ranks'. Collective.

        Returns:
            The other ranks that took part.
        """
    def shut(self) -> None:
        """
        Leave. Any thread, at any time.
        """
class DeviceVector:
    """
    A dense vector in the memory of a GPU. Made by malt.vector().

    Its calls are those of a Vector, in the order of the caller's current stream.
    """
    def __init__(self, *, group: Group, dtype: numpy.dtype[typing.Any], places: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], shown: typing.Any, stream: collections.abc.Callable[[], int], slots: str, name: str, graph: Graph, policy: str, depth: typing.SupportsInt | typing.SupportsIndex, reject_nonfinite: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex | None, rejoins: bool, codec: Codec | None = None) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __repr__(self) -> str:
        ...
    def allreduce(self, fold: Fold = ..., *, timeout: typing.SupportsFloat | None = None, last: bool = False) -> Gathered:
        """
        The exact fold of the vectors of all live ranks, on all of them. Collective.

        Args:
            fold: AVG (the default), SUM, MEDIAN or TRIMMED_MEAN(f).
            timeout: seconds to wait; that of malt.init() if None.
            last: as of Vector.allreduce().

        Raises:
            TimeoutError: the named ranks did not come; the vector is unchanged, and when this rank calls again, what it has sent already counts.
            ConfigError: as of Vector.allreduce() and scatter().
        """
    def await_update(self, live: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait for an update to gather, or until more or fewer ranks are alive; for the package.
        """
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The rank's last iteration that has arrived here; for the package.
        """
    def close(self) -> None:
        """
        Leave the vector: the other ranks no longer wait for this one. Idempotent.
        """
    def frontier(self) -> int:
        """
        The highest iteration of which every live in-neighbour's update has arrived.

        Within an epoch, no update of it or of an earlier one arrives any more. It never goes back.
        """
    def gather(self, fold: Fold = ..., *, staleness: typing.SupportsIndex | None = None, timeout: typing.SupportsFloat | None = None, quorum: typing.SupportsFloat | None = None, deadline: typing.SupportsFloat | str | None = None) -> Gathered:
        """
        Fold what has arrived into this vector, before what the stream gets next.

        Args:
            fold: AVG (the default), SUM, WEIGHTED, REPLACE, MEDIAN or TRIMMED_MEAN(f).
            staleness: this and the following as of Vector.gather(); a wait is one of this thread.
            timeout: seconds.
            quorum: the share of the in-neighbours to wait for.
            deadline: seconds, or "auto".

        Returns:
            Gathered: count, ranks and staleness of the updates folded.

        Raises:
            TimeoutError: the named ranks did not come; nothing was folded.
            ConfigError: as scatter(); or the fold is a function.
            Error: the GPU has failed.
        """
    def leave(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Close, when the GPU has finished, for which there is a limit of its own; for the package.
        """
    def on_frontier(self, iteration: typing.SupportsInt | typing.SupportsIndex, function: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the vector, when that call has done its work. An error in it comes out of that call.

        Raises:
            ConfigError: `iteration` is below 0.
        """
    def read(self) -> numpy.ndarray:
        """
        Return a copy of the elements in the host's memory. Waits for the GPU.
        """
    def regroup(self, group: Group) -> None:
        """
        Move to another group. Collective; for the package.
        """
    def scatter(self, graph: Graph | None = None) -> tuple[int, ...]:
        """
        Write this vector to this round's out-neighbours, behind what the stream has.

        Returns before the GPU has done so. Waits only for this vector's scatter before, and under policy 'queue' for a free slot.

        Args:
            graph: over which to send, this once, instead of the vector's own.

        Returns:
            The ranks written to.

        Raises:
            TimeoutError: every slot holds an update that the named ranks have yet to gather.
            ConfigError: an array has moved; the stream is being captured.
            Error: the GPU has failed.
        """
    def stats(self) -> Stats:
        """
        This vector's counters. Any thread, at any time.
        """
    def wait_for(self, iteration: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait; that of malt.init() if None.

        Raises:
            TimeoutError: the named ranks did not scatter it.
            ConfigError: `iteration` is below 0.
        """
    def write(self, values: numpy.ndarray) -> None:
        """
        Replace the elements by those of a NumPy array. Waits for the GPU.
        """
    @property
    def array(self) -> typing.Any:
        """
        The caller's array, or list of them.
        """
    @property
    def dtype(self) -> numpy.dtype[typing.Any]:
        ...
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        """
        Whether this rank has scattered, gathered or reduced it.
        """
    @property
    def iteration(self) -> int:
        """
        How often this rank has scattered it.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def slots(self) -> str:
        """
        Place of updates: 'ipc', in the memory of the senders' GPUs; or 'host: ...', with the reason.
        """
    @property
    def uses(self) -> Uses:
        """
        How often this rank has used it: calls that have ended, such as uses.allreduces.
        """
class SparseUpdateFloat32:
    """
    One sparse update, as a fold of the user's own sees it.
    """
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def values(self) -> numpy.typing.NDArray[numpy.float32]:
        ...
class SparseVectorFloat32:
    """
    A sparse vector that is scattered and gathered. Made by malt.sparse_vector().
    """
    def __init__(self, *, group: Group, dim: typing.SupportsInt | typing.SupportsIndex, capacity: typing.SupportsInt | typing.SupportsIndex, name: str, graph: Graph, policy: str, depth: typing.SupportsInt | typing.SupportsIndex, reject_nonfinite: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex | None, rejoins: bool, shared: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def clear(self) -> None:
        ...
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        As of a dense vector.
        """
    def close(self) -> None:
        ...
    def frontier(self) -> int:
        """
        The highest iteration of which every live in-neighbour's update has arrived.

        Within an epoch, no update of it or of an earlier one arrives any more. It never goes back.
        """
    def gather(self, fold: typing.Any = ..., *, staleness: typing.Any = None, timeout: typing.Any = None, quorum: typing.Any = None, deadline: typing.Any = None) -> Gathered:
        """
        As of a dense vector in which everything not stored is zero. A function of the user's own fold(mine, updates) returns (indices, values), indices strictly increasing.
        """
    def on_frontier(self, iteration: typing.SupportsInt | typing.SupportsIndex, function: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the vector, when that call has done its work. An error in it comes out of that call.

        Raises:
            ConfigError: `iteration` is below 0.
        """
    def regroup(self, group: Group) -> None:
        """
        As of a dense vector.
        """
    def scatter(self, graph: typing.Any = None) -> tuple[int, ...]:
        """
        As of a dense vector.
        """
    def set(self, indices: typing.Any, values: typing.Any) -> None:
        """
        Replace what is stored; values of an index that comes twice are added.

        Raises:
            ConfigError: lengths differ, an index is out of range, or there are more than `capacity`.
        """
    def stats(self) -> Stats:
        ...
    def wait_for(self, iteration: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait; that of malt.init() if None.

        Raises:
            TimeoutError: the named ranks did not scatter it.
            ConfigError: `iteration` is below 0.
        """
    @property
    def capacity(self) -> int:
        ...
    @property
    def dim(self) -> int:
        ...
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        Strictly increasing, int32; a copy.
        """
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def uses(self) -> Uses:
        """
        As of a dense vector.
        """
    @property
    def values(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        One for each index; a copy.
        """
class SparseUpdateFloat64:
    """
    One sparse update, as a fold of the user's own sees it.
    """
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def values(self) -> numpy.typing.NDArray[numpy.float64]:
        ...
class SparseVectorFloat64:
    """
    A sparse vector that is scattered and gathered. Made by malt.sparse_vector().
    """
    def __init__(self, *, group: Group, dim: typing.SupportsInt | typing.SupportsIndex, capacity: typing.SupportsInt | typing.SupportsIndex, name: str, graph: Graph, policy: str, depth: typing.SupportsInt | typing.SupportsIndex, reject_nonfinite: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex | None, rejoins: bool, shared: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def clear(self) -> None:
        ...
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        As of a dense vector.
        """
    def close(self) -> None:
        ...
    def frontier(self) -> int:
        """
        The highest iteration of which every live in-neighbour's update has arrived.

        Within an epoch, no update of it or of an earlier one arrives any more. It never goes back.
        """
    def gather(self, fold: typing.Any = ..., *, staleness: typing.Any = None, timeout: typing.Any = None, quorum: typing.Any = None, deadline: typing.Any = None) -> Gathered:
        """
        As of a dense vector in which everything not stored is zero. A function of the user's own fold(mine, updates) returns (indices, values), indices strictly increasing.
        """
    def on_frontier(self, iteration: typing.SupportsInt | typing.SupportsIndex, function: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the vector, when that call has done its work. An error in it comes out of that call.

        Raises:
            ConfigError: `iteration` is below 0.
        """
    def regroup(self, group: Group) -> None:
        """
        As of a dense vector.
        """
    def scatter(self, graph: typing.Any = None) -> tuple[int, ...]:
        """
        As of a dense vector.
        """
    def set(self, indices: typing.Any, values: typing.Any) -> None:
        """
        Replace what is stored; values of an index that comes twice are added.

        Raises:
            ConfigError: lengths differ, an index is out of range, or there are more than `capacity`.
        """
    def stats(self) -> Stats:
        ...
    def wait_for(self, iteration: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait; that of malt.init() if None.

        Raises:
            TimeoutError: the named ranks did not scatter it.
            ConfigError: `iteration` is below 0.
        """
    @property
    def capacity(self) -> int:
        ...
    @property
    def dim(self) -> int:
        ...
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        Strictly increasing, int32; a copy.
        """
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def uses(self) -> Uses:
        """
        As of a dense vector.
        """
    @property
    def values(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        One for each index; a copy.
        """
class SparseUpdateInt32:
    """
    One sparse update, as a fold of the user's own sees it.
    """
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def values(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
class SparseVectorInt32:
    """
    A sparse vector that is scattered and gathered. Made by malt.sparse_vector().
    """
    def __init__(self, *, group: Group, dim: typing.SupportsInt | typing.SupportsIndex, capacity: typing.SupportsInt | typing.SupportsIndex, name: str, graph: Graph, policy: str, depth: typing.SupportsInt | typing.SupportsIndex, reject_nonfinite: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex | None, rejoins: bool, shared: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def clear(self) -> None:
        ...
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        As of a dense vector.
        """
    def close(self) -> None:
        ...
    def frontier(self) -> int:
        """
        The highest iteration of which every live in-neighbour's update has arrived.

        Within an epoch, no update of it or of an earlier one arrives any more. It never goes back.
        """
    def gather(self, fold: typing.Any = ..., *, staleness: typing.Any = None, timeout: typing.Any = None, quorum: typing.Any = None, deadline: typing.Any = None) -> Gathered:
        """
        As of a dense vector in which everything not stored is zero. A function of the user's own fold(mine, updates) returns (indices, values), indices strictly increasing.
        """
    def on_frontier(self, iteration: typing.SupportsInt | typing.SupportsIndex, function: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the vector, when that call has done its work. An error in it comes out of that call.

        Raises:
            ConfigError: `iteration` is below 0.
        """
    def regroup(self, group: Group) -> None:
        """
        As of a dense vector.
        """
    def scatter(self, graph: typing.Any = None) -> tuple[int, ...]:
        """
        As of a dense vector.
        """
    def set(self, indices: typing.Any, values: typing.Any) -> None:
        """
        Replace what is stored; values of an index that comes twice are added.

        Raises:
            ConfigError: lengths differ, an index is out of range, or there are more than `capacity`.
        """
    def stats(self) -> Stats:
        ...
    def wait_for(self, iteration: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait; that of malt.init() if None.

        Raises:
            TimeoutError: the named ranks did not scatter it.
            ConfigError: `iteration` is below 0.
        """
    @property
    def capacity(self) -> int:
        ...
    @property
    def dim(self) -> int:
        ...
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        Strictly increasing, int32; a copy.
        """
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def uses(self) -> Uses:
        """
        As of a dense vector.
        """
    @property
    def values(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        One for each index; a copy.
        """
class SparseUpdateInt64:
    """
    One sparse update, as a fold of the user's own sees it.
    """
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def values(self) -> numpy.typing.NDArray[numpy.int64]:
        ...
class SparseVectorInt64:
    """
    A sparse vector that is scattered and gathered. Made by malt.sparse_vector().
    """
    def __init__(self, *, group: Group, dim: typing.SupportsInt | typing.SupportsIndex, capacity: typing.SupportsInt | typing.SupportsIndex, name: str, graph: Graph, policy: str, depth: typing.SupportsInt | typing.SupportsIndex, reject_nonfinite: bool, max_norm: typing.SupportsFloat | typing.SupportsIndex | None, rejoins: bool, shared: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8]) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def clear(self) -> None:
        ...
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        As of a dense vector.
        """
    def close(self) -> None:
        ...
    def frontier(self) -> int:
        """
        The highest iteration of which every live in-neighbour's update has arrived.

        Within an epoch, no update of it or of an earlier one arrives any more. It never goes back.
        """
    def gather(self, fold: typing.Any = ..., *, staleness: typing.Any = None, timeout: typing.Any = None, quorum: typing.Any = None, deadline: typing.Any = None) -> Gathered:
        """
        As of a dense vector in which everything not stored is zero. A function of the user's own fold(mine, updates) returns (indices, values), indices strictly increasing.
        """
    def on_frontier(self, iteration: typing.SupportsInt | typing.SupportsIndex, function: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the vector, when that call has done its work. An error in it comes out of that call.

        Raises:
            ConfigError: `iteration` is below 0.
        """
    def regroup(self, group: Group) -> None:
        """
        As of a dense vector.
        """
    def scatter(self, graph: typing.Any = None) -> tuple[int, ...]:
        """
        As of a dense vector.
        """
    def set(self, indices: typing.Any, values: typing.Any) -> None:
        """
        Replace what is stored; values of an index that comes twice are added.

        Raises:
            ConfigError: lengths differ, an index is out of range, or there are more than `capacity`.
        """
    def stats(self) -> Stats:
        ...
    def wait_for(self, iteration: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait; that of malt.init() if None.

        Raises:
            TimeoutError: the named ranks did not scatter it.
            ConfigError: `iteration` is below 0.
        """
    @property
    def capacity(self) -> int:
        ...
    @property
    def dim(self) -> int:
        ...
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        Strictly increasing, int32; a copy.
        """
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        ...
    @property
    def iteration(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def uses(self) -> Uses:
        """
        As of a dense vector.
        """
    @property
    def values(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        One for each index; a copy.
        """
class Duplex:
    """
    Messages between two ranks, each way; for the package.
    """
    def __init__(self, group: Group, name: str, peer: typing.SupportsInt | typing.SupportsIndex, slot_bytes: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex, spare: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def peek(self, timeout: typing.SupportsFloat | typing.SupportsIndex) -> tuple[bytes, int]:
        """
        Wait for a message.

        Returns:
            The head of the oldest one, and its body's bytes.
        """
    def send(self, head: bytes, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Send `head` and the bytes at the address `data`. Waits for a slot that is not spare.
        """
    def shut(self) -> None:
        """
        Leave, at any time in any thread.
        """
    def take(self, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copy the body of the message that peek() returned to the address `data`.
        """
    def try_send(self, head: bytes, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Send if that needs no wait, also into a spare slot.

        Returns:
            Whether it did.
        """
class Mail:
    """
    Messages from one rank to one other; for the package.
    """
    def __init__(self, group: Group, name: str, slot_bytes: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def live(self) -> list[int]:
        """
        The ranks that live and have not closed it, sorted.
        """
    def pump(self) -> int:
        """
        Send what waits for room, as far as there is room now.

        Returns:
            How many messages still wait.
        """
    def receive(self) -> list[tuple[int, bytes]]:
        """
        Arrived messages: sender and bytes.
        """
    def send(self, to: typing.SupportsInt | typing.SupportsIndex, head: bytes, body: typing_extensions.Buffer) -> None:
        """
        Send `head` and `body`, a contiguous buffer, as one message. Never waits.
        """
    def shut(self) -> None:
        """
        Leave, at any time in any thread.
        """
    def wait(self, live: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait for a message, for room for a waiting one, or until other ranks live than `live`.

        Returns:
            Whether one of these came within the time.
        """
class Messages:
    """
    Messages from each rank to all others; for the package.
    """
    def __init__(self, group: Group, name: str, slot_bytes: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex, rejoins: bool) -> None:
        ...
    def blockers(self) -> list[int]:
        """
        The live ranks that have yet to receive messages, which so keep slots in use.
        """
    def clock_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        How many messages of the rank have arrived here.
        """
    def close(self) -> None:
        """
        Leave. Idempotent.
        """
    def live(self) -> list[int]:
        """
        The ranks that live and have not closed it, sorted.
        """
    def receive(self) -> list[tuple[int, bytes, bool]]:
        """
        Arrived messages: sender, bytes, and whether they are of an earlier group.
        """
    def regroup(self, group: Group) -> None:
        """
        Move to another group. Collective.
        """
    def shut(self) -> None:
        """
        Leave, at any time in any thread.
        """
    def stats(self) -> Stats:
        """
        Counters of the messages. Any thread, at any time.
        """
    def try_send(self, message: bytes) -> bool:
        """
        Send to all live ranks if that needs no wait.

        Returns:
            Whether it did.
        """
    def wait(self, for_room: bool, live: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], what: str, timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait for a message, for room to send, or until other ranks live than `live`.

        Returns:
            Whether one of these came within the time.
        """
    @property
    def is_closed(self) -> bool:
        ...
    @property
    def is_used(self) -> bool:
        ...
    @property
    def iteration(self) -> int:
        """
        How many messages this rank has sent.
        """
class WindowMemory:
    """
    Shared memory for windows; for the package.
    """
    def __init__(self, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Memory that begins with a copy of the bytes at the address `data`.
        """
    def array(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        The memory itself, which lives as long as the array.
        """
class Window:
    """
    Memory that other ranks write into; for the package.
    """
    def __init__(self, group: Group, name: str, memory: WindowMemory, first: typing.SupportsInt | typing.SupportsIndex, length: typing.SupportsInt | typing.SupportsIndex, note: bytes, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Collective. The others write to `length` bytes of the memory from `first`, and get the note.
        """
    def array(self, rank: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.uint8]:
        """
        The memory of a rank of this host itself.
        """
    def await_signals(self, source: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Return when a rank has sent this one so many signals.
        """
    def close(self, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Return when all that live ranks have put here has come. Collective.
        """
    def is_mapped(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether there is array() of a rank.
        """
    def note(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bytes:
        """
        The note that a rank gave.
        """
    def put(self, to: typing.SupportsInt | typing.SupportsIndex, offset: typing.SupportsInt | typing.SupportsIndex, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Write the bytes at the address `data` into a rank's window.
        """
    def shut(self, limit: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Leave. Any thread, at any time.
        """
    def signal(self, to: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Tell a rank that this one has sent it so many signals.
        """
class Exchange:
    """
    Rounds in which each rank gives bytes; for the package.
    """
    def __init__(self, group: Group, name: str, slot_bytes: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def fold(self, data: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, dtype: typing.SupportsInt | typing.SupportsIndex, mean: bool, timeout: typing.SupportsFloat | typing.SupportsIndex, call: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Replace elements by the sum or mean of all ranks'. Collective; `call` as for run().
        """
    def run(self, gives: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], takes: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], kind: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex, may_miss: bool = False, call: typing.SupportsInt | typing.SupportsIndex = 0) -> list[int]:
        """
        Give stretches (address, bytes) and copy (rank, offset, bytes, address, of) of the others'. Collective; all ranks give the same number of the call.

        Returns:
            The ranks that were missing.
        """
    def shut(self) -> None:
        """
        Leave. Any thread, at any time.
        """
class Reducer:
    """
    A vector that is reduced wherever it lies; for the package.
    """
    def __init__(self, group: Group, dtype: str, count: typing.SupportsInt | typing.SupportsIndex, name: str, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        ...
    def allreduce(self, data: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, mean: bool, timeout: typing.SupportsFloat | typing.SupportsIndex, call: typing.SupportsInt | typing.SupportsIndex = 0) -> list[int]:
        """
        Replace `count` elements by the sum or mean of the live ranks'. Collective. All ranks give the same number of the call.

        Returns:
            The other ranks that took part.
        """
    def shut(self) -> None:
        """
        Leave. Any thread, at any time.
        """
    @property
    def count(self) -> int:
        """
        How many times this rank has reduced.
        """
class Link:
    """
    Messages from rank 0 to rank 1 of a group; for the package.
    """
    def __init__(self, group: Group, name: str, slot_bytes: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def await_tag(self, tags: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], timeout: typing.SupportsFloat | typing.SupportsIndex) -> int:
        """
        Wait for a message; the place of its tag in `tags`, or -1.
        """
    def check_room(self, tag: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Raise ConfigError if messages of other tags leave no room for one of this tag.
        """
    def receive(self, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex, ended: list[None]) -> None:
        """
        Receive a message; `ended` as for try_send().
        """
    def send(self, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def shut(self) -> None:
        """
        Leave. Any thread, at any time.
        """
    def try_send(self, data: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex, ended: list[None]) -> bool:
        """
        Send if that needs no wait; `ended` then gets an element, before an exception of a signal handler can end the call.

        Returns:
            Whether it did.
        """
class TlsContext:
    """
    The files of a folder of MALT_TLS.
    """
    def __init__(self, folder: str) -> None:
        """
        Load OpenSSL, and the certificates.

        Raises:
            ConfigError: the file, and what is wrong with it; or what to install.
        """
class Call:
    """
    A connection of the rendezvous. Nothing here blocks.
    """
    def __init__(self, connected: typing.SupportsInt | typing.SupportsIndex, key: bytes, number: typing.SupportsInt | typing.SupportsIndex, about: typing.SupportsInt | typing.SupportsIndex, tls: TlsContext | None) -> None:
        """
        Take over a connected socket that does not block.
        """
    def close(self) -> None:
        """
        Idempotent.
        """
    def fileno(self) -> int:
        ...
    def receive(self, most: typing.SupportsInt | typing.SupportsIndex) -> bytes | None:
        """
        Return bytes that have arrived; none: the end; None: nothing has arrived.
        """
    def send(self, data: typing_extensions.Buffer) -> int:
        """
        Send as much as there is room for.

        Returns:
            How many bytes.
        """
    def shake_hands(self) -> bytes | None:
        """
        Go on with the handshake.

        Returns:
            The session's key; None: not yet.

        Raises:
            ConfigError: one end refuses.
            ConnectionResetError: the other end has closed the connection.
        """
    @property
    def has_buffered(self) -> bool:
        """
        Bytes have arrived that do not make fileno() readable.
        """
    @property
    def wants_write(self) -> bool:
        """
        It waits for room: call again when fileno() is writable.
        """
class Listener:
    """
    Lets in those that prove the job's key.
    """
    def __init__(self, listening: typing.SupportsInt | typing.SupportsIndex, key: bytes, limit: typing.SupportsFloat | typing.SupportsIndex, tls: TlsContext | None) -> None:
        """
        Take over a listening socket that does not block. A handshake may take `limit` seconds.
        """
    def close(self) -> None:
        """
        Idempotent.
        """
    def expect_at_once(self, callers: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Let so many callers in at the same time.
        """
    def expect_from(self, host: str) -> None:
        """
        Have callers from an address of the job take turns with all others.
        """
    def fileno(self) -> int:
        ...
    def ready(self) -> list[tuple[Call, bytes, str, int, int]]:
        """
        Take a turn at the handshakes.

        Returns:
            Of each caller that has proved the key: the connection, the session's key, the
            address it calls from, its number and what it says about itself.
        """
    @property
    def half_open(self) -> int:
        ...
    @property
    def last_refusal(self) -> str:
        ...
class ExamplesFloat32:
    """
    Rows to train on, over the caller's arrays, which must not change meanwhile.
    """
    @staticmethod
    def csr(starts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], columns: numpy.ndarray, values: numpy.ndarray, features: typing.SupportsInt | typing.SupportsIndex, targets: numpy.ndarray | None = None, weights: numpy.ndarray | None = None, *, check: bool = True) -> ExamplesFloat32:
        """
        Of a CSR matrix: SciPy's indptr, indices (int32) and data, columns rising.

        Args:
            targets: one a row; -1 or 1, a number, or of several outputs a class from 0.
            weights: of each row's loss, or None.
            check: whether rows are checked now. DualAscent checks them itself; give unchecked ones to nothing else.

        Raises:
            ConfigError: a wrong dtype or shape, or rows out of range.
        """
    @staticmethod
    def dense(values: numpy.ndarray, targets: numpy.ndarray | None = None, weights: numpy.ndarray | None = None) -> ExamplesFloat32:
        """
        Of an array (rows, features); as csr().
        """
    @property
    def features(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def values(self) -> int:
        """
        How many values the matrix holds.
        """
class LinearFloat32:
    """
    A linear model in training, over the caller's arrays of (features + 1) x outputs, whose last row are the intercepts.
    """
    def __init__(self, weights: numpy.ndarray, *, features: typing.SupportsInt | typing.SupportsIndex, outputs: typing.SupportsInt | typing.SupportsIndex = 1, loss: str = 'hinge', epsilon: typing.SupportsFloat | typing.SupportsIndex = 0.1, alpha: typing.SupportsFloat | typing.SupportsIndex = 0.0001, l1_ratio: typing.SupportsFloat | typing.SupportsIndex = 0.0, learning_rate: str = 'optimal', eta0: typing.SupportsFloat | typing.SupportsIndex = 0.01, power_t: typing.SupportsFloat | typing.SupportsIndex = 0.25, intercept: bool = True, average: numpy.ndarray | None = None, average_from: typing.SupportsInt | typing.SupportsIndex = 1, squares: numpy.ndarray | None = None, steps: typing.SupportsInt | typing.SupportsIndex = 0, class_weights: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
        """
        Continues after `steps` steps. `loss` is scikit-learn's name of it, or 'softmax'; `learning_rate` 'constant', 'invscaling', 'optimal' or 'adagrad', which needs `squares`; `class_weights`, of several outputs, of a row's loss in that of its own class.

        Raises:
            ConfigError: an option or an array is out of range.
        """
    def finish(self) -> bool:
        """
        Make the arrays true, before they are read, exchanged or changed. Returns whether all weights are finite.
        """
    def train(self, examples: ExamplesFloat32, first: typing.SupportsInt | typing.SupportsIndex = 0, last: typing.SupportsInt | typing.SupportsIndex | None = None, *, order: numpy.ndarray | None = None) -> float:
        """
        One step for each of the rows first to last - 1, or order[first] to order[last - 1] (uint32).

        Returns the sum of their losses. The arrays are true after finish() only.

        Raises:
            ConfigError: what does not fit.
            KeyboardInterrupt: after some of the steps.
        """
    @property
    def steps(self) -> int:
        ...
class ExamplesFloat64:
    """
    Rows to train on, over the caller's arrays, which must not change meanwhile.
    """
    @staticmethod
    def csr(starts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], columns: numpy.ndarray, values: numpy.ndarray, features: typing.SupportsInt | typing.SupportsIndex, targets: numpy.ndarray | None = None, weights: numpy.ndarray | None = None, *, check: bool = True) -> ExamplesFloat64:
        """
        Of a CSR matrix: SciPy's indptr, indices (int32) and data, columns rising.

        Args:
            targets: one a row; -1 or 1, a number, or of several outputs a class from 0.
            weights: of each row's loss, or None.
            check: whether rows are checked now. DualAscent checks them itself; give unchecked ones to nothing else.

        Raises:
            ConfigError: a wrong dtype or shape, or rows out of range.
        """
    @staticmethod
    def dense(values: numpy.ndarray, targets: numpy.ndarray | None = None, weights: numpy.ndarray | None = None) -> ExamplesFloat64:
        """
        Of an array (rows, features); as csr().
        """
    @property
    def features(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def values(self) -> int:
        """
        How many values the matrix holds.
        """
class LinearFloat64:
    """
    A linear model in training, over the caller's arrays of (features + 1) x outputs, whose last row are the intercepts.
    """
    def __init__(self, weights: numpy.ndarray, *, features: typing.SupportsInt | typing.SupportsIndex, outputs: typing.SupportsInt | typing.SupportsIndex = 1, loss: str = 'hinge', epsilon: typing.SupportsFloat | typing.SupportsIndex = 0.1, alpha: typing.SupportsFloat | typing.SupportsIndex = 0.0001, l1_ratio: typing.SupportsFloat | typing.SupportsIndex = 0.0, learning_rate: str = 'optimal', eta0: typing.SupportsFloat | typing.SupportsIndex = 0.01, power_t: typing.SupportsFloat | typing.SupportsIndex = 0.25, intercept: bool = True, average: numpy.ndarray | None = None, average_from: typing.SupportsInt | typing.SupportsIndex = 1, squares: numpy.ndarray | None = None, steps: typing.SupportsInt | typing.SupportsIndex = 0, class_weights: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
        """
        Continues after `steps` steps. `loss` is scikit-learn's name of it, or 'softmax'; `learning_rate` 'constant', 'invscaling', 'optimal' or 'adagrad', which needs `squares`; `class_weights`, of several outputs, of a row's loss in that of its own class.

        Raises:
            ConfigError: an option or an array is out of range.
        """
    def finish(self) -> bool:
        """
        Make the arrays true, before they are read, exchanged or changed. Returns whether all weights are finite.
        """
    def train(self, examples: ExamplesFloat64, first: typing.SupportsInt | typing.SupportsIndex = 0, last: typing.SupportsInt | typing.SupportsIndex | None = None, *, order: numpy.ndarray | None = None) -> float:
        """
        One step for each of the rows first to last - 1, or order[first] to order[last - 1] (uint32).

        Returns the sum of their losses. The arrays are true after finish() only.

        Raises:
            ConfigError: what does not fit.
            KeyboardInterrupt: after some of the steps.
        """
    @property
    def steps(self) -> int:
        ...
class CoordinateDescentFloat32:
    """
    One rank's part in solving a lasso or an elastic net to a known gap (learn/coordinate_descent.hpp).
    """
    def __init__(self, columns: ExamplesFloat32, targets: numpy.ndarray, *, alpha: typing.SupportsFloat | typing.SupportsIndex = 1.0, l1_ratio: typing.SupportsFloat | typing.SupportsIndex = 1.0, intercept: bool = True, dynamic: bool = True, rank: typing.SupportsInt | typing.SupportsIndex = 0, ranks: typing.SupportsInt | typing.SupportsIndex = 1, seed: typing.SupportsInt | typing.SupportsIndex = 0, positive: bool = False, start: numpy.ndarray | None = None, roots: numpy.ndarray | None = None) -> None:
        """
        Args:
            columns: the columns of X, as rows of examples; read in place.
            targets: (rows,).
            dynamic: the schedule: dynamic or random.
            positive: whether no weight may be below 0.
            start: (columns,) weights to begin with; settle() then comes first.
            roots: (rows,) of the rows' weights; X and targets are already multiplied by them.

        Raises:
            ConfigError: an option is out of range, or a value is not finite.
        """
    def add_changes(self, sum: numpy.ndarray) -> float:
        """
        Take the sum of all ranks' changes; return the length of the step.
        """
    def choose(self, all: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(4)"]) -> tuple[float, float]:
        """
        Pick the columns of the next sweeps; return (primal, dual): the optimum is between.
        """
    def contribute(self, contribution: numpy.ndarray) -> None:
        """
        Write this rank's part of X w, to add up for settle().
        """
    def look(self) -> typing.Annotated[list[float], "FixedSize(4)"]:
        """
        Four numbers for choose(): take the highest of the first, add the others up.
        """
    def settle(self, sum: numpy.ndarray) -> None:
        """
        Take X w.
        """
    def sweep(self, share: typing.SupportsFloat | typing.SupportsIndex, most: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Sweep until a sweep lets the objective fall by at most `share` of the first.
        """
    def take_change(self, change: numpy.ndarray) -> None:
        """
        Write this rank's change: an array of change_length.
        """
    @property
    def change_length(self) -> int:
        ...
    @property
    def fall(self) -> float:
        ...
    @property
    def looked(self) -> int:
        ...
    @property
    def mean(self) -> float:
        """
        The sum of the columns' means times their weights.
        """
    @property
    def updates(self) -> int:
        ...
    @property
    def weights(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        A copy: (columns,), of other ranks' columns 0.
        """
class CoordinateDescentFloat64:
    """
    One rank's part in solving a lasso or an elastic net to a known gap (learn/coordinate_descent.hpp).
    """
    def __init__(self, columns: ExamplesFloat64, targets: numpy.ndarray, *, alpha: typing.SupportsFloat | typing.SupportsIndex = 1.0, l1_ratio: typing.SupportsFloat | typing.SupportsIndex = 1.0, intercept: bool = True, dynamic: bool = True, rank: typing.SupportsInt | typing.SupportsIndex = 0, ranks: typing.SupportsInt | typing.SupportsIndex = 1, seed: typing.SupportsInt | typing.SupportsIndex = 0, positive: bool = False, start: numpy.ndarray | None = None, roots: numpy.ndarray | None = None) -> None:
        """
        Args:
            columns: the columns of X, as rows of examples; read in place.
            targets: (rows,).
            dynamic: the schedule: dynamic or random.
            positive: whether no weight may be below 0.
            start: (columns,) weights to begin with; settle() then comes first.
            roots: (rows,) of the rows' weights; X and targets are already multiplied by them.

        Raises:
            ConfigError: an option is out of range, or a value is not finite.
        """
    def add_changes(self, sum: numpy.ndarray) -> float:
        """
        Take the sum of all ranks' changes; return the length of the step.
        """
    def choose(self, all: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(4)"]) -> tuple[float, float]:
        """
        Pick the columns of the next sweeps; return (primal, dual): the optimum is between.
        """
    def contribute(self, contribution: numpy.ndarray) -> None:
        """
        Write this rank's part of X w, to add up for settle().
        """
    def look(self) -> typing.Annotated[list[float], "FixedSize(4)"]:
        """
        Four numbers for choose(): take the highest of the first, add the others up.
        """
    def settle(self, sum: numpy.ndarray) -> None:
        """
        Take X w.
        """
    def sweep(self, share: typing.SupportsFloat | typing.SupportsIndex, most: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Sweep until a sweep lets the objective fall by at most `share` of the first.
        """
    def take_change(self, change: numpy.ndarray) -> None:
        """
        Write this rank's change: an array of change_length.
        """
    @property
    def change_length(self) -> int:
        ...
    @property
    def fall(self) -> float:
        ...
    @property
    def looked(self) -> int:
        ...
    @property
    def mean(self) -> float:
        """
        The sum of the columns' means times their weights.
        """
    @property
    def updates(self) -> int:
        ...
    @property
    def weights(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        A copy: (columns,), of other ranks' columns 0.
        """
class DualAscentFloat32:
    """
    One rank's part in solving a linear model with an L2 penalty to a known gap (learn/dual_ascent.hpp): |w|^2 / 2 + c * sum of weight * loss.
    """
    @staticmethod
    def sweep_together(solvers: collections.abc.Sequence[DualAscentFloat32]) -> None:
        """
        sweep(0, 1) of each, in one pass over the rows that they share.
        """
    def __init__(self, examples: ExamplesFloat32, targets: numpy.ndarray, weights: numpy.ndarray | None = None, *, loss: str = 'hinge', epsilon: typing.SupportsFloat | typing.SupportsIndex = 0.1, c: typing.SupportsFloat | typing.SupportsIndex = 1.0, intercept: bool = False, ranks: typing.SupportsInt | typing.SupportsIndex = 1, seed: typing.SupportsInt | typing.SupportsIndex = 0, least_kappa: typing.SupportsFloat | typing.SupportsIndex = 0.0, together: typing.SupportsInt | typing.SupportsIndex = 1, alphas: numpy.ndarray | None = None, start_intercept: typing.SupportsFloat | typing.SupportsIndex = 0.0, dealt: numpy.ndarray | None = None, lists: numpy.ndarray | None = None, rank: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Over the rows of `examples`, with targets and weights of these arrays. `alphas` and `start_intercept`: of an earlier solution for the same rows. `dealt` and `lists` (uint32): memory that this rank shares with the others, zero at first, of 4 values a row and of dealt_list_length() a rank; the rows are dealt out anew for every sweep.

        Raises:
            ConfigError: an option, a target, a weight or a length is out of range; or one rank alone has one label, with log_loss and an intercept.
        """
    def add_changes(self, sum: numpy.ndarray) -> None:
        """
        Take the sum of all ranks' changes.
        """
    def ascend(self, sweeps: typing.SupportsInt | typing.SupportsIndex, enough: typing.SupportsFloat | typing.SupportsIndex) -> tuple[int, float]:
        """
        Of one rank alone: (rows visited, the gap that is forecast) of at most so many sweeps, until the forecast is at most `enough`.
        """
    def begin_sweep(self, may_accelerate: bool = True) -> int:
        """
        On all ranks, with the last sweep's changes added. Returns the sweep's rows here. `may_accelerate`: whether the sum of the ranks' estimates has not risen.

        Raises:
            ConfigError: of several ranks, before settle().
        """
    def contribute(self, all: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(7)"], contribution: numpy.ndarray) -> None:
        """
        Write this rank's part of the weights: a float64 array of contribution_length, to add up for settle().

        Raises:
            ConfigError: all ranks together have one label, with log_loss and an intercept.
        """
    def copy_alphas(self, alphas: numpy.ndarray) -> None:
        """
        Write one value for each row.
        """
    def gap(self, primal: typing.SupportsFloat | typing.SupportsIndex, dual: typing.SupportsFloat | typing.SupportsIndex, sum: numpy.ndarray) -> tuple[float, float]:
        """
        (primal, dual): the optimum is between them. `sum`: of the contributions.
        """
    def losses(self, all: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(7)"], contribution: numpy.ndarray) -> tuple[float, float]:
        """
        Two numbers to add up over the ranks, for gap(); also writes what contribute() does. The sweep's changes have been added.

        Raises:
            ConfigError: of several ranks, before settle(); or as contribute().
        """
    def scales(self) -> typing.Annotated[list[float], "FixedSize(7)"]:
        """
        Seven numbers to add up over the ranks, for contribute().
        """
    def set_ranks(self, ranks: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        So many ranks are left; settle next.
        """
    def settle(self, sum: numpy.ndarray) -> None:
        """
        Take the weights.

        Raises:
            ConfigError: a weight is not finite.
        """
    def sweep(self, piece: typing.SupportsInt | typing.SupportsIndex, pieces: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        One step for each row of a piece of the sweep. Returns the number of rows.
        """
    def take_change(self, change: numpy.ndarray) -> None:
        """
        Write this rank's change since the last exchange: features + 2 values.
        """
    @property
    def contribution_length(self) -> int:
        ...
    @property
    def estimate(self) -> float:
        """
        An estimate of the gap, to be added up over the ranks: the sum of each row's share in it, before its step in this sweep.
        """
    @property
    def intercept(self) -> float:
        ...
    @property
    def weights(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        A copy: (features,).
        """
class DualAscentFloat64:
    """
    One rank's part in solving a linear model with an L2 penalty to a known gap (learn/dual_ascent.hpp): |w|^2 / 2 + c * sum of weight * loss.
    """
    @staticmethod
    def sweep_together(solvers: collections.abc.Sequence[DualAscentFloat64]) -> None:
        """
        sweep(0, 1) of each, in one pass over the rows that they share.
        """
    def __init__(self, examples: ExamplesFloat64, targets: numpy.ndarray, weights: numpy.ndarray | None = None, *, loss: str = 'hinge', epsilon: typing.SupportsFloat | typing.SupportsIndex = 0.1, c: typing.SupportsFloat | typing.SupportsIndex = 1.0, intercept: bool = False, ranks: typing.SupportsInt | typing.SupportsIndex = 1, seed: typing.SupportsInt | typing.SupportsIndex = 0, least_kappa: typing.SupportsFloat | typing.SupportsIndex = 0.0, together: typing.SupportsInt | typing.SupportsIndex = 1, alphas: numpy.ndarray | None = None, start_intercept: typing.SupportsFloat | typing.SupportsIndex = 0.0, dealt: numpy.ndarray | None = None, lists: numpy.ndarray | None = None, rank: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Over the rows of `examples`, with targets and weights of these arrays. `alphas` and `start_intercept`: of an earlier solution for the same rows. `dealt` and `lists` (uint32): memory that this rank shares with the others, zero at first, of 4 values a row and of dealt_list_length() a rank; the rows are dealt out anew for every sweep.

        Raises:
            ConfigError: an option, a target, a weight or a length is out of range; or one rank alone has one label, with log_loss and an intercept.
        """
    def add_changes(self, sum: numpy.ndarray) -> None:
        """
        Take the sum of all ranks' changes.
        """
    def ascend(self, sweeps: typing.SupportsInt | typing.SupportsIndex, enough: typing.SupportsFloat | typing.SupportsIndex) -> tuple[int, float]:
        """
        Of one rank alone: (rows visited, the gap that is forecast) of at most so many sweeps, until the forecast is at most `enough`.
        """
    def begin_sweep(self, may_accelerate: bool = True) -> int:
        """
        On all ranks, with the last sweep's changes added. Returns the sweep's rows here. `may_accelerate`: whether the sum of the ranks' estimates has not risen.

        Raises:
            ConfigError: of several ranks, before settle().
        """
    def contribute(self, all: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(7)"], contribution: numpy.ndarray) -> None:
        """
        Write this rank's part of the weights: a float64 array of contribution_length, to add up for settle().

        Raises:
            ConfigError: all ranks together have one label, with log_loss and an intercept.
        """
    def copy_alphas(self, alphas: numpy.ndarray) -> None:
        """
        Write one value for each row.
        """
    def gap(self, primal: typing.SupportsFloat | typing.SupportsIndex, dual: typing.SupportsFloat | typing.SupportsIndex, sum: numpy.ndarray) -> tuple[float, float]:
        """
        (primal, dual): the optimum is between them. `sum`: of the contributions.
        """
    def losses(self, all: typing.Annotated[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], "FixedSize(7)"], contribution: numpy.ndarray) -> tuple[float, float]:
        """
        Two numbers to add up over the ranks, for gap(); also writes what contribute() does. The sweep's changes have been added.

        Raises:
            ConfigError: of several ranks, before settle(); or as contribute().
        """
    def scales(self) -> typing.Annotated[list[float], "FixedSize(7)"]:
        """
        Seven numbers to add up over the ranks, for contribute().
        """
    def set_ranks(self, ranks: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        So many ranks are left; settle next.
        """
    def settle(self, sum: numpy.ndarray) -> None:
        """
        Take the weights.

        Raises:
            ConfigError: a weight is not finite.
        """
    def sweep(self, piece: typing.SupportsInt | typing.SupportsIndex, pieces: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        One step for each row of a piece of the sweep. Returns the number of rows.
        """
    def take_change(self, change: numpy.ndarray) -> None:
        """
        Write this rank's change since the last exchange: features + 2 values.
        """
    @property
    def contribution_length(self) -> int:
        ...
    @property
    def estimate(self) -> float:
        """
        An estimate of the gap, to be added up over the ranks: the sum of each row's share in it, before its step in this sweep.
        """
    @property
    def intercept(self) -> float:
        ...
    @property
    def weights(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        A copy: (features,).
        """
class SvmlightParserFloat32:
    """
    Parses svmlight text, which comes in blocks. For malt.load_data().
    """
    def __init__(self, *, first_index: typing.SupportsInt | typing.SupportsIndex, last_index: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def end_text(self) -> None:
        """
        The next bytes fed are those of another text.
        """
    def feed(self, block: typing_extensions.Buffer) -> None:
        """
        The next bytes of a text; its last line waits for what follows.
        """
    def take(self, base: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.float32]]:
        """
        Hands over labels, starts, columns and values; columns are indices less `base`.
        """
    def take_bad_lines(self) -> list[tuple[int, str, str]]:
        """
        The first few since the last call: line of its text, reason, text.
        """
    @property
    def bad_count(self) -> int:
        """
        Lines skipped, in all texts.
        """
    @property
    def highest_index(self) -> int:
        """
        -1 if there is none.
        """
    @property
    def lowest_index(self) -> int:
        """
        2**31 - 1 if there is none.
        """
    @property
    def rows(self) -> int:
        """
        Since the last take().
        """
class SvmlightParserFloat64:
    """
    Parses svmlight text, which comes in blocks. For malt.load_data().
    """
    def __init__(self, *, first_index: typing.SupportsInt | typing.SupportsIndex, last_index: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def end_text(self) -> None:
        """
        The next bytes fed are those of another text.
        """
    def feed(self, block: typing_extensions.Buffer) -> None:
        """
        The next bytes of a text; its last line waits for what follows.
        """
    def take(self, base: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.float64]]:
        """
        Hands over labels, starts, columns and values; columns are indices less `base`.
        """
    def take_bad_lines(self) -> list[tuple[int, str, str]]:
        """
        The first few since the last call: line of its text, reason, text.
        """
    @property
    def bad_count(self) -> int:
        """
        Lines skipped, in all texts.
        """
    @property
    def highest_index(self) -> int:
        """
        -1 if there is none.
        """
    @property
    def lowest_index(self) -> int:
        """
        2**31 - 1 if there is none.
        """
    @property
    def rows(self) -> int:
        """
        Since the last take().
        """
class Table:
    """
    A rank's part of a table; for the package.
    """
    @staticmethod
    def range_shift(rows: typing.SupportsInt | typing.SupportsIndex, most: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The rows of a range, as a power of two, of a table on at most so many ranks.
        """
    def __init__(self, name: str, rows: typing.SupportsInt | typing.SupportsIndex, width: typing.SupportsInt | typing.SupportsIndex, dtype: numpy.dtype[typing.Any], initial: typing.SupportsFloat | typing.SupportsIndex, rule: tuple[str, collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]], function: collections.abc.Callable[[numpy.ndarray, numpy.ndarray], None] | None, row_shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], replicas: typing.SupportsInt | typing.SupportsIndex, staleness: typing.SupportsInt | typing.SupportsIndex | None, codec: Codec | None, threshold: typing.SupportsFloat | typing.SupportsIndex, cached_keys: typing.SupportsInt | typing.SupportsIndex, hot: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], owners: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    def abandon(self) -> None:
        """
        End the edition that has begun; it may begin again.
        """
    def advance(self, limit: Deadline | None) -> None:
        ...
    def await_clocks(self, clocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], limit: Deadline | None) -> None:
        """
        Wait until this rank's server knows of these clocks; 2**64 - 1: that the rank is dead.
        """
    def begin(self, clients: Group, servers: Group, job: Group | None, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], brought: collections.abc.Sequence[bytes | None]) -> None:
        """
        Begin the first edition, or the next one with what each rank brings. Collective.
        """
    def commit(self) -> None:
        """
        Go over to the edition that has begun.
        """
    def continue_from(self, clocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], limit: Deadline | None) -> None:
        """
        Set the clocks of all ranks.
        """
    def drop_pushes(self, limit: Deadline | None) -> None:
        """
        Wait until all pushes are acknowledged; drop their errors, and what is held back.
        """
    def end_write(self, range: typing.SupportsInt | typing.SupportsIndex, limit: Deadline | None) -> None:
        """
        Wait until the copies of a range that has been written are whole.
        """
    def finish(self, limit: Deadline | None) -> None:
        ...
    def hand_over(self, limit: Deadline | None) -> None:
        """
        Hand this rank's ranges over to other ranks; no call but leave() may follow.
        """
    def leave(self, limit: Deadline | None = None) -> None:
        """
        Leave, within the limit. Any thread, at any time.
        """
    def movers(self) -> list[int]:
        """
        The ranks whose ranges have yet to come here in the edition that has begun.
        """
    def pull(self, keys: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None, first: typing.SupportsInt | typing.SupportsIndex, to: numpy.ndarray, limit: Deadline | None) -> None:
        ...
    def push(self, keys: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None, first: typing.SupportsInt | typing.SupportsIndex, gradients: numpy.ndarray, limit: Deadline | None) -> int:
        ...
    def ranges(self, live: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> list[tuple[int, int, int]]:
        """
        Of which this rank is the primary: number, first row, one past the last row.
        """
    def read(self, range: typing.SupportsInt | typing.SupportsIndex, offset: typing.SupportsInt | typing.SupportsIndex, to: numpy.ndarray, limit: Deadline | None) -> None:
        """
        Copy bytes of a range of which this rank is the primary.
        """
    def settle(self, limit: Deadline | None) -> None:
        """
        Wait until all pushes are acknowledged. Their errors stay for later calls.
        """
    def stop(self, limit: Deadline | None) -> bytes:
        """
        Stop this rank's server; return what the rank brings to the next edition.
        """
    def wait(self, push: typing.SupportsInt | typing.SupportsIndex | None, limit: Deadline | None) -> None:
        ...
    def write(self, range: typing.SupportsInt | typing.SupportsIndex, offset: typing.SupportsInt | typing.SupportsIndex, given: numpy.ndarray, limit: Deadline | None) -> None:
        """
        Put bytes there.
        """
    @property
    def bytes_in(self) -> int:
        ...
    @property
    def bytes_out(self) -> int:
        ...
    @property
    def bytes_own(self) -> int:
        ...
    @property
    def clock(self) -> int:
        ...
    @property
    def hot_answers(self) -> int:
        ...
    @property
    def last_push(self) -> int:
        ...
    @property
    def moved(self) -> int:
        """
        How many ranges have been sent to this rank in moves.
        """
    @property
    def rows_held_back(self) -> int:
        ...
class RatingBlocks:
    """
    Ratings in a grid of blocks, for matrix factorisation by SGD on several threads.
    """
    most_bands: typing.ClassVar[int] = 1024
    def __init__(self, users: numpy.typing.NDArray[numpy.int32], items: numpy.typing.NDArray[numpy.int32], values: numpy.typing.NDArray[numpy.float32], *, user_count: typing.SupportsInt | typing.SupportsIndex, item_count: typing.SupportsInt | typing.SupportsIndex, bands: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copies the ratings: int32, int32 and float32, one element each.
        """
    def __len__(self) -> int:
        ...
    def count(self, *, first: typing.SupportsInt | typing.SupportsIndex, rounds: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        How many ratings `rounds` rounds from round `first` on train, without those drawn.
        """
    def train(self, user_factors: numpy.typing.NDArray[numpy.float32], item_factors: numpy.typing.NDArray[numpy.float32], user_biases: numpy.typing.NDArray[numpy.float32], item_biases: numpy.typing.NDArray[numpy.float32], *, mean: typing.SupportsFloat | typing.SupportsIndex, lr: typing.SupportsFloat | typing.SupportsIndex, reg: typing.SupportsFloat | typing.SupportsIndex, implicit: tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None, first: typing.SupportsInt | typing.SupportsIndex, rounds: typing.SupportsInt | typing.SupportsIndex, threads: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        Train `rounds` rounds from round `first` on, in the float32 arrays given: two matrices of a multiple of 16 columns, and two vectors or two empty arrays.

        `implicit` is None or (alpha, negatives). Returns the sum of confidence * error^2.
        """
    @property
    def bands(self) -> int:
        """
        Rounds of an epoch.
        """
class TopicTokens:
    """
    The tokens of some documents, and their topics.
    """
    most_topics: typing.ClassVar[int] = 65536
    def __init__(self, starts: numpy.ndarray, words: numpy.ndarray, counts: numpy.ndarray, *, vocabulary: typing.SupportsInt | typing.SupportsIndex, topics: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Copies the documents, rows of a CSR matrix: int64 starts, int32 words and counts.
        """
    def __len__(self) -> int:
        ...
    def add_to_fixed_point(self, alpha: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], sums: numpy.ndarray) -> float:
        """
        Add the documents' terms of Minka's fixed point for alpha to `sums` (float64, by topic); return those of their lengths.
        """
    def draw(self, by_word: numpy.ndarray, totals: numpy.ndarray, *, alpha: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], beta: typing.SupportsFloat | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Draw a first topic for each token, and count it in `by_word` (int32, words x topics) and `totals` (int64, by topic).
        """
    def restore(self, topics: numpy.ndarray) -> None:
        """
        Take topics that save() returned, which the counts count already.
        """
    def save(self) -> numpy.typing.NDArray[numpy.uint16]:
        """
        The topics, document by document: uint16.
        """
    def sweep(self, by_word: numpy.ndarray, totals: numpy.ndarray, *, alpha: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], beta: typing.SupportsFloat | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex, step: typing.SupportsInt | typing.SupportsIndex, steps: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Sample the topic of each token once, in `steps` calls; the counts change accordingly.
        """
def add_changes(array: numpy.ndarray, places: numpy.ndarray, values: numpy.ndarray) -> None:
    """
    array[places] += values, for places that are all different.
    """
@typing.overload
def add_linear_gradient(examples: ExamplesFloat32, weights: numpy.ndarray, gradient: numpy.ndarray, first: typing.SupportsInt | typing.SupportsIndex = 0, last: typing.SupportsInt | typing.SupportsIndex | None = None, *, order: numpy.ndarray | None = None, loss: str = 'hinge', epsilon: typing.SupportsFloat | typing.SupportsIndex = 0.1, intercept: bool = True, outputs: typing.SupportsInt | typing.SupportsIndex = 1, class_weights: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> float:
    """
    Add the slopes of the losses of rows first to last - 1 (or order[first], ...) in all weights, laid out as these.

    Returns the sum of the losses.

    Raises:
        ConfigError: what does not fit.
    """
@typing.overload
def add_linear_gradient(examples: ExamplesFloat64, weights: numpy.ndarray, gradient: numpy.ndarray, first: typing.SupportsInt | typing.SupportsIndex = 0, last: typing.SupportsInt | typing.SupportsIndex | None = None, *, order: numpy.ndarray | None = None, loss: str = 'hinge', epsilon: typing.SupportsFloat | typing.SupportsIndex = 0.1, intercept: bool = True, outputs: typing.SupportsInt | typing.SupportsIndex = 1, class_weights: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> float:
    """
    Add the slopes of the losses of rows first to last - 1 (or order[first], ...) in all weights, laid out as these.

    Returns the sum of the losses.

    Raises:
        ConfigError: what does not fit.
    """
def address_of(wanted: str) -> str:
    """
    The address that a value of MALT_INTERFACE stands for.

    Raises:
        ConfigError: this host has no such interface or network.
    """
def announce_faults(rank: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Have this process name its rank and the signal on standard error when SIGSEGV, SIGFPE, SIGILL, SIGBUS or SIGABRT ends it; earlier handlers run after that.
    """
def announce_no_faults() -> None:
    """
    Undo announce_faults().
    """
def available_bytes() -> int:
    """
    Memory this process may still allocate, control groups considered, in bytes.
    """
def check_tls(folder: str) -> None:
    """
    Load OpenSSL, and the certificates in the folder that MALT_TLS names; empty: none.

    Raises:
        ConfigError: the file, and what is wrong with it; or what to install.
    """
def checksum(array: numpy.ndarray) -> int:
    """
    CRC-64 of the bytes of a contiguous array. Of two arrays of the same length that differ, it is the same by chance only, in one of 2^64 cases.
    """
def cuda_version() -> str:
    """
    Of the driver, as '13.0'; '' without one.
    """
def dealt_list_length(rows: typing.SupportsInt | typing.SupportsIndex, ranks: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    How long each rank's part of `lists` is.
    """
def describe_gpus() -> list[str]:
    """
    A line for each GPU that this process sees, or one that says why there is none.
    """
def find_changes(array: numpy.ndarray, copy: numpy.ndarray) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.ndarray]:
    """
    The indices (uint32, increasing) where two flat arrays differ, and array - copy there.
    """
def forecast_gap(estimate: typing.SupportsFloat | typing.SupportsIndex, before: typing.SupportsFloat | typing.SupportsIndex) -> float:
    """
    The gap that is forecast at the end of a sweep, from its estimate and the one before.
    """
def has_gpu() -> bool:
    """
    Whether NVIDIA's driver works in this process and finds a GPU.
    """
def infer_topics(starts: numpy.ndarray, words: numpy.ndarray, counts: numpy.ndarray, *, shares: numpy.ndarray, alpha: numpy.ndarray, most_steps: typing.SupportsInt | typing.SupportsIndex, tolerance: typing.SupportsFloat | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float32]:
    """
    alpha plus the expected tokens of each topic, for documents as in TopicTokens; `shares` (float32, words x topics) has each word's share of a topic.
    """
def interfaces() -> list[Interface]:
    """
    The addresses of this host's interfaces that are up and have a carrier.
    """
@typing.overload
def linear_decisions(examples: ExamplesFloat32, weights: numpy.ndarray, outputs: typing.SupportsInt | typing.SupportsIndex = 1, first: typing.SupportsInt | typing.SupportsIndex = 0, last: typing.SupportsInt | typing.SupportsIndex | None = None) -> numpy.typing.NDArray[numpy.float32]:
    """
    X W + b of rows first to last - 1: an array (rows, outputs).

    Raises:
        ConfigError: lengths do not fit.
    """
@typing.overload
def linear_decisions(examples: ExamplesFloat64, weights: numpy.ndarray, outputs: typing.SupportsInt | typing.SupportsIndex = 1, first: typing.SupportsInt | typing.SupportsIndex = 0, last: typing.SupportsInt | typing.SupportsIndex | None = None) -> numpy.typing.NDArray[numpy.float64]:
    """
    X W + b of rows first to last - 1: an array (rows, outputs).

    Raises:
        ConfigError: lengths do not fit.
    """
def look_for_nvrtc_in(folders: collections.abc.Sequence[str]) -> None:
    """
    Also look for libnvrtc there.
    """
def memory_of(graph: Graph, slot_bytes: typing.SupportsInt | typing.SupportsIndex, depth: typing.SupportsInt | typing.SupportsIndex, result_bytes: typing.SupportsInt | typing.SupportsIndex, ranks: typing.SupportsInt | typing.SupportsIndex, locals: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> int:
    """
    Bytes that a vector takes on the host of the ranks `locals`; for `malt plan`.
    """
def nvrtc_library() -> str:
    """
    The library that compiles the kernels.

    Raises:
        ConfigError: there is none.
    """
def partition_columns(starts: numpy.ndarray, columns: numpy.ndarray, width: typing.SupportsInt | typing.SupportsIndex, *, rows: numpy.ndarray, parts: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.uint8]]:
    """
    The owner of each column, int32, and whether parts share it, uint8 (learn/partition.hpp).
    """
def partition_rows(starts: numpy.ndarray, columns: numpy.ndarray, width: typing.SupportsInt | typing.SupportsIndex, *, parts: typing.SupportsInt | typing.SupportsIndex, slack: typing.SupportsFloat | typing.SupportsIndex, by_values: bool, passes: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]:
    """
    The part of each row of a CSR matrix (learn/partition.hpp): int32.
    """
def partition_traffic(starts: numpy.ndarray, columns: numpy.ndarray, width: typing.SupportsInt | typing.SupportsIndex, *, rows: numpy.ndarray, owners: numpy.ndarray, parts: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    How many columns each part gets, and sends: int64 by part (learn/partition.hpp).
    """
def predict_ratings(user_factors: numpy.typing.NDArray[numpy.float32], item_factors: numpy.typing.NDArray[numpy.float32], user_biases: numpy.typing.NDArray[numpy.float32], item_biases: numpy.typing.NDArray[numpy.float32], *, mean: typing.SupportsFloat | typing.SupportsIndex, users: numpy.typing.NDArray[numpy.int32], items: numpy.typing.NDArray[numpy.int32]) -> numpy.typing.NDArray[numpy.float32]:
    """
    mean + biases + the product of the rows, for each pair; float32.
    """
def random_graph(k: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> Graph:
    ...
def rdma_port_of(device: str, partition: str, service_level: str, traffic_class: str) -> str:
    """
    The port that the values of MALT_RDMA_DEVICE, MALT_RDMA_PKEY, MALT_RDMA_SL and
    MALT_RDMA_TRAFFIC_CLASS stand for; of empty ones, the first that is active.

    Raises:
        ConfigError: the ports that there are, and why none can be used.
    """
def rdma_ports() -> list[RdmaPort]:
    """
    Every port of every RDMA network adapter.

    Raises:
        ConfigError: libibverbs is missing, or cannot list them.
    """
def set_callbacks(*, new_epoch: typing.Any, slow: typing.Any, look_again: typing.Any, regroup: typing.Any, keep_round: typing.Any, note_unsent: typing.Any, note_nan: typing.Any, write: typing.Any, note_left: typing.Any, note_left_allreduce: typing.Any, do_nothing: typing.Any) -> None:
    """
    Set the functions that the core calls; for the package.
    """
def shuffle(order: numpy.ndarray, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Make an array of uint32 a permutation of 0, 1, ..., the same for the same seed.
    """
def simd_level() -> str:
    """
    Instruction set of the built-in folds: 'avx512', 'avx2' or 'baseline'.
    """
def sum_of_digamma_rises(counts: numpy.ndarray, x: typing.SupportsFloat | typing.SupportsIndex) -> float:
    """
    The sum over `counts` (int32 or int64) of digamma(count + x) - digamma(x).
    """
def top_k(fraction: typing.SupportsFloat | typing.SupportsIndex) -> Codec:
    ...
def trimmed_mean(fraction: typing.SupportsFloat | typing.SupportsIndex) -> Fold:
    ...
ALL: Graph
AVG: Fold
BFLOAT16: Codec
EXPONENTIAL: Graph
FLOAT16: Codec
HALTON: Graph
INT8: Codec
LOWEST: Fold
MEDIAN: Fold
ONE_PEER: Graph
REPLACE: Fold
RING: Graph
STAR: Graph
SUM: Fold
WEIGHTED: Fold
__version__: str
