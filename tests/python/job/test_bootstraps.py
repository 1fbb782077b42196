"""Jobs whose ranks find one another by the program's own means: malt.init(bootstrap=)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import malt

# Three methods, over files in the folder where the ranks run.
BY_FILES = """
import os, pathlib, sys, time
import numpy as np
import malt

class ByFiles(malt.jobs.Bootstrap):
    def __init__(self, rank, size):
        self.rank, self.size, self.round, self.ended = rank, size, 0, ""
    def allgather(self, data, timeout):
        names = [pathlib.Path(f"part-{self.round}-{rank}") for rank in range(self.size)]
        self.round += 1
        draft = pathlib.Path(f"draft-{self.rank}")
        draft.write_bytes(data)
        draft.rename(names[self.rank])
        while not all(name.exists() for name in names): time.sleep(0.01)
        return [name.read_bytes() for name in names]
    def close(self): self.ended = "closed"
    def abort(self): self.ended = "aborted"
"""


@contextlib.contextmanager
def started(
    directory: Path, body: str, environs: list[Mapping[str, str]]
) -> Iterator[list[subprocess.Popen[str]]]:
    (directory / "program.py").write_text(body)
    processes = [
        subprocess.Popen(
            [sys.executable, "program.py", str(number)],
            cwd=directory,
            env=os.environ | dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, environ in enumerate(environs)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def outputs(processes: list[subprocess.Popen[str]]) -> list[str]:
    return [process.communicate(timeout=60)[0] for process in processes]


def test_ranks_meet_by_a_bootstrap_of_the_programs_own(tmp_path: Path) -> None:
    body = (
        BY_FILES
        + """
mine = ByFiles(int(sys.argv[1]), 2)
malt.init(bootstrap=mine)
v = malt.vector(np.array([1.0 + malt.rank()]))
v.allreduce(malt.SUM)
print(malt.size(), v.array[0], mine.ended)
"""
    )
    with started(tmp_path, body, [{}, {}]) as ranks:
        assert outputs(ranks) == ["2 3.0 closed\n"] * 2


def test_bootstrap_is_refused_in_a_process_that_is_in_a_job(alone: None) -> None:
    with malt.jobs.Rendezvous(1) as rendezvous:
        with pytest.raises(malt.ConfigError, match=r"already, as rank 0 of 1; .*malt.finalize\(\)"):
            malt.init(bootstrap=rendezvous.environ(0))
        malt.finalize()
        with malt.init(bootstrap=rendezvous.environ(0)):
            assert malt.size() == 1


class ShortBootstrap(malt.jobs.Bootstrap):
    """Rank `rank` of 2, from whose allgather one part is missing."""

    size = 2

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.ended = ""

    def allgather(self, data: bytes, timeout: float) -> list[bytes]:
        return [data]

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


@pytest.mark.parametrize(
    ("bootstrap", "says"),
    [
        ("mpi", r"takes a malt.jobs.Bootstrap, or the variables .*, not builtins.str"),
        ({"RANK": "1"}, "MALT_RENDEZVOUS is not among those given"),
        (ShortBootstrap(2), "the bootstrap's rank 2 is not one of its 2"),
    ],
)
def test_invalid_bootstrap_is_refused(bootstrap: object, says: str) -> None:
    with pytest.raises(malt.ConfigError, match=says):
        malt.init(bootstrap=bootstrap)  # type: ignore[arg-type]


def test_bootstrap_whose_allgather_lacks_a_part_is_aborted_and_refused() -> None:
    bootstrap = ShortBootstrap()
    with pytest.raises(malt.ConfigError, match=r"allgather\(\) returned 1 parts for 2 ranks"):
        malt.init(bootstrap=bootstrap)
    assert bootstrap.ended == "aborted"


def test_communicator_and_bootstrap_together_are_refused() -> None:
    with pytest.raises(malt.ConfigError, match="comm= or bootstrap=, not both"):
        malt.init(comm=object(), bootstrap={})


JOIN = """
import malt
try:
    malt.init(timeout=20)
    malt.barrier()
    print("rank", malt.rank(), "of", malt.size())
except malt.Error as error:
    print(type(error).__name__, error, getattr(error, "ranks", ""))
"""


def test_processes_of_a_drivers_rendezvous_join_by_their_environment(tmp_path: Path) -> None:
    with malt.jobs.Rendezvous(3) as rendezvous:
        environs = [rendezvous.environ(rank) for rank in range(3)]
        with started(tmp_path, JOIN, environs) as ranks:
            assert outputs(ranks) == [f"rank {rank} of 3\n" for rank in range(3)]
    assert not {"MALT_JOB_KEY", "MALT_RENDEZVOUS"} & os.environ.keys()


def test_rank_that_the_driver_gives_up_is_named_at_once(tmp_path: Path) -> None:
    start = time.monotonic()
    with malt.jobs.Rendezvous(3) as rendezvous:
        environs = [rendezvous.environ(rank) for rank in range(2)]
        with started(tmp_path, JOIN, environs) as ranks:
            rendezvous.fail(2)
            rendezvous.fail(2)
            said = "PeerError rank 2 died or was not started during start-up (2,)\n"
            assert outputs(ranks) == [said] * 2
    assert time.monotonic() - start < 15


def test_ranks_that_wait_when_the_driver_ends_get_an_error(tmp_path: Path) -> None:
    with (
        malt.jobs.Rendezvous(2) as rendezvous,
        started(tmp_path, JOIN, [rendezvous.environ(0)]) as ranks,
    ):
        while not rendezvous._server.has_ranks():
            time.sleep(0.01)
        rendezvous.close()
        (output,) = outputs(ranks)
    assert "PeerError the connection to the launcher (malt run) is lost" in output


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: malt.jobs.Rendezvous(0), "size is 0; it must be a whole number from 1 to 1048576"),
        (lambda: malt.jobs.Rendezvous(1.5), "size is 1.5; it must be"),  # type: ignore[arg-type]
        (lambda: malt.jobs.Rendezvous(2, host="\ud800"), "UTF-8 cannot encode"),
        (
            lambda: malt.jobs.Rendezvous(2, port=2**70),
            f"port is {2**70}; it must be a whole number",
        ),
        (lambda: malt.jobs.Rendezvous(2, host="192.0.2.1"), "cannot listen at 192.0.2.1"),
    ],
)
def test_impossible_rendezvous_is_refused(call: object, says: str) -> None:
    with pytest.raises(malt.ConfigError, match=says):
        call()  # type: ignore[operator]
    with malt.jobs.Rendezvous(2) as rendezvous, pytest.raises(malt.ConfigError, match="job's 2"):
        rendezvous.environ(2)


def test_wait_in_another_thread_than_the_main_one_can_be_ended(tmp_path: Path) -> None:
    """As engines do that run tasks in threads."""
    body = """
import ctypes, sys, threading, time, malt
class Stop(BaseException): pass
malt.init()
ended = []
def wait():
    try: malt.barrier()
    except Stop: ended.append(time.monotonic())
thread = threading.Thread(target=wait)
if malt.rank() == 0:
    thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
    thread.join()
    print("ended", ended[0] - began < 2, flush=True)
else:
    time.sleep(3)
"""
    with malt.jobs.Rendezvous(2) as rendezvous:
        environs = [rendezvous.environ(rank) for rank in range(2)]
        with started(tmp_path, body, environs) as ranks:
            assert outputs(ranks)[0] == "ended True\n"
