"""One-sided windows: torch.distributed's Window, over memory that the other ranks write into.

A tensor that is registered moves to shared memory, where the ranks of its host read and write it in
place, and stays there: arrays of NumPy may show it. Puts from other hosts come through a thread of
the window.
"""

from __future__ import annotations

import math
import operator
import struct
import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from malt import _core_import as core_import
from malt._errors import Error, TimeoutError  # noqa: A004
from malt._job.joining import form_group
from malt.torch._backend.core import Core, seconds_of
from malt.torch._backend.errors import ConfigError, translation
from malt.torch._backend.limits import deadline_in, time_left
from malt.torch._backend.members import Members, goes_on
from malt.torch._backend.store_bootstrap import bootstrap_over
from malt.torch._backend.streams import is_plain, on_host
from malt.torch._backend.tensors import bytes_of, check_memory, check_writable
from malt.torch._backend.typed_link import DTYPES, number_of
from malt.torch._backend.work import Call, Line

_AT_ONCE = SimpleNamespace(asyncOp=False)  # options of a call that is not asynchronous
_LEAVE_SECONDS = 1.0  # for what other hosts have yet to get, where a window ends without its ranks
_MOST_DIMENSIONS = 28  # of a window's tensor, which its ranks tell one another
_HEAD = struct.Struct("<QQBB")  # where the tensor begins in its memory, that memory's bytes, ...
_NOTHING = torch.empty(0)
# The windows that have a tensor now, by the address of its memory.
_windows: weakref.WeakValueDictionary[int, Window] = weakref.WeakValueDictionary()


class _Array(np.ndarray[Any, Any]):
    """The shared memory of a tensor, which lives as long as this.

    Attributes:
        memory: the core's.
        before: the memory that the tensor had before, if other tensors or arrays may show it.
    """

    memory: core_import.WindowMemory
    before: torch.UntypedStorage | None = None


# That of each tensor that is or was in a window, by its address.
_arrays: weakref.WeakValueDictionary[int, _Array] = weakref.WeakValueDictionary()


def _uses(tensor: torch.Tensor) -> float:
    """Return how many there are of a tensor in C++ and of its memory, and a constant."""
    try:
        of_memory = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        return float(tensor._use_count() + of_memory)
    except AttributeError:  # in another PyTorch
        return math.inf


_USES_OF_ONE = _uses(_NOTHING)


def _shared_memory_of(storage: torch.UntypedStorage) -> core_import.WindowMemory:
    """Return shared memory with the values of a tensor's storage, to which _swap() moves it."""
    if (array := _arrays.get(storage.data_ptr())) is not None and array.size == storage.nbytes():
        return array.memory
    return core_import.WindowMemory(storage.data_ptr() if storage.nbytes() else 0, storage.nbytes())


def _swap(tensor: torch.Tensor, memory: core_import.WindowMemory) -> None:
    """Move a tensor's storage to the shared memory that has its values."""
    storage = tensor.untyped_storage()
    if not storage.nbytes() or storage.data_ptr() in _arrays:
        return
    array = memory.array().view(_Array)
    array.memory = memory
    is_shown = _uses(tensor) > _USES_OF_ONE
    shared = torch.from_numpy(array).untyped_storage()
    storage._swap_data_ptr_(shared)
    if is_shown:  # perhaps by DLPack, to somebody who has the address
        array.before = shared
    _arrays[storage.data_ptr()] = array


class _Peer(NamedTuple):
    """The tensor that a rank has registered."""

    first: int  # the byte of its memory at which it begins
    dtype: torch.dtype
    shape: tuple[int, ...]
    elements: int

    def pack(self, memory_bytes: int) -> bytes:
        head = _HEAD.pack(self.first, memory_bytes, number_of(self.dtype), len(self.shape))
        return head + struct.pack(f"<{len(self.shape)}Q", *self.shape)

    @classmethod
    def unpack(cls, rank: int, note: bytes) -> _Peer:
        try:
            first, memory_bytes, number, dimensions = _HEAD.unpack_from(note)
            dtype = getattr(torch, DTYPES[number])
            shape = struct.unpack(f"<{dimensions}Q", note[_HEAD.size :])
        except (struct.error, IndexError, AttributeError) as error:
            raise ConfigError(
                f"rank {rank} has sent a description of its tensor that this rank cannot read; do "
                "all ranks run the same versions of MALT and PyTorch?"
            ) from error
        count = math.prod(shape)
        if first + count * dtype.itemsize > memory_bytes:
            raise ConfigError(f"rank {rank} has sent a description that is longer than its memory")
        return cls(first, dtype, shape, count)


def _whole(what: str, given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise ConfigError(f"{what} is {given!r}; it is a whole number") from None


class Window:
    """Memory of each rank of a process group into which the other ranks write.

    `tensor_register` and `tensor_deregister` are collective. Everything else is a call of one rank.
    At most one thread at a time may signal a rank, or wait for its signals without `async_op`.

    Args:
        core: of the process group.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._names = core.members.names
        self._made: core_import.Window | None = None
        self._peers: list[_Peer] = []
        self._tensor = _NOTHING
        self._address = 0  # of its memory
        # By rank: the signals sent to it, and those of it that have been waited for.
        self._sent: list[int] = []
        self._taken: list[int] = []
        # By rank: what makes the asynchronous waits for it, and the last of these.
        self._lines: dict[int, Line] = {}
        self._last: dict[int, Call] = {}
        self._done = Call([])

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:  # noqa: ARG002
        """Let the other ranks write into a tensor. Collective.

        Its memory moves to shared memory, with the views of it that there are, and stays there.

        Args:
            tensor: contiguous, on the CPU. Those of the ranks may differ in shape and dtype.
            owning: whether the window keeps the tensor's memory. It does so in any case.

        Raises:
            ConfigError: the tensor cannot be registered, or the window has one already.
        """
        self._core.call(
            "tensor_register", _AT_ONCE, [], self._register, tensor, shown=[tensor]
        ).wait()

    def _register(self, members: Members, tensor: torch.Tensor, deadline: float) -> None:
        if self._made is not None:
            raise ConfigError(
                "double registration: the window has a tensor already; call tensor_deregister() "
                "first, or make another window"
            )
        storage = self._check(tensor)
        memory = _shared_memory_of(storage)
        members.run([], [], "tensor_register", deadline)
        name = f"window {self._core.next_number()}"
        store = dist.PrefixStore(name, members.store)
        bootstrap = bootstrap_over(store, members.rank, members.size, members.dead)
        group = form_group(bootstrap, time_left(deadline))
        own = _Peer(
            tensor.storage_offset() * tensor.element_size(),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.numel(),
        )
        size = storage.nbytes()
        left = time_left(deadline)
        made = core_import.Window(
            group, name, memory, own.first, bytes_of(tensor), own.pack(size), left
        )
        peers = [_Peer.unpack(rank, made.note(rank)) for rank in range(members.size)]
        _swap(tensor, memory)
        if size:
            self._address = storage.data_ptr()
            _windows[self._address] = self
        self._tensor = tensor
        self._peers = peers
        self._sent, self._taken = ([0] * members.size for _ in range(2))
        self._made = made
        self._core.windows.add(self)  # the others write to it, whoever holds it here

    @staticmethod
    def _check(tensor: torch.Tensor) -> torch.UntypedStorage:
        """Check that a tensor can be registered; return its memory."""
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"a window takes a tensor, not {type(tensor).__name__}")
        is_strided = tensor.layout is torch.strided and not tensor.is_nested
        if not is_strided or not tensor.is_cpu or not is_plain(tensor):
            raise ConfigError(
                f"a window takes a plain strided tensor of the CPU; this one is {tensor.layout} on "
                f"{tensor.device}, or torch negates or conjugates it when it reads it"
            )
        if not tensor.is_contiguous():
            raise ConfigError("the tensor is not contiguous; register its contiguous() copy")
        if number_of(tensor.dtype) >= len(DTYPES):
            raise ConfigError(f"a window does not take {tensor.dtype}")
        if tensor.dim() > _MOST_DIMENSIONS:
            raise ConfigError(
                f"the tensor has {tensor.dim()} dimensions; {_MOST_DIMENSIONS} at most"
            )
        check_writable(tensor)
        bytes_of(tensor)
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return storage
        if storage.data_ptr() in _windows:
            raise ConfigError("the tensor's memory is registered with another window")
        if storage.data_ptr() in _arrays:
            return storage
        if tensor.is_shared() or not storage.resizable():
            raise ConfigError(
                "the tensor's memory is not torch's alone: it is shared with other processes, of a "
                "file, or NumPy's; register its clone()"
            )
        return storage

    def tensor_deregister(self) -> None:
        """Return when all puts of the living ranks have arrived, and end them. Collective.

        The tensor keeps its values, and its memory.
        """
        self._core.call("tensor_deregister", _AT_ONCE, [], self._deregister).wait()

    def _deregister(self, members: Members, deadline: float) -> None:
        made = self._registered()
        members.run([], [], "tensor_deregister", deadline, goes_on())
        made.close(time_left(deadline))
        self.close(time_left(deadline))

    def _registered(self) -> core_import.Window:
        if self._made is None:
            raise ConfigError("the window is not registered; give it a tensor by tensor_register()")
        return self._made

    def close(self, seconds: float = _LEAVE_SECONDS) -> None:
        """Leave the window, without the other ranks. Idempotent."""
        made, self._made = self._made, None
        self._core.windows.discard(self)
        _windows.pop(self._address, None)
        self._address, self._tensor = 0, _NOTHING
        for line in self._lines.values():
            line.close()
        self._lines, self._last = {}, {}
        if made is not None:
            made.shut(seconds)

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool = False,  # noqa: ARG002 - it has ended anyway
        opts: Any = None,
    ) -> Call:
        """Write a tensor into the window of a rank.

        The tensor may be changed when this returns. The rank sees it, whole, once it has waited for
        a signal that is sent after it.

        Args:
            tensor: of the dtype of that rank's.
            dst_rank: the rank in the process group.
            target_offset_nelems: the element of its window at which to begin.
            async_op: has no effect: the call has ended when this returns.
            opts: torch's; its timeout is the time limit.

        Raises:
            ConfigError: the rank's window has another dtype, or is shorter.
            PeerError: the rank is dead or has left.
            TimeoutError: its host did not take the tensor.
        """
        made = self._made or self._registered()
        peer = self._peer(dst_rank)
        offset = _whole("the offset", target_offset_nelems)
        try:
            count = tensor.numel()
        except AttributeError:
            raise ConfigError(f"put takes a tensor, not {type(tensor).__name__}") from None
        if tensor.dtype is not peer.dtype:
            raise ConfigError(
                f"put: the tensor is of {tensor.dtype}, the window of rank {self._names[dst_rank]} "
                f"of {peer.dtype}"
            )
        if offset < 0 or offset + count > peer.elements:
            raise ConfigError(
                f"put: {count} elements at {offset}: that exceeds the window size of rank "
                f"{self._names[dst_rank]}, {peer.elements} elements"
            )
        if not (
            tensor.is_cpu
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_conj()
        ):
            if tensor.is_meta:
                check_memory(tensor)
            tensor = on_host(tensor.detach().to_dense()).contiguous()
        address = tensor.data_ptr()
        if count and not address:
            check_memory(tensor)
        size = peer.dtype.itemsize
        try:
            made.put(dst_rank, offset * size, address, count * size, self._limit(opts))
        except Error as error:
            raise translation("put", self._names, error) from error
        return self._done

    def signal(
        self,
        peer_rank: int,
        async_op: bool = False,  # noqa: ARG002 - as for put()
        opts: Any = None,
    ) -> Call:
        """Send a rank a signal, behind all that this rank has put there. As put()."""
        made = self._made or self._registered()
        self._peer(peer_rank)
        number = self._sent[peer_rank] + 1
        try:
            made.signal(peer_rank, number, self._limit(opts))
        except Error as error:
            raise translation("signal", self._names, error) from error
        # An exception of a signal handler before this: the program signals again, and it counts
        # once.
        self._sent[peer_rank] = number
        return self._done

    def wait_signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Call:
        """Wait for a signal of a rank. Each is waited for once, also those that have come before.

        Args:
            peer_rank: the rank in the process group.
            async_op: return at once; the work's wait() waits.
            opts: torch's; its timeout is the time limit.

        Raises:
            PeerError: the rank is dead or has left, and has sent no more signals.
            TimeoutError: none has come within the time limit.
        """
        made = self._made or self._registered()
        self._peer(peer_rank)
        deadline = deadline_in(self._limit(opts))
        last = self._last.get(peer_rank)
        if not async_op:
            if last is not None:
                last.await_end(time_left(deadline))
                if not last.is_completed():
                    late = TimeoutError("an earlier wait has not ended", [peer_rank])
                    raise translation("wait_signal", self._names, late)
            number = self._await(made, peer_rank, deadline)
            # As in signal(): the program waits again, and gets this one.
            self._taken[peer_rank] = number
            return self._done

        def step() -> None:
            self._taken[peer_rank] = self._await(made, peer_rank, deadline)

        if peer_rank not in self._lines:
            self._lines[peer_rank] = Line("malt window")
        self._last[peer_rank] = call = self._lines[peer_rank].later(step, [])
        return call

    def _await(self, made: core_import.Window, rank: int, deadline: float) -> int:
        """Return the number of the signal of a rank that has come."""
        number = self._taken[rank] + 1
        try:
            made.await_signals(rank, number, time_left(deadline))
        except Error as error:
            raise translation("wait_signal", self._names, error) from error
        return number

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """Return the tensor of a rank of this host, in place. That of this rank is one too.

        Raises:
            ConfigError: the rank is on another host.
        """
        made = self._made or self._registered()
        peer = self._peer(rank)
        if not made.is_mapped(rank):
            raise ConfigError(
                f"map_remote_tensor: rank {self._names[rank]} is on another host, whose memory "
                "this rank cannot map; put there, and let it put what this rank needs"
            )
        memory = torch.from_numpy(made.array(rank))
        of = memory[peer.first : peer.first + peer.elements * peer.dtype.itemsize]
        return of.view(peer.dtype).view(peer.shape)

    def get_attr(self, peer_rank: int) -> Any:
        """Return torch's WindowAttr: UNIFIED for a rank of this host, else SEPARATE."""
        made = self._made or self._registered()
        self._peer(peer_rank)
        if not hasattr(distributed_c10d, "Window"):
            raise ConfigError("get_attr: WindowAttr came with PyTorch 2.14")
        c10d = torch._C._distributed_c10d
        attributes = c10d.WindowAttr()
        access = c10d.WindowAccessType
        attributes.access_type = access.UNIFIED if made.is_mapped(peer_rank) else access.SEPARATE
        return attributes

    def _peer(self, rank: int) -> _Peer:
        if type(rank) is not int:
            _whole("the rank", rank)
        if not 0 <= rank < len(self._peers):
            raise ConfigError(f"rank {rank}: the process group has {len(self._peers)} ranks")
        return self._peers[rank]

    def _limit(self, opts: Any) -> float:
        """Return a call's time limit; check that the tensor is where the others write."""
        address = self._address
        if address and self._tensor.untyped_storage().data_ptr() != address:
            raise ConfigError(
                "the memory of the window's tensor has moved (share_memory_, set_), and "
                "the other ranks write to the old one; deregister it and register it anew"
            )
        timeout = self._core.members.timeout
        return timeout if opts is None else seconds_of(getattr(opts, "timeout", None), timeout)
