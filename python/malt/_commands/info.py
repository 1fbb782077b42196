"""`malt info`: what this machine can do, and its limits."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malt._arguments import variable
from malt._bootstrap import launchers
from malt._distribution import NAME, pip_install
from malt._errors import ConfigError
from malt._vectors.nvrtc import nvrtc_folders

_CGROUP = Path("/sys/fs/cgroup")
_NAMES = ("shm", "tcp", "verbs")  # of the transports
_SHOWN_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Fact:
    """One row: `value` is for programs (None: unknown, or not there), `text` for people.

    A row without a label is for programs only.
    """

    key: str
    label: str
    value: Any
    text: str


def gather() -> list[Fact]:
    """Collect all facts, in the order in which they are shown. Changes and starts nothing."""
    return [*machine(), *_transports(), *_gpus(), *_launcher(), *_mpi_facts()]


def machine() -> list[Fact]:
    """Collect what is known without asking a driver or another program."""
    return [*_software(), *_processor(), *_memory(), *_kernel(), *_limits()]


def _software() -> list[Fact]:
    core, problem = _core()
    version = getattr(core, "__version__", None) or _installed(NAME)
    numpy = _installed("numpy")
    python = platform.python_version()
    return [
        Fact("version", "MALT", version, version or "not installed"),
        Fact("core", "compiled core", core is not None, problem or core.__file__),
        Fact("python", "Python", python, f"{python} ({sys.executable})"),
        Fact("numpy", "NumPy", numpy, numpy or "not installed: pip install numpy"),
    ]


def _core() -> tuple[Any, str]:
    """Return the compiled core and "", or None and the reason why it cannot be loaded."""
    try:
        return importlib.import_module("malt._core"), ""
    except ImportError as error:
        return None, f"missing ({error}): install a wheel of MALT, or in a checkout run ./dev build"


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> list[Fact]:
    core, _ = _core()
    level = core.simd_level() if core is not None else None
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _cpu_quota()
    text = str(usable) if usable == there else f"{usable} of {there} (CPU affinity)"
    if quota is not None and quota < usable:
        text += f", of which the container may use {quota:g}"
    return [
        Fact("simd", "vector instructions", level, level or "unknown without the compiled core"),
        Fact("cores", "cores", usable, text),
        Fact("cpu_quota", "", quota, ""),
    ]


def _cpu_quota() -> float | None:
    """Return how many cores' time the control group may use; None: all."""
    quotas = []
    for folder in _own_cgroups():
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal():
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _memory() -> list[Fact]:
    meminfo = dict(
        line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line
    )

    def kilobytes(name: str) -> int | None:
        return int(meminfo[name].split()[0]) << 10 if name in meminfo else None

    total, available = kilobytes("MemTotal"), kilobytes("MemAvailable")
    limits = [_read(folder / "memory.max").strip() for folder in _own_cgroups()]
    limits.append(_read(_CGROUP / "memory/memory.limit_in_bytes").strip())  # version 1
    # Version 1 expresses "none" by a number near 2^63.
    limit = min((int(t) for t in limits if t.isdecimal() and int(t) < 1 << 60), default=None)
    return [
        Fact(
            "memory_available",
            "memory available",
            available,
            f"{_size(available)} of {_size(total)}",
        ),
        Fact("memory_total", "", total, ""),
        Fact(
            "memory_limit",
            "memory limit (cgroup)",
            limit,
            "none" if limit is None else _size(limit),
        ),
    ]


def _own_cgroups() -> list[Path]:
    """Return this process's control group (version 2) and those above it: all their limits hold."""
    own = next(
        (line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line[:3] == "0::"),
        "/",
    )
    folder = _CGROUP / own.strip("/")
    return [folder, *(f for f in folder.parents if f.is_relative_to(_CGROUP))]


def _kernel() -> list[Fact]:
    memfd, pidfd = _try(_make_memfd), _try(_open_pidfd)
    return [
        Fact("kernel", "kernel", platform.release(), f"{platform.system()} {platform.release()}"),
        Fact("memfd", "memfd", memfd is None, memfd or "yes"),
        Fact("pidfd", "pidfd", pidfd is None, pidfd or "yes"),
    ]


def _try(function: Callable[[], None]) -> str | None:
    """Return None if `function` works, else "no" and the reason."""
    try:
        function()
    except (OSError, AttributeError) as error:  # the kernel, or this Python, lacks it
        return f"no ({error})"
    return None


def _make_memfd() -> None:
    os.close(os.memfd_create("malt-info", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def _open_pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _limits() -> list[Fact]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        shm = os.statvfs("/dev/shm")
        free, total = shm.f_bavail * shm.f_frsize, shm.f_blocks * shm.f_frsize
        shm_text = f"{_size(free)} free of {_size(total)}"
    except OSError as error:
        free, shm_text = None, f"none ({error.strerror})"
    return [
        _limit("open_files", "open files (RLIMIT_NOFILE)", files, str),
        _limit("locked_memory", "locked memory (RLIMIT_MEMLOCK)", locked, _size),
        Fact("dev_shm_free", "/dev/shm (memfd needs none)", free, shm_text),
    ]


def _limit(key: str, label: str, limits: tuple[int, int], show: Callable[[int], str]) -> Fact:
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    text = "unlimited" if soft is None else show(soft)
    if soft != hard:
        text += f", can be raised to {'any' if hard is None else show(hard)}"
    return Fact(key, label, soft, text)


def _transports() -> list[Fact]:
    core, _ = _core()
    if core is None:
        missing = "not without the compiled core"
        return [Fact(f"transport_{name}", f"transport {name}", False, missing) for name in _NAMES]
    return [
        Fact("transport_shm", "transport shm", True, "yes"),
        *_tcp(core),
        *_verbs(core),
    ]


def _verbs(core: Any) -> list[Fact]:
    """Report how a rank that starts here would use the variables MALT_RDMA_*."""
    names = ("DEVICE", "PKEY", "SL", "TRAFFIC_CLASS")
    wanted = [variable(f"MALT_RDMA_{name}") for name in names]
    ports: list[Any] = []
    try:
        ports = core.rdma_ports()
        chosen, text = True, f"yes, by {core.rdma_port_of(*wanted)}"
    except ConfigError as error:
        chosen, text = False, f"no: {error}"
    usable = [str(port) for port in ports if not port.trouble]
    all_ = "; ".join(port.trouble or str(port) for port in ports)
    return [
        Fact("transport_verbs", "transport verbs", chosen, text),
        Fact("rdma_ports", "RDMA adapters", usable, all_ or "none"),
    ]


def _tcp(core: Any) -> list[Fact]:
    """Report how a rank that starts here would use MALT_INTERFACE and MALT_TLS."""
    wanted, protection = variable("MALT_INTERFACE"), variable("MALT_TLS")
    address, problem = None, ""
    found: dict[str, list[str]] = {}
    try:
        for one in core.interfaces():
            if not one.is_loopback:
                found.setdefault(one.name, []).append(f"{one.address}/{one.prefix_bits}")
        if wanted:
            address = core.address_of(wanted)
        if protection != "off":
            core.check_tls(protection)
    except ConfigError as error:
        problem = f"no: {error}"
    how = {"": "by the job's key", "off": "not at all (MALT_TLS=off)"}
    by = how.get(protection, f"by the job's key and certificates (MALT_TLS={protection})")
    networks = "; ".join(f"{name} {', '.join(all_)}" for name, all_ in found.items())
    if address is not None:
        networks = f"{address} (MALT_INTERFACE={wanted}); there are: {networks or 'loopback alone'}"
    return [
        Fact("transport_tcp", "transport tcp", not problem, problem or f"yes, protected {by}"),
        Fact("tcp_tls", "", protection != "off", ""),
        Fact("tcp_address", "", address, ""),
        Fact("networks", "networks", found, networks or "loopback alone"),
    ]


def _gpus() -> list[Fact]:
    """Report the GPUs in whose memory a vector can be."""
    core, _ = _core()
    if core is None:
        return [Fact("gpus", "GPUs", [], "not without the compiled core")]
    found = core.describe_gpus()
    if not core.has_gpu():
        return [Fact("gpus", "GPUs", [], f"none: {found[0]}")]
    core.look_for_nvrtc_in(nvrtc_folders())
    try:
        compiler, text = core.nvrtc_library(), f"kernels by {core.nvrtc_library()}"
    except ConfigError as error:
        compiler, text = None, f"unusable: {error}"
    version = core.cuda_version()
    return [
        Fact("gpus", "GPUs", found, "; ".join(found)),
        Fact("cuda", "CUDA", version, f"driver for {version}; {text}"),
        Fact("nvrtc", "", compiler, ""),
    ]


def _launcher() -> list[Fact]:
    """Report the launcher by which malt.init() would join a job in this process."""
    try:
        found = launchers.choose(os.environ)
    except ConfigError as error:
        return [Fact("launcher", "launcher", None, f"no: {error}")]
    chosen = variable("MALT_BOOTSTRAP")
    by = f" (MALT_BOOTSTRAP={chosen})" if chosen else ""
    text = f"{found}{by}" if found else f"none: malt.init() makes a job of one rank{by}"
    return [Fact("launcher", "launcher", found.way if found else "none", text)]


def _mpi_facts() -> list[Fact]:
    mpi4py = _installed("mpi4py")
    library = None if mpi4py is None else _mpi_library()
    programs: list[str] = []
    for found in (_beside_python("mpirun"), shutil.which("mpirun"), shutil.which("srun")):
        if found is not None and found not in programs:
            programs.append(found)
    text = ", ".join(programs) or "none (`malt run` needs none)"
    return [
        Fact("mpi4py", "mpi4py", mpi4py, mpi4py or f"not installed: {pip_install('mpi')}"),
        Fact("mpi_library", "MPI library", library, library or "none found"),
        Fact("mpi_launchers", "MPI launchers", programs, text),
    ]


def _beside_python(name: str) -> str | None:
    return shutil.which(name, path=str(Path(sys.executable).parent))


def _mpi_library() -> str | None:
    """Ask another process for the MPI library: a broken MPI may end the process that loads it."""
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version().splitlines()[0].split(', package')[0])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            timeout=20,
            check=True,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return " ".join(done.stdout.split()).rstrip("\0") or None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "unknown"
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_SHOWN_BYTES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {_SHOWN_BYTES[unit]}" if size < 1000 else f"{size:.0f} {_SHOWN_BYTES[unit]}"


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt info` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt info",
        description="What this machine can do, and its limits.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs: one object, sizes in bytes"
    )
    parsed = parser.parse_args(arguments)
    facts = gather()
    if parsed.json:
        print(json.dumps({fact.key: fact.value for fact in facts}, indent=2))
    else:
        width = max(len(fact.label) for fact in facts)
        for fact in facts:
            if fact.label:
                print(f"{fact.label:{width}}  {fact.text}")
    return 0
