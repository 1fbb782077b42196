"""The process groups that torch gets: of all tensors, or beside those of other backends.

torch makes a process group by create(). It stops at the first ProcessGroup that it is given, so
with "cpu:malt,cuda:nccl" ours has torch make another one for the other devices, and hands on the
calls that are about their tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from malt.torch._backend.compiled import keep_uncompiled
from malt.torch._backend.core import Core
from malt.torch._backend.errors import ConfigError
from malt.torch._backend.operations import Operations
from malt.torch._backend.windows import Window
from malt.torch._backend.work import Call


class MaltProcessGroup(Operations, dist.ProcessGroup):  # type: ignore[misc] # PyTorch is optional
    """A process group. It stands for its backend too, of which torch asks what it can do."""

    supports_splitting = supports_coalescing = supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, store: dist.Store, core: Core) -> None:
        dist.ProcessGroup.__init__(self, core.members.rank, core.members.size)
        self.core = core
        self._store = store
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802 - the name that torch calls
        return "malt"

    @property
    def group_name(self) -> str:
        """The name under which torch keeps the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The purpose of the group, in its maker's words."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:  # noqa: N802 - as above
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802 - as above
        return self._description

    def get_group_store(self) -> dist.Store:
        return self._store

    @property
    def supports_window(self) -> bool:
        """Whether new_window() makes windows: if this PyTorch can move a tensor's memory."""
        return hasattr(torch.UntypedStorage, "_swap_data_ptr_")

    def new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """Make a one-sided window, of the tensor if there is one. Collective."""
        if not self.supports_window:
            raise ConfigError("new_window: it needs PyTorch 2.14 or later")
        window = Window(self.core)
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        return False

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices that torch may give the group tensors of by itself.

        None before torch lists the group. From PyTorch 2.15 on it would attach its flight recorder
        to a new group that has devices, which works only for a backend in C++.
        """
        return self._devices() if self in distributed_c10d._world.pg_map else []

    def _devices(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_backend(self, device: torch.device | str) -> dist.ProcessGroup:  # noqa: ARG002
        """Return what makes the calls about a device's tensors."""
        return self

    _get_backend = get_backend


class MixedProcessGroup(MaltProcessGroup):
    """A process group of CPU tensors that hands on the calls about those of other backends.

    Args:
        store: as for MaltProcessGroup.
        core: as for MaltProcessGroup.
        others: torch's process group of the other devices' tensors.
    """

    def __init__(self, store: dist.Store, core: Core, others: dist.ProcessGroup) -> None:
        super().__init__(store, core)
        self.others = others

    def _devices(self) -> list[torch.device]:
        return [torch.device("cpu"), *self.others._device_types]

    def get_backend(self, device: torch.device | str) -> dist.ProcessGroup:
        is_own = torch.device(device).type == "cpu"
        return self if is_own else self.others._get_backend(torch.device(device))

    _get_backend = get_backend


def _device_of(arguments: tuple[Any, ...]) -> str:
    """Return the kind of device that a call is about, by its first tensor or its options."""
    for each in arguments:
        if isinstance(each, list) and each and (found := _device_of(tuple(each))):
            return found
        device = getattr(each, "device", None)
        if isinstance(device, torch.device):
            return str(device.type)
    return ""


def _handing_on(name: str) -> Callable[..., Any]:
    own = getattr(MaltProcessGroup, name)

    def call(self: MixedProcessGroup, *arguments: Any, **options: Any) -> Any:
        if _device_of((*arguments, *options.values())) in ("", "cpu"):
            return own(self, *arguments, **options)
        return getattr(self.others, name)(*arguments, **options)

    return call


for _name in [name for name in vars(Operations) if name.startswith(("all", "reduce"))] + [
    *("broadcast", "gather", "scatter", "send", "recv", "recv_anysource", "barrier"),
    *("_allgather_base", "_reduce_scatter_base", "new_window"),
]:
    setattr(MixedProcessGroup, _name, _handing_on(_name))


def core_of(group: dist.ProcessGroup) -> Core:
    """Return what a process group of this backend consists of.

    Raises:
        ConfigError: it is of another backend.
    """
    if not isinstance(group, MaltProcessGroup):
        raise ConfigError(
            'the process group is not one of init_process_group("malt"), nor a part of one'
        )
    return group.core


def create(options: Any, config: Any = None) -> MaltProcessGroup:
    """Make a process group, for torch. Collective.

    Args:
        options: torch's.
        config: torch's BackendConfig, which says the backends of all devices; None: this one only.
    """
    core = Core(
        options.store,
        options.group_rank,
        options.group_size,
        options.global_ranks_in_group,
        options.timeout.total_seconds(),
    )
    backends = {} if config is None else config.get_device_backend_map()
    devices = ",".join(f"{device}:{name}" for device, name in backends.items() if name != "malt")
    if not devices:
        return MaltProcessGroup(options.store, core)
    others, _store = distributed_c10d._new_process_group_helper(
        options.group_size,
        options.group_rank,
        options.global_ranks_in_group,
        devices,
        options.store,
        f"{options.group_id}/others",
        timeout=options.timeout,
    )
    return MixedProcessGroup(options.store, core, others)


keep_uncompiled(Operations, MaltProcessGroup, MixedProcessGroup, Call, Window)
