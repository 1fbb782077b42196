"""Which bootstrap this process uses: the one it was given, or found by how it was started."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from malt._arguments import variable
from malt._bootstrap import launchers, mpi, slurm, torch_store
from malt._bootstrap.bootstrap import Bootstrap, Solo, ThroughRendezvous
from malt._errors import ConfigError
from malt._rendezvous import session


def find(
    comm: Any = None, timeout: float = 30.0, environ: MutableMapping[str, str] | None = None
) -> Bootstrap:
    """Join the job in which this process was started.

    The first of these that applies is used: the given mpi4py communicator; the launcher that
    `launchers.choose` finds; MPI, if the program has initialised it with several ranks; else a job
    of one rank.

    Args:
        comm: an mpi4py intracommunicator, or None.
        timeout: the most seconds to wait for the other ranks.
        environ: the variables to read instead of `os.environ`, for tests.

    Raises:
        malt.ConfigError: the launcher's settings cannot work; the message says what to install or
            to change.
        malt.TimeoutError: names the ranks that did not come, as far as they can be known.
    """
    env = os.environ if environ is None else environ
    if comm is not None:
        return mpi.adopt(comm, env)
    launcher = launchers.choose(env)
    if launcher is not None and launcher.way == "malt":
        return ThroughRendezvous(session.Client.from_environ(env, timeout))
    if launcher is not None and launcher.is_of_several:
        return _join(launcher, env, timeout)
    world = None if variable("MALT_BOOTSTRAP", env=env) == "none" else mpi.running_world()
    if world is not None and world.Get_size() > 1:
        return mpi.Mpi(world)
    return Solo("none" if launcher is None else launcher.way)


def _join(launcher: launchers.Launcher, env: Mapping[str, str], timeout: float) -> Bootstrap:
    if launcher.way == "torch":
        return torch_store.join(launcher, env, timeout)
    if launcher.way == "slurm":
        return slurm.join(launcher, env, timeout)
    launch = mpi.find_launch(env)
    return mpi.Mpi(mpi.running_world()) if launch is None else mpi.join(launch, timeout)


def adopt(given: object, timeout: float) -> Bootstrap:
    """Return the bootstrap that malt.init(bootstrap=) was given, or make it of such variables.

    Raises:
        malt.ConfigError: it is neither, or not of a rank.
        malt.TimeoutError: the rendezvous does not answer.
    """
    if isinstance(given, Mapping):
        if not variable("MALT_RENDEZVOUS", env=given):
            raise ConfigError(
                "malt.init(bootstrap=) takes the variables that malt.jobs.Rendezvous.environ(rank) "
                "returns; MALT_RENDEZVOUS is not among those given"
            )
        return ThroughRendezvous(session.Client.from_environ(dict(given), timeout))
    if not isinstance(given, Bootstrap):
        kind = type(given)
        raise ConfigError(
            "malt.init(bootstrap=) takes a malt.jobs.Bootstrap, or the variables that "
            f"malt.jobs.Rendezvous.environ(rank) returns, not {kind.__module__}.{kind.__qualname__}"
        )
    if not 0 <= given.rank < given.size:
        raise ConfigError(f"the bootstrap's rank {given.rank} is not one of its {given.size}")
    return given
