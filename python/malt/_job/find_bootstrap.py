"""Which bootstrap this process uses: found by how it was started."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from malt._job import foreign_launchers, mpi
from malt._job.bootstrap import Bootstrap, Rendezvous, Solo
from malt._rendezvous import session


def find(
    comm: Any = None, timeout: float = 30.0, environ: MutableMapping[str, str] | None = None
) -> Bootstrap:
    """Join the job in which this process was started.

    The first of these that applies is used: the given mpi4py communicator; the rendezvous of `malt
    run`; MPI, when an MPI launcher started this process or MPI is initialised with several ranks;
    else a job of one rank.

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
    if "MALT_RENDEZVOUS" in env:
        return Rendezvous(session.Client.from_environ(env, timeout))
    launch = mpi.find_launch(env)
    if launch is not None and launch.size != 1:
        return mpi.join(launch, timeout)
    world = mpi.running_world()
    if world is not None and world.Get_size() > 1:
        return mpi.Mpi(world)
    foreign_launchers.check(env)
    return Solo("none" if launch is None else "mpi")
