"""The nursery's side of `nursery.py`: imports what a program imports, and forks its ranks."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import select
import socket
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence, Set

from malt._launch import channel, orphans, program_imports

# A rank's descriptors at its start, in this order; then may come the memory to record in.
ANSWER, GUARD, STDIN, STDOUT, STDERR, RECORD = range(6)
ANSWERED = struct.Struct("=i")  # the rank's process
_LOOK_MILLISECONDS = 50.0  # so that a rank hangs in no case: nothing kills it before it is adopted
# What Python may write before the nursery reads it.
PIPE_BYTES = 1 << 20


class _UnfitError(Exception):
    """This process cannot be forked, or has nothing that would be shared."""


def serve(control: int, launcher: int, out: int, err: int, *, known: Set[str]) -> None:
    """Be the nursery; return in each rank, and nowhere else.

    Args:
        control: a socket to the launcher.
        launcher: its process.
        out: the other end of the pipe that is the standard output, until something reads it.
        err: the same of the standard error.
        known: the modules that Python itself has imported.
    """
    asked = socket.socket(fileno=control)
    written = [_keep_written(out, 1), _keep_written(err, 2)]
    try:
        files, folder = _open_files(), os.getcwd()
        names = _import_what_the_program_imports(known)
        _check_fit(files)
        if os.getcwd() != folder:
            raise _UnfitError("what it imports changes the working directory")
    except _UnfitError as reason:
        channel.send(asked, channel.encode((False, str(reason))))
        os._exit(0)
    gc.collect()
    gc.freeze()  # no later collection writes to the memory that is shared
    channel.send(asked, channel.encode((True, ", ".join(names))))
    while True:
        try:
            (environ,), descriptors = channel.receive(asked)
        except (EOFError, KeyboardInterrupt):
            os._exit(0)
        if _is_rank():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    asked.close()
    _become_rank(launcher, environ, descriptors, written)


def reseed() -> None:
    """Give a fork random numbers of its own, as separate processes have them."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


# In the nursery


def _keep_written(pipe: int, descriptor: int) -> int:
    """Let what is written to `descriptor` go to memory, for the ranks to write it once more."""
    memory = os.memfd_create("malt-nursery", os.MFD_CLOEXEC)
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):  # nothing has been written
        os.write(memory, os.read(pipe, PIPE_BYTES))
    os.close(pipe)
    os.dup2(memory, descriptor)
    return memory


def _import_what_the_program_imports(known: Set[str]) -> list[str]:
    reader = program_imports.Reader(sys.orig_argv[1:])
    wanted = reader.read()
    names = sorted({name.partition(".")[0] for name, _ in wanted} - sys.stdlib_module_names)
    if not names:
        raise _UnfitError("it imports no installed package before it does anything else")
    for name, attributes in wanted:
        try:
            __import__(name, {}, {}, attributes)
            if name == "malt":  # and what the first of its names, and malt.init(), load
                importlib.import_module("malt._api")
                importlib.import_module("encodings.idna")
        except BaseException as error:
            raise _UnfitError(f"import {name} fails: {error!r}") from None
    imported = {name.partition(".")[0] for name in set(sys.modules) - known}
    if own := sorted(imported & reader.own_names):
        raise _UnfitError(f"the program's folder has its own {own[0]}")
    return names


def _check_fit(allowed: Set[str]) -> None:
    """Refuse what a fork would not take over, or would share with others.

    Args:
        allowed: the files that may be open.

    Raises:
        _UnfitError: there is such a thing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns beside threads
        # OpenBLAS ends its threads before a fork, and starts them anew when it needs them.
        if (child := os.fork()) == 0:
            os._exit(0)
    os.waitpid(child, 0)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise _UnfitError(f"what it imports has started {threads - 1} threads")
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        raise _UnfitError("what it imports has started a process")
    for path in sorted(_open_files() - allowed):
        raise _UnfitError(f"what it imports has opened {path}")


def _open_files() -> set[str]:
    paths = {"/dev/null", "/dev/urandom"}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the list itself
            paths.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return paths


def _is_rank() -> bool:
    """Fork a rank that the launcher adopts; return True in the rank, False in the nursery."""
    nursery = os.getpid()
    try:
        middle = os.fork()
    except OSError:
        return False
    if middle != 0:
        os.waitpid(middle, 0)
        return False
    try:
        orphans.die_with(nursery)
        if os.fork() != 0:
            os._exit(0)
    except OSError:
        os._exit(1)
    return True


# In a rank


def _become_rank(
    launcher: int, environ: Mapping[str, str], descriptors: Sequence[int], written: Sequence[int]
) -> None:
    _await_adoption(launcher)
    os.setpgrp()
    orphans.die_with(launcher)
    orphans.register(descriptors[GUARD], os.getpid())
    for target, descriptor in enumerate(descriptors[STDIN : STDERR + 1]):
        os.dup2(descriptor, target)
    os.environ.update(environ)
    if len(descriptors) > RECORD:
        os.set_inheritable(descriptors[RECORD], True)
        os.environ["MALT_RECORD_FD"] = str(descriptors[RECORD])
    reseed()
    os.write(descriptors[ANSWER], ANSWERED.pack(os.getpid()))
    for descriptor in descriptors[:RECORD]:
        os.close(descriptor)
    for descriptor, memory in zip((1, 2), written, strict=True):
        size = os.fstat(memory).st_size
        data = memoryview(os.pread(memory, size, 0))
        with contextlib.suppress(OSError):  # nothing reads it any more
            while data:
                data = data[os.write(descriptor, data) :]
        os.close(memory)


def _await_adoption(launcher: int) -> None:
    """Wait until the process that forked this one has ended, so that the launcher is the parent."""
    middle = os.getppid()
    if middle == launcher:
        return
    try:
        end = os.pidfd_open(middle)
    except ProcessLookupError:  # it has ended just now
        return
    poll = select.poll()
    poll.register(end, select.POLLIN)
    while os.getppid() == middle:
        poll.poll(_LOOK_MILLISECONDS)
    os.close(end)
