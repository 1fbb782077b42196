"""Which limit of the system is reached when it refuses a process, a thread, memory or a file."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from malt._errors import ConfigError

_NAMED = {
    errno.EFBIG: (resource.RLIMIT_FSIZE, "the size of files", "ulimit -f", "bytes"),
    errno.EMFILE: (resource.RLIMIT_NOFILE, "open files", "ulimit -n", "files"),
}


def reason(error: OSError) -> str:
    """Say why the system refused, and which limit of this process was reached, if it was one."""
    text = error.strerror or str(error)
    if error.errno in _NAMED:
        kind, what, command, unit = _NAMED[error.errno]
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            text += f": the limit on {what} is {limit:,} {unit}; raise it ({command})"
    return text


@contextlib.contextmanager
def starting(what: str) -> Iterator[None]:
    """Start one process or one thread in the body.

    Raises:
        malt.ConfigError: the limit on processes is reached.
    """
    try:
        yield
    except (BlockingIOError, RuntimeError) as error:  # of a process, of a thread
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        now = "" if limit == resource.RLIM_INFINITY else f", {limit:,} now"
        raise ConfigError(
            f"cannot start {what} ({getattr(error, 'strerror', None) or error}): raise the limit "
            f"on processes and threads of the user (ulimit -u{now}) or of the container, or on "
            "the address space (ulimit -v)"
        ) from None


def make_memory_file(name: str, flags: int = 0) -> int:
    """Return the descriptor of memory without a name in the file system.

    Raises:
        malt.ConfigError: the system refuses it.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | flags)
    except OSError as error:
        text = f"cannot make shared memory: memfd_create: {reason(error)}"
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            text += "; have the container's seccomp filter allow it (`malt doctor` tries it)"
        raise ConfigError(text) from None
