"""How a process ended, in words and as a shell says it."""

from __future__ import annotations

import signal


def describe_end(code: int) -> str:
    """What a process died of, from subprocess' return code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


def exit_code_of(code: int) -> int:
    """What a shell has for subprocess' return code."""
    return code if code >= 0 else 128 - code
