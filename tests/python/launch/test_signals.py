"""Signals to `malt run`, and that nothing is left behind however it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest
from launches import (
    MALT_RUN,
    Script,
    assert_gone,
    exists,
    is_alive,
    noted,
    run,
    running,
    wait_until,
)

# Signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT"])
def test_signal_is_passed_on_to_all_ranks(script: Script, name: str) -> None:
    path = script(
        f"signal.signal(signal.{name}, lambda *_: (note(f'got{{rank}}'), os._exit(0)))\n"
        "note(f'ready{rank}'); time.sleep(600)\n"
    )
    with running("-n", 2, path) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.Signals[name])
        assert job.wait(100) == 0
    assert exists("got0", "got1")


def test_interrupt_ends_ranks_once_and_quietly(script: Script) -> None:
    path = script(
        "try: note(f'ready{rank}'); time.sleep(600)\n"
        "except KeyboardInterrupt: print('saved'); time.sleep(0.5); sys.exit(0)\n"
    )
    with running("-n", 2, path) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=100)
    assert sorted(out.splitlines()) == [b"[0] saved", b"[1] saved"]
    assert err == b"malt run: SIGINT passed on to the ranks; once more kills them\n"
    assert job.returncode == 0


def test_second_interrupt_kills(script: Script) -> None:
    path = script(
        "signal.signal(signal.SIGINT, lambda *_: note(f'int{rank}'))\n"
        "note(f'ready{rank}')\nwhile True: time.sleep(1)\n"
    )
    with running("-n", 2, path) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.SIGINT)
        assert exists("int0", "int1")
        time.sleep(0.4)
        job.send_signal(signal.SIGINT)
        assert job.wait(100) == 137
    assert_gone(*noted("pid0", "pid1"))


def test_terminal_ctrl_c_reaches_each_rank_once(script: Script) -> None:
    path = script(
        "count = 0\n"
        "def on(*_):\n"
        "    global count; count += 1\n"
        "signal.signal(signal.SIGINT, on); print('ready')\n"
        "end = time.time() + 1.5\n"
        "while time.time() < end: time.sleep(0.05)\n"
        "print('count', count)\n"
    )
    for size in (1, 2):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [*MALT_RUN, "-n", str(size), str(path)])
        seen = b""
        while seen.count(b"ready") < size:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # what reading a terminal ends with
            while data := os.read(terminal, 4096):
                seen += data
        os.close(terminal)
        assert os.waitpid(pid, 0)[1] == 0
        assert seen.count(b"count 1") == size, seen


def test_ctrl_z_stops_the_ranks_too(script: Script) -> None:
    with running("-n", 2, script("time.sleep(600)")) as job:
        assert exists("pid0", "pid1")
        time.sleep(0.2)
        job.send_signal(signal.SIGTSTP)

        def states() -> set[str]:
            processes = [job.pid, *noted("pid0", "pid1")]
            stats = [Path(f"/proc/{p}/stat").read_text() for p in processes]
            return {stat.rpartition(")")[2].split()[0] for stat in stats}

        assert wait_until(lambda: states() == {"T"})
        job.send_signal(signal.SIGCONT)
        assert wait_until(lambda: states() == {"S"})


STOPS_ITSELF = "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"


def test_stopped_rank_is_named_and_ended_after_the_others(script: Script) -> None:
    done = run("-n", 2, "--keep-going", "--grace", 0.5, script(STOPS_ITSELF))
    stopped, ended = done.stderr.splitlines()
    [pid] = noted("pid1")
    assert stopped.decode() == (
        f"malt run: rank 1 is stopped by SIGSTOP; it goes on after kill -CONT {pid}"
    )
    assert ended == b"malt run: rank 1: still stopped 0.5 s after the others ended; ending the job"
    assert done.returncode == 128 + signal.SIGTERM


def test_stopped_job_is_left_alone(script: Script) -> None:
    with running("-n", 2, "--grace", 0.1, script("time.sleep(2)")) as job:
        assert exists("pid0", "pid1")
        pids = list(noted("pid0", "pid1"))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert job.wait(100) == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_stopped_rank_hears_signals_that_end_it(script: Script, name: str) -> None:
    body = f"signal.signal(signal.{name}, signal.SIG_DFL)\nnote(f'ready{{rank}}')\n"
    with running("-n", 2, script(f"{body}{STOPS_ITSELF}time.sleep(600)")) as job:
        assert exists("ready0", "ready1")
        assert job.stderr is not None
        assert b"is stopped by SIGSTOP" in job.stderr.readline()
        job.send_signal(signal.Signals[name])
        assert job.wait(100) == 128 + signal.Signals[name]


def test_ignored_hangup_stays_ignored(script: Script) -> None:
    path = script("note(f'ready{rank}'); time.sleep(1)")
    with running(
        "-n", 2, path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.SIGHUP)
        assert job.wait(100) == 0


# Nothing is left behind


HELPER = (
    "subprocess.Popen([sys.executable, '-c', 'import os, time; "
    'open("helper%d.tmp", "w").write(str(os.getpid())); '
    'os.rename("helper%d.tmp", "helper%d"); time.sleep(600)\' % (rank, rank, rank)])\n'
    "wait_for(f'helper{rank}')\n"
)


def test_kill_of_the_launcher_takes_ranks_and_their_children_along(script: Script) -> None:
    with running("-n", 2, script(HELPER + "note(f'ready{rank}'); time.sleep(600)")) as job:
        assert exists("ready0", "ready1")
        guards = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        job.kill()
        job.wait(100)
        assert_gone(*noted("pid0", "pid1", "helper0", "helper1"))
        assert_gone(*map(int, guards))


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.06, 0.09, 0.12, 0.2, 0.3])
def test_kill_of_the_launcher_at_any_time_leaves_nothing(script: Script, delay: float) -> None:
    path = script("time.sleep(600)")
    with running("-n", 4, path) as job:
        time.sleep(delay)
        job.kill()
        job.wait(100)

    def left() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(path).encode() in process.read_bytes() and is_alive(int(process.parts[2])):
                    found.append(process.parts[2])
        return found

    assert wait_until(lambda: not left()), left()


def test_child_that_outlives_its_rank_neither_hangs_the_launcher_nor_stays(script: Script) -> None:
    done = run("-n", 2, script(HELPER))
    assert done.returncode == 0
    assert_gone(*noted("helper0", "helper1"))


def test_daemon_that_holds_the_output_does_not_hang_the_launcher(script: Script) -> None:
    daemon = HELPER.replace("])\n", "], start_new_session=True)\n", 1)
    done = run("-n", 2, script(daemon + "print('done')"))
    assert sorted(done.stdout.splitlines()) == [b"[0] done", b"[1] done"]
    for process in noted("helper0", "helper1"):
        assert is_alive(process)  # it has left on purpose
        os.kill(process, signal.SIGKILL)


def test_children_of_a_killed_rank_are_ended(script: Script) -> None:
    path = script(
        HELPER + "wait_for('helper0', 'helper1')\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(600)"
    )
    assert run("-n", 2, path).returncode == 137
    assert_gone(*noted("pid0", "helper0", "helper1"))


def test_launcher_sleeps_while_ranks_work(script: Script) -> None:
    with running("-n", 2, script("note(f'ready{rank}'); time.sleep(600)")) as job:
        assert exists("ready0", "ready1")
        time.sleep(0.2)

        def ticks() -> int:
            stat = Path(f"/proc/{job.pid}/stat").read_text()
            return sum(map(int, stat.rpartition(")")[2].split()[11:13]))

        before = ticks()
        time.sleep(1)
        assert ticks() - before <= 1
