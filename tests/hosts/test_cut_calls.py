"""Every call that waits, while the network to the peer is cut (dead, stopped: tests/chaos).

It returns within its time limit and names the peer; or goes on without it, on the side that may.
"""

from __future__ import annotations

import pytest
from calls import CALLS, script_of
from host_jobs import HostJob
from jobs import Err

from hosts import Hosts

TIMEOUT, SILENCE = 2.0, 1.0
LONG = 60.0  # for whichever of them shall not be reached
SLACK = 15.0  # the machine may be busy


def outcome(
    hosts: Hosts, call: str, timeout: float, silence: float, caller: int = 0
) -> tuple[Err | None, float]:
    """What the caller's call ends with when the other host's cable is pulled before."""
    script = script_of(call, timeout=timeout, silence=silence, is_hit_before=True, caller=caller)
    job = HostJob(hosts, script, "--keep-going", on=(0, 1), ranks=1)
    job.await_told("ready", ranks=[caller])
    hosts.link(1 - caller, up=False)
    job.raise_flag("hit")
    [seconds] = job.await_told("seconds", ranks=[caller])
    return job.told(caller)["error"], seconds


@pytest.mark.parametrize("call", CALLS)
def test_call_with_a_peer_that_is_cut_off_names_it_in_time(hosts: Hosts, call: str) -> None:
    error, seconds = outcome(hosts, call, TIMEOUT, LONG)
    print(f"row {call}, cut off, tcp: {error and error.kind} after {seconds:.2f} s")
    if call == "finalize":  # gives up, and leaves
        assert error is None
    else:
        assert error is not None
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.says("rank 1"), error
    assert seconds < TIMEOUT + SLACK


@pytest.mark.parametrize("call", ["scatter", "gather", "barrier"])
def test_call_goes_on_without_a_peer_that_is_cut_off_for_long(hosts: Hosts, call: str) -> None:
    error, seconds = outcome(hosts, call, LONG, SILENCE)
    print(f"row {call}, cut off for the silence, tcp: {error} after {seconds:.2f} s")
    assert error is None
    assert seconds < SILENCE + SLACK


@pytest.mark.parametrize("call", ["scatter", "gather", "barrier"])
def test_call_of_the_rank_that_is_cut_off_itself_says_so(hosts: Hosts, call: str) -> None:
    error, seconds = outcome(hosts, call, LONG, SILENCE, caller=1)
    print(f"row {call}, cut off itself, tcp: {error and error.kind} after {seconds:.2f} s")
    assert error is not None
    assert (error.kind, error.ranks) == ("PeerError", (0,))
    assert error.says("rank 1 is cut off", "no majority"), error
    assert seconds < 2.25 * SILENCE + SLACK  # heard nothing, then found no majority for so long
