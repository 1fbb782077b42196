"""Fault messages: a rank killed by a fault says its number, the signal, and where it happened."""

from __future__ import annotations

import faulthandler
import signal

from malt._core_import import announce_faults, announce_no_faults

_FAULTS = (signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGBUS, signal.SIGABRT)
_STDERR = 2

_is_on = False


def announce(rank: int) -> None:
    """Announce faults from now on, unless the program handles one of these signals itself."""
    global _is_on
    if faulthandler.is_enabled() or any(signal.getsignal(n) != signal.SIG_DFL for n in _FAULTS):
        return
    faulthandler.enable(_STDERR)
    announce_faults(rank)
    _is_on = True


def restore() -> None:
    """Undo announce(): the signals act again as before. Idempotent."""
    global _is_on
    if _is_on:
        announce_no_faults()
        faulthandler.disable()
        _is_on = False
