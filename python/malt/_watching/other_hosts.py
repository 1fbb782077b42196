"""The other hosts on a dashboard: their last summaries, which it asks for each second.

They are asked only while a page is open.
"""

from __future__ import annotations

import io
import json
import math
import time
import zlib
from collections.abc import Iterable
from typing import Any

from malt._watching.board import SAMPLE_SECONDS, Curve, Points, Sent, unsent
from malt._watching.pulls import SUMMARY, Pull, Puller
from malt._watching.series import Point, Series

# Of one summary. Ranks from MOST_RANKS on have no curves beyond their own host.
MOST_RANKS = 64
_MOST_PAIRS = 4096
_MOST_POINTS = 4096
_MOST_BYTES = 1 << 18
_MOST_UNPACKED = 1 << 22
_MOST_NAME = 64  # characters of a curve's name; malt.report() takes 47
_PAGE_SECONDS = 3.0  # after which a page counts as closed: each is renewed once a second
_SILENT_SECONDS = 5.0  # after which a host counts as one that does not report
_MOST_KEPT = 512  # points of a curve
_MOST_CURVES = 2048  # 32 of each rank that has curves


def pack(state: dict[str, Any], points: Iterable[Points]) -> bytes:
    """Make a summary; what does not fit is left out: curves first, then the graph."""
    pairs = state["pairs"][:_MOST_PAIRS]
    curves = [
        [rank, name, [list(point) for point in found]]
        for rank, name, _, found in points
        if rank < MOST_RANKS
    ]
    bare = [{**row, "reports": {}} for row in state["ranks"]]
    whole = {**state, "pairs": pairs, "points": curves}
    packed = b""
    less: dict[str, Any]
    for less in ({}, {"points": []}, {"pairs": []}, {"ranks": bare}, {"ranks": bare[:MOST_RANKS]}):
        whole |= less
        unpacked = json.dumps(whole).encode()
        packed = zlib.compress(unpacked, 1)
        if len(packed) <= _MOST_BYTES and len(unpacked) <= _MOST_UNPACKED:
            break
    return packed


def most_points(curves: int) -> int:
    """Return how many points of each of so many curves a summary has."""
    return max(1, _MOST_POINTS // max(1, curves))


class _Host:
    """One other host, as of its last summary."""

    def __init__(self) -> None:
        self.name = ""
        self.heard = -math.inf
        self.ranks: list[dict[str, Any]] = []
        self.pairs: list[list[int]] = []
        self.changes: list[dict[str, Any]] = []
        self.size = 0

    def take(self, packed: bytes) -> list[tuple[int, str, list[Point]]]:
        """Take a summary; return its curves.

        Raises:
            ValueError, LookupError, TypeError, ArithmeticError, RecursionError, zlib.error: it is
                none; nothing is changed.
        """
        told = json.loads(zlib.decompressobj().decompress(packed, _MOST_UNPACKED))
        ranks, pairs, changes = told["ranks"], told["pairs"], told["changes"]
        json.dumps([ranks, pairs, changes], allow_nan=False)  # as it is sent to the page
        if not (
            all(type(row["rank"]) is int and isinstance(row["state"], str) for row in ranks)
            and len(pairs) <= _MOST_PAIRS
            and all([type(of) for of in pair] == [int] * 4 for pair in pairs)
            and all(isinstance(one["text"], str) and float(one["time"]) > 0 for one in changes)
        ):
            raise ValueError("it is no summary")
        curves = [
            (
                int(rank),
                str(name),
                [Point(int(at), int(update), float(value)) for at, update, value in points],
            )
            for rank, name, points in told["points"]
        ]
        if not all(0 <= rank < MOST_RANKS and len(name) <= _MOST_NAME for rank, name, _ in curves):
            raise ValueError("it has curves that no summary has")
        name, size = str(told["host"]), int(told["size"])
        self.ranks, self.pairs, self.changes = ranks, pairs, changes
        self.name, self.size, self.heard = name, size, time.monotonic()
        return curves


class OtherHosts:
    """All hosts but this one. Not thread-safe."""

    def __init__(self, node: int, nnodes: int, puller: Puller) -> None:
        self._node = node
        self._puller = puller
        self._hosts = {other: _Host() for other in range(nnodes) if other != node}
        self._pulls: dict[int, Pull] = {}
        # When a page was opened, when a page was shown last, and when the hosts were asked last.
        self._opened = self._shown = self._asked = -math.inf
        self._wall_offset = time.time_ns() - time.monotonic_ns()
        self._curves: dict[tuple[int, str], Series] = {}  # by rank and name

    def advance(self) -> None:
        """Take the summaries that have come; ask for new ones each second while a page is open."""
        for node, pull in list(self._pulls.items()):
            if not pull.is_waiting:
                del self._pulls[node]
                if pull.is_done:
                    self._take(node, pull)
        now = time.monotonic()
        is_page_open = now - self._shown < _PAGE_SECONDS
        if is_page_open and now - self._asked >= SAMPLE_SECONDS:
            self._asked = now
            for node in self._hosts.keys() - self._pulls.keys() - self._puller.gone:
                self._pulls[node] = self._puller.begin(node, SUMMARY, io.BytesIO())

    def _take(self, node: int, pull: Pull) -> None:
        assert isinstance(pull.into, io.BytesIO)
        shift = self._puller.shift(node)
        try:
            curves = self._hosts[node].take(pull.into.getvalue())
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, zlib.error):
            return
        for rank, name, points in curves:
            if (rank, name) not in self._curves and len(self._curves) == _MOST_CURVES:
                continue
            series = self._curves.setdefault((rank, name), Series(_MOST_KEPT))
            for point in points:
                # The measure of the clock gets better, but a curve does not run backwards.
                after = max(point.time + shift, series.last.time + 1)
                series.add(Point(after, point.update, point.value))

    def merged(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return the state for a page: of this host's board, and what the others said last."""
        if time.monotonic() - self._shown >= _PAGE_SECONDS:
            self._opened = time.monotonic()
        self._shown = time.monotonic()
        ranks = {row["rank"]: {**row, "node": self._node} for row in own["ranks"]}
        pairs, changes = list(own["pairs"]), list(own["changes"])
        told = {change["text"] for change in changes}
        hosts: list[dict[str, Any]] = [
            {"node": self._node, "host": own["host"], "state": "reports", "age": 0.0}
        ]
        for node, host in self._hosts.items():
            state, age = self._state_of(node)
            hosts.append({"node": node, "host": host.name, "state": state, "age": round(age, 1)})
            for row in host.ranks:
                row = {**row, "node": node}
                if state != "reports" and row["state"] != "ended":
                    row["state"] = state
                # A rank that was lost, or has left, may have been started on another host.
                known = ranks.get(row["rank"])
                if known is None or known["state"] in ("ended", "lost", "silent"):
                    ranks[row["rank"]] = row
            pairs += host.pairs
            # All hosts tell of an epoch; only its own one of a rank.
            changes += [one for one in host.changes if one["text"] not in told]
            told |= {one["text"] for one in host.changes if not one["text"].startswith("rank ")}
        return {
            **own,
            "ranks": [ranks[rank] for rank in sorted(ranks)],
            "pairs": pairs,
            "changes": sorted(changes, key=lambda one: float(one["time"])),
            "size": max([own["size"], *(host.size for host in self._hosts.values())]),
            "hosts": sorted(hosts, key=lambda one: int(one["node"])),
        }

    def _state_of(self, node: int) -> tuple[str, float]:
        age = time.monotonic() - max(self._hosts[node].heard, self._opened)
        if node in self._puller.gone:
            return "lost", age
        return ("silent" if age > _SILENT_SECONDS else "reports"), age

    def new_points(self, sent: Sent) -> list[Points]:
        """Return the points of the other hosts' ranks since those `sent`."""
        curves = [
            Curve(-1 - rank, rank, name, self._wall_offset, series.points)
            for (rank, name), series in self._curves.items()
        ]
        return unsent(curves, sent)
