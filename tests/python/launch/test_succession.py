"""The launcher with the job's books dies, and another one takes over: launchers on this host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from jobs import in_dev_shm, processes_in
from launches import wait_until
from nodes import Nodes
from test_elastic import await_alive, scale

LOOP = """
malt.init(timeout=20)
v = malt.vector(np.full(10, float(rank)))
tell(pid=os.getpid(), start=v.iteration, late=malt.jobs.restarts(),
     node=int(os.environ["MALT_NODE_RANK"]))
while not flag_is_up("over") and not malt.jobs.leaving():
    v.scatter()
    v.gather(malt.AVG, staleness=staleness)
    tell(at=v.iteration, alive=malt.alive())
    time.sleep(0.005)
s = v.stats()
tell(lost=s.sent - s.folded - s.overwritten - s.rejected - s.pending - s.to_dead)
"""


class Training(Nodes):
    """LOOP in a job of `nnodes` launchers on this host."""

    def __init__(
        self, directory: Path, nnodes: int, places: int, ranks: int, options: str, **environ: str
    ) -> None:
        # Asynchronous where ranks end at different iterations.
        body = "staleness = None\n" + LOOP
        super().__init__(directory, body, [options] * nnodes, ranks, places, **environ)

    def await_books(self, at: int, *nodes: int) -> None:
        """Wait until these nodes say that node `at` has taken over."""
        says = f"node {at} has taken over the job's books"
        assert wait_until(lambda: all(says in self.output_of(node) for node in nodes)), self.output

    def kill_rank(self, rank: int) -> int:
        """End the rank's process, and wait for the next one; return its count of restarts."""
        process = self.told(rank)["pid"]
        os.kill(process, signal.SIGKILL)
        assert wait_until(lambda: self.told(rank)["pid"] != process), self.output
        return int(self.told(rank)["late"])

    def finish(self, *nodes: int) -> list[int]:
        self.raise_flag("over")
        return [self.launchers[node].wait(60) for node in nodes]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a job that leaves neither processes nor files."""
    monkeypatch.chdir(tmp_path)
    files = in_dev_shm()
    yield tmp_path
    assert wait_until(lambda: processes_in(tmp_path) <= {os.getpid()})
    assert in_dev_shm() <= files


@pytest.fixture
def trainings(directory: Path) -> Iterator[list[Training]]:
    started: list[Training] = []
    yield started
    for training in started:
        training.close()


def start(
    trainings: list[Training],
    directory: Path,
    nnodes: int,
    ranks: int,
    options: str,
    places: int,
    **environ: str,
) -> Training:
    trainings.append(Training(directory, nnodes, places, ranks, options, **environ))
    return trainings[-1]


@pytest.mark.parametrize("wire", ["plain", "TLS"])
def test_a_rank_rejoins_after_the_death_of_node_0(
    trainings: list[Training], directory: Path, wire: str
) -> None:
    environ = {}
    if wire == "TLS":
        environ["MALT_TLS"] = Authority(directory / "tls").issue("rank")
    training = start(trainings, directory, 2, 2, "--respawn=5 --keep-going", 4, **environ)
    await_alive(training, 0, 1, 2, 3)
    training.kill_launcher(0)
    training.await_books(1, 1)
    await_alive(training, 2, 3)
    assert training.kill_rank(3) == 1
    await_alive(training, 2, 3)
    assert training.told(3)["start"] > 0  # where the other one was
    assert training.finish(1) == [1]  # for the loss of node 0
    assert [training.told(rank)["lost"] for rank in (2, 3)] == [0, 0]
    assert wait_until(lambda: "node 0 is lost" in training.output_of(1))


def test_nodes_die_one_after_the_other(trainings: list[Training], directory: Path) -> None:
    training = start(trainings, directory, 3, 2, "--respawn=5 --elastic 1:6", 6)
    await_alive(training, *range(6))
    for dead, ranks in ((0, (2, 3, 4, 5)), (1, (4, 5))):
        training.kill_launcher(dead)
        training.await_books(dead + 1, *range(dead + 1, 3))
        await_alive(training, *ranks)
        assert training.kill_rank(5) == dead + 1
        await_alive(training, *ranks)
    said = scale(training.launchers[2].pid, 4)
    assert said.stdout == "malt scale: started: ranks 0, 1\n", said
    await_alive(training, 0, 1, 4, 5)
    assert [training.told(rank)["node"] for rank in (0, 1)] == [2, 2]
    assert training.finish(2) == [1]


def test_a_rank_that_dies_with_node_0_comes_back(
    trainings: list[Training], directory: Path
) -> None:
    """Its next process is started before a launcher has taken over, or while one does."""
    training = start(trainings, directory, 3, 2, "--respawn=5 --keep-going", 6)
    await_alive(training, *range(6))
    os.kill(training.told(5)["pid"], signal.SIGKILL)
    training.kill_launcher(0)
    await_alive(training, 2, 3, 4, 5)
    assert wait_until(lambda: training.told(5)["late"] == 1), training.output
    await_alive(training, 2, 3, 4, 5)
    assert training.finish(1, 2) == [1, 1]


def test_a_launcher_that_is_stopped_is_waited_for(
    trainings: list[Training], directory: Path
) -> None:
    training = start(trainings, directory, 2, 1, "--respawn=5 --keep-going", 2)
    await_alive(training, 0, 1)
    training.launchers[0].send_signal(signal.SIGSTOP)
    process = training.told(1)["pid"]
    os.kill(process, signal.SIGKILL)
    time.sleep(3)  # longer than a server takes to answer
    assert training.told(1)["pid"] == process
    assert "taken over" not in training.output
    training.launchers[0].send_signal(signal.SIGCONT)
    assert wait_until(lambda: training.told(1)["pid"] != process), training.output
    await_alive(training, 0, 1)
    assert training.finish(0, 1) == [0, 0]
