"""A traceback that nothing catches, of MALT's errors or Ctrl-C, ends at the program's own line."""

from __future__ import annotations

import sys
from types import TracebackType

from malt._errors import Error


def show_program_last() -> None:
    """Shorten the tracebacks of MALT's errors, and of Ctrl-C in its calls, from now on."""
    before = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (Error, KeyboardInterrupt)):
            shorten(error)
            traceback = error.__traceback__
        before(kind, error, traceback)

    sys.excepthook = show


def shorten(error: BaseException) -> None:
    """Cut off the frames of this package after the program's last one, and causes inside it."""
    last: TracebackType | None = None
    is_inside = False
    entry = error.__traceback__
    while entry is not None:
        if _is_of_package(entry):
            is_inside = True
        elif _package(entry) not in sys.stdlib_module_names:
            last, is_inside = entry, False
        entry = entry.tb_next
    if last is None or not is_inside:
        return  # all of them, as in a command of MALT's own, or Ctrl-C in another library
    last.tb_next = None
    if error.__cause__ is not None and _is_inside(error.__cause__):
        error.__cause__ = None  # the message has its text; this suppresses the context too
    if error.__context__ is not None and _is_inside(error.__context__):
        error.__suppress_context__ = True


def _is_inside(cause: BaseException) -> bool:
    """Return whether this package has caught the error, not the program."""
    return cause.__traceback__ is None or _is_of_package(cause.__traceback__)


def _is_of_package(entry: TracebackType) -> bool:
    return _package(entry) == "malt"


def _package(entry: TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
