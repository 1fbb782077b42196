"""Hosts that are short of what bytes are put in: of /dev/shm, which no job needs, and of disk."""

from __future__ import annotations

import pytest
from host_jobs import HostJob

from hosts import Hosts

MB = 1 << 20


def test_job_needs_no_dev_shm(hosts: Hosts) -> None:
    """Containers have 64 MB of it, unless told otherwise; this one has none left."""
    hosts.run(0, "mount", "-o", "remount,size=64m", "/dev/shm")
    hosts.run(0, "sh", "-c", "head -c 64M /dev/zero >/dev/shm/full")
    job = HostJob(
        hosts,
        """
malt.init(timeout=60)
w = np.full(4_000_000, rank + 1.0)  # of which four ranks have 256 MB in two slots each
v = malt.vector(w)
own = malt.vector((1_000_000,))
v.scatter()
got = v.gather(malt.SUM, staleness=0)
own.array[:] = rank
own.allreduce(malt.SUM)
tell(sum=w[0], is_whole=bool((w == w[0]).all()), own=own.array[-1])
malt.barrier()
""",
        on=(0,),
        ranks=4,
    )
    for told in job.finish():
        assert (told["sum"], told["is_whole"], told["own"]) == (10, True, 6)


@pytest.mark.parametrize("ranks", [(0,), (0, 1)], ids=["one", "both"])
def test_full_disk_leaves_the_checkpoint_before_as_it_was(
    hosts: Hosts, ranks: tuple[int, ...]
) -> None:
    """`ranks` save more than there is room for; the others, what there is."""
    disk = hosts.directory / "disk"
    disk.mkdir()
    hosts.run(0, "mount", "-t", "tmpfs", "-o", "size=8m", "disk", str(disk))
    job = HostJob(
        hosts,
        """
malt.init(timeout=20)
w = np.full(100_000, rank + 1.0)  # 800 KB
large = np.zeros(1_000_000 if rank in full else 1)  # 8 MB
malt.save(disk, {"w": w, "large": large[:1]}, {"step": 1})
error = error_of(malt.save, disk, {"w": w + 1, "large": large}, {"step": 2})
left = sorted(os.listdir(disk)) if rank == 0 else None
back = np.zeros(100_000), np.zeros(1)
got = malt.restore(disk, {"w": back[0], "large": back[1]})
again = malt.save(disk, {"w": w, "large": large[:1]}, {"step": 3})
tell(error=error, left=left, step=got.extra["step"], is_whole=bool((back[0] == w).all()),
     damaged=len(got.damaged), again=again.name)
malt.barrier()
""",
        on=(0,),
        ranks=2,
        disk=str(disk),
        full=ranks,
    )
    told = job.finish()
    assert told[0]["left"] == ["checkpoint-000001"], "what was written of the other is gone"
    for one in told:
        error = one["error"]
        assert error.kind == "ConfigError"
        assert error.says(f"rank {ranks[0]}: ", str(disk), "No space left", "need 88000"), error
        assert error.seconds < 10
        assert (one["step"], one["is_whole"], one["damaged"]) == (1, True, 0)
        assert one["again"] == "checkpoint-000002"
