"""`malt.report`: numbers that the program tells, for whoever watches the job."""

from __future__ import annotations

import re
from typing import SupportsFloat

from malt._errors import ConfigError
from malt._job import job as jobs
from malt._recording import recording, tensorboard

_MOST_NAMES = 32  # kReportNames in src/dstorm/recorder/layout.hpp; a name has at most 47 bytes
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,46}")

_checked: set[str] = set()


def report(**values: SupportsFloat) -> None:
    """Tell whoever watches the job some numbers: ``malt.report(loss=loss, rate=rate)``.

    Each value is kept with the time and the rank's update number: that of its last scatter or, if
    it has made none, the number of its allreduces. `malt top`, the metrics, the trace and the
    dashboard of `malt run` show them by rank, and TensorBoard where MALT_TENSORBOARD asks for it.
    Any thread may call this. It waits for nobody. If nothing is recorded it returns at once, and
    does not look at the values.

    Args:
        values: numbers, finite or not, such as a float, or a tensor of one element. A name has up
            to 47 of the characters A-Z a-z 0-9 _ . / - and begins with a letter or `_`; write
            ``malt.report(**{"train/loss": loss})`` for one that is no Python name. A rank has up to
            32 names.

    Raises:
        ConfigError: a name or a value is refused, there are too many names, or this process is in
            no job.
    """
    jobs.current()
    for name in values:
        if name not in _checked:
            _check(name)
    recorder = recording.present()
    if recorder is None:
        return
    numbers = {name: _number(name, value) for name, value in values.items()}
    for name, number in numbers.items():
        if not recorder.report(name, number):
            raise ConfigError(
                f"malt.report({name}=…): a rank reports under at most {_MOST_NAMES} names, and "
                "these are taken; report fewer"
            )
    tensorboard.add(numbers, recorder.update)


def _check(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"malt.report({name!r}: …): a name has 1 to 47 of the characters A-Z a-z 0-9 _ . / - "
            "and begins with a letter or _"
        )
    _checked.add(name)


def _number(name: str, value: SupportsFloat) -> float:
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError("it is text")
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(
            f"malt.report({name}=…): a value is one number, such as a float or a tensor of one "
            f"element, not {type(value).__qualname__} ({error})"
        ) from None
