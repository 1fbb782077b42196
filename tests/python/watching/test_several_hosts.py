"""Pages, reports and traces that show the ranks of all hosts: several launchers on this host."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Tab, browse
from certificates import Authority
from jobs import exists, in_dev_shm, processes_in
from launches import wait_until
from nodes import Nodes
from reports import Report
from test_dashboard import Page, state_of

LOOP = """
malt.init(timeout=60)
w = np.full(100, float(rank), np.float32)
v = malt.vector(w)
tell(ready=os.getpid())
heard = set()
while not flag_is_up("over") and not malt.jobs.leaving():
    v.scatter()
    heard.update(v.gather(malt.AVG).ranks)
    malt.report(loss=1 / v.iteration)
    tell(at=v.iteration, **({"has_heard_all": True} if len(heard) == size - 1 else {}))
    time.sleep(0.005)
"""


class Job(Nodes):
    """LOOP on nodes of which each has options of its own."""

    def page(self, node: int) -> Page:
        """The dashboard of a node."""
        return Page(Output(self, node))

    def finish(self, *nodes: int) -> list[int]:
        self.raise_flag("over")
        return [self.launchers[node].wait(100) for node in nodes]


class Output:
    """What one node's launcher and ranks have written."""

    def __init__(self, job: Nodes, node: int) -> None:
        self._job, self._node = job, node

    @property
    def output(self) -> str:
        return self._job.output_of(self._node)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job that leaves neither processes nor files."""
    files = in_dev_shm()
    with contextlib.ExitStack() as stack:

        def begin(*options: str, **more: Any) -> Job:
            job = Job(tmp_path, LOOP, options, **more)
            stack.callback(job.close)
            return job

        yield begin
    assert wait_until(lambda: processes_in(tmp_path) <= {os.getpid()})
    assert in_dev_shm() <= files


def ranks_of(event: dict[str, Any]) -> dict[int, str]:
    """The state of each rank."""
    return {one["rank"]: one["state"] for one in event["ranks"]}


def states_of(event: dict[str, Any]) -> dict[int, str]:
    """The state of each node."""
    return {one["node"]: one["state"] for one in event["hosts"]}


def is_whole(event: dict[str, Any], size: int) -> bool:
    states = ranks_of(event)
    return set(states) == set(range(size)) and set(states.values()) <= {"runs", "waits"}


def test_a_page_of_one_node_has_the_ranks_of_all(start: Callable[..., Job]) -> None:
    job = start("", "--dashboard")
    job.await_told("at")
    page = job.page(1)
    whole = page.event(lambda event: is_whole(event, 4) and len(event["pairs"]) == 12)
    assert {one["rank"]: one["node"] for one in whole["ranks"]} == {0: 0, 1: 0, 2: 1, 3: 1}
    assert {one["process"] for one in whole["ranks"]} == set(job.await_told("ready"))
    assert {(receiver, sender) for receiver, sender, _, _ in whole["pairs"]} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }
    assert states_of(whole) == {0: "reports", 1: "reports"}
    assert all(one["host"] for one in whole["hosts"])
    curves: dict[int, list[float]] = {rank: [] for rank in range(4)}
    with page.events() as events:
        for event in events:
            for rank, name, times, updates, values in event["points"]:
                if name == "loss":
                    assert values == [1 / update for update in updates], rank
                    curves[rank] += times
            if all(len(times) > 100 for times in curves.values()):
                break
    for rank, times in curves.items():
        assert times == sorted(times), rank
    # Both nodes have one clock here: the curves of all ranks end at one time.
    assert max(times[-1] for times in curves.values()) - curves[0][-1] < 5
    assert job.finish(0, 1) == [0, 0]


@pytest.mark.parametrize("options", ["--keep-going", "--elastic 1:4", "--respawn=2"])
def test_a_page_of_one_node_stops_the_ranks_of_all(start: Callable[..., Job], options: str) -> None:
    job = start(options, f"{options} --dashboard")
    pids = job.await_told("ready")
    job.await_told("at")
    assert job.page(1).post("/stop") == (200, "the ranks are being stopped\n")
    assert [launcher.wait(60) for launcher in job.launchers] == [128 + signal.SIGTERM] * 2
    for node in range(2):
        assert "malt run: stopped from the dashboard\n" in job.output_of(node)
    assert not any(exists(pid) for pid in pids)


def test_nothing_is_recorded_unless_a_node_asks_for_it(start: Callable[..., Job]) -> None:
    job = start("", "")
    job.await_told("at")
    for launcher in job.launchers:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        commands = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
        assert not any("malt._watching" in command for command in commands)
        opened = [os.readlink(one) for one in Path(f"/proc/{launcher.pid}/fd").iterdir()]
        assert not any("malt-recorder" in name for name in opened)
    assert job.finish(0, 1) == [0, 0]


def test_a_launcher_that_is_stopped_does_not_report_until_it_goes_on(
    start: Callable[..., Job],
) -> None:
    job = start("--dashboard", "")
    job.await_told("at")
    page = job.page(0)
    page.event(lambda event: is_whole(event, 4))
    job.launchers[1].send_signal(signal.SIGSTOP)
    silent = page.event(lambda event: states_of(event)[1] == "silent")
    assert ranks_of(silent)[2] == ranks_of(silent)[3] == "silent"
    assert ranks_of(silent)[0] != "silent"
    assert next(one["age"] for one in silent["hosts"] if one["node"] == 1) >= 5
    job.launchers[1].send_signal(signal.SIGCONT)
    page.event(lambda event: is_whole(event, 4))
    assert job.finish(0, 1) == [0, 0]


def test_pages_show_the_rest_when_the_node_with_the_books_is_lost(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    options = "--keep-going --dashboard --report r.html --trace t.json"
    job = start(options, options, options, MALT_SILENCE="2")
    job.await_told("at")
    pages = [job.page(node) for node in range(3)]
    for page in pages:
        page.event(lambda event: is_whole(event, 6))
    job.kill_launcher(0)
    for page in pages[1:]:
        lost = page.event(lambda event: states_of(event)[0] == "lost")
        assert ranks_of(lost)[0] == ranks_of(lost)[1] == "lost"
    says = "node 1 has taken over the job's books"
    assert wait_until(lambda: all(says in job.output_of(node) for node in (1, 2))), job.output
    for node, there in ((1, 4), (2, 2)):  # each page goes on with the other's ranks
        before = job.told(there)["at"]
        later = pages[node].event(
            lambda event, there=there, before=before: any(
                one["rank"] == there and one["iteration"] > before for one in event["ranks"]
            )
        )
        assert states_of(later) == {0: "lost", 1: "reports", 2: "reports"}
        assert state_of(later, there) in ("runs", "waits")
    assert job.finish(1, 2) == [1, 1]  # a node was lost
    for node in (1, 2):
        text = (tmp_path / f"r.node{node}.html").read_text()
        assert "4 ranks of 2 hosts" in text
        assert "the ranks of node 0: it was lost" in text
    trace = json.loads((tmp_path / "t.json").read_text())
    assert ranks_in(trace) == {2, 3, 4, 5}
    assert trace["otherData"]["missing_ranks"] == [0, 1]
    assert trace["otherData"]["absent"] == ["the ranks of node 0: it was lost"]
    assert "t.json lacks the ranks of node 0: it was lost" in job.output_of(1)
    left = {path.name for path in tmp_path.glob("t.*")}
    assert left == {"t.json"}, job.output


@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("tornado") is None,
    reason="needs chromium and tornado",
)
def test_a_browser_shows_all_hosts_and_that_one_is_lost(
    start: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = start("--keep-going --dashboard", "--keep-going", MALT_SILENCE="2")
    job.await_told("at")

    async def use(tab: Tab) -> None:
        await tab.wait_for("document.querySelectorAll('#ranks tr').length === 5")
        await tab.wait_for("at('summary').innerText.includes('4 ranks on 2 nodes')")
        await tab.wait_for("charts.get('loss').ranks === '0,1,2,3'")
        job.kill_launcher(1)
        await tab.wait_for("/Node 1 .* is lost; it last reported/.test(at('stuck').innerText)")
        await tab.wait_for("document.querySelectorAll('#graph g.lost').length === 2")

    browse(tmp_path_factory.mktemp("browser"), job.page(0).url, use)
    assert job.finish(0) == [1]


def ranks_in(trace: dict[str, Any]) -> set[int]:
    return {event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"}


@pytest.mark.parametrize("with_tls", [False, True])
def test_reports_and_the_trace_have_all_ranks(
    start: Callable[..., Job],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    with_tls: bool,
) -> None:
    environ = {}
    if with_tls:
        environ["MALT_TLS"] = str(Authority(tmp_path_factory.mktemp("tls") / "ca").issue("node"))
    both = "--report r.html --trace t.json"
    job = start(both, "", both, **environ)
    job.await_told("has_heard_all")
    assert job.finish(0, 1, 2) == [0, 0, 0]
    for name in ("r.html", "r.node2.html"):
        report = Report(tmp_path / name)
        assert "6 ranks of 3 hosts" in report.text
        assert all(report.bars(rank, "scatter") for rank in range(6))
    trace = json.loads((tmp_path / "t.json").read_text())
    assert ranks_in(trace) == set(range(6))
    other = trace["otherData"]
    assert other["missing_ranks"] == other["absent"] == []
    assert [one["file"] for one in other["files"]] == [f"t.node{node}.json" for node in range(3)]
    assert all(0 <= one["error_us"] < 1e6 for one in other["files"])
    assert {path.name for path in tmp_path.glob("[rt].*")} == {"t.json", "r.html", "r.node2.html"}


def test_a_node_that_is_killed_is_missing_and_this_is_said(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    options = "--keep-going --trace t.json --report r.html"
    job = start(options, options, MALT_SILENCE="2")
    job.await_told("at")
    job.kill_launcher(1)
    assert wait_until(lambda: "node 1 is lost" in job.output_of(0)), job.output
    assert job.finish(0) == [1]
    trace = json.loads((tmp_path / "t.json").read_text())
    assert ranks_in(trace) == {0, 1}
    assert trace["otherData"]["absent"] == ["the ranks of node 1: it was lost"]
    assert "t.json lacks the ranks of node 1: it was lost" in job.output_of(0)
    assert "the ranks of node 1: it was lost" in (tmp_path / "r.html").read_text()
    # Its collector outlives the launcher, and writes the part that could not be sent.
    assert wait_until(lambda: not processes_in(tmp_path) - {os.getpid()})
    part = json.loads((tmp_path / "t.node1.json").read_text())
    assert ranks_in(part) == {2, 3}


def test_a_part_stays_where_the_node_with_the_books_was_not_asked_for_a_trace(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start("", "--trace t.json")
    job.await_told("at")
    assert job.finish(0, 1) == [0, 0]
    assert "t.node1.json has the ranks of this host alone" in job.output_of(1)
    assert ranks_in(json.loads((tmp_path / "t.node1.json").read_text())) == {2, 3}
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("who", ["collector", "launcher"])
def test_a_signal_ends_the_wait_for_a_host_that_is_stopped(
    start: Callable[..., Job], tmp_path: Path, who: str
) -> None:
    job = start("--trace t.json", "--trace t.json")
    job.await_told("at")
    collectors = [
        int(child)
        for child in Path(f"/proc/{job.launchers[1].pid}/task/{job.launchers[1].pid}/children")
        .read_text()
        .split()
        if "malt._watching.collect" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    assert len(collectors) == 1
    stopped = collectors[0] if who == "collector" else job.launchers[1].pid
    os.kill(stopped, signal.SIGSTOP)
    job.raise_flag("over")
    for rank, pid in enumerate(job.await_told("ready")[: 4 if who == "collector" else 2]):
        assert wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists()), rank
    assert job.launchers[0].poll() is None  # it waits for node 1
    job.launchers[0].send_signal(signal.SIGTERM)
    assert job.launchers[0].wait(30) == 128 + signal.SIGTERM
    os.kill(stopped, signal.SIGCONT)
    job.launchers[1].wait(60)
    trace = json.loads((tmp_path / "t.json").read_text())
    assert ranks_in(trace) == {0, 1}
    (why,) = trace["otherData"]["absent"]
    # The signal may come before node 0 has asked.
    answers = "did not answer|was not asked" if who == "collector" else "was not asked"
    assert re.fullmatch(f"the ranks of node 1: it ({answers})", why)
    assert why in job.output_of(0)
