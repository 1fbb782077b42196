"""Ranks that fail, die or are killed while they save or restore, and training that is resumed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import run_job, start_job
from saved_files import names

import malt
from malt._checkpoint import safetensors

RESUME = Path(__file__).resolve().parents[3] / "examples" / "resume.py"


# ---- Failures ------------------------------------------------------------------------------------
FAIL = """
import resource
malt.init(timeout=60)
w = np.full(100_000, float(rank))
malt.save("c", {"w": w})
path, arrays, options = "c", {"w": w}, {}
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank in bad:
    exec(harm)
error = error_of(malt.save, path, arrays, **options)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
left = sorted(os.listdir("c"))
malt.barrier()
tell(error=error, left=left, again=str(malt.save("c", {"w": w})))
"""
HARMS = {
    "full": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limit[1]))",
        ("is 65,536 bytes; raise it (ulimit -f)", "'w' need 800002 bytes"),
    ),
    "gone": ("path = '/proc/none/c'", ("/proc/none",)),
    "file": ("path = 'script.py/c'", ("script.py/c", "every rank may write")),
    "type": ("arrays = {'w': 'text'}", ("vectors['w'] is a str",)),
    "no mapping": ("arrays = 3", ("int",)),
}


@pytest.mark.parametrize("bad", [(0,), (2,), (1, 2)])
@pytest.mark.parametrize("harm", HARMS)
def test_failure_of_one_rank_is_all_ranks_failure(
    tmp_path: Path, harm: str, bad: tuple[int, ...]
) -> None:
    code, parts = HARMS[harm]
    result = run_job(tmp_path, 3, FAIL, harm=code, bad=bad)
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert error.says(f"malt.save: rank {bad[0]}: ", *parts), error.text
        assert ("and also rank 2" in error.text) == (len(bad) > 1)
        assert error.seconds < 15
    assert result.told[0]["left"][-1] == "checkpoint-000001"
    assert result.each("again") == ["c/checkpoint-000002"] * 3
    assert names(tmp_path / "c") == ["checkpoint-000001", "checkpoint-000002"]


def test_restore_that_fails_on_one_rank_changes_nothing_on_any(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
malt.save("c", {"w": np.zeros(3), "x": np.zeros(3)})
w, x = np.ones(3), np.ones(3 if rank != 1 else 4)
tell(error=error_of(malt.restore, "c", {"w": w, "x": x}), w=w.tolist())
""",
    )
    for error in result.each("error"):
        assert error.says("rank 1", "'x'", "(4,)")
        assert error.seconds < 15
    assert result.each("w") == [[1, 1, 1]] * 3


def test_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
malt.save("c", {"w": np.zeros(3)})
if rank == 1:
    await_flag(0)
    await_flag(2)
    os._exit(0)
tell(error=error_of(malt.save, "c", {"w": np.ones(3)}, timeout=1))
raise_flag(rank)
""",
        "--keep-going",
        code=None,
    )
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.seconds < 15
    assert names(tmp_path / "c") == ["checkpoint-000001"]


@pytest.mark.parametrize(("transport", "victim"), [("shm", 0), ("shm", 2), ("tcp", 2)])
def test_others_save_without_a_rank_that_dies_meanwhile(
    tmp_path: Path, transport: str, victim: int
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=30)
w = np.zeros(200_000)
if rank == victim:
    moment = 0.2 + np.random.default_rng().random()
    threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
alone = 0
while alone < 5:
    w += 1
    saved = malt.save("c", {"w": w}, {"step": w[0]})
    alone += len(list(saved.iterdir())) < 3  # the same on both, unlike whom each takes for alive
tell(step=w[0])
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        environ={"MALT_TRANSPORT": transport},
        victim=victim,
    )
    others = [rank for rank in range(3) if rank != victim]
    newest = tmp_path / "c" / names(tmp_path / "c")[-1]
    assert names(newest) == [f"rank-{rank:05d}.safetensors" for rank in others]
    for rank in others:
        file = safetensors.SafetensorsFile(newest / f"rank-{rank:05d}.safetensors")
        assert json.loads(file.notes["malt"])["ranks"] == others
        assert np.all(file["w"] == file["w"][0])
    steps = {result.told[rank]["step"] for rank in others}
    assert len(names(tmp_path / "c")) == 2
    assert len(steps) <= 2


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """The whole job is killed while it does nothing but save; what is found is never a mixture."""
    before = 0
    for attempt in range(10):
        with start_job(
            tmp_path / f"run-{attempt}",
            3,
            """
malt.init()
w, x = np.zeros(300_000), np.zeros(10)
got = malt.restore("../c", {"w": w, "x": x})
if got: assert got.extra["step"] == w.min() == w.max() == x.min() == x.max()
tell(step=int(w[0]), damaged=len(got.damaged) if got else 0)
while True:
    w += 1
    x += 1
    malt.save("../c", {"w": w, "x": x}, {"step": int(w[0])})
""",
        ) as job:
            steps = job.await_told("step")
            assert len(set(steps)) == 1
            assert steps[0] >= before
            before = steps[0]
            assert job.await_told("damaged") == [0, 0, 0]
            time.sleep(random.uniform(0, 0.3))
    assert before > 0


# ---- Resuming ------------------------------------------------------------------------------------
def model_of(output: str) -> str:
    models = set(re.findall(r"model ([0-9a-f]{16})", output))
    assert len(models) == 1, output
    return models.pop()


@pytest.mark.timeout(900)
def test_training_killed_again_and_again_ends_with_the_same_model(tmp_path: Path) -> None:
    def command(path: str) -> list[str]:
        knobs = [str(tmp_path / path), "--steps", "2000", "--every", "5"]
        return [sys.executable, "-m", "malt", "run", "-n", "2", str(RESUME), *knobs]

    whole = subprocess.run(command("whole"), capture_output=True, text=True, timeout=300)
    assert whole.returncode == 0, whole.stdout + whole.stderr

    kills, output = 0, ""
    while kills < 4:
        with (tmp_path / "output").open("w+b") as log:
            job = subprocess.Popen(
                command("killed"), stdout=log, stderr=log, start_new_session=True
            )
            deadline = time.monotonic() + 60
            while not (output := (tmp_path / "output").read_text()) and job.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
            assert job.poll() is None, f"it ended before kill {kills + 1}:\n{output}"
            os.killpg(job.pid, signal.SIGKILL)  # its guard ends the ranks
            job.wait()
            kills += 1

    last = subprocess.run(command("killed"), capture_output=True, text=True, timeout=300)
    assert last.returncode == 0, last.stdout + last.stderr
    assert "goes on at step" in last.stdout
    assert model_of(last.stdout) == model_of(whole.stdout)
    assert len(names(tmp_path / "killed")) == 2


def test_a_checkpoint_that_was_moved_and_linked_back_is_no_obstacle(
    tmp_path: Path, alone: None, caplog: pytest.LogCaptureFixture
) -> None:
    v = malt.vector(np.ones(3))
    first = malt.save(tmp_path / "saved", {"v": v})
    moved = first.rename(tmp_path / "moved")
    first.symlink_to(moved)
    for _ in range(4):
        malt.save(tmp_path / "saved", {"v": v}, keep=1)
    assert not caplog.records
    assert len(names(tmp_path / "saved")) == 1
    assert list(moved.iterdir())  # its owner's
