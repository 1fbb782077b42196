"""The launcher that started this process, recognised by the variables that it sets.

The first of these that is there decides, unless MALT_BOOTSTRAP does: `malt run`; torchrun inside a
Slurm step; MPI; Slurm; what sets torch.distributed's variables. Two launchers that name different
ranks are refused, except where one is known to run inside the other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import NamedTuple

from malt._arguments import variable
from malt._bootstrap import mpi
from malt._errors import ConfigError

# The values of MALT_BOOTSTRAP, and the variables by which each is found.
_SIGNS = {
    "auto": "",
    "none": "",
    "malt": "MALT_RENDEZVOUS",
    "mpi": "OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK or, in a Slurm step, SLURM_PROCID",
    "slurm": "SLURM_PROCID and SLURM_STEP_NUM_TASKS",
    "torch": "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
}
_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OF_HOROVOD = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE")
_TORCHRUN, _SRUN = "torchrun", "Slurm's srun"
_ALONE = "where a job of one rank is what you want, set MALT_BOOTSTRAP=none"


class Launcher(NamedTuple):
    """A launcher that started this process; `rank` and `size` are None where it does not say."""

    way: str  # as in MALT_BOOTSTRAP
    name: str
    rank: int | None
    size: int | None

    @property
    def is_of_several(self) -> bool:
        return self.size != 1

    def __str__(self) -> str:
        rank = "" if self.rank is None else f", rank {self.rank}"
        return self.name + rank + ("" if self.size is None else f" of {self.size}")


def choose(env: Mapping[str, str]) -> Launcher | None:
    """Return the launcher whose job this process joins; None: it is a job by itself.

    Raises:
        ConfigError: MALT_BOOTSTRAP is wrong, or names a launcher that is not there; two launchers
            contradict one another; a launcher of several processes has set too little, or is one
            that MALT cannot use.
    """
    wanted = variable("MALT_BOOTSTRAP", "auto", env)
    if wanted not in _SIGNS:
        raise ConfigError(f"MALT_BOOTSTRAP is {wanted!r}; it is one of {', '.join(_SIGNS)}")
    if wanted == "none":
        return None
    # Inside whatever else there is.
    if variable("MALT_RENDEZVOUS", env=env) and wanted in ("auto", "malt"):
        return Launcher("malt", "malt run", _number(env, "MALT_RANK"), _number(env, "MALT_SIZE"))
    found = _find_all(env)
    if wanted == "auto":
        if not found:
            _check_alone(env)
            return None
        _check_agreement(found)
        return found[0]
    for launcher in found:
        if launcher.way == wanted:
            return launcher
    if wanted == "mpi" and mpi.running_world() is not None:
        return Launcher("mpi", "an MPI that the program has initialised", None, None)
    raise ConfigError(
        f"MALT_BOOTSTRAP={wanted}, but its launcher has not started this process: the variables "
        f"{_SIGNS[wanted]} are not set; unset MALT_BOOTSTRAP to take the launcher that is there"
    )


def _find_all(env: Mapping[str, str]) -> list[Launcher]:
    """Return the launchers that are there besides `malt run`, the one to take first."""
    found = []
    torch = _torch(env)
    launch = mpi.find_launch(env)
    if launch is not None:
        by_mpi = Launcher("mpi", launch.launcher, launch.rank, launch.size)
        if launch.family != "Slurm":
            found.append(by_mpi)
        else:
            by_slurm = by_mpi._replace(way="slurm")
            both = [by_mpi, by_slurm] if _has_pmi(env) else [by_slurm, by_mpi]
            found += [torch, *both] if torch is not None and torch.name == _TORCHRUN else both
    if torch is not None and torch not in found:
        found.append(torch)
    return found


def _has_pmi(env: Mapping[str, str]) -> bool:
    """Return whether MPI can find its ranks in this Slurm step, and Python can use MPI."""
    has_server = "PMI_RANK" in env or "PMIX_RANK" in env
    return has_server and importlib.util.find_spec("mpi4py") is not None


def _torch(env: Mapping[str, str]) -> Launcher | None:
    if not all(env.get(name) for name in _OF_TORCH):
        return None
    name = _TORCHRUN if "TORCHELASTIC_RUN_ID" in env else "a launcher of torch.distributed"
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    if rank is None or size is None or rank >= size:
        raise ConfigError(
            f"RANK={env['RANK']} is not a rank of WORLD_SIZE={env['WORLD_SIZE']}, which {name} "
            f"should have set; {_ALONE}"
        )
    return Launcher("torch", name, rank, size)


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else None


def _check_agreement(found: list[Launcher]) -> None:
    """Raise if another launcher than the first one names another rank or size."""
    first, *others = found
    if first.name == _TORCHRUN:  # srun starts torchrun, never the other way round
        others = [other for other in others if other.name != _SRUN]
    for other in others:
        pairs = ((first.rank, other.rank), (first.size, other.size))
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            raise ConfigError(
                f"two launchers have set variables that contradict one another: {first}, and "
                f"{other}; say which job this process is to join: MALT_BOOTSTRAP={first.way} or "
                f"MALT_BOOTSTRAP={other.way}"
            )


def _check_alone(env: Mapping[str, str]) -> None:
    """Raise if a launcher has started this process as one of several, but the others are unknown.

    Batch scripts export some of these variables to every program, so one alone says nothing.
    """
    size = _number(env, "WORLD_SIZE")
    if env.get("RANK") and size is not None and size > 1:
        missing = [name for name in _OF_TORCH if not env.get(name)]
        raise ConfigError(
            f"RANK={env['RANK']} and WORLD_SIZE={size} say that this process is one of {size}, but "
            f"{' and '.join(missing)} is not set: it should name the host, and a free port there, "
            f"of rank 0's process; {_ALONE}"
        )
    size = _number(env, "MALT_SIZE")
    if env.get("MALT_RANK") and size is not None and size > 1:
        raise ConfigError(
            f"MALT_RANK={env['MALT_RANK']} and MALT_SIZE={size} are set, but MALT_RENDEZVOUS is "
            f"not: a process gets all of malt.jobs.Rendezvous.environ() or none of it; {_ALONE}"
        )
    size = _number(env, "HOROVOD_SIZE")
    if all(env.get(name) for name in _OF_HOROVOD) and size is not None and size > 1:
        raise ConfigError(
            f"horovodrun started this process as one of {size}, which MALT cannot bring together: "
            f"start the program with `malt run -n {size} PROGRAM`, mpirun, srun or torchrun; "
            f"{_ALONE}"
        )
