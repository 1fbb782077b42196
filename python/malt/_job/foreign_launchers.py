"""Launchers whose processes MALT cannot join into one job, recognised by their variables.

torchrun, accelerate, deepspeed and Ray Train set the variables of torch.distributed; horovodrun
sets its own. Each process that one of them started would be a job of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from malt._errors import ConfigError

# All of them must be set: people set some by hand, and batch scripts export some to every program.
_OF_TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
_OF_HOROVOD = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE")


def check(env: Mapping[str, str]) -> None:
    """Raise if a launcher of this kind started this process as one of several.

    Each such process would silently be a job of one rank. Call this in a process that neither
    `malt run` nor MPI has started.

    Raises:
        ConfigError: such a launcher has started this process and others.
    """
    for names, size_name, launcher in (
        (_OF_TORCH, "WORLD_SIZE", _torch_launcher(env)),
        (_OF_HOROVOD, "HOROVOD_SIZE", "horovodrun"),
    ):
        size = env.get(size_name, "")
        if all(env.get(name) for name in names) and size.isdecimal() and int(size) > 1:
            raise ConfigError(
                f"{launcher} started this process as one of {size} ({size_name}={size}), which "
                "MALT cannot bring together: each would be a job of its own. Start the program "
                f"with `malt run -n {size} PROGRAM`, mpirun or srun; where a job of one rank is "
                f"what you want, remove {names[1]} from the environment before malt.init()"
            )


def _torch_launcher(env: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun (or accelerate, which uses it)"
    return "a launcher of torch.distributed, such as deepspeed,"
