"""The settings of malt.init(), each an argument or an environment variable."""

from __future__ import annotations

import logging
from typing import NamedTuple

from malt._arguments import variable
from malt._errors import ConfigError


class Settings(NamedTuple):
    """Times are in seconds."""

    transport: str
    timeout: float
    silence: float
    tie: str
    slow_after: float

    @classmethod
    def read(
        cls, transport: str | None, timeout: float | None, silence: float | None, tie: str | None
    ) -> Settings:
        """Take from the environment, or from the defaults, what is None.

        Raises:
            ConfigError: a setting is wrong.
        """
        return cls(
            _setting(None if transport is None else str(transport), "MALT_TRANSPORT", "auto"),
            _seconds(timeout, "timeout", "600"),
            _seconds(silence, "silence", "5", least=0.1),
            _tie(tie),
            _seconds(None, "slow_after", "30"),
        )


def _setting(given: str | None, name: str, otherwise: str) -> str:
    return given if given is not None else variable(name, otherwise)


def _seconds(given: float | None, name: str, otherwise: str, least: float = 0.0) -> float:
    told = f"MALT_{name.upper()}"
    text = _setting(None if given is None else str(given), told, otherwise)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0 or seconds < least:
        limit = f"of at least {least:g}" if least else "above 0"
        raise ConfigError(f"{name} (or {told}) is {text!r}; it is a number of seconds {limit}")
    return seconds


def _tie(given: str | None) -> str:
    tie = _setting(given, "MALT_TIE", "lowest")
    if tie not in ("lowest", "neither"):
        raise ConfigError(f"tie (or MALT_TIE) is {tie!r}; it is 'lowest' or 'neither'")
    return tie


def start_log() -> None:
    """Write the log to standard error where MALT_LOG says so."""
    level = variable("MALT_LOG").upper()
    if not level:
        return
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"MALT_LOG is {level!r}; it is DEBUG, INFO, WARNING or ERROR")
    log = logging.getLogger("malt")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("malt %(levelname)s: %(message)s"))
        log.addHandler(handler)
    log.setLevel(level)
