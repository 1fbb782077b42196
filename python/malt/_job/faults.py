"""A rank that a fault ends says which rank it was, of what it died, and where."""

from __future__ import annotations

import faulthandler
import signal

from malt._core_import import announce_faults, announce_no_faults

_FAULTS = (signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGBUS, signal.SIGABRT)
_STDERR = 2

_is_on = False


def announce(rank: int) -> None:
    """From now on; unless the program has its own way with one of these signals."""
    global _is_on
    if faulthandler.is_enabled() or any(signal.getsignal(n) != signal.SIG_DFL for n in _FAULTS):
        return
    faulthandler.enable(_STDERR)
    announce_faults(rank)
    _is_on = True


def restore() -> None:
    """The signals do again what they did before announce(). Idempotent."""
    global _is_on
    if _is_on:
        announce_no_faults()
        faulthandler.disable()
        _is_on = False
