"""The page of `malt run --dashboard`, of real jobs."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Tab, browse
from jobs import Running, exists, free_port, start_job

FOREVER = """
malt.init(timeout=60)
w = np.zeros(100, np.float32)
v = malt.vector(w)
tell(ready=os.getpid())
while v.iteration < goal() and not malt.jobs.leaving():
    if rank == 2:
        time.sleep(0.04)
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    malt.report(loss=1 / v.iteration, bad=float("nan"))
    tell(at=v.iteration)
tell(left=True)
"""
PATIENT = {"MALT_SILENCE": "60"}


def children(job: Running) -> list[int]:
    """The processes that the launcher has started."""
    pid = job.launcher.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Page:
    """The dashboard of a job, by its URL."""

    def __init__(self, job: Running) -> None:
        deadline = time.monotonic() + 60
        while (
            found := re.search(r"dashboard: (http://(.*?):(\d+)/\?token=(\S+))", job.output)
        ) is None:
            assert time.monotonic() < deadline, job.output
            time.sleep(0.02)
        self.url, host, port, self.token = found.groups()
        self.host = host.strip("[]")
        self.port = int(port)

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        with contextlib.closing(connection):
            return answer.status, answer.read().decode()

    def post(self, path: str) -> tuple[int, str]:
        return self.ask("POST", path, X_Malt_Token=self.token)

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[dict[str, Any]]]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", f"/events?token={self.token}")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        with contextlib.closing(connection), answer:
            yield (json.loads(line[5:]) for line in answer if line.startswith(b"data:"))

    def event(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read events until there is such a one."""
        deadline = time.monotonic() + 60
        with self.events() as events:
            for event in events:
                if is_it(event):
                    return event
                assert time.monotonic() < deadline, event
        pytest.fail("the events end")


def state_of(event: dict[str, Any], rank: int) -> str:
    return next((str(one["state"]) for one in event["ranks"] if one["rank"] == rank), "")


def test_page_needs_the_token_and_its_own_host(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--dashboard") as job:
        job.await_told("at")
        page = Page(job)
        assert page.host == "127.0.0.1"
        good = f"/?token={page.token}"
        status, text = page.ask("GET", good)
        assert status == 200
        assert not re.search(r"""(src|href)=["']?http""", text)  # it loads nothing from elsewhere
        assert page.token not in text
        for path in ("/", "/?token=", "/?token=wrong", "/events", "/?token=%C3%A9"):
            status, text = page.ask("GET", path)
            assert status == 403, path
            assert "open the URL that `malt run` has printed" in text
        assert page.ask("GET", good, Host=f"attacker.example:{page.port}")[0] == 403
        assert page.ask("GET", good, Host=f"localhost:{page.port}")[0] == 200
        assert page.ask("GET", f"/nothing?token={page.token}")[0] == 404
        for action in ("/stop", "/scale?count=1", "/leave?rank=1"):
            assert page.ask("POST", action)[0] == 403
            assert page.ask("POST", f"{action}&token={page.token}")[0] == 403
            headers = {"X_Malt_Token": page.token, "Origin": "http://attacker.example"}
            assert page.ask("POST", action, **headers)[0] == 403
            headers = {"X_Malt_Token": page.token, "Host": "attacker.example"}
            assert page.ask("POST", action, **headers)[0] == 403
        for change in ("/scale?count=2", "/leave?rank=1"):
            status, text = page.post(change)
            assert status == 409
            assert "only in a job of `malt run --elastic`" in text
        commands = [Path(f"/proc/{child}/cmdline").read_text() for child in children(job)]
        assert any("malt._watching.collect" in command for command in commands)
        assert not any(page.token in command for command in commands)
        job.set_goal(5)
        assert job.finish().code == 0


def test_events_show_ranks_that_are_late_stopped_and_killed(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--dashboard", "--keep-going", environ=PATIENT) as job:
        pids = job.await_told("ready")
        job.await_told("at")
        page = Page(job)
        event = page.event(
            lambda event: (
                len(event["ranks"]) == 3
                and any(one["waits_for"] == 2 for one in event["ranks"])
                and all("bad" in one["reports"] for one in event["ranks"])
            )
        )
        assert event["size"] == 3
        assert event["elastic"] is None
        assert {one["process"] for one in event["ranks"]} == set(pids)
        assert all(one["memory"] > 1e6 for one in event["ranks"])
        assert all(one["reports"]["bad"] == "nan" for one in event["ranks"])
        folded = {(receiver, sender) for receiver, sender, count, _ in event["pairs"] if count}
        assert folded == {(a, b) for a in range(3) for b in range(3) if a != b}

        os.kill(pids[1], signal.SIGSTOP)
        stuck = page.event(lambda event: event["ranks"][0]["waits_seconds"] >= 1)
        assert state_of(stuck, 1) == "stopped"
        assert stuck["ranks"][0]["waits_for"] == 1
        for rank, name, times, updates, values in stuck["points"]:
            if name == "loss":
                assert values == [1 / update for update in updates], rank
                assert times == sorted(times)
                assert abs(times[-1] - time.time()) < 600
            elif name == "bad":
                assert set(values) == {None}
        os.kill(pids[1], signal.SIGKILL)
        ended = page.event(
            lambda event: state_of(event, 1) == "ended" and event["ranks"][0]["epoch"]
        )
        texts = [one["text"] for one in ended["changes"]]
        assert texts[0] == "rank 1 is stopped"
        assert set(texts[1:]) >= {
            "rank 1 has ended",
            "the ranks have agreed on new members: epoch 1",
        }
        job.set_goal(5)
        assert job.finish().code == 128 + signal.SIGKILL


def test_events_have_each_point_once(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--dashboard") as job:
        job.await_told("at")
        seen: list[int] = []
        with Page(job).events() as events:
            for _ in range(3):
                for rank, name, _times, updates, _values in next(events)["points"]:
                    if (rank, name) == (0, "loss"):
                        seen += updates
        assert seen == sorted(set(seen))
        assert seen
        job.set_goal(5)
        job.finish()


def test_a_rank_that_was_started_again_is_shown_to_come_back(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--dashboard", "--respawn") as job:
        pids = job.await_told("ready")
        page = Page(job)
        page.event(lambda event: len(event["ranks"]) == 2)
        os.kill(pids[1], signal.SIGKILL)
        text = "rank 1 has come back as process "
        page.event(lambda event: any(one["text"].startswith(text) for one in event["changes"]))
        assert page.post("/stop")[0] == 200
        job.finish()


def test_stop_ends_a_job_whose_ranks_are_stuck(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--dashboard", environ=PATIENT) as job:
        pids = job.await_told("ready")
        job.await_told("at")
        page = Page(job)
        os.kill(pids[1], signal.SIGSTOP)
        with page.events() as events:  # an open page does not hold the job
            next(events)
            assert page.post("/stop") == (200, "the ranks are being stopped\n")
            result = job.finish(60)
        assert result.code == 128 + signal.SIGTERM
        assert "malt run: stopped from the dashboard" in result.output
        assert not any(exists(pid) for pid in pids)


def test_scale_lets_ranks_leave_and_says_what_it_refuses(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--dashboard", "--elastic", "1:4") as job:
        job.await_told("at")
        page = Page(job)
        assert page.event(lambda _: True)["elastic"] == [1, 4]
        assert page.post("/scale?count=2") == (200, "asked to leave: rank 2\n")
        job.await_told("left", ranks=[2])
        page.event(lambda event: state_of(event, 2) == "ended")
        status, text = page.post("/scale?count=5")
        assert status == 409
        assert "not within the job's 1 to 4" in text
        assert page.post("/scale?count=all") == (409, "count='all' is not a number\n")
        assert page.post("/stop")[0] == 200
        job.finish()


def test_a_chosen_rank_leaves_and_the_job_ends_well(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--dashboard", "--elastic", "2:4") as job:
        job.await_told("at")
        page = Page(job)
        assert page.post("/leave?rank=1") == (200, "asked to leave: rank 1\n")
        job.await_told("left", ranks=[1])
        page.event(lambda event: state_of(event, 1) == "ended")
        status, text = page.post("/leave?rank=0")
        assert status == 409
        assert "1 rank is not within the job's 2 to 4" in text
        assert page.post("/leave") == (409, "rank='' is not a number\n")
        job.set_goal(1)
        assert job.finish().code == 0


def test_readers_are_bounded_and_the_buttons_still_work(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--dashboard") as job, contextlib.ExitStack() as stack:
        job.await_told("at")
        page = Page(job)
        for _ in range(16):
            next(stack.enter_context(page.events()))
        for _ in range(40):  # of the same user, and silent: events are proved, and do not make way
            stack.enter_context(socket.create_connection((page.host, page.port)))
        deadline = time.monotonic() + 60
        while True:  # among so many of its own user, a request may have to make way
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, text = page.ask("GET", f"/events?token={page.token}")
                assert status == 503
                assert "close one" in text
                assert page.post("/stop")[0] == 200
                break
            assert time.monotonic() < deadline
        assert job.finish(60).code == 128 + signal.SIGTERM


def test_the_job_goes_on_without_the_process_of_the_page(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--dashboard") as job:
        job.await_told("at")
        (collector,) = (
            pid
            for pid in children(job)
            if "malt._watching.collect" in Path(f"/proc/{pid}/cmdline").read_text()
        )
        os.kill(collector, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while "the dashboard has ended; the job goes on" not in job.output:
            assert time.monotonic() < deadline, job.output
            time.sleep(0.02)
        job.set_goal(5)
        assert job.finish().code == 0


@pytest.mark.parametrize("address", ["http", "0", "127.0.0.1:", "::1:8080", "[::1]:0"])
def test_a_wrong_address_is_refused(address: str) -> None:
    command = [sys.executable, "-m", "malt", "run", f"--dashboard={address}", "-n", "1", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"--dashboard {address} is not [HOST:]PORT" in done.stderr


def test_an_address_of_another_host_is_refused() -> None:
    command = [sys.executable, "-m", "malt", "run", "--dashboard=192.0.2.1:8080", "-n", "1", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "(Cannot assign requested address); give an address of this host" in done.stderr


def test_page_at_an_ipv6_address(tmp_path: Path) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            port = server.getsockname()[1]
    except OSError:
        pytest.skip("this host has no ::1")
    with start_job(tmp_path, 1, FOREVER, f"--dashboard=[::1]:{port}", "--keep-going") as job:
        job.await_told("at")
        page = Page(job)
        assert page.url.startswith(f"http://[::1]:{port}/")
        assert page.ask("GET", f"/?token={page.token}")[0] == 200
        origin = {"Origin": f"http://[::1]:{port}", "X_Malt_Token": page.token}
        assert page.ask("POST", "/stop", **origin)[0] == 200
        assert job.finish().code == 143


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "malt", "run", f"--dashboard={port}", "-n", "1", "true"]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "take another port" in done.stderr


def test_a_given_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    with start_job(tmp_path, 2, FOREVER, f"--dashboard={port}") as job:
        assert Page(job).port == port
        job.await_told("at")
        job.set_goal(5)
        assert job.finish().code == 0


@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("tornado") is None,
    reason="needs chromium and tornado",
)
def test_a_browser_lets_a_rank_leave(tmp_path: Path) -> None:
    options = ("--dashboard", "--elastic", "1:3")
    with start_job(tmp_path / "job", 3, FOREVER, *options) as job:
        job.await_told("at")

        async def use(tab: Tab) -> None:
            await tab.wait_for("document.querySelectorAll('#leaver option').length === 3")
            assert await tab.value("at('leaver').value") != ""
            await tab.value("(window.confirm = () => true, at('leaver').value = '1')")
            await tab.wait_for("document.querySelectorAll('#ranks tr').length === 4")
            assert await tab.value("at('leaver').value") == "1"
            assert await tab.value("at('fixed').hidden")
            await tab.value("at('leave').click()")
            await tab.wait_for("at('said').innerText.includes('asked to leave: rank 1')")
            await tab.wait_for("[...at('leaver').options].map((one) => one.value).join() === '0,2'")

        browse(tmp_path / "browser", Page(job).url, use)
        job.set_goal(1)
        assert job.finish().code == 0


@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("tornado") is None,
    reason="needs chromium and tornado",
)
def test_a_browser_shows_the_job_and_stops_it(tmp_path: Path) -> None:
    with start_job(tmp_path / "job", 3, FOREVER, "--dashboard", environ=PATIENT) as job:
        pids = job.await_told("ready")
        job.await_told("at")
        page = Page(job)

        async def use(tab: Tab) -> None:
            await tab.wait_for("document.querySelectorAll('#ranks tr').length === 4")
            header = await tab.value("document.querySelector('#ranks tr').innerText")
            assert header.split()[-2:] == ["loss", "bad"]
            assert await tab.value("document.querySelectorAll('#graph circle').length") == 3
            await tab.wait_for("document.querySelectorAll('#charts canvas').length === 5")
            await tab.wait_for("document.querySelectorAll('#graph line.wait').length >= 1")
            assert await tab.value("at('scale').hidden && !at('fixed').hidden")
            os.kill(pids[1], signal.SIGSTOP)
            await tab.wait_for("at('stuck').innerText.includes('Rank 1 is stopped')")
            await tab.wait_for("at('stuck').innerText.includes('Rank 0 has waited for rank 1')")
            for width, height in ((1200, 1500), (400, 2400)):
                picture = tmp_path / f"{width}.png"
                await tab.picture(picture, width, height)
                # Nothing is wider than the window, which the picture would show.
                assert struct.unpack(">I", picture.read_bytes()[16:20])[0] == width
            await tab.value("at('updates').click()")
            await tab.wait_for("charts.get('loss').over")
            await tab.value("(window.confirm = () => true, at('stop').click())")
            await tab.wait_for("!at('lost').hidden")

        browse(tmp_path / "browser", page.url, use)
        assert job.finish(60).code == 128 + signal.SIGTERM
