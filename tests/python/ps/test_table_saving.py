"""Tables in checkpoints of jobs: what comes back, and on which ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from jobs import PROMPT, refused, run_job, start_job
from saved_files import names

from malt._checkpoint.safetensors import SafetensorsFile

RULES = ["Momentum(0.1, 0.8)", "AdaGrad(0.5)", "FTRL(0.2, 1.5, 0.6, 0.1)", "SGD(0.3)"]

# The rows after six clocks, saved after three. Only rank 0 pushes in the last three, so that they
# are the same on any number of ranks.
TRAIN = """
malt.init(timeout=60)
update = eval("malt.ps." + rule)
def push(step):
    rng = np.random.default_rng(step)
    keys = np.flatnonzero(rng.random(3000) < 0.7)
    table.push(keys, rng.normal(size=(len(keys), 3)))
table = malt.ps.Table(3000, 3, update=update, staleness=staleness, replicas=replicas)
"""
SAVE = (
    TRAIN
    + """
for step in range(3):
    push(10 * step + rank)
    table.clock()
malt.save("../c", {"t": table, "w": np.full(2, float(rank))}, {"at": table.iteration})
tell(saved=table.pull())
malt.barrier()
"""
)
RESTORE = (
    TRAIN
    + """
w = np.zeros(2)
assert malt.restore("../c", {"t": table, "w": w}, resized="wrap").extra["at"] == 3
assert table.iteration == 3
tell(restored=table.pull(), w=w[0])
malt.barrier()
"""
)
GO_ON = """
for step in range(3, 6):
    if rank == 0:
        push(100 * step)
    table.clock()
malt.barrier()
tell(end=table.pull())
table.close()
"""


@pytest.mark.parametrize(("rule", "staleness"), [(rule, 0) for rule in RULES] + [(RULES[1], None)])
def test_rows_and_what_the_rule_keeps_come_back_on_any_number_of_ranks(
    tmp_path: Path, rule: str, staleness: int | None
) -> None:
    options = {"rule": rule, "staleness": staleness}
    body = SAVE if staleness == 0 else SAVE.replace("malt.save", "malt.barrier(); malt.save")
    saved = run_job(tmp_path / "save", 3, body + GO_ON, replicas=1, **options)
    for ranks, replicas in ((3, 1), (1, 0), (2, 1), (4, 2)):
        result = run_job(
            tmp_path / f"restore-{ranks}", ranks, RESTORE + GO_ON, replicas=replicas, **options
        )
        for name, expected in (("restored", "saved"), ("end", "end")):
            for values in result.each(name):
                assert np.array_equal(values, saved.told[0][expected]), (ranks, name)
        assert result.each("w") == [rank % 3 for rank in range(ranks)]


def test_each_rank_writes_the_rows_of_which_it_is_the_primary(tmp_path: Path) -> None:
    run_job(tmp_path / "save", 3, SAVE, rule=RULES[1], staleness=0, replicas=2)
    rows = []
    for rank in range(3):
        file = SafetensorsFile(tmp_path / f"c/checkpoint-000001/rank-{rank:05d}.safetensors")
        firsts = {name.split("/")[1] for name in file if name.startswith("t/")}
        assert {f"t/{first}/{array}" for first in firsts for array in ("values", "n")} <= set(file)
        rows.append(sum(file.shape_of(f"t/{first}/values")[0] for first in firsts))
    assert sum(rows) == 3000
    assert min(rows) > 500


def test_a_table_is_saved_whole_beside_values_of_one_rank(tmp_path: Path) -> None:
    body = SAVE.replace("table.iteration}", "table.iteration}, each_rank=False")
    saved = run_job(tmp_path / "save", 3, body, rule=RULES[0], staleness=0, replicas=0)
    assert len(names(tmp_path / "c/checkpoint-000001")) == 3
    result = run_job(tmp_path / "restore", 2, RESTORE, rule=RULES[0], staleness=0, replicas=0)
    assert result.each("w") == [0, 0]
    assert np.array_equal(result.told[1]["restored"], saved.told[0]["saved"])


# ---- Consistency ---------------------------------------------------------------------------------
# Rank r has ended 2 + r clocks with 1 pushed in each to its column, and has begun another one.
UNEVEN = """
malt.init(timeout=60)
table = malt.ps.Table(500, size, dtype=np.float64, staleness=staleness, replicas=replicas)
ones = np.zeros((500, size))
ones[:, rank] = 1
for step in range(2 + rank):
    table.push(None, ones)
    table.clock()
table.push(None, ones)
malt.save("../c", {"t": table})
"""
LOOK = """
malt.init(timeout=60)
table = malt.ps.Table(500, 2, dtype=np.float64, staleness=staleness)
malt.restore("../c", {"t": table})
tell(at=table.iteration)
malt.barrier()
rows = table.pull()
assert (rows == rows[0]).all()
tell(row=rows[0].tolist())
malt.barrier()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("staleness", "row", "clocks"),
    [
        (0, [2, 2], [2, 2]),  # BSP: all pushes of clocks below the lowest, and no others
        (3, [3, 4], [2, 3]),  # all pushes before the call, and each rank's own clock
        (None, [3, 4], [2, 3]),
    ],
)
def test_a_checkpoint_has_the_pushes_that_the_staleness_says(
    tmp_path: Path, transport: str, staleness: int | None, row: list[int], clocks: list[int]
) -> None:
    environ = {"MALT_TRANSPORT": transport}
    run_job(tmp_path / "save", 2, UNEVEN, environ=environ, staleness=staleness, replicas=1)
    result = run_job(tmp_path / "same", 2, LOOK, environ=environ, staleness=staleness)
    assert result.each("row") == [row, row]
    assert result.each("at") == clocks
    other = run_job(tmp_path / "other", 3, LOOK, environ=environ, staleness=staleness)
    assert other.each("row") == [row] * 3
    assert other.each("at") == [2] * 3  # where no rank has more to do again than it has pushed


def test_restoring_goes_back_in_time(tmp_path: Path) -> None:
    """What was pushed after the checkpoint is gone: kept for a later clock, or held back."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
with malt.ps.Table(500, dtype=np.float64, staleness=0, threshold=2, replicas=1) as table:
    table.push(None, 5.0)
    table.clock()
    malt.save("c", {"t": table})
    for step in range(3):
        table.push(None, 7.0)
        table.clock()
    table.push(None, 9.0)
    table.push(None, 1.0)
    assert table.stats().rows_held_back == 500
    malt.restore("c", {"t": table})
    assert table.iteration == 1
    assert table.stats().rows_held_back == 0
    assert (table.pull() == 10).all()
    table.push(None, 2.0)
    table.clock()
    tell(values=table.pull())
    table.wait()
""",
    )
    for values in result.each("values"):
        assert (values == 14).all()


def test_no_rank_runs_ahead_of_the_others_after_a_restore(tmp_path: Path) -> None:
    """At staleness 0 the others' clocks are those of the checkpoint from then on."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
with malt.ps.Table(500, staleness=0) as table:
    malt.save("c", {"t": table})
    for _ in range(20):
        table.clock()
    malt.restore("c", {"t": table})
    malt.barrier()
    errors = [error_of(table.clock, timeout=1) for _ in range(10 if rank == 0 else 0)]
    tell(errors=errors, at=table.iteration)
    malt.barrier()
    for _ in range(rank * 8):
        table.clock()
""",
    )
    assert result.each("at") == [8, 0]
    assert {error.kind for error in result.told[0]["errors"][8:]} == {"TimeoutError"}
    assert result.told[0]["errors"][8].ranks == (1,)


def test_ranks_that_name_different_tables_are_refused(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
table, other = malt.ps.Table(300), malt.ps.Table(300)
w = np.zeros(2)
malt.save("c", {"w": w, "t": table})
given = {"w": w, "t": table} if rank != 1 else {"w": w, "u": other}
tell(other=[error_of(call, "c", given) for call in (malt.save, malt.restore)])
malt.barrier()
if rank == 1:
    table.leave()
    del given["u"]
tell(left=[error_of(call, "c", given) for call in (malt.save, malt.restore)])
malt.barrier()
other.close()
"""
    result = run_job(tmp_path, 3, body)
    for name, theirs in (("other", "rank 1: 'u'"), ("left", "rank 1: none")):
        for errors in result.each(name):
            assert all(refused(error, "ranks 0, 2: 't'", theirs) for error in errors)
    assert names(tmp_path / "c") == ["checkpoint-000001"]


# ---- Deaths --------------------------------------------------------------------------------------
def test_others_save_what_a_rank_had_that_dies_meanwhile(tmp_path: Path) -> None:
    body = """
from malt._checkpoint import safetensors
malt.init(timeout=60)
table = malt.ps.Table(3000, dtype=np.float64, replicas=1)
table.push(None, 1.0)
table.wait()
malt.barrier()
if rank == 1:
    safetensors.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
malt.save("../c", {"t": table})
"""
    run_job(tmp_path / "save", 3, body, "--keep-going", code=128 + signal.SIGKILL)
    assert len(names(tmp_path / "c/checkpoint-000001")) == 2
    look = LOOK.replace("500, 2,", "3000,").replace(".tolist()", "")
    result = run_job(tmp_path / "restore", 2, look, staleness=None)
    assert result.each("row") == [3, 3]


def test_rows_that_are_lost_are_not_saved_and_can_be_restored(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
table = malt.ps.Table(3000, dtype=np.float64)
table.push(None, 1.0)
malt.save("c", {"t": table})
malt.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while len(malt.alive()) == 3 or len(table.alive()) == 3:
    pass
tell(lost=error_of(malt.save, "c", {"t": table}))
malt.restore("c", {"t": table})
malt.barrier()
tell(values=table.pull())
malt.barrier()
table.push(None, 1.0)
table.wait()
malt.barrier()
tell(after=table.pull())
table.close()
"""
    result = run_job(tmp_path, 3, body, "--keep-going", code=128 + signal.SIGKILL)
    for rank in (0, 2):
        assert result.told[rank]["lost"].kind == "ConfigError"
        assert result.told[rank]["lost"].says("lost with rank 1", "malt.restore")
        assert not result.told[rank]["lost"].says("make room")
        assert (result.told[rank]["values"] == 3).all()
        assert (result.told[rank]["after"] == 5).all()
    assert names(tmp_path / "c") == ["checkpoint-000001"]


def test_when_a_rank_dies_while_rows_are_restored_the_others_restore_again(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
table = malt.ps.Table(3000, 2, dtype=np.float64, replicas=1, staleness=0)
table.push(None, 1.0)
table.clock()
malt.save("c", {"t": table})
table.push(None, 5.0)
table.clock()
if rank == 1:
    real = malt.ps._saving.TableRows.end_write
    def end_write(rows, part):
        real(rows, part)
        os.kill(os.getpid(), signal.SIGKILL)
    malt.ps._saving.TableRows.end_write = end_write
error = error_of(malt.restore, "c", {"t": table})
tell(error=error)
malt.restore("c", {"t": table})
malt.barrier()
tell(values=table.pull())
table.close()
"""
    result = run_job(tmp_path, 3, body, "--keep-going", code=128 + signal.SIGKILL)
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert error.kind == "PeerError"
        assert error.says("rank 1 died", "call it again")
        assert (result.told[rank]["values"] == 3).all()


def test_rows_of_a_rank_that_dies_while_it_reads_are_not_thought_restored(tmp_path: Path) -> None:
    body = """
from malt._checkpoint import spread
malt.init(timeout=60)
table = malt.ps.Table(3000, dtype=np.float64, replicas=1)
table.push(None, 1.0)
malt.save("c", {"t": table})
malt.barrier()
table.push(None, 5.0)
if rank == 1:
    spread.open_saved = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
tell(error=error_of(malt.restore, "c", {"t": table}))
malt.restore("c", {"t": table})
malt.barrier()
tell(values=table.pull())
table.close()
"""
    result = run_job(tmp_path, 3, body, "--keep-going", code=128 + signal.SIGKILL)
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert error is not None, "rows of before, and no error"
        assert error.kind == "PeerError"
        assert error.says("rank 1 died", "call it again")
        assert (result.told[rank]["values"] == 3).all()


@pytest.mark.parametrize(
    ("call", "where"),
    [("save", "await_pushes"), ("restore", "drop_pushes"), ("restore", "end_write")],
)
def test_waits_for_the_rows_of_a_stopped_rank_end_at_the_time_limit(
    tmp_path: Path, call: str, where: str
) -> None:
    body = """
from malt.ps._saving import TableRows
malt.init(timeout=60, silence=60)
table = malt.ps.Table(3000, dtype=np.float64, replicas=1)
malt.save("c", {"t": table})
real = getattr(TableRows, where)
def stopped(*args):
    if rank == 1:
        raise_flag("stops")
        os.kill(os.getpid(), signal.SIGSTOP)
    await_flag("stops")
    time.sleep(0.1)
    table.push(None, 1.0)
    real(*args)
setattr(TableRows, where, stopped)
tell(pid=os.getpid())
tell(error=error_of(getattr(malt, call), "c", {"t": table}, timeout=2))
await_flag("never")
"""
    with start_job(tmp_path, 3, f"call, where = {call!r}, {where!r}\n{body}") as job:
        pids = job.await_told("pid")
        errors = job.await_told("error", ranks=[0, 2])
        os.kill(pids[1], signal.SIGCONT)
    for error in errors:
        assert error.kind == "TimeoutError"
        assert error.ranks == (1,)
        assert error.seconds < PROMPT


def test_restored_rows_have_their_copies(tmp_path: Path) -> None:
    body = """
table.clock()
malt.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while len(table.alive()) == 3:
    pass
tell(end=table.pull())
malt.barrier()
"""
    options = {"rule": RULES[1], "staleness": None}
    saved = run_job(tmp_path / "save", 2, SAVE, replicas=0, **options)
    result = run_job(
        tmp_path / "restore",
        3,
        RESTORE + body,
        "--keep-going",
        code=128 + signal.SIGKILL,
        replicas=1,
        **options,
    )
    for rank in (0, 2):
        assert np.array_equal(result.told[rank]["end"], saved.told[0]["saved"])


def test_a_table_that_has_moved_to_another_group_is_saved_whole(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
table = malt.ps.Table(3000, dtype=np.float64, replicas=1, staleness=2)
tell(pid=os.getpid(), restarts=malt.jobs.restarts())
while table.iteration < goal():
    table.push(None, 1.0)
    table.clock()
    table.pull(np.arange(0, 3000, 7))
    tell(at=table.iteration)
malt.barrier()
malt.save("c", {"t": table}, {"at": table.iteration})
malt.barrier()
tell(sum=table.pull())
malt.barrier()
table.push(None, 5.0)
malt.restore("c", {"t": table})
malt.barrier()
tell(again=table.pull())
table.close()
"""
    with start_job(tmp_path, 3, body, "--respawn=3") as job:
        job.kill_and_await_return(1)
        job.set_goal(10)
        result = job.finish()
    assert result.code == 0, result.output
    for told in result.told:
        assert np.array_equal(told["sum"], result.told[0]["sum"])
        assert np.array_equal(told["again"], result.told[0]["sum"])
