"""Python programs as forks of a process that has imported what they import.

A test's job is mostly imports: three ranks and their launcher compute four times as long when each
imports NumPy and malt for itself. A fork has a program's arguments, environment, working directory,
descriptors and signals as the program would have after exec, and it ends as Python does. Tests of
what a launcher executes, and of what an import does, execute their programs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

# What ranks and their launcher import.
_MALT = ("numpy", "malt._api", "malt._launch.launcher", "malt._commands.run", "jobs")
_TORCH = (*_MALT, "torch", "torch.distributed")
_MOST_BYTES = 1 << 20
# What a fork takes over of that which Python reads when it starts.
_TAKEN_OVER = ("PYTHONPATH", "PYTHONUNBUFFERED")


# In the test


class Process:
    """A fork, as its test sees it: the part of subprocess.Popen that tests use."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end  # brings the exit code

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(self._end.recv(100))
            self._end.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """A process that has imported these modules, and starts programs as its forks.

    `environ` is what of their environment is read when a process starts.
    """

    def __init__(self, modules: tuple[str, ...], environ: tuple[tuple[str, str], ...]) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (here, there):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        with there:
            process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno()), *modules],
                pass_fds=[there.fileno()],
                # A process with one thread can be forked.
                env=os.environ | dict(environ) | {"OPENBLAS_NUM_THREADS": "1"},
            )
        self._to = here
        atexit.register(process.wait)
        atexit.register(here.close)  # at which it ends

    def start(
        self, arguments: Sequence[str], directory: Path, environ: Mapping[str, str], output: IO[Any]
    ) -> Process:
        """Start `python ARGUMENTS` there, with its output and errors to one file."""
        end, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = json.dumps([list(arguments), str(directory), dict(environ)]).encode()
        with its_end:
            socket.send_fds(self._to, [asked], [output.fileno(), its_end.fileno()])
        return Process(int(end.recv(100)), end)


_nursery = functools.cache(Nursery)


def start(
    arguments: Sequence[str],
    directory: Path,
    environ: Mapping[str, str],
    output: IO[Any],
    *,
    has_torch: bool,
) -> Process:
    """Start `python ARGUMENTS` there, whose output and errors go to one file.

    With `has_torch` it needs PyTorch.
    """
    modules = _TORCH if has_torch else _MALT
    nursery = _nursery(modules, tuple(sorted(_read_at_the_start(environ).items())))
    return nursery.start(arguments, directory, environ, output)


def _read_at_the_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what Python and the dynamic linker read when a process starts."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("PYTHON", "LD_")) and name not in _TAKEN_OVER
    }


# In the nursery and its forks

_FILTERS = list(warnings.filters)
_PATH = list(sys.path[1:])


def _serve(control: socket.socket) -> None:
    """Start the programs that are asked for, and tell how they end, until their test has ended."""
    ends: dict[int, socket.socket] = {}
    wakened, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    while True:
        ready = select.select([control, wakened], [], [])[0]
        if control in ready:
            asked, descriptors, *_ = socket.recv_fds(control, _MOST_BYTES, 2)
            if not asked:
                return
            arguments, directory, environ = json.loads(asked)
            output, end = descriptors
            pid = os.fork()
            if pid == 0:
                os.chdir(directory)
                nowhere = os.open(os.devnull, os.O_RDONLY)
                _become(arguments, environ, [nowhere, output, output], [])
            os.close(output)
            ends[pid] = socket.socket(fileno=end)
            ends[pid].send(str(pid).encode())
        if wakened in ready:
            wakened.recv(4096)
            while ends:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                with ends.pop(pid) as told, contextlib.suppress(OSError):
                    told.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    standard: Sequence[int],
    kept: Sequence[int],
) -> NoReturn:
    """Turn a fork into `python ARGUMENTS`.

    Args:
        arguments: a script or `-m module`, and its own arguments.
        environ: its environment.
        standard: its standard input, output and errors.
        kept: its other descriptors.
    """
    gc.freeze()  # What the nursery and a launcher hold is never freed here, so closes nothing.
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate([os.dup(each) for each in standard]):
        os.dup2(descriptor, target)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # the one of the list itself
                os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    unbuffered = bool(environ.get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = _text_file(1, sys.stdout, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_file(2, sys.stderr, unbuffered)  # type: ignore[misc]
    warnings.filters[:] = _FILTERS  # type: ignore[index]
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    home = os.getcwd() if arguments[0] == "-m" else str(Path(arguments[0]).resolve().parent)
    sys.path[:] = [home, *paths, *(path for path in _PATH if path not in paths)]
    _end(_code_of(functools.partial(_run, arguments)))


def _text_file(descriptor: int, like: Any, unbuffered: bool) -> io.TextIOWrapper:
    file = open(descriptor, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        file, like.encoding, like.errors, line_buffering=descriptor == 2, write_through=unbuffered
    )


def _run(arguments: Sequence[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(arguments)
    main = types.ModuleType("__main__")
    main.__file__ = str(Path(arguments[0]).absolute())
    sys.modules["__main__"] = main
    exec(compile(Path(arguments[0]).read_bytes(), main.__file__, "exec"), main.__dict__)


def _code_of(program: Callable[[], None]) -> int:
    """Return the exit code of a program, which is run; below 0: its signal."""
    try:
        program()
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        if end.code is not None:
            print(end.code, file=sys.stderr)
        return int(end.code is not None)
    except BaseException as error:
        inside = error.__traceback__
        for _ in range(2):  # this function and _run
            inside = inside and inside.tb_next
        sys.last_type, sys.last_value = type(error), error.with_traceback(inside)
        sys.excepthook(sys.last_type, sys.last_value, inside)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> NoReturn:
    if code < 0:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    ctypes.pythonapi.Py_Exit(code & 0xFF)  # ends the interpreter, as after sys.exit()
    raise AssertionError


class _Rank:
    """A launcher's Popen: a fork while the launcher has one thread, else the program itself."""

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        is_script = command[0] == sys.executable and command[1][:1] != "-"
        is_like = _read_at_the_start(options["env"]) == _read_at_the_start(os.environ)
        if not is_script or not is_like or len(os.listdir("/proc/self/task")) > 1:
            return subprocess.Popen(command, **options)
        process = types.SimpleNamespace(returncode=None)
        process.pid = os.fork()
        if process.pid == 0:
            options["preexec_fn"]()
            given = [options[name] for name in ("stdin", "stdout", "stderr")]
            standard = [own if one is None else one for own, one in enumerate(given)]
            _become(command[1:], options["env"], standard, options["pass_fds"])
        process.wait = lambda: os.waitpid(process.pid, 0)
        return process


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    if launching := sys.modules.get("malt._launch.starter"):
        launching.subprocess = _Rank()  # type: ignore[attr-defined]
    _serve(socket.socket(fileno=int(sys.argv[1])))
