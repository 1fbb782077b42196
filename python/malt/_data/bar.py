"""How far all ranks have come in a pass over a Shard, on standard error."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from typing import Any

from malt._distribution import pip_install
from malt._errors import ConfigError

_BAR_SECONDS = 0.1  # from one look to the next, on a terminal
_LINE_SECONDS = 10.0  # from one line to the next, elsewhere
_MOST_RANKS = 8  # that are shown one by one


def check_bar() -> None:
    """Check that a bar can be shown here.

    Raises:
        ConfigError: standard error is a terminal, and tqdm, which draws on it, is not installed.
    """
    if sys.stderr.isatty() and importlib.util.find_spec("tqdm") is None:
        raise ConfigError(
            f"bar=True shows a bar by tqdm, which is not installed: {pip_install('watch')}, or "
            "leave bar out"
        )


class Bar:
    """The bar of one pass; lines of text if standard error is no terminal."""

    def __init__(self, pass_: int, chunks: int) -> None:
        self._pass = pass_
        self._chunks = chunks
        self._began = self._shown_at = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm.auto import tqdm

            self._bar = tqdm(total=chunks, desc=f"pass {pass_}", unit=" chunks")

    def is_due(self) -> bool:
        """Return whether it is time for `show`."""
        seconds = _LINE_SECONDS if self._bar is None else _BAR_SECONDS
        return time.monotonic() - self._shown_at >= seconds

    def show(self, finished: int, turns: Sequence[int]) -> None:
        """Show how many chunks are finished, and how many turns each rank has taken."""
        self._shown_at = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(_by_rank(turns), refresh=False)
            self._bar.update(finished - self._bar.n)
            return
        seconds = self._shown_at - self._began
        print(
            f"pass {self._pass}: {finished:,} of {self._chunks:,} chunks in {seconds:.1f} s; "
            f"{_by_rank(turns)}",
            file=sys.stderr,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _by_rank(turns: Sequence[int]) -> str:
    if len(turns) <= _MOST_RANKS:
        return "turns by rank: " + " ".join(f"{count:,}" for count in turns)
    least, most = (turns.index(count) for count in (min(turns), max(turns)))
    return f"turns: {turns[least]:,} of rank {least} to {turns[most]:,} of rank {most}"
