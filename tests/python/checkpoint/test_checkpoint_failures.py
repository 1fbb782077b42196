"""Ranks that fail, die or are killed while they save or restore, and training that is resumed."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import refused, run_job, start_job
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
path, arrays, options, home = "c", {"w": w}, {}, os.getcwd()
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank in bad:
    exec(harm)
error = error_of(malt.save, path, arrays, **options)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
os.chdir(home)
left = sorted(os.listdir("c"))
malt.barrier()
tell(error=error, left=left, again=str(malt.save("c", {"w": w})))
"""
HARMS = {
    "full": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limit[1]))",
        ("is 65,536 bytes; raise it (ulimit -f)", "'w' need 800002 bytes"),
    ),
    "gone": ("os.chdir('/proc')", ("cannot write in c", "every rank may write")),
    "file": (
        "os.mkdir(f'{rank}'); os.chdir(f'{rank}'); open('c', 'w')",
        ("cannot write in c", "File exists"),
    ),
    "type": ("arrays = {'w': 'text'}", ("vectors['w'] is a str",)),
    "no mapping": ("arrays = 3", ("int",)),
    "no path": ("path = 3", ("path is 3; it must be a text or a pathlib.Path",)),
    "keep": ("options['keep'] = 1.5", ("keep is 1.5; it must be a whole number at least 1",)),
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


@pytest.mark.parametrize(
    ("call", "differing", "said"),
    [
        ("save", "path = 'd'", "path is c on rank 0, and d on rank 1"),
        ("save", "options['each_rank'] = False", "each_rank is True on rank 0, and False on rank"),
        ("restore", "path = 'd'", "path is c on rank 0, and d on rank 1"),
        ("restore", "path = 'd/checkpoint-000001'", "path is c on rank 0, and d/checkpoint-0000"),
    ],
)
def test_ranks_that_give_different_paths_are_refused_before_anything_is_written(
    tmp_path: Path, call: str, differing: str, said: str
) -> None:
    body = """
malt.init(timeout=60)
w, path, options = np.full(3, float(rank)), "c", {}
for folder in ("c", "d"):
    malt.save(folder, {"w": w})
w.fill(9)
if rank == 1:
    exec(differing)
error = error_of(getattr(malt, call), path, {"w": w}, **options)
malt.barrier()
tell(error=error, w=w.tolist(), left=[sorted(os.listdir(each)) for each in ("c", "d")])
"""
    result = run_job(tmp_path, 3, body, call=call, differing=differing)
    for error in result.each("error"):
        assert refused(error, f"malt.{call}: {said}", "give all ranks the same")
    assert result.each("w") == [[9.0] * 3] * 3
    assert result.each("left") == [[["checkpoint-000001"]] * 2] * 3


def test_a_file_system_that_is_not_shared_is_named_and_keeps_no_draft(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
os.mkdir(f"{rank}")
os.chdir(f"{rank}")
error = error_of(malt.save, "c", {"w": np.zeros(3)})
left = os.listdir("c")
os.chdir("..")
tell(error=error, left=left)
"""
    result = run_job(tmp_path, 3, body)
    for error in result.each("error"):
        assert refused(error, "rank 1 has written into c/", "a file system that all ranks share")
    assert result.each("left") == [[]] * 3


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


# ---- Calls that an exception ends, and that all ranks repeat -------------------------------------
REPEATED = """
from pathlib import Path
from malt._checkpoint import safetensors
from malt._job.agreement import Together
malt.init(timeout=1)
real, fault, w, errors, wrong, left = Together._exchange, None, np.zeros(3), [], [], []

def exchange(self, name, post, limit, *rest):
    global fault
    if fault is None or name != fault[1]:
        return real(self, name, post, limit, *rest)
    (victim, _, moment), fault = fault, None
    if rank != victim:
        time.sleep(0.3 if moment == "late" else 0)
    elif moment == "late":
        limit = 0.02
    else:
        if moment == "after":
            real(self, name, post, limit, *rest)
        raise KeyboardInterrupt
    return real(self, name, post, limit, *rest)

def save(path):
    malt.save(path, {"w": w})

def restore(path):
    w.fill(-1)
    malt.restore(path, {"w": w})

def values_in(path):
    files = max(Path(path).glob("checkpoint-*")).glob("rank-*")
    return [safetensors.SafetensorsFile(file)["w"][0] for file in files]

Together._exchange = exchange
for number, each in enumerate(faults):
    first, other = f"c{number}", f"d{number}"
    if call == "restore":
        for path, value in ((first, 1), (other, 2), (other, 3)):
            w.fill(value)
            save(path)
    fault = each
    error_of(globals()[call], first)
    fault = None
    meet(f"{number} again")
    for attempt in range(4, 9):
        w.fill(attempt)
        error = error_of(globals()[call], other)
        errors.append(error)
        if error is None:
            raise_flag(f"{number} {attempt} {rank} is right")
        meet(f"{number} {attempt} is made")
        if error is None and values_in(other) + [w[0]] != [attempt if call == "save" else 3] * 4:
            wrong.append((each, attempt, values_in(other), w[0]))
        is_right = all(flag_is_up(f"{number} {attempt} {r} is right") for r in range(size))
        meet(f"{number} {attempt} is seen")
        if is_right:
            break
    left += [name for path in (first, other) if os.path.exists(path) for name in os.listdir(path)]
    meet(f"{number} has ended")
tell(errors=[error for error in errors if error], wrong=wrong, left=left, is_right=is_right)
malt.barrier()
"""


@pytest.mark.parametrize(
    ("call", "steps"),
    [
        pytest.param("save", ("start", "write", "commit"), marks=pytest.mark.long),
        ("restore", ("choose", "read")),
    ],
)
def test_call_that_ended_at_any_step_is_repeated_with_another_path(
    tmp_path: Path, call: str, steps: tuple[str, ...]
) -> None:
    moments = itertools.product((0, 2), steps, ("before", "late", "after"))
    # Between two steps rank 0 does not know yet that the others make a draft.
    faults = [each for each in moments if each != (0, "start", "after")]
    result = run_job(tmp_path, 3, REPEATED, call=call, faults=faults)
    assert result.each("wrong") == [[]] * 3
    assert result.each("is_right") == [True] * 3
    assert {name[:10] for told in result.told for name in told["left"]} == {"checkpoint"}
    for errors in result.each("errors"):
        for error in errors:
            assert error.kind in ("ConfigError", "TimeoutError"), error
            assert error.says("every rank must make") or error.says("all ranks"), error


# Interrupts a rank once, when the others may have ended the step.
INTERRUPT_AFTER = """
from malt._job.agreement import Together

def interrupt_after(step, is_due):
    real = Together._exchange

    def exchange(self, name, *rest):
        nonlocal is_due
        here = real(self, name, *rest)
        if is_due and name == step:
            is_due = False
            raise KeyboardInterrupt
        return here

    Together._exchange = exchange
"""


def test_save_that_is_repeated_on_one_rank_is_not_paired_with_the_next_in_silence(
    tmp_path: Path,
) -> None:
    body = """
malt.init(timeout=20)
interrupt_after("commit", rank == 1)
tell(errors=[error_of(malt.save, "c", {"w": np.full(3, turn)}) for turn in range(2)])
"""
    first, second = run_job(tmp_path, 2, INTERRUPT_AFTER + body).each("errors")
    assert (first[0], second[0].kind) == (None, "builtins.KeyboardInterrupt")
    assert all(
        refused(error, "step start, repeated", "all ranks repeat")
        for error in (first[1], second[1])
    )


def test_save_that_is_repeated_with_another_long_path_is_named_as_that(tmp_path: Path) -> None:
    """What it gives takes several pieces, of which the others have the first."""
    body = """
malt.init(timeout=20)
paths = ["/".join([letter * 200] * 5) for letter in "ab"]
w = {"w": np.zeros(3)}
errors = []
if rank == 0:
    errors.append(error_of(malt.save, paths[0], w, timeout=0.1))
    errors.append(error_of(malt.save, paths[1], w))
else:
    time.sleep(1)
    errors.append(error_of(malt.save, paths[0], w, timeout=1))
tell(errors=errors)
"""
    (first, second), (third,) = run_job(tmp_path, 2, body).each("errors")
    assert first.kind == "TimeoutError"
    assert refused(second, "an exception has ended this call before", "all ranks repeat the call")
    assert third is None or third.kind == "TimeoutError", third  # rank 0 leaves meanwhile


def test_folder_that_takes_no_files_is_no_lack_of_room(alone: None) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.save("/proc/malt", {"w": np.zeros(3)})
    assert "save where every rank may write" in str(info.value)
    assert "room" not in str(info.value)


def test_draft_that_is_removed_meanwhile_is_no_lack_of_room(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = safetensors.write

    def write_late(path: Path, *rest: Any) -> None:
        path.parent.rmdir()
        write(path, *rest)

    monkeypatch.setattr(safetensors, "write", write_late)
    with pytest.raises(malt.ConfigError, match=r"was removed while .*; repeat it on all ranks"):
        malt.save(tmp_path, {"w": np.zeros(3)})


def test_rank_that_repeats_restore_does_not_take_damage_for_no_checkpoint(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
saved = malt.save("c", {"w": np.zeros(3)})
if rank == 0:
    for file in saved.iterdir():
        file.write_bytes(b"damaged")
malt.barrier()
interrupt_after("read", rank == 2)
calls = 3 if rank == 2 else 2
tell(errors=[error_of(malt.restore, "c", {"w": np.zeros(3)}) for _ in range(calls)])
malt.barrier()
"""
    for errors in run_job(tmp_path, 3, INTERRUPT_AFTER + body).each("errors"):
        assert refused(errors[-2], "step choose below 1", "all ranks repeat")
        assert refused(errors[-1], "every checkpoint in c is damaged")


# ---- Resuming ------------------------------------------------------------------------------------
def model_of(output: str) -> str:
    models = set(re.findall(r"model ([0-9a-f]{16})", output))
    assert len(models) == 1, output
    return models.pop()


@pytest.mark.long
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
