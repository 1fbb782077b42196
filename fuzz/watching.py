"""What collectors of other hosts send, requests to the dashboard, and those of `malt scale`.

As fuzz/target.py says. A collector has the job's key by its launcher; whoever asks the dashboard is
anybody who reaches its port, with or without the token.

usage: watching.py [OPTION]... [FOLDER OR FILE]...
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import tempfile
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from make_corpus import REPORT_PART, WATCHING
from target import MIB, Decoder, frames, fuzz, instrument

import malt
from malt._launch import scale
from malt._recording.collecting import Hosts
from malt._watching import (
    collect,
    dashboard,
    document,
    exchange,
    merge,
    pulls,
    report_parts,
    run_report,
)
from malt._watching.board import points_for_json
from malt._watching.other_hosts import OtherHosts

ORIGIN = 10**12  # the time at which this host's job began
TOKEN = "token"

# ---- the parts of a report -----------------------------------------------------------------------


def packed(name: str, content: bytes) -> bytes:
    """An honest part, in which one member is other bytes, or an array of others."""
    given: dict[str, Any] = dict(REPORT_PART)
    if name == "heads":
        given[name] = np.frombuffer(content, np.uint8)
    elif name == "columns" and len(content) >= 8:
        numbers = np.frombuffer(content[: len(content) // 8 * 8])
        for each in ("0.spent", "0.sent", "0.staleness"):
            given[each] = np.resize(numbers, given[each].shape)
    elif name in given:
        with contextlib.suppress(Exception):  # the .npy file's own head: fuzz/model.py has that
            given[name] = np.lib.format.read_array(io.BytesIO(content))
    file = io.BytesIO()
    np.savez(file, **given)
    return file.getvalue()


def take_report(name: str, content: bytes) -> None:
    """Read a host's part of a report, and draw the page."""
    whole = content if name == "whole" else packed(name, content)
    try:
        processes = report_parts.unpack(whole, ORIGIN, 5)
    except ValueError:
        return
    if processes:
        document.page("train.py", run_report._Report(ORIGIN, 0, processes, 2, []).parts())


# ---- summaries for the dashboard -----------------------------------------------------------------


def show(others: OtherHosts, summary: bytes) -> None:
    others._take(1, SimpleNamespace(into=io.BytesIO(summary)))
    own = {"rank": 0, "state": "runs"}
    state = others.merged(
        {"ranks": [own], "pairs": [], "changes": [], "size": 2, "host": "a", "hosts": []}
    )
    points = points_for_json(others.new_points({}))
    json.dumps(state | {"points": points}, allow_nan=False)


def take_summaries(given: bytes) -> None:
    puller: Any = SimpleNamespace(shift=lambda _: 5, gone=set())
    others = OtherHosts(0, 2, puller)
    for is_raw, summary in frames(given):
        show(others, summary if is_raw & 1 else zlib.compress(summary))


def take_messages(given: bytes) -> None:
    """Messages of two other collectors, for one that asks for all there is."""
    collector = collect.Collector(ORIGIN, False, False, True, 3)
    others = exchange.Exchange(Hosts(0, 3, 7), lambda *_: None, collector.summary)
    collector.exchange = others
    into = io.BytesIO()
    others.ask_all(pulls.REPORT, lambda _: into)
    others._want(1, pulls.SUMMARY, io.BytesIO())
    for node, message in frames(given):
        collector.hear(1 + node % 2, message)
    others.advance()
    others.is_finished()
    for kind in (pulls.REPORT, pulls.TRACE):
        others.parts(kind)
        others.absent(kind)
    assert into.tell() <= len(given)


# ---- traces --------------------------------------------------------------------------------------


def merge_trace(folder: Path, name: str, content: bytes) -> None:
    """Merge a host's part, of which the first line is there, with this host's."""
    part = folder / name
    part.write_bytes(content)
    merge.merge([folder / "own.json", part], folder / "merged.json")


# ---- requests of other processes of the host, and from the network -------------------------------


class Answered(dict[str, Any]):
    """The dashboard's first events: after them the reader goes."""

    def __init__(self, _: object) -> None:
        raise BrokenPipeError


def request(given: bytes) -> None:
    class Requests(dashboard._Requests):
        pass

    Requests.dashboard = SimpleNamespace(
        is_token=lambda text: dashboard.Dashboard.is_token(PAGE, text),
        events=Answered,
        stop=lambda: None,
        scale=lambda *_: "done",
        readers=dashboard.threading.Semaphore(1),
        page="",
        names=("localhost",),
    )
    client, server = socket.socketpair()
    with client, server:
        client.sendall(given)
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):  # it sends no request, or is gone
            Requests(server, ("127.0.0.1", 1), SimpleNamespace(keep=lambda _: None))


PAGE: Any = SimpleNamespace(_token=TOKEN)


def request_scale(given: bytes) -> None:
    client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening = SimpleNamespace(accept=lambda: (server, None))
    waiting: Any = SimpleNamespace(_socket=listening, _change=change, _waiting=[])
    with client, server:
        client.send(given)
        client.shutdown(socket.SHUT_WR)
        scale.ScaleServer.hear(waiting)


def change(what: str, number: int) -> None:
    assert what in (scale.COUNT, scale.LEAVE)
    assert 0 <= number <= 1 << 20


def decoders(folder: Path) -> dict[str, Decoder]:
    reports = ("report_heads", "report_columns", "report_events", "report_peers", "report_points")
    members = ("heads", "columns", "0.newest", "0.peers", "0.points0")
    table = {
        kind: Decoder(partial(take_report, name), (), 16 * MIB)
        for kind, name in zip(reports, members, strict=True)
    }
    traces = {"trace": "part.json", "trace_packed": "part.json.gz"}
    return (
        table
        | {"report": Decoder(partial(take_report, "whole"), (), 16 * MIB)}
        | {"summaries": Decoder(take_summaries, (), 128 * MIB)}
        | {"messages": Decoder(take_messages, ())}
        | {
            kind: Decoder(partial(merge_trace, folder, name), (malt.Error,), 32 * MIB)
            for kind, name in traces.items()
        }
        | {"request": Decoder(request, ()), "scale": Decoder(request_scale, ())}
    )


if __name__ == "__main__":
    instrument("malt._watching", "malt._launch.scale", "malt._npy")
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        own = Path(name, "own.json")
        own.write_bytes((Path(__file__).parent / "corpus/watching/trace").read_bytes()[1:])
        fuzz(WATCHING, decoders(Path(name)), name)
