"""The bootstrap over MPI, through mpi4py, which is imported only when it is needed.

If MALT itself initialised MPI, it finalises it as soon as the ranks have found one another: while
MPI is live, most launchers cancel the whole job at the first death.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malt import _errors as errors
from malt._bootstrap import roll_call
from malt._bootstrap.bootstrap import Bootstrap
from malt._distribution import pip_install
from malt._errors import ConfigError, Error, PeerError, describe_ranks

# "MA" and "MB": tags that a user's own traffic on the communicator is unlikely to have.
_TAG_DATA = 0x4D41
_TAG_CLOSE = 0x4D42
_LONGEST_SLEEP = 1e-3

# Buffers of sends and receives that were still under way at a timeout. MPI may still access them.
_abandoned: list[Any] = []


@dataclass(frozen=True)
class Launch:
    """The environment's description of the MPI launcher that started this process.

    `size` and `rank` are None where the launcher tells them only to its MPI library.
    """

    launcher: str
    family: str  # "Open MPI", "MPICH", "PMIx", "Slurm"
    rank: int | None
    size: int | None


def find_launch(env: Mapping[str, str]) -> Launch | None:
    """Return the MPI launcher that started this process, or None."""

    def number(name: str) -> int | None:
        text = env.get(name, "")
        return int(text) if text.isdecimal() else None

    if (size := number("OMPI_COMM_WORLD_SIZE")) is not None:
        return Launch("Open MPI's mpirun", "Open MPI", number("OMPI_COMM_WORLD_RANK"), size)
    # A Slurm job's batch script also has SLURM_NTASKS, but belongs to no step.
    tasks = number("SLURM_STEP_NUM_TASKS")
    if tasks is None and "SLURM_STEP_ID" in env:
        tasks = number("SLURM_NTASKS")
    if (size := number("PMI_SIZE")) is not None and (rank := number("PMI_RANK")) is not None:
        if size == tasks:
            return Launch("Slurm's srun", "Slurm", rank, size)
        return Launch("MPICH's mpirun", "MPICH", rank, size)
    slurm_rank = number("SLURM_PROCID")
    if tasks is not None and slurm_rank is not None and tasks > 1:
        return Launch("Slurm's srun", "Slurm", slurm_rank, tasks)
    if (rank := number("PMIX_RANK")) is not None and tasks is None:
        return Launch("a PMIx launcher", "PMIx", rank, None)
    return None


def running_world() -> Any:
    """Return COMM_WORLD if the user's program has initialised MPI through mpi4py, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi.COMM_WORLD


def adopt(comm: Any, env: Mapping[str, str]) -> Mpi:
    """Make a bootstrap over the user's own communicator; the user still has to finalise MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(comm, mpi.Comm):
        kind = f"{type(comm).__module__}.{type(comm).__qualname__}"
        raise ConfigError(f"comm= takes an mpi4py communicator (mpi4py.MPI.Comm), not {kind}")
    if not mpi.Is_initialized() or mpi.Is_finalized():
        state = "finalised already" if mpi.Is_initialized() else "not initialised"
        raise ConfigError(f"comm= was given, but MPI is {state}")
    if comm == mpi.COMM_NULL or comm.Is_inter():
        raise ConfigError(
            "comm= takes an intracommunicator that this process is part of, not "
            + ("COMM_NULL" if comm == mpi.COMM_NULL else "an intercommunicator")
        )
    launch = find_launch(env)
    if launch is not None and comm.Get_size() == 1 and comm != mpi.COMM_SELF:
        _check_world(mpi, launch)
    return Mpi(comm)


def join(launch: Launch, timeout: float) -> Mpi:
    """Make a bootstrap over COMM_WORLD; initialises MPI unless the user's program has done so."""
    world = running_world()
    mpi = _import_mpi(launch)
    if world is not None:
        _check_world(mpi, launch)
        return Mpi(world)
    if mpi.Is_finalized():
        raise ConfigError(
            "MPI has been finalised in this process and cannot start again, so the job cannot be "
            "joined a second time; to call malt.init() more than once, do `from mpi4py import MPI` "
            "before the first: MALT leaves an MPI that you initialised alone"
        )
    _check_library(mpi, launch)
    # MPI_Init has no timeout and reports nothing, so missing ranks are found before it.
    with (
        roll_call.answered(os.environ, timeout),
        _files_in_session_folder(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py's about a mismatch: ours says more
        mpi.Init()
    try:
        _check_world(mpi, launch)
    except ConfigError:
        if mpi.COMM_WORLD.Get_size() == 1:
            mpi.Finalize()  # a world of one waits for no other rank
        raise
    return Mpi(mpi.COMM_WORLD, owns=True, close_timeout=timeout)


@contextlib.contextmanager
def _files_in_session_folder() -> Iterator[None]:
    """Have Open MPI make its shared-memory files where its launcher removes them after a death.

    By default they are in /dev/shm, and stay there when a process does not reach MPI_Finalize.
    """
    folder = os.environ.get("PMIX_SERVER_TMPDIR", "")
    names = ["OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory"]
    new = [name for name in names if name not in os.environ and Path(folder).is_dir() and folder]
    os.environ.update(dict.fromkeys(new, folder))
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _import_mpi(launch: Launch) -> Any:
    """Return mpi4py.MPI, imported such that the import does not initialise MPI."""
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    size = launch.size if launch.size is not None else "N"
    way_out = (
        f"`{pip_install('mpi')}` brings mpi4py and Open MPI; or start the program with "
        f"`malt run -n {size}`, which needs no MPI"
    )
    try:
        rc = importlib.import_module("mpi4py").rc
    except ImportError:
        raise ConfigError(
            f"{launch.launcher} started this process, but mpi4py is not installed in "
            f"{sys.executable}: {way_out}"
        ) from None
    rc.initialize = False
    rc.finalize = False
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"{launch.launcher} started this process, but mpi4py finds no MPI library "
            f"({reason}): {way_out}"
        ) from error


def _library(mpi: Any) -> str:
    name, version = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def _mismatch(mpi: Any, launch: Launch, seen: str) -> ConfigError:
    mpirun = shutil.which("mpirun") or "none on PATH"
    package = "mpich" if launch.family == "MPICH" else "openmpi-bin"
    advice = (
        "start it with `srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH)"
        if launch.family == "Slurm"
        else f"launcher and library must be of one MPI (mpirun here: {mpirun}). "
        f"`{pip_install('mpi')}` brings Open MPI with an mpirun of its own; or install the MPI "
        f"that the launcher is from (Debian: {package}) and mpi4py over it"
    )
    return ConfigError(
        f"{launch.launcher} started {launch.size or 'several'} processes, but mpi4py's MPI "
        f"library, {_library(mpi)}, {seen}; {advice}; or use `malt run -n "
        f"{launch.size or 'N'}`, which needs no MPI"
    )


def _check_library(mpi: Any, launch: Launch) -> None:
    """Refuse, before MPI_Init, the pairs of launcher and library whose MPI_Init aborts."""
    vendor = mpi.get_vendor()[0]
    if launch.family == "Open MPI" and vendor in ("MPICH", "Intel MPI"):
        raise _mismatch(mpi, launch, "cannot start under it")
    if launch.family == "MPICH" and vendor == "Open MPI" and "HYDI_CONTROL_FD" in os.environ:
        raise _mismatch(mpi, launch, f"would start {launch.size} worlds of size 1 under it")


def _check_world(mpi: Any, launch: Launch) -> None:
    size = mpi.COMM_WORLD.Get_size()
    if launch.size is not None and size != launch.size:
        seen = f"sees a world of {size}"
        if size == 1:
            seen += ", so that each would train alone"
        raise _mismatch(mpi, launch, seen)


class Mpi(Bootstrap):
    """A bootstrap over an mpi4py communicator, by non-blocking messages of plain bytes.

    While a call is under way, other code must leave messages with MALT's two tags alone. With
    `owns`, `close` finalises MPI.
    """

    launcher = "mpi"

    def __init__(self, comm: Any, *, owns: bool = False, close_timeout: float = 30.0) -> None:
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._comm = comm
        self._owns = owns
        self._close_timeout = close_timeout
        self._open = True

    def allgather(self, data: bytes, timeout: float) -> list[bytes]:
        if not self._open:
            raise Error("the MPI bootstrap is closed, or was left after an error")
        return self._exchange(bytes(data), timeout, _TAG_DATA)

    def close(self) -> None:
        if not self._open:
            return
        if self._owns:
            # MPI_Finalize waits for all ranks without a limit: call it only once all are here.
            self._exchange(b"", self._close_timeout, _TAG_CLOSE)
            sys.modules["mpi4py.MPI"].Finalize()
        self._open = False

    def abort(self) -> None:
        self._open = False

    def _exchange(self, data: bytes, timeout: float, tag: int) -> list[bytes]:
        exchange = _Exchange(self._comm, data, tag)
        self._open = False  # until the exchange has succeeded
        try:
            exchange.finish(timeout)
        finally:
            if exchange.missing():
                _abandoned.append(exchange)
        self._open = True
        return [bytes(exchange.received[rank]) for rank in range(self.size)]


class _Exchange:
    """An all-to-all exchange: for each pair of ranks, one message each way."""

    def __init__(self, comm: Any, data: bytes, tag: int) -> None:
        self._mpi = sys.modules["mpi4py.MPI"]
        self._comm = comm
        self._data = data  # must live as long as the sends
        self._tag = tag
        me = comm.Get_rank()
        others = [rank for rank in range(comm.Get_size()) if rank != me]
        self.received: dict[int, bytes | bytearray] = {me: data}
        self._unseen = set(others)
        self._receives: dict[int, tuple[Any, bytearray]] = {}
        self._sends: dict[int, Any] = dict.fromkeys(others)

    def finish(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        sleep = 20e-6
        try:
            for rank in self._sends:
                self._sends[rank] = self._comm.Isend([self._data, self._mpi.BYTE], rank, self._tag)
            while True:
                progressed = self._advance()
                if not self.missing():
                    return
                if time.monotonic() >= deadline:
                    break
                sleep = 20e-6 if progressed else min(2 * sleep, _LONGEST_SLEEP)
                time.sleep(sleep)
        except self._mpi.Exception as error:
            missing = self.missing()
            raise PeerError(
                f"MPI failed while waiting for {describe_ranks(missing)}: {error}", missing
            ) from error
        missing = self.missing()
        raise errors.TimeoutError(
            f"{describe_ranks(missing)} did not come within {timeout:g} s; a longer limit: "
            "malt.init(timeout=...) or MALT_TIMEOUT",
            missing,
        )

    def missing(self) -> list[int]:
        """Return the ranks whose message has not come, or that have not received ours."""
        return sorted(self._unseen | self._receives.keys() | self._sends.keys())

    def _advance(self) -> bool:
        before = len(self._unseen) + len(self._receives) + len(self._sends)
        status = self._mpi.Status()
        for rank in list(self._unseen):
            message = self._comm.Improbe(rank, self._tag, status)
            if message is not None:
                buffer = bytearray(status.Get_count(self._mpi.BYTE))
                self._receives[rank] = (message.Irecv([buffer, self._mpi.BYTE]), buffer)
                self._unseen.remove(rank)
        for rank, (request, buffer) in list(self._receives.items()):
            if request.Test():
                self.received[rank] = buffer
                del self._receives[rank]
        for rank, request in list(self._sends.items()):
            if request.Test():
                del self._sends[rank]
        return len(self._unseen) + len(self._receives) + len(self._sends) < before
