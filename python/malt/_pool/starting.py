"""Starts ranks from a process that is in no job: for `malt.Pool` and for `fit(ranks=4)`.

Both fork their ranks, and have them meet in a Rendezvous. They differ in which process forks. For
`fit` it is this one (`forked.py`): its ranks read the data where they lie, begin at once, and run
MALT's code alone. For a pool it is one that has no threads (`nursery.py`): its ranks run any code,
which may use libraries whose threads, or locks, a fork does not take over.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from malt import _system_limits as system_limits
from malt._engines import rank as engine_rank
from malt._errors import ConfigError
from malt._launch import orphans
from malt._launch.descriptors import check_descriptors

Result = TypeVar("Result")

# Of the job of one that the process may be in. Its ranks have a job of their own, or none.
LAUNCH = (
    "MALT_RENDEZVOUS",
    "MALT_JOB_KEY",
    "MALT_RANK",
    "MALT_SIZE",
    "MALT_LOCAL_RANK",
    "MALT_NODE_RANK",
    "MALT_NNODES",
    "MALT_SUCCESSORS",
    "MALT_RESTARTS",
    "MALT_RECORD_FD",
    "MALT_RANK_PROCESS",
)

_START_SECONDS = 60.0
# More ranks only take the cores from one another: 1,000 ranks on 2 cores work for more than a
# minute and then fail at a time limit.
_MOST_A_CORE = 64


def check_ranks(ranks: int) -> None:
    """Refuse more ranks than can work here, before any long work begins.

    Raises:
        malt.ConfigError: there are too many.
    """
    cores = len(os.sched_getaffinity(0))
    if ranks > cores * _MOST_A_CORE:
        raise ConfigError(
            f"{ranks} ranks are too many for {cores} cores: at most {cores * _MOST_A_CORE}, "
            f"{_MOST_A_CORE} a core; take fewer (one a core is fastest), or more hosts"
        )
    check_descriptors(ranks, ranks)


def fork(become: Callable[[], int]) -> int:
    """Fork a process that does what `become` does, and ends with the code that it returns.

    The kernel kills it when this process ends, or the thread that has forked it. It leaves without
    this process's exit handlers, and without writing what this process has still in its buffers.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside other threads, whose locks the child does not take.
        warnings.simplefilter("ignore", DeprecationWarning)
        with system_limits.starting("a rank of malt.Pool"):
            process = os.fork()
    if process != 0:
        return process
    code = 1
    try:
        orphans.die_with(parent)
        code = become()
    finally:
        os._exit(code)


def run_program(
    variables: Mapping[str, str],
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Result:
    """Run a program of MALT in this process, as the rank that has the Rendezvous's variables."""
    variables = {**variables, "MALT_BOOTSTRAP": "malt"}
    return engine_rank.run(variables, _START_SECONDS, function, args, kwargs)
