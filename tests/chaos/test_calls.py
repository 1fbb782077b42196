"""Every call that waits, while a peer dies or is stopped, on one host and between hosts.

It returns within its time limit, and names the peer or goes on without it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from calls import CALLS, script_of
from jobs import start_job

TIMEOUT, SILENCE = 2.0, 1.0
LONG = 60.0  # for whichever of them shall not be reached
SLACK = 15.0  # the machine may be busy; 0.1 s are promised


def outcome(
    directory: Path,
    call: str,
    fault: signal.Signals,
    transport: str,
    *,
    timeout: float,
    silence: float,
) -> tuple[str, tuple[int, ...] | None, float]:
    """What rank 0's call ends with while `fault` befalls rank 1, and after how many seconds."""
    is_stopped = fault == signal.SIGSTOP
    script = script_of(call, timeout=timeout, silence=silence, is_hit_before=is_stopped)
    environ = {"MALT_TRANSPORT": transport}
    with start_job(directory, 2, script, "--keep-going", environ=environ) as job:
        [pid] = job.await_told("pid", ranks=[1])
        job.await_told("ready", ranks=[0])
        if fault == signal.SIGKILL:
            time.sleep(0.2)  # until rank 0 waits
        os.kill(pid, fault)
        job.raise_flag("hit")
        [seconds] = job.await_told("seconds", ranks=[0])
        [error] = job.await_told("error", ranks=[0])
    if error is None:
        return "goes on", None, seconds
    assert error.says("rank 1") or call == "finalize", error
    return error.kind, error.ranks, seconds


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("call", CALLS)
def test_call_with_a_peer_that_dies_goes_on(tmp_path: Path, call: str, transport: str) -> None:
    kind, _, seconds = outcome(
        tmp_path, call, signal.SIGKILL, transport, timeout=LONG, silence=LONG
    )
    print(f"row {call}, dead, {transport}: {kind} after {seconds:.2f} s")
    assert kind == "goes on"
    assert seconds < SLACK


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("call", CALLS)
def test_call_with_a_stopped_peer_names_it_in_time(
    tmp_path: Path, call: str, transport: str
) -> None:
    kind, ranks, seconds = outcome(
        tmp_path, call, signal.SIGSTOP, transport, timeout=TIMEOUT, silence=LONG
    )
    print(f"row {call}, stopped, {transport}: {kind} {ranks} after {seconds:.2f} s")
    # It has nobody to wait for on its host; between hosts it gives up, and leaves.
    if call != "finalize":
        assert (kind, ranks) == ("TimeoutError", (1,))
    assert seconds < TIMEOUT + SLACK


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("call", ["scatter", "gather", "barrier"])
def test_call_goes_on_without_a_peer_that_is_silent_for_long(
    tmp_path: Path, call: str, transport: str
) -> None:
    kind, _, seconds = outcome(
        tmp_path, call, signal.SIGSTOP, transport, timeout=LONG, silence=SILENCE
    )
    print(f"row {call}, silent, {transport}: {kind} after {seconds:.2f} s")
    assert kind == "goes on"
    assert seconds < SILENCE + SLACK
