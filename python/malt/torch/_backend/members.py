"""The ranks of one process group, and the memory through which they exchange."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from malt import _errors as errors
from malt._core_import import Exchange, Group
from malt._job.joining import form_group
from malt.torch._backend.errors import PeerError, TimeoutError, translated  # noqa: A004
from malt.torch._backend.limits import deadline_in, time_left
from malt.torch._backend.reducers import Reducers
from malt.torch._backend.store_bootstrap import bootstrap_over, own_part
from malt.torch._backend.tensors import check_memory

SLOT_BYTES = 512 << 10  # the part of a buffer that is sent at a time
# Few ranks of one host fold all of a tensor, each by itself: what they read of one another is in
# the caches. More ranks do so with short tensors alone, which saves a wait.
_FEW_RANKS = 4
_FOLD_BYTES = 32 << 10
_LINE_BYTES = 64  # the least of a slot
_LARGEST_ON_GPU = 64 << 20  # bytes of a tensor on a GPU that are folded at a time
_MOST_CALLS = 2**32 - 1  # then their numbers begin again

# As vol::DType numbers them.
_ON_GPU = {torch.float32: 1, torch.float64: 2, torch.int32: 3, torch.int64: 4}
_NUMBERS = _ON_GPU | {torch.float16: 5, torch.bfloat16: 6}
NATIVE = frozenset(_NUMBERS)  # the dtypes that the core folds
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# A rank that refuses its arguments waits for so long to tell the others, which may be elsewhere.
_TELL_SECONDS = 5.0
_TEXT_BYTES = 1024  # of a call's description, if ranks are in different calls
_KINDS = 1 << 31  # how many the core tells apart

_going_on = False


def keep_going(on: bool = True) -> None:
    """Let all-reduce go on among the living ranks when a rank dies. Call it on all ranks.

    From then on `all_reduce` of a floating-point tensor gives the mean of the living ranks where
    AVG is asked for. For SUM it gives that mean times the size of the group: DDP, which divides by
    that size, so gets the mean of those who are there and trains on. Of integers SUM is the sum of
    the living. `broadcast` and `barrier` go on too; a broadcast from a dead rank changes nothing,
    and one whose root dies meanwhile gives its values to all living ranks or to none.
    All other calls still raise PeerError once a rank is dead.

    Args:
        on: False: from now on every call with a dead rank raises PeerError, as at the start.
    """
    global _going_on
    _going_on = on


def goes_on() -> bool:
    """Return whether keep_going() holds."""
    return _going_on


def _name_of_sum(count: int, dtype: torch.dtype, mean: bool) -> str:
    return f"all_reduce of {count} elements of {dtype} by {'AVG' if mean else 'SUM'}"


class Held(IntEnum):
    """Whether a rank has the values of a broadcast."""

    DEAD = 0
    MISSES = 1
    HAS = 2


class Members:
    """The ranks of a process group. Its calls are collective, and made one at a time.

    Attributes:
        rank: this rank's number in the group.
        size: how many ranks the group has.
        names: the rank in the whole job of each rank, for errors.
        timeout: seconds after which a call that has no limit of its own gives up.
        store: the part of the given one that these processes alone use.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        names: Sequence[int],
        timeout: float,
        find_dead: Callable[[], set[int]],
    ) -> None:
        self.rank = rank
        self.size = size
        self.names = tuple(names) or tuple(range(size))
        self.timeout = timeout
        self._group: Group | None = None
        self._exchange: Exchange | None = None
        self._has_begun = False  # the present call has exchanged something
        self._may_be_out_of_step = False  # in the present call, if it goes on without the dead
        self._away: set[int] = set()  # ranks that are dead or have left, as sums have shown
        # Ranks that miss a monitored barrier stay in step elsewhere.
        self._monitor: Exchange | None = None
        self._reducers: Reducers | None = None
        self._made = 0  # exchanges after the first one
        self._call = 0  # the number of the present call
        self._folds_all = False
        # The call that did not come to its end, whom it waited for, and the ranks that were dead.
        self._failed: tuple[str, str, tuple[int, ...]] | None = None
        self.store = store
        if size > 1:
            deadline = deadline_in(timeout)

            def find_dead_members() -> set[int]:
                return {self.names.index(each) for each in find_dead() & {*self.names}}

            with translated("init_process_group", self.names):
                self.store = own_part(store, rank, size, timeout, find_dead_members)
                bootstrap = bootstrap_over(
                    dist.PrefixStore("members", self.store), rank, size, find_dead_members
                )
                self._group = form_group(bootstrap, time_left(deadline))
                self._exchange = Exchange(
                    self._group, "exchange 0", SLOT_BYTES, time_left(deadline)
                )
                self._monitor = Exchange(
                    self._group, "monitored_barrier", _LINE_BYTES, time_left(deadline)
                )
                self._reducers = Reducers(self._group, self._agree_to_make)
                self._folds_all = size <= _FEW_RANKS and self._group.is_one_host

    @property
    def group(self) -> Group:
        """The group of the core. Only for more than one rank that have not closed."""
        if self._group is None:
            raise errors.ConfigError("the process group has been destroyed, or has one rank")
        return self._group

    @property
    def reducers(self) -> Reducers:
        """The vectors of sums. As for `group`."""
        assert self._reducers is not None
        return self._reducers

    def dead(self) -> set[int]:
        """Return the ranks that are dead or have left."""
        if self._group is None:
            return set()
        return set(range(self.size)) - set(self._group.alive())

    def run(
        self,
        gives: list[tuple[int, int]],
        takes: list[tuple[int, int, int, int, int]],
        what: str,
        deadline: float,
        may_miss: bool = False,
    ) -> list[int]:
        """Give stretches (address, bytes); copy (rank, offset, bytes, address, of) of the others'.

        Args:
            gives: of this rank's memory; the others see them as one buffer.
            takes: of the others' buffers, where to copy them, and how long the whole buffer must be
                (0: as long as is needed).
            what: says which call this is; the same on all ranks, or all get a ConfigError.
            deadline: the time.monotonic() until which to wait for other ranks.
            may_miss: leave out the ranks that are dead, instead of raising PeerError.

        Returns:
            The ranks that were left out; what was taken from them is not whole.
        """
        if self._exchange is None:
            return []
        self._has_begun = True
        self._may_be_out_of_step |= _going_on and not may_miss
        kind = zlib.crc32(what.encode()) % _KINDS
        try:
            left = time_left(deadline)
            return self._exchange.run(gives, takes, kind, left, may_miss, self._call)
        except errors.ConfigError as error:
            # Ranks that see nothing wrong ask how the call has ended.
            self._may_be_out_of_step |= _going_on
            if isinstance(error, errors.OtherCallError):
                self._explain(what, deadline)
            raise

    def _explain(self, own: str, deadline: float) -> None:
        """Tell the others which call this rank is in, as all ranks do that are in different ones.

        Raises:
            ConfigError: names another rank's call and this rank's.
            PeerError: ranks are dead.
        """
        assert self._exchange is not None
        self.reducers.drop()
        texts = torch.zeros((self.size, _TEXT_BYTES), dtype=torch.uint8)
        said = f"call {self._call}, {own}".encode()[:_TEXT_BYTES]
        texts[self.rank, : len(said)] = torch.tensor(list(said), dtype=torch.uint8)
        others = [rank for rank in range(self.size) if rank != self.rank]
        takes = [(rank, 0, _TEXT_BYTES, texts[rank].data_ptr(), _TEXT_BYTES) for rank in others]
        gives = [(texts[self.rank].data_ptr(), _TEXT_BYTES)]
        # Without a number, for the ranks of which one may be in another call.
        missing = self._exchange.run(gives, takes, 0, time_left(deadline), True)
        if missing and not _going_on:
            raise errors.PeerError("ranks are dead", missing)
        heard = [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in texts]
        for rank in others:
            if heard[rank] not in ("", heard[self.rank]):
                raise errors.ConfigError(
                    f"rank {self.names[rank]} has made {heard[rank]}; this rank has made "
                    f"{heard[self.rank]}; all ranks of a group make the same calls in the same "
                    "order, with tensors of the same dtype"
                )

    def _refuse(self, error: errors.ConfigError, call: str, deadline: float) -> None:
        """Have a call fail on all ranks, since this one refuses its arguments.

        The others may be in an exchange, which they see to be of another kind, or in a sum. They
        see this rank leave the sum, and then look here.

        Raises:
            ConfigError: they do not come; this rank has left the group.
            PeerError: ranks are dead.
        """
        if self._reducers is not None:
            self._reducers.drop()
        deadline = min(deadline, deadline_in(_TELL_SECONDS))
        try:
            self.run([], [], f"with wrong arguments: {error}", deadline, _going_on)
        except errors.ConfigError:  # this rank's own says more
            pass
        except errors.TimeoutError as late:
            self._fail_awaiting(call, late)
            raise errors.ConfigError(
                f"{error}; other ranks did not come to be told, so this rank has left the group"
            ) from late

    @contextmanager
    def in_step(self, call: str, deadline: float) -> Iterator[None]:
        """Make a call as a whole, or leave: afterwards the ranks might be in different calls.

        An error of the arguments that this rank finds before it exchanges anything is one on all
        ranks, and they stay in step. So they do after one about a length, which only some ranks
        see, as nothing is exchanged after it. If a rank's call ends in the middle in any other way,
        its next one has not the number of the others', and all get an error. If keep_going() holds,
        PeerError is one on all ranks.
        """
        self._begin()
        with self._ending(call, deadline):
            yield

    def _begin(self) -> None:
        """Begin a call: give it its number.

        Raises:
            PeerError: an earlier call has not come to its end on this rank.
        """
        self._check_in_step()
        self._has_begun = self._may_be_out_of_step = False
        self._call = self._call % _MOST_CALLS + 1

    @contextmanager
    def _ending(self, call: str, deadline: float) -> Iterator[None]:
        """End a call as in_step() says."""
        try:
            try:
                yield
            except (errors.ConfigError, errors.PeerError) as error:
                if isinstance(error, errors.ConfigError) and not self._has_begun:
                    self._refuse(error, call, deadline)
                self._end_together(error, deadline)
                raise
            self._end_together(None, deadline)
        except errors.ConfigError:
            raise
        except BaseException as error:  # an interrupt too
            if not (_going_on and isinstance(error, errors.PeerError)):
                if isinstance(error, errors.TimeoutError):
                    self._fail_awaiting(call, error)
                else:
                    dead = error.ranks if isinstance(error, errors.PeerError) else ()
                    self.fail(call, dead=dead)
            raise

    def _fail_awaiting(self, call: str, error: errors.TimeoutError) -> None:
        late = errors.describe_ranks(self.names[rank] for rank in error.ranks)
        self.fail(call, f" after it had waited for {late}")

    def _check_in_step(self) -> None:
        """Raise PeerError if an earlier call has not come to its end on this rank."""
        if self._failed is not None:
            name, awaited, ranks = self._failed
            raise errors.PeerError(
                f"an earlier {name} did not come to its end on this rank, which has left{awaited}; "
                "destroy the group and make another",
                ranks,
            )

    def _end_together(self, error: Exception | None, deadline: float) -> None:
        """Have a call that needs all ranks fail on all that live if it fails on one of them.

        One rank may have heard all of a dead one, and another not; then they have made different
        numbers of rounds. So they go on with a new exchange.

        Raises:
            PeerError: ranks are dead.
        """
        if not self._may_be_out_of_step:
            return
        assert self._exchange is not None
        is_whole = not isinstance(error, errors.PeerError)
        if not is_whole:
            self._exchange.shut()  # ranks still in the call do not wait for this one
        held = self.held_by(is_whole, deadline)
        if Held.MISSES not in held:
            return
        if Held.DEAD not in held:  # the dead rank gave this before its end, and can give no more
            held = self.held_by(is_whole, deadline)
        self._exchange.shut()
        self._made += 1
        self._exchange = Exchange(
            self.group, f"exchange {self._made}", SLOT_BYTES, time_left(deadline)
        )
        dead = [rank for rank, has in enumerate(held) if has == Held.DEAD]
        raise errors.PeerError("ranks are dead", dead) from error

    def fail(self, call: str, awaited: str = "", dead: tuple[int, ...] = ()) -> None:
        """Leave, since a call has not come to its end on this rank: all later ones fail."""
        self._failed = call, awaited, dead
        self._shut()

    def held_by(self, has: bool, deadline: float) -> list[int]:
        """Return what each rank has: the same list on all that live. Collective."""
        held = torch.zeros(self.size, dtype=torch.int64)
        held[self.rank] = Held.HAS if has else Held.MISSES
        reducer = self.reducers.on_host(held.dtype, self.size, deadline)
        reducer.allreduce(held.data_ptr(), self.size, False, time_left(deadline))
        return list(held.tolist())

    def monitored_barrier(self, timeout: float, deadline: float, wait_all_ranks: bool) -> None:
        """Return when all ranks have called it. The errors say what gloo's say.

        Args:
            timeout: the seconds to wait for other ranks, for errors.
            deadline: when they end.
            wait_all_ranks: name all ranks that did not come, instead of the lowest.
        """
        own = self.names[self.rank]
        if timeout <= 0:
            raise TimeoutError(f"Rank {own} timed out in monitoredBarrier after 0 ms", [own])
        if self._monitor is None:
            return
        with translated("monitored_barrier", self.names):
            self._check_in_step()
        try:
            self._monitor.run([], [], 0, time_left(deadline))
        except (errors.TimeoutError, errors.PeerError) as error:
            ranks = [self.names[rank] for rank in error.ranks]
            shown = errors.describe_ranks(ranks if wait_all_ranks else ranks[:1]).capitalize()
            text = f"{shown} failed to pass monitoredBarrier in {timeout * 1000:.0f} ms"
            if self.rank != 0:
                text = (
                    f"Rank {own} successfully reached monitoredBarrier, but received errors while "
                    f"waiting for send/recv from rank {self.names[0]}: {text}"
                )
            kind = TimeoutError if isinstance(error, errors.TimeoutError) else PeerError
            raise kind(text, ranks) from error

    def reduce(self, tensor: torch.Tensor, mean: bool, deadline: float) -> None:
        """Replace the values by the sum or mean over all ranks.

        Args:
            tensor: contiguous, of one of the dtypes NATIVE.
            mean: the mean instead of the sum.
            deadline: the time.monotonic() until which to wait for other ranks.
        """
        if self._exchange is None:
            return
        count, dtype = tensor.numel(), tensor.dtype
        if not tensor.is_cuda and self._folds(count, dtype):
            check_memory(tensor)
            self._fold(tensor, count, mean, deadline)
            return
        what = _name_of_sum(count, dtype, mean)
        if not count:  # another rank may have some
            self.run([], [], what, deadline, _going_on)
            return
        check_memory(tensor)
        self._has_begun = True
        if tensor.is_cuda:
            whole = tensor.contiguous()
            self._reduce_on_gpu(whole.view(-1), mean, what, deadline)
            if whole is not tensor:
                tensor.copy_(whole)
        else:
            reducer = self.reducers.on_host(dtype, count, deadline, what)
            left = time_left(deadline)
            others = reducer.allreduce(tensor.data_ptr(), count, mean, left, self._call)
            self._make_up(tensor, others, mean, what, deadline)

    def reduce_at_once(self, tensor: torch.Tensor, mean: bool, deadline: float) -> bool:
        """Make a whole call: in_step() and reduce(), in less time.

        Returns:
            False: nothing was done, as it takes more.
        """
        if not (
            type(tensor) in _PLAIN
            and tensor.is_cpu
            and tensor.layout is torch.strided
            and tensor.dtype in NATIVE
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not _going_on
        ):
            return False
        self._begin()
        try:
            self.reduce(tensor, mean, deadline)
        except BaseException:
            with self._ending("all_reduce", deadline):
                raise
        return True

    def _folds(self, count: int, dtype: torch.dtype) -> bool:
        """Return whether reduce() folds tensors of the host of so many elements: as all ranks."""
        is_short = self._folds_all or count * dtype.itemsize <= _FOLD_BYTES
        return is_short and count > 0 and not _going_on

    def _fold(self, tensor: torch.Tensor, count: int, mean: bool, deadline: float) -> None:
        """Have each rank fold all ranks' values by itself."""
        assert self._exchange is not None
        self._has_begun = True
        number, left = _NUMBERS[tensor.dtype], time_left(deadline)
        try:
            self._exchange.fold(tensor.data_ptr(), count, number, mean, left, self._call)
        except errors.ConfigError:  # all ranks have one
            self._explain(_name_of_sum(count, tensor.dtype, mean), deadline)
            raise

    def _make_up(
        self, tensor: torch.Tensor, others: list[int], mean: bool, what: str, deadline: float
    ) -> None:
        """Make up for the ranks that a sum lacks.

        Raises:
            ConfigError: a rank has left the sum, since it refuses its arguments.
            PeerError: a rank is dead, unless keep_going() holds.
        """
        living = len(others) + 1
        if living == self.size:
            return
        self.group.check_standing()  # or else it is this rank that is missed
        missing = set(range(self.size)) - {self.rank, *others}
        if not missing <= self._away:  # alike on all ranks that are in the sum
            self.run([], [], what, deadline, _going_on)
            self._away |= missing
        if not _going_on:
            raise errors.PeerError("ranks are dead", missing)
        if not mean and tensor.dtype.is_floating_point:
            tensor.mul_(self.size / living)

    def folds_on_gpu(self, tensor: torch.Tensor, op: ReduceOp) -> bool:
        """Return whether reduce() takes this CUDA tensor. The answer is the same on all ranks."""
        return (
            self.size > 1
            and self.group.is_one_host
            and op in (ReduceOp.SUM, ReduceOp.AVG)
            and tensor.layout is torch.strided
            and tensor.dtype in _ON_GPU
        )

    def _reduce_on_gpu(self, tensor: torch.Tensor, mean: bool, what: str, deadline: float) -> None:
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        for part in tensor.split(_LARGEST_ON_GPU // tensor.element_size()):
            reducer = self.reducers.on_gpu(part, deadline, what)
            left = time_left(deadline)
            try:
                others = reducer.allreduce(part.data_ptr(), part.numel(), mean, left, stream)
            except BaseException:  # an interrupt too
                reducer.shut()  # the others may still fold what this call has sent
                raise
            self._make_up(part, others, mean, what, deadline)

    def _agree_to_make(self, what: str, deadline: float) -> None:
        """Check that all ranks make a vector for this call, for which they wait without looking."""
        self.run([], [], f"{what}, the first of its size", deadline, _going_on)

    def close(self) -> None:
        """Leave the group: the others' calls fail from now on. Idempotent."""
        self._shut()
        if self._group is not None:
            self._group.leave()

    def _shut(self) -> None:
        """Leave the calls of all ranks, so that nobody waits for this rank in one."""
        if self._reducers is not None:
            self._reducers.shut()
        for exchange in (self._exchange, self._monitor):
            if exchange is not None:
                exchange.shut()
