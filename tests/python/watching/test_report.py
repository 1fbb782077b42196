"""malt.report(): what the program tells, as watchers see it."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from jobs import free_port, run_job, start_job

from malt._recording import tensorboard
from malt._watching.series import MOST_POINTS, Point, Series

LOOP = """
malt.init(timeout=60)
w = np.zeros(100, np.float32)
v = malt.vector(w)
tell(ready=os.getpid())
while v.iteration < goal() and v.iteration < ROUNDS:
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    malt.report(loss=1 / v.iteration, rate=np.float32(0.5))
    if v.iteration == 3:
        malt.report(**{"bad/grad": float("nan"), "up": float("inf"), "down": -math.inf})
    tell(at=v.iteration)
"""
RECORDED = "import math\nROUNDS = 20\n" + LOOP
FOREVER = "import math\nROUNDS = 10**9\n" + LOOP


def malt(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "malt", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_trace_has_each_value_with_its_time(tmp_path: Path) -> None:
    result = run_job(tmp_path, 2, RECORDED, "--trace", "trace.json")
    assert "malt: " not in result.output  # nothing was missed or left out

    def no_constant(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    text = (tmp_path / "trace.json").read_text()
    events: list[dict[str, Any]] = json.loads(text, parse_constant=no_constant)["traceEvents"]
    for rank in range(2):
        points = [one for one in events if one["name"] == f"loss of rank {rank}"]
        assert [one["ph"] for one in points] == ["C"] * 20
        assert [one["args"]["value"] for one in points] == [1 / n for n in range(1, 21)]
        assert all(0 <= one["ts"] <= two["ts"] for one, two in itertools.pairwise(points))
        marks = {one["name"] for one in events if one["tid"] == rank and one["ph"] == "i"}
        assert {"bad/grad is nan", "up is inf", "down is -inf"} <= marks


def test_top_and_metrics_show_the_last_values_of_a_stopped_rank(tmp_path: Path) -> None:
    port = free_port()
    with start_job(
        tmp_path, 2, FOREVER, "--metrics", str(port), environ={"MALT_SILENCE": "60"}
    ) as job:
        pids = job.await_told("ready")
        while min(job.await_told("at")) < 3:
            time.sleep(0.02)
        os.kill(pids[1], signal.SIGSTOP)
        table = malt("top", job.launcher.pid, "--interval", 0.2).stdout
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            metrics = answer.read().decode()
        os.kill(pids[1], signal.SIGCONT)
        header, *rows = (line.split() for line in table.splitlines())
        assert header[-5:] == ["loss", "rate", "bad/grad", "up", "down"]
        for row in rows:
            assert 0 < float(row[-5]) <= 1 / 3
            assert row[-4:] == ["0.5", "nan", "inf", "-inf"]
        for rank in range(2):
            labels = f'{{rank="{rank}",name='
            assert f'malt_report{labels}"rate"}} 0.5\n' in metrics
            assert f'malt_report{labels}"bad/grad"}} NaN\n' in metrics
            assert f'malt_report{labels}"up"}} +Inf\n' in metrics
            assert f'malt_report{labels}"down"}} -Inf\n' in metrics
        job.set_goal(5)
        job.finish()


def test_mistakes_are_refused_with_the_way_out(tmp_path: Path) -> None:
    body = """
tell(early=error_of(malt.report, loss=1))
malt.init(timeout=60)
tell(
    name=error_of(malt.report, **{"my loss": 1}),
    long=error_of(malt.report, **{48 * "x": 1}),
    text=error_of(malt.report, loss="0.5"),
    many=error_of(malt.report, loss=np.zeros(2)),
    all_or_none=error_of(malt.report, kept=1, refused=None),
    fine=error_of(malt.report, **{47 * "x": True}),
)
for i in range(31):
    malt.report(**{f"n{i}": i})
tell(full=error_of(malt.report, n31=0), known=error_of(malt.report, n30=1))
"""
    result = run_job(tmp_path, 1, body, "--record")
    (told,) = result.told
    assert "call malt.init() first" in told["early"].text
    assert told["name"].says("malt.report('my loss'", "1 to 47 of the characters")
    assert told["long"].says("1 to 47 of the characters")
    assert told["text"].says("malt.report(loss=", "not str")
    assert told["many"].says("malt.report(loss=", "not ndarray")
    assert told["all_or_none"].says("malt.report(refused=", "not NoneType")
    assert told["full"].says("malt.report(n31=", "at most 32 names", "report fewer")
    assert told["fine"] is None
    assert told["known"] is None


def test_nothing_is_kept_and_no_value_looked_at_without_a_recorder(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
tell(value=error_of(malt.report, loss=object()), name=error_of(malt.report, **{"a b": 1}))
"""
    (told,) = run_job(tmp_path, 1, body).told
    assert told["value"] is None
    assert told["name"].says("1 to 47 of the characters")


def test_a_series_is_spread_evenly_and_ends_with_the_newest() -> None:
    series = Series()
    reported = 5 * MOST_POINTS + 3
    for n in range(reported):
        series.add(Point(n, n, float(n)))
    assert series.count == reported
    assert series.last.value == reported - 1
    assert MOST_POINTS / 2 <= len(series.points) < MOST_POINTS
    (step,) = {two.time - one.time for one, two in itertools.pairwise(series.points)}
    assert series.points[0].time == 0
    assert series.last.time - series.points[-1].time < step


def scalars_of(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Read all files of a run: by name, the steps and values."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(directory.glob("events.*")):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16  # the length, its checksum, and the data's checksum
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_gets_each_value_with_its_update(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    run_job(tmp_path, 2, RECORDED, "--tensorboard", "runs")
    for rank in range(2):
        scalars = scalars_of(tmp_path / "runs" / f"rank{rank}")
        assert scalars["loss"] == [(n, pytest.approx(1 / n)) for n in range(1, 21)]
        ((step, value),) = scalars["bad/grad"]
        assert step == 3
        assert math.isnan(value)


class StuckWriter:
    """A writer of tensorboardX whose disk is full: its calls do not come back."""

    def add_scalar(self, *_: object) -> None:
        threading.Event().wait()


def test_tensorboard_that_is_stuck_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tensorboard, "_END_SECONDS", 0.1)
    curves = tensorboard._Curves(Path("runs/rank0"), StuckWriter())
    for update in range(tensorboard._MOST_WAITING + 10):
        curves.add({"loss": 1.0, "rate": 0.5}, update)
    curves.close()
    told = "the curves for TensorBoard are cut off: runs/rank0"
    assert [told in record.message for record in caplog.records] == [True]
    few = tensorboard._Curves(Path("runs/rank1"), StuckWriter())
    few.add({"loss": 1.0}, 1)
    few.close()
    assert "cut off: runs/rank1" in caplog.text


def test_tensorboard_where_nothing_can_write_it_is_refused(tmp_path: Path) -> None:
    body = """
import sys
sys.modules["tensorboardX"] = sys.modules["torch.utils.tensorboard"] = None
tell(missing=error_of(malt.init))
"""
    (told,) = run_job(tmp_path / "a", 1, body, environ={"MALT_TENSORBOARD": "runs"}).told
    assert told["missing"].says("needs tensorboardX", "malt-sgd[watch]")
    pytest.importorskip("tensorboardX")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "runs").write_text("a file")
    body = "tell(file=error_of(malt.init))"
    (told,) = run_job(tmp_path / "b", 1, body, environ={"MALT_TENSORBOARD": "runs"}).told
    assert told["file"].says("MALT_TENSORBOARD=runs", "cannot be written")
