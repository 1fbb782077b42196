"""Tells a rank's process from the processes that it forks or starts.

They inherit the variables that the rank's launcher set, so the rank sets a variable of its own. The
ranks of another launcher, which a rank may start, are not of this launch.
"""

from __future__ import annotations

import os

from malt._errors import ConfigError

_VARIABLE = "MALT_RANK_PROCESS"  # the process id of the rank, and the launch that it belongs to


# Each set names one launch, by the variables of one launcher.
_LAUNCHES = (
    ("MALT_RENDEZVOUS",),
    ("PMIX_NAMESPACE",),
    ("RANK", "MASTER_ADDR", "MASTER_PORT"),
    ("SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
)


def launch() -> str:
    """Return the name of the launch that this process belongs to, or ""."""
    for names in _LAUNCHES:
        values = [os.environ.get(name, "") for name in names]
        if all(values):
            return ":".join(values)
    return ""


def put() -> None:
    """Mark this process as a rank of its launch."""
    if launch():
        os.environ[_VARIABLE] = f"{os.getpid()} {launch()}"


def remove() -> None:
    """Remove the mark. Idempotent."""
    os.environ.pop(_VARIABLE, None)


def started_by_rank() -> str:
    """Return the id of the rank's process that forked or started this one, or ""."""
    process, _, marked = os.environ.get(_VARIABLE, "").partition(" ")
    return process if marked and marked == launch() and process != str(os.getpid()) else ""


def check() -> None:
    """Check that no rank has forked or started this process.

    Raises:
        ConfigError: a rank has.
    """
    if process := started_by_rank():
        raise ConfigError(
            f"malt.init() in process {os.getpid()}, which a rank (process {process}) has forked or "
            "started and which is no rank itself: call it in the rank alone (under `if __name__ == "
            "'__main__':` where multiprocessing imports the script again); for a job of its own, "
            f"start the process without {_VARIABLE} and with MALT_BOOTSTRAP=none"
        )
