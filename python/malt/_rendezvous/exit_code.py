"""How a process ended, in words and as a shell's exit code."""

from __future__ import annotations

import signal


def describe_end(code: int) -> str:
    """Return in words how a process ended, from subprocess's return code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


def exit_code_of(code: int) -> int:
    """Return the exit code that a shell has for subprocess's return code."""
    return code if code >= 0 else 128 - code
