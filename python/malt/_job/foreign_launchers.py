"""Launchers whose processes MALT cannot bring together, by the variables that they set.

torchrun, accelerate, deepspeed and Ray Train set the variables of torch.distributed; horovodrun
sets its own. A process that one of them started would be a job of one rank, like its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping

from malt._errors import ConfigError

# All of them: people set some by hand, and batch scripts export them to every program.
_OF_TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
_OF_HOROVOD = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE")


def check(env: Mapping[str, str]) -> None:
    """Refuse to be one of several jobs of one rank, which such a launcher started by mistake.

    For a process that neither `malt run` nor MPI has started.

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
