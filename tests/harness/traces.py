"""Traces of several nodes, as `malt run --trace` writes them: cut into parts, and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OPEN = ', "traceEvents": ['  # behind the head, at the end of the first line


def whole(line: str) -> dict[str, Any]:
    """Read one line of a trace."""
    found: dict[str, Any] = json.loads(
        line + "]}" if line.endswith("[") else line.removesuffix(",")
    )
    return found


def cut(trace: Path, parts: list[Path]) -> None:
    """Cut a trace into the parts of its nodes, as they are when the launchers did not merge them.

    `trace` may be among the parts.
    """
    head, *events = map(whole, trace.read_text().splitlines()[:-1])
    assert events
    other = {"otherData": head["otherData"] | {"incomplete": []}}
    for node, part in enumerate(parts):
        own = (json.dumps(one) for one in events if one["pid"] == node and one["ph"] != "M")
        lines = (json.dumps(other)[:-1] + OPEN, *(f"{one}," for one in own), "", "]}", "")
        part.write_text("\n".join(lines))


def put_clock_forward(path: Path, seconds: float) -> None:
    """Have the file say what a host would whose clock is as much fast."""
    head, events = path.read_text().split("\n", 1)
    trace = json.loads(head + "]}")
    trace["otherData"]["nanoseconds_since_1970"] += int(seconds * 1e9)
    path.write_text(json.dumps(trace)[:-2] + "\n" + events)
