"""Limits of the system (ulimit): a job works within them or says which one, and never hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import PROMPT, refused, run_job


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


def test_too_small_a_limit_on_files_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    """It holds for shared memory too, and what ignores it is ended by a signal."""
    result = run_job(
        tmp_path,
        3,
        """
import resource
malt.init(timeout=60)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
error = error_of(malt.vector, (1_000_000,))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
w = np.ones(2)
malt.vector(w).allreduce(malt.SUM)
tell(error=error, w=w.tolist())
malt.barrier()
""",
    )
    for told in result.told:
        error = told["error"]
        assert error.kind == "ConfigError"
        assert error.says("needs shared memory of", "1048576 bytes", "ulimit -f"), error
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
import encodings.idna, hashlib, hmac, socket, ssl, malt._bootstrap.mpi, malt._rendezvous.session
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


def test_no_space_is_an_error_on_every_rank_that_names_both_sizes(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
big = 1 << 37
tell(own=error_of(malt.vector, (big,)), sparse=error_of(malt.sparse_vector, 2**31 - 1,
     capacity=2**31 - 1, depth=500))
w = np.ones(2)
malt.vector(w).allreduce(malt.SUM)
tell(w=w)
malt.barrier()
""",
    )
    for told in result.told:
        # Two ranks with two slots and the vector, and one result: 7 vectors of 549,755 MB.
        assert refused(told["own"], "needs 38482", "MB of shared memory", "but only", "available")
        assert refused(told["own"], "use fewer ranks, a smaller depth or a smaller vector")
        assert refused(told["sparse"], "MB of shared memory", "but only", "available")
        assert told["w"].tolist() == [2, 2]


def test_too_many_open_files_is_an_error_and_no_hang(tmp_path: Path) -> None:
    """Rank 1 may open none, then one, which is what a vector needs for a moment."""
    result = run_job(
        tmp_path,
        3,
        """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
malt.init(timeout=60)
if rank == 1:
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
errors = [error_of(malt.vector, np.zeros(10)) for _ in range(2)]
if rank == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
w = np.ones(2)
malt.vector(w).allreduce(malt.SUM)
tell(errors=errors, w=w)
malt.barrier()
""",
    )
    for told in result.told:
        for error in told["errors"]:
            assert refused(error, "rank 1", "Too many open files", "ulimit -n")
        assert told["w"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("transport", "files"),
    [*(("shm", n) for n in range(6)), *(("tcp", n) for n in range(0, 24, 3))],
)
def test_too_many_open_files_at_init_is_an_error_and_no_hang(
    tmp_path: Path, transport: str, files: int
) -> None:
    """A job of four needs a descriptor to watch each other rank, one for memory, and more.

    Between hosts it needs one for each connection.
    """
    result = run_job(
        tmp_path,
        4,
        """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if rank == 1:
    # What is imported in the middle of it is not what this is about.
    import encodings.idna, hashlib, hmac, socket, ssl, malt._bootstrap.mpi, malt._rendezvous.session
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + files, hard))
error = error_of(malt.init, timeout=10)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
tell(error=error)
if error is None:
    malt.barrier(1)
""",
        "--keep-going",
        code=0 if files < 4 else None,
        files=files,
        environ={"MALT_TRANSPORT": transport},
    )
    errors = result.each("error")
    if errors == [None] * 4 and files >= 4:
        return
    assert errors[1].kind in ("ConfigError", "Error"), errors[1]
    assert errors[1].says("open files"), errors[1]
    assert errors[1].says("ulimit -n"), errors[1]
    for rank in (0, 2, 3):
        assert errors[rank].kind in ("ConfigError", "TimeoutError", "PeerError"), errors[rank]
        assert errors[rank].says("rank 1"), errors[rank]
        assert errors[rank].seconds < 10 + PROMPT


def test_a_table_and_an_edge_share_the_jobs_descriptors(tmp_path: Path) -> None:
    """All groups of a job watch the same processes."""
    result = run_job(
        tmp_path,
        4,
        """
def files(): return len(os.listdir("/proc/self/fd"))
malt.init(timeout=60, transport="shm")
before = files()
table = malt.ps.Table(100, 1)
edge = malt.messages.Edge(0, 1)
tell(more=files() - before)
malt.barrier()
""",
    )
    # Of the table's two groups: two eventfds, the own process and the rows; and an eventfd.
    assert max(result.each("more")) <= 5
