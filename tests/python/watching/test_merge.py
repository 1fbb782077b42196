"""`malt trace merge`: the traces of the nodes of a job become one, with their clocks aligned."""

from __future__ import annotations

import gzip
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traces import OPEN, cut, put_clock_forward

from malt import _npy
from malt._errors import ConfigError
from malt._watching import merge as merging
from malt._watching import trace_events

MALT = [sys.executable, "-m", "malt"]
KEY = bytes(range(32)).hex()

LOOP = """
import sys, time
import numpy as np
import malt
malt.init(timeout=60)
w = np.zeros(1000, np.float32)
v = malt.vector(w)
for round in range(30):
    if sys.argv[1] == "allreduce":
        v.allreduce(malt.AVG)
        continue
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    time.sleep(0.001)
"""


def run_nodes(directory: Path, how: str) -> None:
    """Run LOOP as two nodes with two ranks each, and cut the trace into the parts of the nodes."""
    (directory / "program.py").write_text(LOOP)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
    own = f"-n 2 --nnodes 2 --rendezvous 127.0.0.1:{port} --trace t.json --grace 1".split()
    command = [*MALT, "run", *own]
    launchers = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), "program.py", how],
            cwd=directory,
            env=environ | {"MALT_JOB_KEY": KEY},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    for launcher in launchers:
        launcher.communicate(timeout=100)
        assert launcher.returncode == 0
    cut(directory / "t.json", [directory / "t.json", directory / "t.node1.json"])


def merge(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MALT, "trace", "merge", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in events if one["name"] == name]


@pytest.mark.parametrize("how", ["bsp", "allreduce"])
def test_a_clock_that_is_wrong_is_put_right(tmp_path: Path, how: str) -> None:
    run_nodes(tmp_path, how)
    put_clock_forward(tmp_path / "t.node1.json", 5)
    done = merge(tmp_path, "t.json", "t.node1.json", "-o", "all.json")
    assert done.returncode == 0, done.stderr
    assert "t.node1.json is shifted by -" in done.stdout
    trace = json.loads((tmp_path / "all.json").read_text())
    first, second = trace["otherData"]["files"]
    assert first == {"file": "t.json", "shifted_us": 0, "error_us": 0, "drift_us": 0}
    # Both nodes have one clock here; how they read it differs by little.
    assert second["shifted_us"] == pytest.approx(-5e6, abs=second["error_us"] + 2000)
    assert 0 < second["error_us"] < 1e6
    assert trace["otherData"]["missing_ranks"] == []
    events = trace["traceEvents"]
    assert {one["tid"] for one in events if one["ph"] == "X"} == {0, 1, 2, 3}
    names = [one["args"]["name"] for one in named(events, "process_name")]
    assert names == ["t.json", "t.node1.json"]
    assert {(one["tid"], one["pid"]) for one in events if one["ph"] == "X"} == {
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
    }


def test_no_update_is_folded_before_it_is_scattered(tmp_path: Path) -> None:
    run_nodes(tmp_path, "bsp")
    put_clock_forward(tmp_path / "t.json", 3)
    assert merge(tmp_path, "t.json", "t.node1.json", "-o", "all.json").returncode == 0
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    began = {(one["tid"], one["args"]["iteration"]): one["ts"] for one in named(events, "scatter")}
    folds = named(events, "fold")
    assert len(folds) == 4 * 30
    for fold in folds:
        for sender in fold["args"]["ranks"]:
            assert began[sender, fold["args"]["iteration"]] < fold["ts"] + fold["dur"]


def write(path: Path, *events: str, size: int = 4, head: str | None = None) -> None:
    other = {"nanoseconds_since_1970": 0, "size": size, "incomplete": []}
    begin = json.dumps({"displayTimeUnit": "ms", "otherData": other})[:-1] + OPEN
    text = (head or begin) + "\n" + "".join(f"{one},\n" for one in events) + "\n]}\n"
    path.write_text(text, errors="surrogateescape")


HEAD = (
    '{"otherData": {"nanoseconds_since_1970": %s, "size": %s, "incomplete": %s}, "traceEvents": ['
)
FOLD = (
    '{"name": "fold", "ph": "X", "tid": 0, "ts": %s, "dur": 0, '
    '"args": {"iteration": %s, "staleness": 0, "ranks": %s}}'
)
WAIT = '{"name": "wait", "ph": "X", "pid": 0, "tid": %d, "ts": 1.0, "dur": 2.0, "args": {}}'


ALLREDUCE = (
    '{"name": "allreduce", "ph": "X", "tid": %d, "ts": %s, "dur": 2, "args": {"ranks": [%d]}}'
)
GONE = '{"name": "rank 1 is gone", "ph": "i", "tid": 0, "ts": 90, "args": {"epoch": 1}}'
EPOCH = '{"name": "epoch %d", "ph": "i", "tid": 0, "ts": %s, "args": {"members": %d}}'


@pytest.mark.parametrize("joins", [False, True])
def test_allreduces_align_clocks_unless_ranks_have_joined(tmp_path: Path, joins: bool) -> None:
    """A rank that has ended is gone for the others, and each rank ends in its own time."""
    rounds = [ALLREDUCE % (0, start, 1) for start in (10, 20, 30)]
    changes = [GONE, EPOCH % (1, 90, 1)] + [EPOCH % (2, 95, 2)] * joins
    write(tmp_path / "a.json", *rounds, *changes, size=2)
    write(tmp_path / "b.json", *(ALLREDUCE % (1, start, 0) for start in (510, 520, 530)), size=2)
    done = merge(tmp_path, "a.json", "b.json", "-o", "all.json")
    assert ("b.json is shifted by -500.0 us to fit a.json" in done.stdout) != joins, done.stdout
    assert ("the error is not known" in done.stdout) == joins


def test_ranks_that_no_file_has_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.json", WAIT % 0)
    write(tmp_path / "b.json", WAIT % 2)
    done = merge(tmp_path, "a.json", "b.json", "-o", "all.json")
    assert "no file has ranks 1, 3" in done.stdout
    assert "the error is not known" in done.stdout
    other = json.loads((tmp_path / "all.json").read_text())["otherData"]
    assert other["missing_ranks"] == [1, 3]
    assert other["files"][1] == {
        "file": "b.json",
        "shifted_us": 0,
        "error_us": None,
        "drift_us": 0,
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it begins otherwise"),
        ("[1, 2]", "it begins otherwise"),
        ('{"traceEvents": [', "its otherData are not a time"),
        ("\0\0\0", "it begins otherwise"),
        ("\udcff\udcfe{}", "it begins otherwise"),
        ("[" * 5000 + "\n]}", "it begins otherwise"),
        (HEAD % (0, 10**9, "[]"), "a size of at most 1,048,576 ranks"),
        (HEAD % (10**20, 4, "[]"), "its otherData are not a time"),
        (HEAD % ("Infinity", 4, "[]"), "its otherData are not a time"),
        (HEAD % (0, 4, '["a"]'), "its otherData are not a time"),
        (HEAD % (0, 4, "[4]"), "its otherData are not a time"),
    ],
    ids=lambda text: text[:60],
)
def test_other_files_are_refused(tmp_path: Path, content: str, says: str) -> None:
    write(tmp_path / "a.json", WAIT % 0)
    (tmp_path / "b.json").write_text(content, errors="surrogateescape")
    done = merge(tmp_path, "a.json", "b.json", "-o", "all.json")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "b.json is no trace of `malt run`" in done.stderr
    assert says in done.stderr
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ('{"name": "scatter", "ph": "X", "tid": 0}', "it has the event"),
        ('{"name": "scatter", "ph": "X", "tid": "a"}', "it has the event"),
        ('{"name": "fold", "ph": "X", "tid": 0, "ts": 0, "dur": 0, "args": 7}', "it has the event"),
        ("{", "it has the line"),
        ("7", "it has the line"),
        ('{"name": "x", "ph": "M", "tid": 0, "args": ' + "[" * 5000 + "}", "it has the line"),
        ('{"name": "x\udcff", "ph": "M", "tid": 0}', "it has the line"),
        (FOLD % ("NaN", 0, "[0]"), "it has the line"),
        (FOLD % ("1e999", 0, "[0]"), "it has the line"),
        (FOLD % ("1e300", 0, "[0]"), "it has the event"),
        (FOLD % (0, 2**70, "[0]"), "it has the event"),
        (FOLD % (0, 0, "[[0]]"), "it has the event"),
        (FOLD % (0, 0, '[{"a": 1}]'), "it has the event"),
        (FOLD % (0, 0, [0] * 65), "it has the event"),
        (FOLD % (0, 0, "[1048576]"), "it has the event"),
        ('{"name": "x", "ph": "M", "tid": 0, "ts": [1]}', "it has the event"),
        ('{"name": "x", "ph": "M", "tid": 0, "args": {"a": {"b": 1}}}', "it has the event"),
        ('{"name": "x", "ph": "M", "tid": 1048576}', "it has the event"),
        (
            WAIT % 4,
            "b.json is no trace of `malt run` or MALT_TRACE (it names rank 4, of a job of 4 ranks)",
        ),
        (FOLD % (0, 0, "[1, 1048575]"), "it names rank 1048575, of a job of 4 ranks"),
        ((WAIT % 0).replace("2.0", "-2.0"), '"dur": -2.0'),
        ('{"name": 7, "ph": "M", "tid": 0}', "it has the event"),
    ],
    ids=lambda text: text[:60],
)
def test_other_events_are_refused(tmp_path: Path, event: str, says: str) -> None:
    write(tmp_path / "a.json", WAIT % 0)
    write(tmp_path / "b.json", event)
    done = merge(tmp_path, "a.json", "b.json", "-o", "all.json")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert says in done.stderr


def test_lines_that_are_too_long_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, head = tmp_path / "a.json", HEAD % (0, 4, "[]")
    path.write_text(head + "\n" + "x" * 20_000)
    with pytest.raises(ConfigError, match="it has a line of more than 16,384 bytes"):
        merging.Part(path)
    monkeypatch.setattr(merging, "_MOST_HEAD_BYTES", len(head) - 1)
    with pytest.raises(ConfigError, match=f"it has a line of more than {len(head) - 1} bytes"):
        merging.Part(path)


def test_a_line_of_gigabytes_is_not_decompressed(tmp_path: Path) -> None:
    write(tmp_path / "a.json", WAIT % 0)
    with gzip.open(tmp_path / "b.json.gz", "wb", 1) as file:
        file.write((HEAD % (0, 4, "[]") + "\n").encode())
        for _ in range(64):
            file.write(bytes(1 << 24))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))"
    command = f"{limit}; import sys; from malt._commands.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "trace", "merge", "a.json", "b.json.gz", "-o", "all.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 2
    assert "b.json.gz is no trace of `malt run`" in done.stderr
    assert "a line of more than 16,384 bytes" in done.stderr


def test_events_that_do_not_fit_into_memory_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_KEPT_AT_ONCE", 1 << 14)
    monkeypatch.setattr(_npy, "available_bytes", lambda: 0)
    write(tmp_path / "a.json", *[FOLD % (0, 0, "[0]")] * (1 << 14))
    with pytest.raises(ConfigError, match=r"the rest of .*a\.json does not fit into memory"):
        merging.Part(tmp_path / "a.json")


def test_a_trace_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("the last one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))  # as a disk that gets full
    try:
        with pytest.raises(OSError, match="File too large"), trace_events.writing(path, {}) as add:
            add({"name": "x" * (1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [path]


def test_mistakes_are_refused_with_the_way_out(tmp_path: Path) -> None:
    write(tmp_path / "a.json", WAIT % 0)
    write(tmp_path / "b.json", WAIT % 2, size=5)
    (tmp_path / "c.json").write_text((tmp_path / "a.json").read_text()[:-3])
    packed = gzip.compress((tmp_path / "a.json").read_bytes())
    (tmp_path / "d.json.gz").write_bytes(packed[:-20])
    (tmp_path / "e.json.gz").write_bytes(b"no such file")
    for arguments, says in (
        (("a.json", "-o", "all.json"), "one file is nothing to merge"),
        (("a.json", "b.json", "-o", "b.json"), "give another name"),
        (("a.json", "b.json", "-o", "all.json"), "give the files of one run"),
        (("a.json", "c.json", "-o", "all.json"), "is cut off"),
        (("a.json", "d.json.gz", "-o", "all.json"), "d.json.gz"),
        (("a.json", "e.json.gz", "-o", "all.json"), "e.json.gz"),
        (("a.json", "a.json", "-o", "no/all.json"), "no/all.json"),
        (("missing.json", "a.json", "-o", "all.json"), "missing.json"),
    ):
        done = merge(tmp_path, *arguments)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
