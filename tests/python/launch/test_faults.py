"""A fault in one rank ends that rank alone, and one line says which, of what, and where."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from jobs import run_job

AT_ONCE = 15.0  # seconds: a wait that ends because of the death, and not at its limit, which is 60

FAULTS = {
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGFPE": "os.kill(os.getpid(), signal.SIGFPE)",
    "SIGILL": "os.kill(os.getpid(), signal.SIGILL)",
    "SIGBUS": "os.kill(os.getpid(), signal.SIGBUS)",
    "SIGABRT": "os.abort()",
}

# Rank 2 comes to grief in step 5, in its loop or in the middle of a gather.
BODY = """
malt.init(timeout=60)
w = np.full(5, rank + 1.0)
v = malt.vector(w)
def go_wrong():
    exec(fault)
def fold(mine, updates):
    if rank == 2 and step == 5 and place == "fold":
        go_wrong()
    mine += 1
tell(pid=os.getpid())
start = time.monotonic()
for step in range(10):
    if rank == 2 and step == 5 and place == "loop":
        go_wrong()
    v.scatter()
    g = v.gather(fold, staleness=0)
tell(seconds=time.monotonic() - start, ranks=g.ranks, alive=malt.alive())
malt.barrier()
"""


@pytest.mark.parametrize("place", ["loop", "fold"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_its_rank_alone_and_is_told(tmp_path: Path, name: str, place: str) -> None:
    code = 128 + signal.Signals[name]
    fault = FAULTS[name]
    result = run_job(tmp_path, 3, BODY, "--keep-going", code=code, fault=fault, place=place)
    for rank in (0, 1):
        told = result.told[rank]
        assert told["seconds"] < AT_ONCE
        assert told["ranks"] == (1 - rank,)
        assert told["alive"] == (0, 1)
    line = rf"^\[2\] malt: rank 2 \(pid {result.told[2]['pid']}\) was ended by {name}$"
    assert len(re.findall(line, result.output, re.MULTILINE)) == 1, result.output
    place_told = r"^\[2\]   File \".*\", line \d+ in go_wrong$"
    assert re.search(place_told, result.output, re.MULTILINE), result.output
    assert re.search(rf"^malt run: rank 2 died of {name}", result.output, re.MULTILINE)


def test_a_fault_in_a_thread_of_malts_own_is_told(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
import ctypes, platform
malt.init(timeout=60)
malt.barrier()
if rank == 1:
    (thread,) = {int(tid) for tid in os.listdir("/proc/self/task")} - {os.getpid()}
    tgkill = {"x86_64": 234, "aarch64": 131}[platform.machine()]
    ctypes.CDLL(None).syscall(tgkill, os.getpid(), thread, int(signal.SIGSEGV))
    time.sleep(30)
while malt.alive() != (0,):
    time.sleep(0.001)
""",
        "--keep-going",
        code=128 + signal.SIGSEGV,
    )
    assert re.search(r"^\[1\] malt: rank 1 .* SIGSEGV$", result.output, re.MULTILINE), result.output


def test_a_fault_of_a_forked_child_is_not_told_as_the_ranks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
child = os.fork()
if child == 0:
    os.abort()
tell(code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
malt.barrier()
""",
    )
    assert result.each("code") == [-signal.SIGABRT] * 2
    assert "was ended by" not in result.output


def test_finalize_restores_the_signals(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        1,
        """
import faulthandler, threading
threading.Thread(target=int).start()  # with the first thread glibc handles a signal of its own
def handlers():
    text = open("/proc/self/status").read()
    return [line for line in text.splitlines() if line.startswith("SigCgt")], \\
        faulthandler.is_enabled()
before = handlers()
malt.init()
during = handlers()
malt.finalize()
after = handlers()
malt.init()
tell(handlers=(before, during, after))
os.abort()
""",
        code=128 + signal.SIGABRT,
    )
    before, during, after = result.told[0]["handlers"]
    assert before == after != during
    assert "malt: rank 0" in result.output


@pytest.mark.parametrize(
    "own",
    [
        "import faulthandler; faulthandler.enable(open('own', 'w'))",
        "signal.signal(signal.SIGABRT, lambda *_: (open('own', 'w').write('x'), os._exit(134)))",
    ],
)
def test_a_program_that_handles_faults_itself_is_left_to_it(tmp_path: Path, own: str) -> None:
    result = run_job(
        tmp_path,
        1,
        """
exec(own)
malt.init()
os.kill(os.getpid(), signal.SIGABRT)
time.sleep(10)
""",
        code=134,
        own=own,
    )
    assert (tmp_path / "own").read_text()
    assert "was ended by" not in result.output
