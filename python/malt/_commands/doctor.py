"""`malt doctor`: says in words what is wrong with this machine, and with a running job."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from malt._commands import info
from malt._commands.top import add_process, seconds
from malt._errors import ConfigError

_LOOKS = 9
_FEW_FILES = 1024  # the usual soft limit, which `malt run` raises by itself
_LITTLE_SHM = 64 << 20  # a container's default


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt doctor`; return 0 if nothing is wrong, 1 if something is, else 2."""
    parser = argparse.ArgumentParser(
        prog="malt doctor",
        description="Say what is wrong with this machine, and with a job that runs on it: cores "
        "that ranks take from one another, a straggler, staleness that grows, ranks that are stuck "
        "or stopped, a firewall. The job is one that `malt top` can show. Exit code 0: nothing is "
        "wrong.",
        allow_abbrev=False,
    )
    add_process(parser)
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=seconds,
        default=3.0,
        help="how long to watch the job (default: %(default)g)",
    )
    parsed = parser.parse_args(arguments)
    facts = {fact.key: fact.value for fact in info.machine()}
    problems = machine_problems(facts)
    try:
        problems += _job_problems(parsed.process, parsed.seconds, facts)
    except ConfigError as error:
        if parsed.process is not None:
            print(f"malt doctor: error: {error}", file=sys.stderr)
            return 2
        print(f"No job is examined: {error}.")
    for problem in problems:
        print(f"- {problem}")
    if not problems:
        print("Nothing is wrong.")
    return 1 if problems else 0


def machine_problems(facts: dict[str, object]) -> list[str]:
    """Return what is wrong with this machine, by what `malt info` finds out of it."""
    found = []
    if not facts["core"]:
        found.append("The compiled core cannot be loaded: `malt info` says why.")
    if not facts["memfd"] or not facts["pidfd"]:
        found.append(
            "The kernel refuses memfd or pidfd, which ranks of one host need: Linux 5.3 or later, "
            "and a container whose seccomp filter allows memfd_create and pidfd_open."
        )
    if _hides_processes():
        found.append(
            "/proc hides other users' processes (hidepid). Ranks of one user still share memory; "
            "those of several users use TCP."
        )
    files = facts["open_files"]
    if isinstance(files, int) and files < _FEW_FILES:
        found.append(
            f"A process may open {files} files: many ranks need more. Raise it: ulimit -n 65536."
        )
    shm = facts["dev_shm_free"]
    if isinstance(shm, int) and shm < _LITTLE_SHM:
        found.append(
            f"/dev/shm has {shm >> 20} MB free. MALT needs none, but Open MPI and PyTorch's data "
            "loaders do: docker run --shm-size=1g."
        )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 1.5 * cores:
        found.append(
            f"The load of this machine is {load:.1f} on {cores} cores: other programs, or too many "
            "ranks and threads, take the cores."
        )
    return found


def _hides_processes() -> bool:
    """Whether /proc is mounted with hidepid."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    options = [line.split()[3] for line in mounts if line.split()[1:3] == ["/proc", "proc"]]
    return any(
        option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off")
        for option in ",".join(options).split(",")
    )


def _job_problems(process: int | None, length: float, facts: dict[str, object]) -> list[str]:
    from malt._watching import sources
    from malt._watching.diagnosis import problems_of
    from malt._watching.mixing import slow_graph
    from malt._watching.unanswered import failing_calls, firewalls

    found = sources.find(process)
    looks = []
    for number in range(_LOOKS):
        if number > 0:
            time.sleep(length / (_LOOKS - 1))
        looks.append([source.look() for source in found])
    cores, quota = facts["cores"], facts["cpu_quota"]
    assert isinstance(cores, int)
    usable = min(cores, quota) if isinstance(quota, float) else cores
    events = [source.recording.read() for source in found]
    slow = slow_graph(found[0].size, events)
    unreached = [*firewalls(found), *failing_calls(looks)]
    return [*unreached, *problems_of(looks, usable), *slow]
