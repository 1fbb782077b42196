"""A job of real processes out of a script's text: `run_job` starts it under `malt run` and waits.

In the script there are `malt`, `np`, `rank`, `size`, FOLDS and GRAPHS by name, and:

    tell(name=value, ...)   hands values (also arrays) to the test, at once: no kill loses them
    error_of(call, ...)     the exception out of the call, as an Err, or None
    interrupted(call)       error_of(call), which Ctrl-C comes into 0.3 s after its beginning
    counters(v)             v.stats() as a dictionary
    raise_flag(name), await_flag(name), flag_is_up(name)
                            files, for an order of events that does not go through malt
    meet(name)              waits likewise for all ranks to come here: before malt.init() with a
                            short limit, which starting Python may well take longer than
    goal()                  the iteration to end at, for all the same: the test's set_goal()
"""

from __future__ import annotations

import abc
import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import forks

_PREAMBLE = """\
import os, pickle, signal, sys, threading, time
import numpy as np
import malt
from jobs import Err, await_flag, counters, error_of, flag_is_up, goal, interrupted, meet
from jobs import raise_flag, tell
rank, size = int(os.environ["MALT_RANK"]), int(os.environ["MALT_SIZE"])
FOLDS = {"AVG": malt.AVG, "SUM": malt.SUM, "WEIGHTED": malt.WEIGHTED, "REPLACE": malt.REPLACE,
         "MEDIAN": malt.MEDIAN, "TRIMMED_MEAN": malt.TRIMMED_MEAN(0.3)}
GRAPHS = {"ALL": malt.ALL, "HALTON": malt.HALTON, "RING": malt.RING, "STAR": malt.STAR,
          "EXPONENTIAL": malt.EXPONENTIAL, "ONE_PEER": malt.ONE_PEER,
          "RANDOM": malt.RANDOM(2, seed=7)}
"""


class Err(NamedTuple):
    """An exception, as a rank reports it."""

    kind: str  # "ConfigError" of malt, "builtins.TypeError" of others
    text: str
    ranks: tuple[int, ...] | None
    seconds: float  # that the call took

    def says(self, *parts: object) -> bool:
        return all(str(part) in self.text for part in parts)


class Result(NamedTuple):
    code: int
    told: list[dict[str, Any]]  # by rank
    output: str

    def each(self, name: str) -> list[Any]:
        """What every rank told under this name."""
        missing = [rank for rank, told in enumerate(self.told) if name not in told]
        assert not missing, f"ranks {missing} did not tell {name!r}:\n{self.output}"
        return [told[name] for told in self.told]


# In the script


def _write_whole(path: Path, data: bytes) -> None:
    draft = path.with_suffix(f".draft-{os.getpid()}")  # another rank may raise the same flag
    draft.write_bytes(data)
    draft.rename(path)


_told: dict[str, Any] = {}


def tell(**values: Any) -> None:
    _told.update(values)
    _write_whole(Path(f"told-{os.environ['MALT_RANK']}"), pickle.dumps(_told))


def error_of(call: Any, *args: Any, **kwargs: Any) -> Err | None:
    start = time.monotonic()
    try:
        call(*args, **kwargs)
    except BaseException as error:
        kind = type(error)
        home = "" if kind.__module__ == "malt" else f"{kind.__module__}."
        ranks = getattr(error, "ranks", None)
        return Err(home + kind.__name__, str(error), ranks, time.monotonic() - start)
    return None


def interrupted(call: Any) -> Err | None:
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    return error_of(lambda: (begun.set(), call()))


def counters(v: Any) -> dict[str, int]:
    names = "sent folded overwritten rejected pending to_dead bytes_out bytes_in"
    return {name: getattr(v.stats(), name) for name in names.split()}


def raise_flag(name: object) -> None:
    _write_whole(Path(f"flag-{name}"), b"")


def flag_is_up(name: object) -> bool:
    return Path(f"flag-{name}").exists()


def await_flag(name: object) -> None:
    while not flag_is_up(name):
        time.sleep(0.005)


def meet(name: str) -> None:
    raise_flag(f"{name} {os.environ['MALT_RANK']}")
    for rank in range(int(os.environ["MALT_SIZE"])):
        await_flag(f"{name} {rank}")


def goal() -> int:
    try:
        return int(Path("goal").read_text())
    except FileNotFoundError:
        return 10**9


# In the test

# Seconds: far more than any error, or news of a death, takes to come on a busy machine, and far
# less than the time limits that neither may wait for.
PROMPT = 15.0


def refused(error: Err | None, *parts: object) -> bool:
    """A ConfigError that came at once and says all this."""
    assert error is not None, f"no error that says {parts}"
    assert error.kind == "ConfigError", error
    assert error.seconds < PROMPT, error
    assert error.says(*parts), error
    return True


_EMPTY: Mapping[str, str] = {}


class Ranks(abc.ABC):
    """What the ranks of a job share with the test: a directory with the script and what they tell.

    Who derives from it starts them there, in `environ`.
    """

    def __init__(self, directory: Path, size: int, body: str) -> None:
        self.size = size
        self.directory = directory
        (directory / "script.py").write_text(_PREAMBLE + body)
        self.environ = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
        self.environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent), *filter(None, [self.environ.get("PYTHONPATH")])]
        )

    @property
    @abc.abstractmethod
    def output(self) -> str:
        """Of all ranks, so far."""

    @property
    @abc.abstractmethod
    def has_ended(self) -> bool:
        """Whether all ranks have."""

    def told(self, rank: int) -> dict[str, Any]:
        path = self.directory / f"told-{rank}"
        values: dict[str, Any] = pickle.loads(path.read_bytes()) if path.exists() else {}
        return values

    def await_told(
        self, name: str, limit: float = 100, ranks: Iterable[int] | None = None
    ) -> list[Any]:
        """Wait until all of these ranks (None: of the job) have told this; returns the values."""
        asked = list(range(self.size) if ranks is None else ranks)
        deadline = time.monotonic() + limit
        while True:
            has_ended = self.has_ended  # before the look, which then sees all that was told
            told = [self.told(rank) for rank in asked]
            if all(name in values for values in told):
                return [values[name] for values in told]
            missing = [rank for rank, values in zip(asked, told, strict=True) if name not in values]
            assert not has_ended, f"the job ended early:\n{self.output}"
            assert time.monotonic() < deadline, f"{missing} did not tell {name!r}:\n{self.output}"
            time.sleep(0.02)

    def raise_flag(self, name: str) -> None:
        _write_whole(self.directory / f"flag-{name}", b"")

    def set_goal(self, iterations: int) -> None:
        """Let all ranks go on for so many iterations more than the one that is ahead, and end."""
        end = max(self.told(rank).get("at", 0) for rank in range(self.size)) + iterations
        _write_whole(self.directory / "goal", str(end).encode())

    def kill_and_await_return(self, rank: int) -> None:
        """Kill a rank that rejoins, once it is at iteration 5, and wait until it goes on.

        The script tells its `pid`, its `restarts`, and `at`, its iteration.
        """
        self.await_told("at")
        while self.told(rank)["at"] < 5:
            assert not self.has_ended, self.output
            time.sleep(0.005)
        os.kill(self.told(rank)["pid"], signal.SIGKILL)
        while self.told(rank).get("restarts") != 1 or "at" not in self.told(rank):
            assert not self.has_ended, self.output
            time.sleep(0.005)


class Running(Ranks):
    """A job that goes on while the test looks at it."""

    def __init__(
        self,
        directory: Path,
        size: int,
        body: str,
        arguments: tuple[str, ...],
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(directory, size, body)
        self.environ |= environ
        # `forks` shares imports already.
        options = ["-n", str(size), "--grace", "1", "--no-preload", *arguments]
        command = ["-m", "malt", "run", *options, "script.py"]
        self._output = directory / "output"
        with self._output.open("wb") as output:
            self.launcher = forks.start(
                command, directory, self.environ, output, has_torch="import torch" in body
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self.launcher.poll() is not None

    def finish(self, limit: float = 100) -> Result:
        try:
            code = self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job hangs:\n{self.output}") from None
        return Result(code, [self.told(rank) for rank in range(self.size)], self.output)


@contextlib.contextmanager
def start_job(
    directory: Path, size: int, body: str, *arguments: str, environ: Mapping[str, str] = _EMPTY
) -> Iterator[Running]:
    """Start `size` ranks of the script; `arguments` and `environ` are of `malt run`."""
    directory.mkdir(parents=True, exist_ok=True)
    job = Running(directory, size, body, arguments, environ)
    try:
        yield job
    finally:
        if job.launcher.poll() is None:
            job.launcher.send_signal(signal.SIGKILL)  # its guard ends the ranks
            job.launcher.wait()


def run_job(
    directory: Path,
    size: int,
    body: str,
    *arguments: str,
    code: int | None = 0,
    environ: Mapping[str, str] = _EMPTY,
    limit: float = 100,
    **given: Any,
) -> Result:
    """Run the script to its end and exit `code` (None: any); `given` are variables in it.

    It has `limit` seconds.
    """
    header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    with start_job(directory, size, header + body, *arguments, environ=environ) as job:
        result = job.finish(limit)
    if code is not None:
        assert result.code == code, f"exit code {result.code}, not {code}:\n{result.output}"
    return result


def free_port() -> int:
    """A port of this host that nothing listened on just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


# What a job may not leave


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def in_dev_shm() -> set[str]:
    """What lies there, without what other programs on this machine may put there meanwhile.

    These are Open MPI's own jobs, and named semaphores, of which MALT makes none.
    """
    others = re.compile(r"sm_segment|vader_segment|psm|osc|ompi|pmix|shmem_|\.?mpich|^sem\.")
    return {name for name in os.listdir("/dev/shm") if not others.search(name)}


def processes_in(directory: Path) -> set[int]:
    """The processes that work there, which is all of a job's that runs there."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            if Path(os.readlink(entry / "cwd")) == directory and exists(int(entry.name)):
                found.add(int(entry.name))
    return found
