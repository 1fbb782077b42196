"""Many small jobs of three ranks, in each of which rank 2 meets with a fault before a call.

`run_rows` starts one process that imports what the calls need, and forks the ranks of all jobs
from it: a job then takes a fraction of the time that it takes to start Python. The jobs' calls wait
at the same time. The scripts have the names of jobs.py, and:

    limit   seconds, malt.init()'s timeout: the order's on the ranks that call, more on rank 2
    fault   the order's
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

FAULTY, SIZE = 2, 3
LATE_LIMIT = 12.0  # seconds, of rank 2: it is not to give up first
_MOST_SECONDS = 240.0


class Script(NamedTuple):
    """A call and what comes before it."""

    setup: str  # on all ranks; if it does not join the job, the call does
    call: str  # may set `got`
    callers: tuple[int, ...]


class Order(NamedTuple):
    imports: str  # before the fork
    fault: str  # "dead", "stopped" or "slow"
    limit: float
    slack: float
    scripts: Mapping[str, Script]


Told = dict[int, dict[str, Any]]  # by rank: `first`, `got` and, where rank 2 is slow, `again`


def run_rows(directory: Path, order: Order, environ: Mapping[str, str]) -> dict[str, Told]:
    """Run the jobs, and return what the ranks of each told."""
    (directory / "order").write_bytes(pickle.dumps(tuple(order)))
    clean = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
    done = subprocess.run(
        [sys.executable, __file__],
        cwd=directory,
        env=clean | {"OMP_NUM_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=_MOST_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: {rank: _told(directory / name, rank) for rank in range(SIZE)}
        for name in order.scripts
    }


def _told(directory: Path, rank: int) -> dict[str, Any]:
    path = directory / f"told-{rank}"
    told: dict[str, Any] = pickle.loads(path.read_bytes()) if path.exists() else {}
    output = directory / f"output-{rank}"
    return told | {"output": output.read_text(errors="replace") if output.exists() else ""}


# In the process that forks, and in the ranks

_AT_A_TIME = 3  # jobs that begin

_SCRIPT = """
meet("here")
{setup}
meet("ready")
await_flag("hit")

def call():
    exec(code, globals())

if rank in callers:
    tell(first=error_of(call), got=globals().get("got"))
    raise_flag(f"called {{rank}}")
for each in callers:
    await_flag(f"called {{each}}")
if fault == "slow" and rank in (*callers, 2):
    tell(again=error_of(call))
    raise_flag(f"again {{rank}}")
for each in (*callers, 2) if fault == "slow" else ():
    await_flag(f"again {{each}}")
os._exit(0)
"""


def _be_rank(
    rank: int, directory: Path, script: Script, imported: Mapping[str, Any], order: Order
) -> None:
    os.chdir(directory)
    output = os.open(f"output-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(pickle.loads(Path(f"environ-{rank}").read_bytes()))  # waits for the writer
    main = sys.modules["__main__"] = ModuleType("__main__")  # where a pool finds functions
    names = main.__dict__
    names |= imported
    names |= {"rank": rank, "size": SIZE, "fault": order.fault, "code": script.call}
    names |= {"limit": order.limit if rank != FAULTY else LATE_LIMIT, "callers": script.callers}
    try:
        exec(_SCRIPT.format(setup=script.setup), names)
    except BaseException:
        traceback.print_exc()


def main() -> None:
    import jobs

    from malt._launch import orphans

    order = Order(*pickle.loads(Path("order").read_bytes()))
    scripts = {name: Script(*script) for name, script in order.scripts.items()}
    imported: dict[str, Any] = {"__name__": "__main__"}
    exec(jobs._PREAMBLE.partition("rank, size")[0] + order.imports, imported)
    parent, pids = os.getpid(), {}
    for name, script in scripts.items():
        directory = Path(name).absolute()
        directory.mkdir()
        pids[name] = []
        for rank in range(SIZE):
            os.mkfifo(directory / f"environ-{rank}")
            process = os.fork()
            if process == 0:
                try:
                    orphans.die_with(parent)
                    _be_rank(rank, directory, script, imported, order)
                finally:
                    os._exit(1)
            pids[name].append(process)
    _watch(pids, order)


def _watch(pids: Mapping[str, list[int]], order: Order) -> None:
    """Serve the ranks, let the fault befall rank 2 of each job, and end what does not end.

    The jobs begin one after the other: time limits hold for what comes before the calls too.
    """
    import malt

    meetings: dict[str, malt.jobs.Rendezvous] = {}
    waiting: dict[str, list[Path]] = {}  # of the jobs that have begun: what ranks write when ready
    to_begin = list(pids)
    ends = {(name, rank) for name in pids for rank in range(SIZE)}
    deadline = time.monotonic() + len(pids) + 3 * (order.limit + order.slack)
    while ends and time.monotonic() < deadline:
        if to_begin and len(waiting) < _AT_A_TIME:
            name = to_begin.pop(0)
            meetings[name] = malt.jobs.Rendezvous(SIZE)
            for rank in range(SIZE):
                environ = pickle.dumps(meetings[name].environ(rank))
                Path(name, f"environ-{rank}").write_bytes(environ)
            waiting[name] = [Path(name, f"flag-ready {rank}") for rank in range(SIZE)]
        for name in [name for name, flags in waiting.items() if all(map(Path.exists, flags))]:
            del waiting[name]
            if order.fault == "dead":
                os.kill(pids[name][FAULTY], signal.SIGKILL)
                os.waitid(os.P_PID, pids[name][FAULTY], os.WEXITED | os.WNOWAIT)
                meetings[name].fail(FAULTY)
            elif order.fault == "stopped":
                os.kill(pids[name][FAULTY], signal.SIGSTOP)
                os.waitpid(pids[name][FAULTY], os.WUNTRACED)  # all of its threads
            Path(name, "flag-hit").touch()
        for name, rank in list(ends):
            if os.waitpid(pids[name][rank], os.WNOHANG)[0]:
                ends.remove((name, rank))
                waiting.pop(name, None)  # it may have failed before it was ready
        if order.fault == "stopped" and all(rank == FAULTY for _, rank in ends):
            break
        time.sleep(0.01)
    for name, rank in ends:
        os.kill(pids[name][rank], signal.SIGKILL)
        os.waitpid(pids[name][rank], 0)
    for meeting in meetings.values():
        meeting.close()


if __name__ == "__main__":
    main()
