"""A rank that takes in what another host sends is stopped for less than the silence."""

from __future__ import annotations

import time

from host_jobs import HostJob

from hosts import Hosts

SILENCE = 2.0
STOPPED = 0.65 * SILENCE  # the senders have called another rank by then, and nobody is evicted
CYCLES = 6


def test_update_that_is_being_folded_never_changes(hosts: Hosts) -> None:
    """Ranks 0 and 1, on one host, are stopped in turn; both fold what rank 2 sends from another."""
    job = HostJob(
        hosts,
        """
malt.init(timeout=60, silence=SILENCE)
w = np.zeros(768)
v = malt.vector(w)
tell(pid=os.getpid())
seen = {"folded": 0, "torn": 0, "changed": 0, "back": 0}
last = 0
def fold(mine, updates):
    global last
    for u in updates:
        if u.rank != 2: continue
        first = float(u.values[0])
        seen["folded"] += 1
        seen["torn"] += not (u.values == first).all()
        seen["back"] += first <= last
        last = first
        time.sleep(0.003)
        seen["changed"] += not (u.values == first).all()
malt.barrier()
tell(begun=True)
while not flag_is_up("over"):
    if rank == 2:
        w += 1
        v.scatter()
        if w[0] % 64 == 0: time.sleep(0.0002)
    else:
        v.gather(fold)
        time.sleep(0.001)
tell(alive=malt.alive(), sent=float(w[0]), **seen)
malt.barrier()
""",
        on=(0, 1),
        SILENCE=SILENCE,
    )
    job.await_told("begun")
    for cycle in range(CYCLES):
        time.sleep(0.3)
        pid = str(job.told(cycle % 2)["pid"])
        hosts.run(0, "kill", "-STOP", pid)
        time.sleep(STOPPED)
        hosts.run(0, "kill", "-CONT", pid)
    time.sleep(0.3)
    job.raise_flag("over")
    told = job.finish()
    assert all(set(one["alive"]) == {0, 1, 2, 3} for one in told)
    for one in told[:2]:
        assert one["folded"] > 100
        assert (one["torn"], one["changed"], one["back"]) == (0, 0, 0), one
