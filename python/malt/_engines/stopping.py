"""Stops a function that another thread runs."""

from __future__ import annotations

import ctypes


class Stop(BaseException):
    """Raised in the thread that runs the function."""


def stop_thread(thread: int) -> None:
    """Raise Stop in the thread of this number, at its next step in Python or in a wait of MALT."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Stop))
