"""Limits of the system (ulimit): a job works within them or says which one, and never hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

PROMPT = 15.0  # seconds; the time limits that nobody may wait for are longer


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_64_open_files_are_enough_for_four_ranks(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        4,
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
malt.init(timeout=60)
vectors = [malt.vector(np.full(10, rank + 1.0)) for _ in range(20)]
for v in vectors:
    v.scatter()
    v.gather(malt.SUM, staleness=0)
tell(sums=[v.array[0] for v in vectors], files=len(os.listdir("/proc/self/fd")))
malt.save("c", {"v": vectors[0]})
malt.barrier()
""",
        environ={"MALT_TRANSPORT": transport},
    )
    print(f"row 64 open files, 4 ranks over {transport}: {max(result.each('files'))} in use")
    assert result.each("sums") == [[10.0] * 20] * 4


@pytest.mark.parametrize("spare", [1, 16, 64])
def test_too_small_an_address_space_is_an_error_on_all_ranks(tmp_path: Path, spare: int) -> None:
    """Rank 1 may map so many MB more; the vector needs 224: two slots of each rank, and own."""
    result = run_job(
        tmp_path,
        3,
        """
import resource
malt.init(timeout=60)
malt.vector((3,))
if rank == 1:
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + spare * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
errors = [error_of(malt.vector, (4_000_000,)) for _ in range(2)]
if rank == 1:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    tell(limit=limit)
w = np.ones(2)
malt.vector(w).allreduce(malt.SUM)
tell(errors=errors, w=w.tolist())
malt.barrier()
""",
        spare=spare,
    )
    limit = result.told[1]["limit"] // 1_000_000
    for told in result.told:
        for error in told["errors"]:
            assert error.kind == "ConfigError", error
            assert error.says("rank 1", "cannot map ", f"may map {limit} MB", "ulimit -v"), error
            assert error.seconds < PROMPT
        assert told["w"] == [3, 3]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rank_that_gets_no_thread_says_so_and_can_be_interrupted_still(
    tmp_path: Path, transport: str
) -> None:
    result = run_job(
        tmp_path,
        2,
        """
import resource
# What is imported in the middle of it is not what this is about.
import encodings.idna, hashlib, hmac, socket, ssl, malt._job.mpi, malt._rendezvous.session
if rank == 1:
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 4 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
tell(error=error_of(malt.init, timeout=5), blocked=signal.pthread_sigmask(signal.SIG_BLOCK, ()))
""",
        "--keep-going",
        environ={"MALT_TRANSPORT": transport},
    )
    told = result.told[1]
    assert told["error"].kind == "ConfigError"
    assert told["error"].says("cannot start a thread", "ulimit -u", "ulimit -v"), told["error"]
    assert told["blocked"] == set()
