"""The page of `malt run --report`, and what it is made of."""

from __future__ import annotations

import importlib.util
import math
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Tab, browse
from jobs import run_job
from reports import Report

from malt._watching import document, gantt, run_report, trace
from malt._watching.series import Point, Series
from malt._watching.timeline import COLUMNS, SPENT, Timeline

FIELDS = "began lasted iteration bytes ranks kind rank count staleness"
EVENT = np.dtype([(name, np.int64) for name in FIELDS.split()])
MS = 1_000_000

# Rank 2 takes 20 ms longer than the others for each round, whose waits show it.
LOOP = """
malt.init(timeout=60)
w = np.zeros(100, np.float32)
v = malt.vector(w)
for round in range(ROUNDS):
    if rank == 2:
        time.sleep(0.02)
    if rank == 1 and round == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    malt.report(loss=1 / (1 + round) if round != 3 else np.nan)
"""


def events(*rows: dict[str, int]) -> Any:
    found = np.zeros(len(rows), EVENT)
    found["rank"] = -1
    for number, row in enumerate(rows):
        for name, value in row.items():
            found[name][number] = value
    return found


def one(kind: int, began: float, lasted: float, **more: int) -> dict[str, int]:
    return {"kind": kind, "began": int(began * MS), "lasted": int(lasted * MS), **more}


def spent(timeline: Timeline) -> dict[int, float]:
    sums = timeline.columns.spent.sum(axis=1) / MS
    return dict(zip(SPENT, sums.tolist(), strict=True))


ROUND = (
    one(trace.SCATTER, 1, 2, bytes=700),
    one(trace.WAIT, 4, 3, rank=1),
    one(trace.FOLD, 7, 1, staleness=5),
    one(trace.GATHER, 4, 4.5),
    one(trace.WAIT, 10, 2, rank=1),  # of a barrier: no call contains it
    one(trace.WAIT, 21, 4, rank=0),
    one(trace.ALLREDUCE, 20, 6, bytes=300),
)
ROUND_SPENT = {
    trace.SCATTER: 2.0,
    trace.GATHER: 0.5,
    trace.ALLREDUCE: 2.0,
    trace.FOLD: 1.0,
    trace.WAIT: 9.0,
}


@pytest.mark.parametrize("cut", range(len(ROUND) + 1))
def test_no_time_is_counted_twice_however_the_events_come(cut: int) -> None:
    timeline = Timeline(0, 0, 0)
    timeline.add(events(*ROUND[:cut]))
    timeline.add(events(*ROUND[cut:]))
    assert spent(timeline) == pytest.approx(ROUND_SPENT)
    assert timeline.ended == 26 * MS
    assert timeline.columns.sent.sum() == 1000
    assert timeline.columns.staleness.max() == 5


def test_waits_that_no_call_contains_count_at_the_end() -> None:
    timeline = Timeline(0, 0, 0)
    timeline.add(events(one(trace.WAIT, 1, 2)))
    timeline.close()
    assert spent(timeline)[trace.WAIT] == pytest.approx(2)
    assert timeline.ended == 3 * MS


def test_a_longer_run_gets_wider_columns_and_the_same_sums() -> None:
    timeline = Timeline(0, 0, 0)
    width = timeline.columns.width
    timeline.add(events(*ROUND))
    timeline.add(events(one(trace.SCATTER, 10_000, 1, bytes=1)))
    assert timeline.columns.width == 16 * width
    assert spent(timeline) == pytest.approx(ROUND_SPENT | {trace.SCATTER: 3.0})
    assert timeline.columns.sent.sum() == 1001
    column = 10_000 * MS // timeline.columns.width
    assert timeline.columns.sent[column] == 1
    assert timeline.columns.staleness[0] == 5
    assert timeline.columns.staleness[column] == -1


def test_a_span_is_shared_among_the_columns_it_crosses() -> None:
    timeline = Timeline(0, 0, 0)
    width = timeline.columns.width
    timeline.add(events({"kind": trace.SCATTER, "began": width // 2, "lasted": 3 * width}))
    assert timeline.columns.spent[0, :5].tolist() == [width / 2, width, width, width / 2, 0]


@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("tornado") is None,
    reason="needs chromium and tornado",
)
def test_a_browser_draws_values_of_any_size_and_reads_a_bar(tmp_path: Path) -> None:
    cases = {"<b>": [1e308, -1e308], "small": [5e-324, 0.0], "alike": [1e17, 1e17 + 32], "0": [0.0]}
    parts = [
        document.chart(name, [document.Line("rank 0", np.arange(len(ys)), np.array(ys))], "updates")
        for name, ys in cases.items()
    ]
    bars = [[0, "gather", 1.0, 2.0, 7, -1], [1, "waiting", 0.0, 4.0, 7, 0]]
    parts.append(gantt.picture([0, 5], 0.0, 4.0, lived=[[0, 0.0, 4.0]], bars=bars, deaths=[[0, 4]]))
    shares = [[[50, 0, 0, 0, 0, 50]]]
    parts.append(gantt.picture([3], 0.0, 1.0, width=1.0, shares=shares))
    path = tmp_path / "r.html"
    path.write_text(document.page("train.py </script><x>", parts))

    async def use(tab: Tab) -> None:
        await tab.wait_for("document.querySelectorAll('canvas').length === 6")
        assert await tab.value("document.title") == "train.py </script><x>"
        headings = "[...document.querySelectorAll('h2')].map((one) => one.innerText)"
        assert await tab.value(headings) == list(cases)
        keys = "[...document.querySelectorAll('.key')].map((one) => one.innerText)"
        with_death, without = await tab.value(keys)
        assert "death" in with_death
        assert without == "outside MALT: computingwaiting"

        async def said(picture: int, across: float, down: float) -> Any:
            return await tab.value(f"""(() => {{
                const over = document.querySelectorAll('.u-over')[{picture}];
                const box = over.getBoundingClientRect();
                over.dispatchEvent(new MouseEvent('mousemove', {{
                    clientX: box.left + {across} * box.width, clientY: box.top + {down} * box.height
                }}));
                return new Promise((done) => setTimeout(() => done(
                    document.querySelectorAll('.note')[{picture} - 4].innerText), 100));
            }})()""")

        assert (
            await said(4, 0.5, 0.25) == "rank 0, gather: 1.000000 s, for 2,000,000 us, iteration 7"
        )
        assert (await said(4, 0.5, 0.75)).startswith("rank 5, waiting for rank 0: 0.000000 s")
        assert await said(4, 0.999, 0.25) == "rank 0 is gone at 4.000 s"
        assert (await said(5, 0.5, 0.5)) == "rank 3, 0.000 to 1.000 s: computing 50%, waiting 50%"
        for width in (1200, 400):
            await tab.picture(tmp_path / "page.png", width, 2000)
            assert await tab.value("document.documentElement.scrollWidth") == width

    browse(tmp_path / "browser", path.as_uri(), use)


def test_report_shows_who_waited_for_whom(tmp_path: Path) -> None:
    run_job(tmp_path, 3, "ROUNDS, DIES_AT = 20, None\n" + LOOP, "--report", "r.html")
    page = Report(tmp_path / "r.html")
    assert page.title == "malt run: script.py"
    head, *rows = page.rows("Who waited for whom, in seconds")
    assert head == ["rank", "for 0", "for 1", "for 2", "together"]
    for rank in (0, 1):  # most of the 400 ms
        assert float(rows[rank][3]) > 0.2
    assert "loss against time" in page.parts
    assert [one[0] for one in page.parts["loss against updates"]["chart"]["lines"]] == [
        f"rank {rank}" for rank in range(3)
    ]
    assert "3 values of loss that are not finite" in page.omissions
    assert len(page.bars(0, "scatter")) == 20
    assert 2 in {whom for *_, whom in page.bars(0, "waiting")}


def test_report_of_a_long_run_says_that_it_is_drawn_in_columns(tmp_path: Path) -> None:
    run_job(tmp_path, 2, "ROUNDS, DIES_AT = 500, None\n" + LOOP, "--report", "r.html")
    page = Report(tmp_path / "r.html")
    assert re.search(
        "of [0-9],[0-9]{3} calls, waits and folds the last picture has", page.omissions
    )
    times = page.parts["When each rank did what: the whole run"]["times"]
    for columns in times["shares"]:
        assert abs(times["begin"] + len(columns) * times["width"] - times["right"]) < times["width"]
        assert 98 <= max(map(sum, columns)) <= 102


def test_report_has_a_killed_rank_and_its_death(tmp_path: Path) -> None:
    body = "ROUNDS, DIES_AT = 20, 7\n" + LOOP
    code = 128 + signal.SIGKILL
    run_job(tmp_path, 3, body, "--keep-going", "--report", "r.html", code=code)
    page = Report(tmp_path / "r.html")
    assert len(page.bars(1, "scatter")) == 7
    changes = page.rows("Deaths and epochs, when a rank first learnt of them")
    assert {row[1] for row in changes} == {"change", "rank 1 is gone", "epoch 1 of 2 ranks"}


# Python runs it at its start, where PYTHONPATH names its folder.
SLOW_START = """
import sys, time
if "malt._watching.collect" in sys.orig_argv:
    time.sleep(3)
"""


def test_report_and_trace_come_from_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the process that writes them begins after the ranks have ended."""
    body = "ROUNDS, DIES_AT = 20, None\n" + LOOP
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_job(tmp_path, 2, body, "--report", "r.html", "--trace", "t.json")
    assert len(Report(tmp_path / "r.html").bars(1, "scatter")) == 20
    assert (tmp_path / "t.json").read_text().count('"scatter"') == 40


def test_report_of_a_program_that_never_joins_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "malt", "run", "-n", "1", "--report", "r.html", "true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "r.html shows nothing: no rank has called malt.init()" in done.stderr
    assert Report(tmp_path / "r.html").all[0]["text"] == "No rank has called malt.init()."


def test_report_that_cannot_be_written_is_refused_before_the_ranks_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "malt", "run", "-n", "1", "--report", "no/r.html", "touch"]
    done = subprocess.run([*command, "ran"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--report" in done.stderr
    assert "cannot be written" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_report_of_many_ranks_stays_small_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    ranks = 200
    found = events(
        *(one(trace.SCATTER, at, 0.5, bytes=10) for at in range(0, 4000, 2)),
        {"kind": trace.DEATH, "began": MS, "rank": 7, "iteration": 1},
    )
    reported = {}
    for name in range(14):
        reported[f"value<{name}>"] = Series()
        for value in (*range(1000 if name < 4 else 1), math.inf):
            point = Point(min(value, 1000) * MS, min(value, 1000), value)
            reported[f"value<{name}>"].add(point)
    totals = dict.fromkeys(
        ("scatters", "gathers", "allreduces", "bytes_out", "bytes_in", "folded"), 5
    )
    newest = found[:-1][-run_report.KEEPS :]
    processes = []
    for rank in range(ranks):
        timeline = Timeline(rank, 0, rank)
        timeline.add(found)
        peers = np.full((ranks, 6), rank + 1, np.uint64)
        processes.append(run_report.Process(timeline, newest, 3, totals, peers, reported))
    path = tmp_path / "r.html"
    run_report.write(path, "train.py <x>", 0, 0, processes)
    page = Report(path)
    assert "<title>malt run: train.py &lt;x&gt;</title>" in page.text
    for text in (
        "136 of 200 ranks have no row and no line: those above rank 63",
        "reported, not drawn: value<4>, value<5>, value<6>",
        "64 values of value<0> that are not finite",
        "of 40,000 pairs of which one waited for the other, the table has the 40",
        "600 events were written over",
    ):
        assert text in page.omissions
    assert re.search("of 64,064 values of value<0> [0-9,]+ are drawn", page.omissions)
    pictures = [one["times"] for one in page.all if "times" in one]
    assert [[row for row, _ in one["deaths"]] for one in pictures[:1]] == [[7]]
    assert COLUMNS * ranks > sum(len(columns) for columns in pictures[0]["shares"])
