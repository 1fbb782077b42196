"""Writes the seeds of the fuzz targets: what an honest peer says and leaves in memory, as each
target takes it (the comment on top of fuzz/<target>.cpp), and what damaged memory has done before.

usage: make_corpus.py        (writes fuzz/corpus/<target>/<name>; other files there stay)
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CORPUS = Path(__file__).resolve().parent / "corpus"
LINE = 64


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# ---- src/dstorm/slot/layout.hpp ------------------------------------------------------------------


def header(
    iteration: int, payload: bytes, count: int, sender: int, receivers: int, kind: int = 0
) -> bytes:
    fields = (iteration, iteration, len(payload), count, 0, sender, kind, receivers)
    return struct.pack("<4Q4I", *fields).ljust(LINE, b"\0")


class Mailbox:
    """Of rank 1 in a job of two, with two slots."""

    RANKS = DEPTH = 2

    def __init__(self, slot_bytes: int) -> None:
        self.stride = LINE + round_up(slot_bytes, LINE)
        cursors = round_up(16 + self.DEPTH * self.RANKS * 16, LINE)
        self.slots = cursors + self.RANKS * LINE
        self.bytes = bytearray(self.slots + self.DEPTH * self.stride)

    def put(self, slot: int, ticket: int, given: bytes, payload: bytes) -> Mailbox:
        """An update for rank 0, at iteration `ticket`, whose header may say something else."""
        at = self.slots + slot * self.stride
        self.bytes[at : at + LINE + len(payload)] = given + payload
        struct.pack_into("<QQ", self.bytes, 16 + slot * self.RANKS * 16, ticket, ticket)
        struct.pack_into("<Q", self.bytes, 0, ticket)
        return self


def update(iteration: int, payload: bytes, count: int, kind: int = 0) -> tuple[int, bytes, bytes]:
    return iteration, header(iteration, payload, count, 1, 1, kind), payload


def segment() -> dict[str, bytes]:
    payload = bytes(range(40))
    two = Mailbox(40).put(0, *update(1, payload, 5)).put(1, *update(2, payload[:8], 1)).bytes
    old = Mailbox(40).put(0, 5, header(1, payload, 5, 1, 1), payload).bytes
    long = Mailbox(40).put(0, 1, header(1, bytes(41), 5, 1, 1), payload).bytes
    return {
        "latest": b"\x00" + two,
        "queue": b"\x01" + two,
        "latest_bsp": b"\x12" + two,
        "queue_bsp": b"\x13" + two,
        "queue_ssp": b"\x25" + two,
        "header_behind_its_ticket": b"\x01" + old,
        "payload_beyond_its_slot": b"\x00" + long,
    }


# ---- src/vol -------------------------------------------------------------------------------------

FLOAT32, FLOAT64, INT32, INT64 = range(1, 5)
TYPES = {"f": FLOAT32, "d": FLOAT64, "i": INT32, "q": INT64}
DENSE_BIT = 1 << 8


def dense() -> dict[str, bytes]:
    seeds = {}
    for choice, (letter, kind) in enumerate(TYPES.items()):
        payload = struct.pack(f"<20{letter}", *range(20))
        mailbox = Mailbox(len(payload)).put(0, *update(1, payload, 20, kind)).bytes
        for fold in range(6):
            head = bytes([choice, fold, 0x04]) + bytes(2 * LINE)  # BSP
            seeds[f"{letter}_{fold}"] = head + mailbox
        line = struct.pack("<5Q24x", 1, 1, 0, 0, 320)
        seeds[f"{letter}_allreduce"] = bytes([choice, 0, 0x84]) + line + bytes(LINE) + mailbox
        line = struct.pack("<5Q24x", 1, 1, 0, 0, 320 + 8 * 20)
        seeds[f"{letter}_allreduce_beyond_a_slot"] = (
            bytes([choice, 0, 0x84]) + line + bytes(LINE) + mailbox
        )
        line = struct.pack("<5Q24x", 1, 1, 0, 0, 321)
        seeds[f"{letter}_allreduce_of_no_element"] = (
            bytes([choice, 0, 0x84]) + line + bytes(LINE) + mailbox
        )
    return seeds


def allreduce() -> dict[str, bytes]:
    """src/dstorm/collective/allreduce_message.hpp; heads of two ranks take a line."""
    part, have_all, committed, gave_up, disagreed = range(1, 6)
    vector = bytes(range(160))

    def message(round_: int, kind: int, *, done: int = 0, operation: int = 1) -> bytes:
        head = struct.pack("<QQIIIIQ", round_, done, operation, kind, 0, 0, 0b11)
        return head.ljust(LINE, b"\0") + (vector if kind == part else b"")

    def told(*messages: bytes) -> bytes:
        mailbox = Mailbox(256)
        for slot, payload in enumerate(messages):
            mailbox.put(slot, *update(slot + 1, payload, max(len(payload) - LINE, 0)))
        return bytes(mailbox.bytes)

    return {
        "one_round": b"\0" + told(message(1, part)),
        "two_rounds": b"\1" + told(message(1, part), message(2, part, done=1)),
        "late": b"\1" + told(message(2, part, done=1)),
        "have_all": b"\0" + told(message(1, part), message(1, have_all)),
        "committed": b"\0" + told(message(1, part), message(1, committed, done=1)),
        "committed_without_a_part": b"\0" + told(message(1, committed, done=1)),
        "gave_up": b"\0" + told(message(1, gave_up)),
        "disagreed": b"\0" + told(message(1, disagreed, operation=2)),
        "other_operation": b"\0" + told(message(1, part, operation=2)),
        "part_twice": b"\0" + told(message(1, part), message(1, part)),
        "too_short": b"\0" + told(message(1, part)[:50]),
    }


def sparse() -> dict[str, bytes]:
    seeds = {}
    for choice, (letter, kind) in enumerate(TYPES.items()):
        values = struct.pack(f"<3{letter}", 1, 2, 3)
        element = len(values) // 3
        mailbox = Mailbox(min(5 * (element + 4), 12 * element))
        for fold in range(6):
            pairs = values + struct.pack("<3i", 1, 4, 11)
            seeds[f"{letter}_{fold}"] = bytes([choice, fold, 0x04]) + bytes(
                mailbox.put(0, *update(1, pairs, 3, kind)).bytes
            )
        if 12 * element <= 5 * (element + 4):
            full = struct.pack(f"<12{letter}", *range(12))
            mailbox.put(0, *update(1, full, 12, kind | DENSE_BIT))
            seeds[f"{letter}_dense"] = bytes([choice, 0, 0x04]) + mailbox.bytes
    return seeds


# ---- src/vol/ps/table.hpp ------------------------------------------------------------------------


def table() -> dict[str, bytes]:
    """Return what rank 1 writes to the server of rank 0. The table has 40 rows of three float64."""
    kinds = {"push": 1, "pull": 2, "hot_pull": 3, "clock": 4, "bye": 5, "lost": 15}  # Head::Kind
    kinds |= {"forward": 21, "forwarded": 22, "applied": 23, "hot_values": 24, "copy_begin": 25}
    kinds |= {"copy_part": 26, "copy_end": 27, "leaving": 28, "leaving_known": 29}
    consecutive, listed, kept, numbered = range(4)

    def message(kind: str, body: bytes = b"", *, push: int = 0, clock: int = 0, first: int = 0,
                count: int = 0, keys: int = consecutive, number: int = 1) -> bytes:  # fmt: skip
        by_server = kinds[kind] >= kinds["lost"]
        head = struct.pack("<2I3QqQ2I", kinds[kind], 1, number, push, clock, first, count, keys, 0)
        return bytes([by_server, len(body)]) + head + body

    def rows(kind: str, *keys: int, form: int = listed, **given: int) -> bytes:
        values = b"" if "pull" in kind else struct.pack(f"<{3 * len(keys)}d", *range(3 * len(keys)))
        named = struct.pack(f"<{len(keys)}q", *keys) if form in (listed, kept) else b""
        return message(kind, named + values, count=len(keys), keys=form, **given)

    plain, copies, bsp, coded, hot, lists, bound = (
        b"\x00\x00", b"\x01\x00", b"\x03\x00", b"\x09\x00", b"\x12\x00", b"\x01\x01", b"\x03\x02",
    )  # fmt: skip
    int8 = bytes(3 * 2) + struct.pack("<f", 1)  # two rows: a byte each, and a scale
    copy = message("copy_begin", first=2) + message("copy_part", bytes(96), first=2)
    return {
        "push": plain + rows("push", 1, 5, 30, push=1) + rows("push", 2, 3, push=2, number=2),
        "push_consecutive": plain + rows("push", 4, 5, form=consecutive, first=4, push=1),
        "pull": plain + rows("pull", 1, 5, 30) + rows("pull", 6, 7, form=consecutive, first=6),
        "pull_of_a_later_clock": bsp
        + rows("pull", 1, clock=2)
        + message("clock", clock=2, number=0),
        "bsp": bsp + rows("push", 1, 9, push=1) + message("clock", clock=1, number=0),
        "bound": bound + b"".join(rows("push", 1, 9, push=n, number=n) for n in range(1, 12)),
        "forward": copies + rows("forward", 1, 9, 17, push=1) + message("applied", clock=1),
        "forwarded": copies + rows("push", 1, 9, push=1) + message("forwarded", number=2),
        "copy": copies + copy + message("copy_end", bytes(16), first=2),
        "copy_with_kept": bsp
        + copy
        + rows("forward", 8, 9, push=1, number=0)
        + message("copy_end", bytes(16), first=2),
        "coded": coded + message("push", struct.pack("<2q", 1, 2) + int8, count=2, keys=listed),
        "hot": hot + rows("hot_pull", 1, 5, clock=0) + rows("hot_values", 5, 30, clock=1),
        "hot_lost": hot + rows("hot_pull", 1, 5, 30) + message("lost", first=5, number=2),
        "lists": lists
        + rows("push", 1, 2, form=kept, push=1)
        + rows("push", 1, 2, form=numbered, push=2),
        "leaving": copies + message("leaving", number=1) + message("leaving_known", number=1),
        "bye": plain + message("bye", number=0) + rows("push", 1, push=1),
        "keys_that_fall": plain + rows("push", 5, 1, push=1),
        "a_row_beyond": plain + rows("pull", 40),
    }


# ---- src/dstorm/remote/verbs/inbox.hpp -----------------------------------------------------------


def inbox() -> dict[str, bytes]:
    def slot(iteration: int, payload: bytes, ordinals: tuple[int, int]) -> bytes:
        receivers = sum(ordinal > 0 for ordinal in ordinals)
        body = header(iteration, payload, len(payload), 2, receivers) + payload
        body = body.ljust(round_up(len(body), 8), b"\0") + struct.pack("<QQ", *ordinals)
        return body.ljust(192, b"\0")

    def area(*slots: bytes) -> bytes:
        return struct.pack("<Q56x", 2) + b"".join(slots)

    one = slot(1, bytes(range(40)), (1, 1))
    two = slot(2, bytes(range(13)), (0, 2))
    return {
        "latest": b"\x03" + area(one, two),
        "queue": b"\x07" + area(one, two),
        "not_whole": b"\x02" + area(one, two),
        "queue_not_whole": b"\x06" + area(one, two),
        "queue_not_whole_for_the_dead": b"\x36" + area(one, two),
        "iteration_that_cannot_be_held": b"\x03" + area(slot(1 << 63, b"", (1, 1))),
    }


# ---- src/dstorm/tcp ------------------------------------------------------------------------------

PROTOCOL = 4
BEAT, NOTICE, UPDATE, CLOCK, CURSORS, CLOSED, LEAVE, ENDPOINT, TAKEN, WINDOW = range(1, 11)
RECORD, SHARE = 11, 12


def frame(kind: int, segment: int, body: bytes = b"") -> bytes:
    return struct.pack("<IIQ", kind, segment, len(body)) + body


def update_frame(iteration: int, payload: bytes, segment: int = 1) -> bytes:
    tickets = b"".join(struct.pack("<QII", iteration, receiver, 0) for receiver in (0, 1))
    return frame(UPDATE, segment, header(iteration, payload, 1, 2, 2) + tickets + payload)


def downlink() -> dict[str, bytes]:
    notice = struct.pack("<QII", 1, 7, 4) + b"barrierdata"
    cursor = struct.pack("<5QII", 1, 1, 0, 0, 1, 0, 0)
    frames = {
        "beat": frame(BEAT, 0),
        "notice": frame(NOTICE, 0, notice),
        "update": update_frame(1, bytes(100)),
        "clock": frame(CLOCK, 1, struct.pack("<Q", 3)),
        "cursors": frame(CURSORS, 1, cursor),
        "closed": frame(CLOSED, 1),
        "leave": frame(LEAVE, 0),
        "record": frame(RECORD, 0, bytes(11 * 8)),
        "endpoint": frame(ENDPOINT, 0, bytes(64)),
        "updates": b"".join(update_frame(i, bytes(200)) for i in range(1, 5)),
        "of_a_closed_segment": update_frame(1, bytes(30), 2) + frame(BEAT, 0),
    }
    seeds = {name: b"\0" + data for name, data in frames.items()}
    honest = b"".join(frames[n] for n in ("updates", "notice", "cursors", "clock", "leave"))
    seeds["honest"] = b"\0" + honest
    seeds["honest_queue"] = b"\1" + honest
    seeds["shared"] = b"\x10" + frames["beat"] + frame(TAKEN, 0, struct.pack("<Q", 0)) + honest
    seeds["honest_in_pieces"] = struct.pack("<B3H", 3 << 1, 10, 90, 300) + honest
    return seeds


def uplink() -> dict[str, bytes]:
    def taken(count: int) -> bytes:
        return frame(TAKEN, 0, struct.pack("<Q", count))

    return {
        "taken": b"\0" + taken(0) + taken(10) + taken(384),
        "taken_in_pieces": b"\2\5\x14" + taken(0) + taken(384),
        "taken_more_than_sent": b"\0" + taken(1 << 63),
        "endpoint": b"\0" + frame(ENDPOINT, 0, bytes(64)),
        "window": b"\0" + frame(WINDOW, 1, bytes(80)),
        "share": b"\0" + frame(SHARE, 0, bytes(40)),
    }


def handshake() -> dict[str, bytes]:
    to_caller, to_callee = bytes([128]) + bytes(64), bytes([129]) + bytes(64)
    hello = b"MALT" + struct.pack("<II", PROTOCOL, 0x01020304) + bytes(32)
    proof = struct.pack("<Q2I", 11, 3, 7) + bytes(32)
    pieces = bytes([20 << 1 | 1]) + bytes(20)
    changed = bytes([129]) + bytes(50) + b"\1" + bytes(13)
    return {
        "honest": b"\1" + (to_callee + to_caller) * 3,
        "proof_changed": b"\1" + to_callee + to_caller + changed + to_caller,
        "in_pieces": b"\1" + to_callee + to_caller + pieces + to_callee + to_caller,
        "caller_alone": b"\0" + bytes([44 << 1]) + hello + bytes([32 << 1]) + bytes(32),
        "callee_alone": b"\0" + bytes([44 << 1 | 1]) + hello + bytes([48 << 1 | 1]) + proof,
    }


def listener() -> dict[str, bytes]:
    hello = (b"MALT" + struct.pack("<II", PROTOCOL, 0x01020304)).ljust(48, b"\0")
    proof = bytes(48)
    return {
        "one": b"\x60" + hello + b"\x80" + proof,
        "two": b"\x60" + hello + b"\x61" + hello + b"\x81" + proof + b"\x08",
        "of_another_kind": b"\x22GET / HTTP/1.0\r\n\x0a",
        "over_tls": b"\x10\x16\x03\1\0\5hel",
    }


def address() -> dict[str, bytes]:
    def interface(bits: int, family: int, ip: bytes) -> bytes:
        return struct.pack("<iHH", bits, family, 0) + ip.ljust(24, b"\0")

    near = interface(24, 2, bytes([10, 1, 2, 9]))
    six = interface(64, 10, bytes(4) + bytes([0xFD]) + bytes(14) + b"\x08")
    texts = {
        "v4": b"10.0.0.5",
        "v6": b"fe80::1%1",
        "network": b"10.0.0.0/8",
        "network_v6": b"fd00::/129",
        "interface": b"lo",
    }
    seeds = {name: bytes([len(text)]) + text + near + six for name, text in texts.items()}
    seeds["prefix_beyond_the_address"] = b"\0" + interface(1000, 2, bytes([10, 1, 2, 9]))
    seeds["prefix_below_zero"] = b"\0" + interface(-7, 10, b"")
    seeds["other_family"] = b"\0" + interface(8, 77, b"")
    return seeds


# ---- what ranks say at the start, and graphs -----------------------------------------------------


def notices() -> dict[str, bytes]:
    def notice(what: bytes, data: bytes, what_bytes: int | None = None) -> bytes:
        length = len(what) if what_bytes is None else what_bytes
        return (
            struct.pack("<II", length, len(data)) + what.ljust(120, b"\0") + data.ljust(768, b"\0")
        )

    options = b"contents\t\nslot_bytes\t8\ndepth\t2\npolicy\tlatest\ngraph\tALL\n"
    return {
        "barrier": b"\0" + notice(b"barrier", b"data") * 2,
        "segment": b"\1" + notice(b"segment 'w'", options) * 2,
        "segment_differs": b"\1" + notice(b"segment 'w'", b"depth\t3\n\n\tx\ny") * 2,
        "another_collective": b"\0" + notice(b"segment 'w'", b"") * 2,
        "lengths_beyond": b"\0" + notice(b"barrier", bytes(768), 1 << 31) * 2,
    }


def window() -> dict[str, bytes]:
    """src/dstorm/collective/window_message.hpp; the window has 100 bytes."""

    def message(kind: int, value: int, body: bytes = b"") -> bytes:
        return struct.pack("<BQQ", 100, kind, value) + body

    return {
        "put": message(1, 92, bytes(8)),
        "put.longer": message(1, 93, bytes(8)),
        "put.beyond": message(1, 2**64 - 4, bytes(8)),
        "signal": message(2, 5),
        "end": message(3, 0),
        "short": bytes(9),
    }


def roll_call() -> dict[str, bytes]:
    def change(call: int, rank: int, place: int, data: bytes) -> bytes:
        return struct.pack("<BBHB", call, rank, place, len(data)) + data

    def leader(rank: int, of: int) -> bytes:
        return change(1, rank, 0, struct.pack("<i", of))

    return {
        "one_host": b"\0\0",
        "last_rank": b"\2\1",
        "hosts": b"\0\2" + leader(1, 1) + leader(2, 1),
        "no_such_leader": b"\0\0" + leader(1, -2) + leader(2, 1 << 30),
        "other_version": b"\0\0" + change(0, 1, 0, b"\7"),
        "other_process": b"\1\0" + change(0, 0, 4, struct.pack("<i", -1)),
        "error": b"\0\0" + change(2, 1, 4, b"no room" * 30),
        "too_long": b"\0\0" + change(0, 1, 481, b""),
    }


def record() -> dict[str, bytes]:
    def step(what: int, rank: int, words: bytes = b"") -> bytes:
        return bytes([what, rank]) + words

    def said(
        rank: int,
        beat: int,
        epoch: int,
        ballots: tuple[int, int, int] = (0, 0, 0),
        sets: tuple[int, int, int, int, int] = (0b1111, 0, 0, 0, 0),
    ) -> bytes:
        return step(4, rank, struct.pack("<10Q", beat, epoch, *ballots, *sets))

    ballot = 1 << 32  # the first round, rank 0
    agreed = said(0, 5, 0, (ballot, ballot, ballot), (0b1111, 0b1000, 0, 0b0111, 0b0111))
    steps = {
        "well": said(0, 1, 0) + step(5, 0) + step(0, 0),
        "dead": step(3, 3) + step(250, 0) * 8,
        "silent": (step(2, 3) + step(250, 0)) * 60,
        "asked": said(0, 4, 0, (ballot, 0, ballot), (0b1111, 0b1000, 0, 0, 0)) + agreed,
        "next_epoch": said(2, 9, 1, sets=(0b0111, 0, 0, 0, 0)),
        "left_out": said(2, 9, 1, sets=(0b1101, 0, 0, 0, 0)),
        "nobody": said(0, 9, 2**64 - 1, (2**64 - 1,) * 3, (0,) * 5),
        "no_rank": said(0, 9, 1, sets=(2**63, 0, 0, 0, 0)),
    }
    return {name: b"\x02" + data for name, data in steps.items()}


def graph() -> dict[str, bytes]:
    ring = bytes(rank for i in range(8) for rank in (i, (i + 1) % 8))
    star = bytes(rank for i in range(1, 6) for rank in (0, i, i, 0))
    return {
        "ring": b"\x08" + ring,
        "star": b"\x06" + star,
        "not_connected": b"\x06" + star[:-4],
        "itself": b"\x02\0\0",
        "large": b"\x02\0\xff" + struct.pack("<i", 2**31 - 1),
        "negative": b"\x02\0\xff" + struct.pack("<i", -1),
    }


def device_setting() -> dict[str, bytes]:
    texts = [
        b"",
        b"mlx5_0",
        b"rxe1:1",
        b"mlx5_0:1:3",
        b":1",
        b"a:",
        b"a:b",
        b"a:4294967296",
        b"a:1:2:3",
    ]
    return {str(i): text for i, text in enumerate(texts)}


# ---- src/learn/svmlight.hpp ----------------------------------------------------------------------


def svmlight() -> dict[str, bytes]:
    texts = {
        "rows": b"+1 1:0.5 3:-2e1\n-1 2:.25\n2.5\n",
        "comments": b"# c\r\n\n1 qid:7  1:2\t3:4 # 5:6\r\n0 qid:12#\n -1 1:1#2:2\n",
        "no_end": b"1 1:0.12345678901234567 2:1.5e-05",
        "bad": b"one 1:1\n1,2 1:1\n1 2:1 1:1\n1 2:1 3\n1 2:x\n1 2:1:3\n1 1:1\n",
        "not_finite": b"nan 1:1\n1 2:inf\n1 2:1e999\n1 2:-1e-999\n",
        "indices": b"1 0:1\n1 1000:1\n1 1001:1\n1 99999999999999999999:1\n1 -1:1\n",
        "number": b"16777217.0000001\n",
        "long_number": b"9007199254740993.18446744073709551616e-22\n",
        "binary": bytes(range(256)),
        "only_blanks": b"  \t \n\n \r\n",
    }
    return {name: bytes([i % 2, 7 * i]) + text for i, (name, text) in enumerate(texts.items())}


def checkpoint() -> dict[str, bytes]:
    arrays = {
        "w": np.zeros(2),
        "s/dim": np.array(4),
        "s/indices": np.array([3], np.int32),
        "s/values": np.ones(1, np.float32),
    }
    seeds = {}
    for save, name in ((np.savez, "npz"), (np.savez_compressed, "npz_compressed")):
        file = io.BytesIO()
        save(file, **arrays)
        seeds[name] = b"\x01" + file.getvalue()
    file = io.BytesIO()
    np.save(file, arrays["w"])
    seeds["npy"] = b"\x02" + file.getvalue()
    seeds["npy_header_without_end"] = seeds["npy"].replace(b"}", b" ")
    w = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}
    plain = json.dumps({"w": w}).encode()
    seeds["safetensors"] = b"\x00" + struct.pack("<Q", len(plain)) + plain + bytes(16)
    note = json.dumps({"version": 1, "ranks": [0], "extra": {"step": 1}})
    checksums = json.dumps({"w": zlib.crc32(bytes(16))})
    rest = json.dumps({"malt_checksums": checksums, "malt": note})[1:] + f',"w":{json.dumps(w)}}}'
    seeds["checkpoint"] = b"\x03" + rest.encode()
    facts = {"rows": 2, "width": None, "dtype": "float32", "update": "Momentum"}
    tables = {"t": {"facts": facts, "ranks": [0], "clocks": [7]}}
    note = json.dumps({"version": 1, "ranks": [0], "extra": {}, "tables": tables})
    names = ("t/0/v", "t/0/values")
    checksums = json.dumps(dict.fromkeys(names, zlib.crc32(bytes(8))))
    fields = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
        for i, name in enumerate(names)
    }
    rest = (
        json.dumps({"malt_checksums": checksums, "malt": note})[1:] + "," + json.dumps(fields)[1:]
    )
    seeds["checkpoint_of_table"] = b"\x03" + rest.encode()
    return seeds


# The members of honest model files; fuzz/model.py counts them in this order.
LINEAR: dict[str, Any] = {
    "coef": np.ones((3, 2)),
    "intercept": np.zeros(3),
    "classes": np.arange(3.0),
    "zero_based": np.array(True),
}
OF_RATINGS: dict[str, Any] = {
    "users": np.array(["a", "b"]),
    "items": np.array(["a", "b"]),
    "user_factors": np.ones((2, 2)),
    "item_factors": np.ones((2, 2)),
    "user_biases": np.zeros(2),
    "item_biases": np.zeros(2),
    "mean": np.array(1.0),
}


def model() -> dict[str, bytes]:
    members = LINEAR | OF_RATINGS
    seeds = {}
    for kind, (name, array) in enumerate(members.items()):
        file = io.BytesIO()
        np.save(file, array)
        seeds[name] = bytes([kind]) + file.getvalue()
    seeds["coef_larger_than_the_file"] = seeds["coef"].replace(b"(3, 2), ", b"(3, 2000000),")
    seeds["coef_of_objects"] = seeds["coef"].replace(b"'<f8'", b"'|O' ")
    seeds["coef_header_of_many_signs"] = b"\x00\x93NUMPY\x01\x00\xa0\x0f" + b"-" * 3999 + b"1"
    for save, name in ((np.savez, "whole"), (np.savez_compressed, "whole_compressed")):
        file = io.BytesIO()
        save(file, malt_model=np.array("{}"), coef=np.ones(2), intercept=np.zeros(1))
        seeds[name] = bytes([len(members)]) + file.getvalue()
    return seeds


# ---- Python's targets of many decoders (fuzz/target.py): the first byte says which ---------------


def framed(*frames: tuple[int, bytes]) -> bytes:
    """As fuzz/target.py cuts them: a number, such as the sender's, and the bytes."""
    return b"".join(struct.pack("<BH", number, len(data)) + data for number, data in frames)


def parts(*data: bytes) -> bytes:
    return framed(*((0, each) for each in data))


def of_decoders(names: Sequence[str], seeds: dict[str, bytes]) -> dict[str, bytes]:
    """Give the seeds, each named by its decoder and perhaps by more, their first bytes."""
    return {name: bytes([names.index(name.split(".")[0])]) + data for name, data in seeds.items()}


JOB_MESSAGES = (
    *("values", "array_head", "pool_pieces", "pool_requests", "pool_sums", "pool_results"),
    *("reports", "broadcast", "subgroup", "matching", "votes", "roles", "sender_of_values"),
    *("handed_over", "shared", "table", "window_note"),
)


def pool_message(sender: int, subject: list[Any], *data: bytes) -> tuple[int, bytes]:
    """python/malt/_pool/over_job/messenger.py"""
    head = json.dumps([subject, [len(each) for each in data]]).encode()
    chunks = (struct.pack("<Q", len(head)) + head, *data)
    return sender, b"".join(each.ljust(round_up(len(each), LINE), b"\0") for each in chunks)


def told(report: dict[str, Any]) -> bytes:
    """python/malt/_job/agreement.py"""
    post = b"+" + json.dumps(report).encode()
    return struct.pack("<I", len(post)) + post


def job_messages() -> dict[str, bytes]:
    def value(described: Any, *data: bytes) -> bytes:
        return parts(json.dumps(described).encode(), *data)

    array = ["array", "<f8", [2], "C", 1]
    matrix = [
        "csr_matrix",
        [2, 2],
        ["<f8", [1], "C", 1],
        ["<i4", [1], "C", 2],
        ["<i4", [3], "C", 3],
    ]
    head = struct.pack("<B15sdQ", 1, b"float32", 3.0, 2)
    nodes = json.dumps(["list", ["tuple", ["tuple", 1, 0], 2.5]]).encode()
    arguments = b'["tuple",["tuple"],["dict"]]'
    site = {"named": False, "place": "a.py:2", "digest": 8, "gpu": False}
    post = json.dumps(site | {"shards": {"a.py:1": "2:00114455"}}).encode()
    whole = pool_message(1, ["done", 1, 0.5], nodes)[1]
    deep = struct.pack("<Q", 2000) + b"[" * 2000
    negative = struct.pack("<Q", 16) + b'[["stop"], [-1]]'
    far_up = b'["list",["tuple",["tuple",1000000000000,0],2.5]]'
    of_2 = b'["list",["tuple",["tuple",0,2],2.5]]'
    delta = struct.pack("<IIQQII3q", 0, 1, 1, 1, 0, 1, 0, 0, 0)
    change = struct.pack("<QII", 0, 5, 1) + struct.pack("<I4xf4x", 3, 7)
    chunk = struct.pack("<qq", 8, zlib.crc32(bytes(8))) + bytes(8)
    given = {"done": False, "data": "AAAA"}
    last = {"done": True, "data": ""}
    seeds = {
        "values": value(["tuple", ["dict", ["a", 1.5]], ["bytes", "AAA="], ["complex", 1, 2]]),
        "values.array": value(array, bytes(16)),
        "values.tensor": value(["tensor", *array[1:]], bytes(16)),
        "values.scalar": value(["scalar", "<i4", [], "C", 1], bytes(4)),
        "values.matrix": value(matrix, bytes(8), bytes(4), struct.pack("<3i", 0, 1, 1)),
        "values.many_elements_of_no_bytes": value(["array", "<f8", [10**9], "C", 1], b""),
        "values.no_float": value(["complex", 10**400, 0]),
        "values.no_dtype": value(["scalar", ", 4", [], "C", 1], bytes(4)),
        "array_head": struct.pack("<H", 8) + head,
        "array_head.no_dtype": struct.pack("<HB15sd", 8, 1, b"1, ]", 0.0),
        "pool_pieces": framed((1, struct.pack("<QQQ", 0, len(whole), 0) + whole)),
        "pool_pieces.two": framed(
            (1, struct.pack("<QQQ", 0, len(whole), len(whole) - 64) + whole[:64]),
            (1, struct.pack("<QQQ", 64, len(whole), 0) + whole[64:]),
        ),
        "pool_pieces.nested": framed((1, struct.pack("<QQQ", 0, len(deep), 0) + deep)),
        "pool_requests.lacks_a_field": framed(pool_message(0, ["chunk", 0])),
        "pool_requests.of_no_kind": framed(pool_message(0, [[]])),
        "pool_requests.negative_length": framed((0, negative)),
        "pool_requests.sum": framed(
            pool_message(0, ["chunk", 0, 0], b'["tuple",1.5]'),
            pool_message(0, ["sum", 1, "__main__", "double", 2, [[0, 0, 0]]], b"2.0"),
            pool_message(0, ["back", 1, [0]]),
            pool_message(0, ["drop", [0]]),
        ),
        "pool_requests.run": framed(
            pool_message(0, ["run", 1, "__main__", "double", [0, 1]], arguments),
            pool_message(0, ["gathered", 1, 1], b"", b""),
            pool_message(0, ["stop"]),
            pool_message(0, ["close"]),
        ),
        "pool_sums": framed(
            pool_message(1, ["back", 1, [1]]),
            pool_message(1, ["done", 1, 0.5], b'["list",["tuple",["tuple",0,0],2.5]]'),
            pool_message(2, ["failed", 1, "ValueError", "no", "Traceback"]),
        ),
        "pool_sums.node_far_up": framed(pool_message(1, ["done", 1, 0.5], far_up)),
        "pool_sums.of_another_rank": framed(pool_message(1, ["done", 1, 0.5], of_2)),
        "pool_sums.gives_back_of_another": framed(pool_message(1, ["back", 1, [3]])),
        "pool_sums.failed_shortly": framed(pool_message(1, ["failed", 1, "ValueError"])),
        "pool_results.step_far_ahead": framed(pool_message(1, ["gather", 1, 9], b"part")),
        "pool_results.no_part": framed(pool_message(1, ["gather", 1, 1])),
        "pool_results": framed(
            pool_message(1, ["gather", 1, 1], b"part"),
            pool_message(1, ["done", 1], b"2.5"),
            pool_message(2, ["failed", 1, "ValueError", "no", "Traceback"]),
        ),
        "reports": parts(told({"size": 1, "name": "w"})),
        "reports.of_4_gb": parts(struct.pack("<I", 2**32 - 1) + bytes(764)),
        "reports.short": parts(b"+{"),
        "reports.no_json": parts(struct.pack("<I", 2) + b"+{"),
        "reports.lacks_a_name": parts(told({"size": 1})),
        "reports.failed": parts(struct.pack("<I", 3) + b"!no"),
        "broadcast": parts(told({"parts": ["MS41"], "fold": ""})),
        "broadcast.no_base64": parts(told({"parts": ["A"], "fold": ""})),
        "broadcast.no_parts": parts(told({"parts": 7, "fold": ""})),
        "subgroup.no_base64": parts(told({"done": False, "data": 7})),
        "subgroup": parts(told(given), told(given), told(last)),
        "matching": parts(post, post),
        "matching.no_site": parts(b"{}"),
        "matching.fewer_digits": parts(post.replace(b"4455", b""), post),
        "votes": framed((0, struct.pack("=??QIQ", 1, 0, 1, 2, 3)), (2, bytes(22))),
        "votes.short": framed((1, b"short")),
        "roles.short": framed((1, b"short")),
        "sender_of_values.short": framed((1, b"no")),
        "roles": framed((1, struct.pack("=?IIIIQ", 1, 1, 0, 1, 0, 0)), (2, bytes(25))),
        "sender_of_values": framed((0, struct.pack("=i", 1))),
        "handed_over": parts(*[chunk] * 3),
        "shared": b"\0" + framed((0, delta + change)),
        "shared.values": b"\1" + framed((0, b"\1" + delta[1:] + bytes(20))),
        "table.endless": parts(struct.pack("!Q", 2**64 - 1)),
        "table.no_text": parts(struct.pack("!Q", 1), b"\xff"),
        "table.short": parts(*(struct.pack("!Q", 11), b"2 x float32"), struct.pack("!Q", 1), b"a"),
        "table": parts(
            *(struct.pack("!Q", 11), b"2 x float32"),
            *(struct.pack("!Q", 10), struct.pack("!I", 3) + b"abcdef"),
        ),
        "window_note": struct.pack("<QQBB2Q", 16, 64, 0, 2, 3, 4),
        "window_note.longer_than_its_memory": struct.pack("<QQBB1Q", 16, 64, 0, 1, 2**63),
        "window_note.no_dtype": struct.pack("<QQBB", 0, 64, 255, 0),
        "window_note.short": struct.pack("<QQBB1Q", 0, 64, 0, 2, 3),
    }
    return of_decoders(JOB_MESSAGES, seeds)


RENDEZVOUS = (
    *("begin", "rejoining", "elastic", "taking_over"),
    *("launcher", "started", "welcome", "gathered", "member"),
)


def rendezvous() -> dict[str, bytes]:
    """python/malt/_rendezvous/wire.py; launchers 0 and 1 send as 0 and 1, members 0 to 3 as 2 to 5,
    and ranks 0 to 3 as 6 to 9."""

    def pack(form: str, *fields: Any) -> bytes:
        return struct.pack("!" + form, *fields)

    come = pack("cI?IId", b"r", 2, True, 0, 0, 5.0)
    want = pack("cd", b"w", 5.0)
    part = pack("cId", b"p", 0, 5.0) + b"data"
    wanted = [(2 + rank, want) for rank in range(4)]
    parts_ = [(2 + rank, pack("cII", b"p", 1, 0) + b"data") for rank in range(4)]
    formed = [(2 + rank, pack("cI", b"f", 1)) for rank in range(4)]
    ended = pack("cIIi", b"e", 1, 7, -9)
    again = pack("cII", b"g", 1, 7)
    hold = pack("cIII?4I", b"h", 1, 1, 2, True, 0, 1, 2, 3)
    absent = pack("cI2I", b"a", 1, 2, 3)
    resume = [
        (node, pack("c??iI", b"u", True, True, 0, 2) + pack("II?II?", *ranks))
        for node, ranks in enumerate([(0, 1, False, 1, 2, True), (2, 1, False, 3, 1, False)])
    ]
    members = pack("cI4I", b"i", 1, 0, 1, 2, 3)
    whole = pack("cIII", b"c", 1, 0, 2)
    data = [(0, pack("cI", b"d", rank) + b"data") for rank in (0, 2)]
    late = pack("cI2I", b"p", 2, 1, 3)
    seeds = {
        "begin": framed((0, pack("cH", b"y", 80)), (0, pack("cB", b"c", 5)), (0, come), (1, come)),
        "begin.relay": framed(
            *((0, come), (1, come), (0, pack("cI", b"v", 1) + b"text"), (0, b"t"), (1, b"z")),
            *((0, b"z"), (0x80, b"")),
        ),
        "rejoining": framed(*wanted, *parts_, *formed, (2, absent), (0, again), (0, ended)),
        "rejoining.leaves": framed(*wanted, *parts_, (0x83, b""), (0x42, b""), (1, ended)),
        "rejoining.ranks": framed(*((6 + rank, part) for rank in range(4)), (6, b"b")),
        "elastic": framed(
            (0, pack("cI", b"s", 4)), (1, pack("cI", b"q", 1)), (1, ended), (0x80, b"")
        ),
        "taking_over": framed(
            *resume, *((2 + rank, hold) for rank in range(4)), (2, absent), (0x45, want)
        ),
        "launcher": framed(
            *((0, pack("cIIi", b"f", 1, 2, -9)), (0, pack("cI", b"l", 1)), (0, b"e")),
            *((0, pack("cII", b"b", 3, 1)), (0, pack("c?", b"a", True) + b"started")),
            *((0, pack("cI", b"v", 1) + b"text"), (0, pack("cI", b"m", 1)), (1, b"t")),
        ),
        "started": framed((0, pack("cIIB", b"r", 2, 4, 5) + b"127.0.0.1:80,")),
        "started.address_with_a_zero": framed((0, pack("cIIB", b"r", 2, 4, 5) + b"a\0b:80")),
        "started.more_ranks_than_the_job": framed((0, pack("cIIB", b"r", 4, 4, 5))),
        "started.late": framed((0, pack("cII", b"p", 1, 0) + b"within 5 s")),
        "welcome": framed((0, b"w\x03")),
        "welcome.refused": framed((0, b"nno\xff")),
        "gathered": framed((0, pack("cI", b"c", 0)), *((0, b"ddata") for _ in range(3))),
        "gathered.not": framed((0, pack("cIII", b"g", 2, 1, 2) + b"died")),
        "member.rank_of_no_job": framed((0, pack("cI2I", b"i", 1, 0, 4))),
        "member": framed((0, members), (0, whole), *data, (0, late), (0, pack("cI", b"s", 1))),
    }
    return of_decoders(RENDEZVOUS, seeds)


WATCHING = (
    *("report_heads", "report_columns", "report_events", "report_peers", "report_points"),
    *("report", "summaries", "messages", "trace", "trace_packed", "request", "scale"),
)

EVENT = [(name, "<i8") for name in ("began", "lasted", "iteration", "bytes", "ranks")]
EVENT += [(name, "<i4") for name in ("kind", "rank", "count", "staleness")]
REPORT_HEADS = [
    {
        "rank": 1,
        "origin": 10**12,
        "began": 10**12,
        "ended": 10**12 + 10**9,
        "events": 3,
        "marks": [{"kind": 6, "rank": 2, "iteration": 1, "count": 0, "began": 10**12}],
        "dropped_marks": 0,
        "width": 1 << 20,
        "missed": 0,
        "totals": {"scatters": 1, "bytes_out": 8},
        "reported": [["loss", 1, [10**12, 1, 0.5]]],
    }
]
# An honest part of a report (python/malt/_watching/report_parts.py).
REPORT_PART: dict[str, Any] = {
    "heads": np.frombuffer(json.dumps(REPORT_HEADS).encode(), np.uint8),
    "0.spent": np.zeros((5, 1024)),
    "0.sent": np.zeros(1024),
    "0.staleness": np.full(1024, -1.0),
    "0.newest": np.array([(10**12, 9, 1, 8, 1, 3, 0, 1, 0)], EVENT),
    "0.peers": np.ones((3, 5), np.uint64),
    "0.points0": np.array([[1e12, 1.0, 0.5]]),
}


def npy_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def watching() -> dict[str, bytes]:
    whole = io.BytesIO()
    np.savez_compressed(whole, **REPORT_PART)
    row = {"rank": 1, "state": "runs", "iterations": 2.5, "reports": {"loss": "nan"}, "process": 7}
    summary = {
        "ranks": [row],
        "pairs": [[1, 0, 5, 0]],
        "changes": [{"time": 1.5e9, "text": "rank 1 has ended"}],
        "size": 2,
        "host": "b",
        "points": [[1, "loss", [[10**12, 1, 0.5], [2 * 10**12, 2, 0.25]]]],
    }
    told = json.dumps(summary).encode()
    many = json.dumps(summary | {"pairs": [[1, 0, 5, 0]] * 100_000}).encode()
    piece = struct.Struct("!cBIQQq")
    other = {"nanoseconds_since_1970": 10**18, "size": 4, "incomplete": [2]}
    lines = [json.dumps({"displayTimeUnit": "ms", "otherData": other})[:-1] + ', "traceEvents": [']
    at = {"ph": "X", "pid": 0, "ts": 10.5, "dur": 2.0}
    for rank in (2, 3):
        fold = {"iteration": 1, "staleness": 0, "ranks": [5 - rank, 0]}
        events = (
            {"name": "scatter", "tid": rank, "args": {"iteration": 1}},
            {"name": "fold", "tid": rank, "args": fold},
            {"name": "allreduce", "tid": rank, "args": {"ranks": [2, 3]}},
            {"name": "loss", "tid": rank, "ph": "i", "args": {"update": 1}},
        )
        lines += [json.dumps(at | event) + "," for event in events]
    trace = "\n".join([*lines, json.dumps(at | {"name": "x", "tid": 2}), "]}", ""]).encode()
    get = b"GET /%s?token=token HTTP/1.1\r\nHost: localhost:80\r\n\r\n"
    post = b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Malt-Token: token\r\n\r\n"
    seeds = {
        "report_heads": json.dumps(REPORT_HEADS).encode(),
        "report_columns": struct.pack("<3d", 1.5, 0, 7),
        "report_columns.too_large_to_draw": b"\0\7" + bytes(5) + b"\0\x1c@",
        "report_columns.too_small_to_draw": struct.pack("<d", 5e-324),
        "report_events": npy_of(REPORT_PART["0.newest"]),
        "report_peers": npy_of(REPORT_PART["0.peers"]),
        "report_points": npy_of(REPORT_PART["0.points0"]),
        "report": whole.getvalue(),
        "summaries": framed((0, told), (0, told)),
        "summaries.packed": framed((1, zlib.compress(told, 1))),
        "summaries.of_many_pairs": framed((1, zlib.compress(many, 9))),
        "summaries.of_a_long_name": framed((0, told.replace(b"loss", b"l" * 65))),
        "messages": framed(
            (0, struct.pack("!cBIQ", b"?", 0, 1, 0)),
            (0, piece.pack(b"=", 1, 1, 0, 7, 5) + b"part"),
            (0, piece.pack(b"=", 1, 1, 4, 7, 5) + b"end"),
            (1, b""),
        ),
        "trace": trace,
        "trace_packed": gzip.compress(trace, mtime=0),
        "request": get % b"",
        "request.events": get % b"events",
        "request.scale": post % b"scale?count=3",
        "request.strange": b"GET //[?token=token HTTP/1.1\r\nHost: [\r\n\r\n",
        "scale": b"count 3",
    }
    return of_decoders(WATCHING, seeds)


TARGETS = [
    address, allreduce, dense, device_setting, downlink, graph, handshake, inbox, listener, notices,
    record, roll_call, segment, sparse, svmlight, table, uplink, window, checkpoint, model,
    job_messages, rendezvous, watching,
]  # fmt: skip


def main() -> None:
    for target in TARGETS:
        folder = CORPUS / target.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in target().items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
