"""The part of `malt train` for every kind of model: its graph, the training, what it prints."""

from __future__ import annotations

import argparse
import json
import mmap
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from malt._commands.model_file import settings_of
from malt._commands.option_names import named_as_typed
from malt._drafted import drafted
from malt._errors import ConfigError


def graph_of(name: str | None) -> Any:
    """Return the graph that --graph names."""
    from malt import _api

    if name is None:
        return None
    names = ("ALL", "HALTON", "RING", "EXPONENTIAL", "ONE_PEER", "STAR")
    if name.upper() not in names:
        raise ConfigError(f"--graph is {name!r}; it is one of {', '.join(names).lower()}")
    return getattr(_api, name.upper())


def staleness_of(typed: str) -> Any:
    """Return the number that --staleness says; as it was typed if it is none."""
    if typed.lower() == "none":
        return None
    return int(typed) if typed.isascii() and typed.isdecimal() else typed


@contextmanager
def _ends_in_order() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C only ask to stop; yields whether it has, also in forked ranks."""
    asked = mmap.mmap(-1, 1)

    def ask(number: int, frame: object) -> None:  # noqa: ARG001
        asked[0] = 1
        signal.signal(signal.SIGINT, before)
        print("malt train: ends after this pass; Ctrl-C again: at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked[0] == 1
    finally:
        signal.signal(signal.SIGINT, before)


def fit(model: Any, *data: Any) -> None:
    """Train the model; the first Ctrl-C ends the training in good order."""
    with _ends_in_order() as is_asked, warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        model._is_asked_to_stop = is_asked
        model.fit(*data)
    del model._is_asked_to_stop
    for warning in noted:
        print(f"malt train: {named_as_typed(str(warning.message))}", file=sys.stderr)


def tell(parsed: argparse.Namespace, model: Any, ranks: Mapping[int, Mapping[str, float]]) -> None:
    """Print what the ranks did; --report and --trace cover the ranks that were trained here."""
    from malt._commands import report

    print(report.table(ranks))
    title = f"malt train {parsed.problem} {parsed.data}"
    if len(ranks) > len(report.sums(model.history_)):
        title += f", rank 0 of {len(ranks)}"
    if parsed.report is not None:
        with drafted(parsed.report, "w") as file:
            file.write(report.page(title, model.history_, settings_of(model)))
    if parsed.trace is not None:
        with drafted(parsed.trace, "w") as file:
            json.dump(report.trace(model.history_), file)
