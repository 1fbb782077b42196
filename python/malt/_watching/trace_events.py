"""Chrome's trace-event format, which ui.perfetto.dev shows: events as dictionaries for JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from malt._drafted import drafted


@contextlib.contextmanager
def writing(path: Path, other: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write a trace, one event a line, by calls of the function that this gives.

    `other` is for the reader: Perfetto does not show it.

    Raises:
        OSError: the file cannot be written.
    """
    head = {"displayTimeUnit": "ms", "otherData": other}
    with drafted(path, "w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        separator = ""

        def add(event: Mapping[str, Any]) -> None:
            nonlocal separator
            file.write(separator + json.dumps(event))
            separator = ",\n"

        yield add
        file.write("\n]}\n")


def process(number: int, name: str) -> dict[str, Any]:
    """Name a group of rows."""
    return {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}}


def thread(rank: int) -> dict[str, Any]:
    """Name the row of a rank."""
    name = {"name": f"rank {rank}"}
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": name}


def span(
    name: str, rank: int, at: float, lasts: float, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Make a bar in the row of a rank; both times are microseconds."""
    return {
        "name": name,
        "ph": "X",
        "pid": 0,
        "tid": rank,
        "ts": at,
        "dur": lasts,
        "args": dict(arguments),
    }


def mark(name: str, rank: int, at: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Make a mark in the row of a rank, at a time in microseconds."""
    return {
        "name": name,
        "ph": "i",
        "s": "t",
        "pid": 0,
        "tid": rank,
        "ts": at,
        "args": dict(arguments),
    }


def counter(name: str, rank: int, at: float, value: float) -> dict[str, Any]:
    """Make a point of a curve, which has a row of its own; the time is microseconds."""
    return {"name": name, "ph": "C", "pid": 0, "tid": rank, "ts": at, "args": {"value": value}}
