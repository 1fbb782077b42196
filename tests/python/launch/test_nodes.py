"""`malt run` on several nodes: launchers on this host that meet over loopback, as on several."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from launches import MALT_RUN, PREAMBLE, assert_gone, exists, noted, wait_until

from malt._errors import ConfigError
from malt._rendezvous.server import Server

KEY = bytes(range(32)).hex()
# Of the processes that run tests beside one another (pytest-xdist), each has ports of its own.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def free_port() -> int:
    """Not one that the system gives to those who connect."""
    while True:
        port = random.randrange(20_000 + WORKER % WORKERS, 32_000, WORKERS)
        try:
            with socket.create_server(("", port)):
                return port
        except OSError:
            continue


def can_bind(host: str) -> bool:
    try:
        Server(1, b"", host).close()
    except ConfigError:
        return False
    return True


def is_answered(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


class Ended(NamedTuple):
    code: int
    out: list[str]  # lines, sorted: those of several ranks come in any order
    err: str


class Job:
    """The launchers of a job, one a node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.launchers: list[subprocess.Popen[str]] = []

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def write(self, body: str) -> None:
        (self.directory / "program.py").write_text(PREAMBLE + body)

    def start(
        self, node: int, *arguments: object, nnodes: int = 2, ranks: int = 1, key: str | None = KEY
    ) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
        own = f"-n {ranks} --nnodes {nnodes} --node-rank {node} --rendezvous {self.address}"
        launcher = subprocess.Popen(
            [*MALT_RUN, *own.split(), "--grace", "1", *map(str, arguments), "program.py"],
            cwd=self.directory,
            env=environ | ({"MALT_JOB_KEY": key} if key else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.launchers.append(launcher)
        return launcher

    def start_waiting(self, *arguments: object, **options: object) -> subprocess.Popen[str]:
        """Node 0, until it listens."""
        launcher = self.start(0, *arguments, **options)  # type: ignore[arg-type]
        assert wait_until(lambda: is_answered(self.port))
        return launcher


def end_of(launcher: subprocess.Popen[str]) -> Ended:
    out, err = launcher.communicate(timeout=100)
    assert KEY not in out + err
    assert "Traceback" not in err
    return Ended(launcher.returncode, sorted(out.splitlines()), err)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.chdir(tmp_path)
    job = Job(tmp_path)
    job.write("")
    yield job
    for launcher in job.launchers:
        launcher.kill()
        launcher.communicate(timeout=100)


# Start


def test_ranks_of_all_nodes_share_a_vector(job: Job) -> None:
    job.write(
        "import malt, numpy as np\n"
        "malt.init(timeout=20)\n"
        "v = malt.vector(np.full(2, rank + 1.0))\n"
        "v.scatter(); v.gather(malt.SUM, staleness=0)\n"
        "print(v.array); malt.barrier(20)\n"
    )
    (job.directory / "key").write_text(KEY + "\n")
    (job.directory / "key").chmod(0o600)
    second = job.start(1, "--key-file", "key", ranks=2, key=None)  # it waits for node 0
    first = job.start(0, ranks=2)
    assert end_of(first) == (0, ["[0] [10. 10.]", "[1] [10. 10.]"], "")
    assert end_of(second) == (0, ["[2] [10. 10.]", "[3] [10. 10.]"], "")


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_key_file_that_others_can_read_or_write_is_warned_of(job: Job, mode: int) -> None:
    file = job.directory / "key"
    file.write_text(KEY)
    file.chmod(mode)
    job.write("import malt\nmalt.init(timeout=20)\nmalt.barrier()\n")
    second = job.start(1, "--key-file", "key", key=None)
    assert end_of(job.start(0)) == (0, [], "")
    warning = (
        f"malt run: warning: key holds a key, and others can read or write it (mode {mode:04o}): "
        "chmod 600 key\n"
    )
    assert end_of(second) == (0, [], warning)


def test_ranks_come_back_on_all_nodes_or_on_none(job: Job) -> None:
    launchers = job.start(0), job.start(1, "--respawn")
    for end in map(end_of, launchers):
        assert end.code == 2
        assert "node 0 started without --respawn, the others with it" in end.err


def test_ranks_are_numbered_in_the_order_of_nodes(job: Job) -> None:
    names = ["RANK", "SIZE", "LOCAL_RANK", "NODE_RANK", "NNODES"]
    job.write(f"print(*[os.environ['MALT_' + n] for n in {names}])")
    third = job.start(2, nnodes=3)
    second = job.start(1, nnodes=3, ranks=2)
    first = job.start(0, nnodes=3)
    code, out, told = end_of(first)
    assert (code, out) == (0, ["[0] 0 4 0 0 3"])
    assert told.startswith("malt run: none of the 4 processes called malt.init()")  # it alone
    assert end_of(second) == (0, ["[1] 1 4 0 1 3", "[2] 2 4 1 1 3"], "")
    assert end_of(third) == (0, ["[3] 3 4 0 2 3"], "")


@pytest.mark.parametrize("host", ["localhost", *["[::1]"] * can_bind("::1")])
def test_node_0_listens_at_a_name_or_an_ipv6_address(job: Job, host: str) -> None:
    job.write(
        "from malt._bootstrap import find_bootstrap\n"
        "with find_bootstrap.find() as b: print(b.allgather(bytes([65 + rank]), 10))\n"
    )
    job.address = f"{host}:{job.port}"
    launchers = [job.start(0), job.start(1)]
    assert [end_of(launcher).out for launcher in launchers] == [
        [f"[{rank}] [b'A', b'B']"] for rank in range(2)
    ]


def test_late_node_is_waited_for(job: Job) -> None:
    first = job.start_waiting()
    assert first.poll() is None
    second = job.start(1)
    assert (end_of(first).code, end_of(second)) == (0, (0, [], ""))


def test_nodes_that_do_not_come_are_named(job: Job) -> None:
    job.write("note(f'started{rank}')")
    first = job.start_waiting("--timeout", 20, nnodes=4)
    third = job.start(2, "--timeout", 0.3, nnodes=4)
    for launcher in (first, third):
        end = end_of(launcher)
        assert end.code == 2
        assert end.err.startswith("malt run: error: nodes 1, 3 did not come within 0.3 s; ")
    assert not Path("started0").exists()


def test_node_0_that_does_not_come_is_named(job: Job) -> None:
    end = end_of(job.start(1, "--timeout", 0.3))
    assert end.code == 2
    assert end.err.startswith(
        f"malt run: error: node 0 did not come within 0.3 s: no launcher listens at {job.address}; "
    )


def test_interrupt_ends_the_wait_for_other_nodes(job: Job) -> None:
    first = job.start_waiting()
    first.send_signal(signal.SIGINT)
    assert end_of(first) == (130, [], "")


# Refusals


def test_wrong_key_is_refused_and_the_right_one_comes_in(job: Job) -> None:
    first = job.start_waiting()
    wrong = KEY[::-1]
    end = end_of(job.start(1, key=wrong))
    assert end.code == 2
    assert end.err.startswith(
        f"malt run: error: the launcher at {job.address} cannot be joined: what listens there does "
        "not have this job's key; "
    )
    assert wrong not in end.err
    second = job.start(1)
    assert (end_of(first).code, end_of(second).code) == (0, 0)


def test_second_launcher_of_a_node_is_refused_and_the_first_goes_on(job: Job) -> None:
    first = job.start_waiting(nnodes=3)
    twins = [job.start(1, nnodes=3) for _ in range(2)]
    assert wait_until(lambda: any(twin.poll() is not None for twin in twins))
    refused, taken = sorted(twins, key=lambda twin: twin.poll() is None)
    end = end_of(refused)
    assert end.code == 2
    assert f"--node-rank 1 is taken by process {taken.pid} on 127.0.0.1: " in end.err
    third = job.start(2, nnodes=3)
    assert [end_of(launcher).code for launcher in (first, taken, third)] == [0, 0, 0]


def test_nodes_that_disagree_on_their_number_are_told(job: Job) -> None:
    job.start_waiting(nnodes=2)
    end = end_of(job.start(1, nnodes=3))
    assert end.code == 2
    assert "node 1 says --nnodes 3, node 0 says --nnodes 2: give each" in end.err


def test_port_in_use_is_named(job: Job) -> None:
    job.start_waiting()
    end = end_of(job.start(0))
    assert end.code == 2
    assert f"node 0 cannot listen at 127.0.0.1, port {job.port}: the port is in use" in end.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--nnodes 0", "'0' is not a number of nodes, 1 to 65536"),
        ("--nnodes 65537", "'65537' is not a number of nodes, 1 to 65536"),
        ("--nnodes 2 --node-rank 2", "--node-rank 2 is not a node of 2: 0 to 1"),
        ("--nnodes 2 --node-rank -1", "--node-rank -1 is not a node of 2: 0 to 1"),
        ("--nnodes 1 --node-rank 1", "--node-rank 1 is not a node of 1: 0 to 0"),
        ("--nnodes 2 --rendezvous h:1", "--nnodes 2 needs --node-rank K"),
        ("--nnodes 2 --node-rank 1", "--nnodes 2 needs --rendezvous HOST:PORT"),
        ("--rendezvous h:1", "--rendezvous is for a job over several hosts: add --nnodes M"),
        ("--node-rank 0", "--node-rank is for a job over several hosts: add --nnodes M"),
        ("--nnodes 2 --node-rank 0 --rendezvous here", "--rendezvous is not host:port"),
        ("--nnodes 2 --node-rank 1 --rendezvous ::1:29500", "brackets around an IPv6 address"),
        ("--nnodes 2 --node-rank 1 --rendezvous h:65536", "a port from 1 to 65535"),
        ("--nnodes 2 --node-rank 1 --rendezvous h.invalid:1", "h.invalid:1 cannot be reached"),
        ("--nnodes 2 --node-rank 0 --rendezvous 192.0.2.1:29500", "no address of this host"),
        ("--nnodes 2 --node-rank 0 --rendezvous h:1 --key-file no", "--key-file no cannot be read"),
        ("--nnodes 2 --node-rank 0 --rendezvous h:1 --key-file bad", "--key-file bad is not 32 b"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(job: Job, arguments: str, message: str) -> None:
    Path("bad").write_text("secret" * 10)
    done = subprocess.run(
        [*MALT_RUN, "-n", "1", *arguments.split(), "program.py"],
        env=os.environ | {"MALT_JOB_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("malt run: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


@pytest.mark.parametrize("key", [None, "", "abcd", "x" * 64, KEY + "00", KEY[:63] + " "])
def test_missing_or_malformed_key_is_named_and_not_shown(job: Job, key: str | None) -> None:
    end = end_of(job.start(0, key=key))
    assert end.code == 2
    assert "MALT_JOB_KEY" in end.err
    assert "openssl rand -hex 32" in end.err
    assert not key or key not in end.err


def test_one_node_needs_no_options_and_takes_a_key_of_its_own(job: Job) -> None:
    job.write("print(os.environ['MALT_RENDEZVOUS'], os.environ['MALT_JOB_KEY'] != sys.argv[1])")
    done = subprocess.run(
        [*MALT_RUN, "-n", "1", "--nnodes", "1", "--rendezvous", "192.0.2.1:9", "program.py", KEY],
        env=os.environ | {"MALT_JOB_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.startswith("127.0.0.1:")
    assert done.stdout.endswith(" True\n")


# Ends


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [("sys.exit(3)", 3, "exited with code 3"), ("os.kill(os.getpid(), 9)", 137, "died of SIGKILL")],
)
@pytest.mark.parametrize("failing", [0, 1])
def test_failure_on_one_node_stops_all(
    job: Job, failing: int, end: str, code: int, how: str
) -> None:
    job.write(
        f"if rank == {2 * failing}:\n"
        "    wait_for(*[f'pid{r}' for r in range(size)])\n"
        f"    {end}\n"
        "time.sleep(600)\n"
    )
    launchers = [job.start(node, ranks=2) for node in range(2)]
    ends = [end_of(launcher) for launcher in launchers]
    what = f"malt run: rank {2 * failing} on node {failing} {how}"
    stopping = "; stopping the others (--keep-going leaves them running)\n"
    assert [e.code for e in ends] == [code, code]
    assert ends[1 - failing].err == what + stopping
    assert ends[failing].err.startswith(what + " after ")
    assert ends[failing].err.endswith(stopping)
    assert_gone(*noted(*[f"pid{rank}" for rank in range(4)]))


def test_keep_going_leaves_the_survivors_of_all_nodes_running(job: Job) -> None:
    job.write(
        "if rank == 2: sys.exit(3)\nwait_for('go'); print('finished')\nif rank == 1: sys.exit(4)\n"
    )
    launchers = [job.start(node, "--keep-going", ranks=2) for node in range(2)]
    assert launchers[0].stderr is not None
    told = launchers[0].stderr.readline()  # before the other ranks may end
    assert told == "malt run: rank 2 on node 1 exited with code 3; 2 go on here\n"
    Path("go").touch()
    first, second = (end_of(launcher) for launcher in launchers)
    assert (first.code, second.code) == (3, 3)
    assert first.out == ["[0] finished", "[1] finished"]
    assert second.out == ["[3] finished"]
    assert "malt run: rank 1 on node 0 exited with code 4" in second.err


def test_rank_that_ends_before_joining_is_known_on_other_nodes_at_once(job: Job) -> None:
    job.write(
        "from malt._bootstrap import find_bootstrap\n"
        "if rank == 1: sys.exit(5)\n"
        "try: find_bootstrap.find().allgather(b'', 50)\n"
        "except ConnectionError as e: print(e)\n"
    )
    launchers = [job.start(node, "--keep-going") for node in range(2)]
    assert end_of(launchers[0]).out == ["[0] rank 1 exited with code 5 during start-up"]


def test_launcher_whose_ranks_have_ended_stays_for_the_others(job: Job) -> None:
    job.write("if rank == 0: note('left'); sys.exit(0)\nwait_for('left', 'go'); sys.exit(6)\n")
    launchers = [job.start(node) for node in range(2)]
    assert exists("left", "pid1")
    assert_gone(*noted("pid0"))
    assert launchers[0].poll() is None
    Path("go").touch()
    assert [end_of(launcher).code for launcher in launchers] == [6, 6]


@pytest.mark.parametrize("killed", [0, 1])
def test_kill_of_a_launcher_stops_the_other_nodes(job: Job, killed: int) -> None:
    job.write("time.sleep(600)")
    launchers = [job.start(node) for node in range(2)]
    assert exists("pid0", "pid1")
    launchers[killed].kill()
    end = end_of(launchers[1 - killed])
    assert end.code == 1
    assert end.err == (
        f"malt run: node {killed} is lost: its `malt run` has ended, or the network has failed; "
        "stopping the others (--keep-going leaves them running)\n"
    )
    assert_gone(*noted("pid0", "pid1"))


@pytest.mark.parametrize("killed", [0, 1])
def test_kill_of_a_launcher_is_survived_with_keep_going(job: Job, killed: int) -> None:
    job.write("wait_for('go'); print('finished')")
    launchers = [job.start(node, "--keep-going") for node in range(2)]
    assert exists("pid0", "pid1")
    launchers[killed].kill()
    launchers[killed].wait()
    assert_gone(*noted(f"pid{killed}"))
    Path("go").touch()
    end = end_of(launchers[1 - killed])
    assert (end.code, end.out) == (1, [f"[{1 - killed}] finished"])
    assert f"malt run: node {killed} is lost: " in end.err


def test_rank_lost_with_its_node_ends_the_waits_of_start_up(job: Job) -> None:
    job.write(
        "from malt._bootstrap import find_bootstrap\n"
        "if rank == 1: time.sleep(600)\n"
        "b = find_bootstrap.find(); note('joined')\n"
        "try: b.allgather(b'', 50)\n"
        "except ConnectionError as e: print(e)\n"
    )
    launchers = [job.start(node, "--keep-going") for node in range(2)]
    assert exists("joined", "pid1")
    launchers[1].kill()
    assert end_of(launchers[0]).out == ["[0] rank 1 was lost with node 1 during start-up"]


def test_signal_to_one_launcher_ends_the_job(job: Job) -> None:
    job.write("note(f'ready{rank}'); time.sleep(600)")
    launchers = [job.start(node) for node in range(2)]
    assert exists("ready0", "ready1")
    launchers[1].send_signal(signal.SIGTERM)
    first, second = (end_of(launcher) for launcher in launchers)
    assert (first.code, second.code) == (143, 143)
    assert first.err.startswith("malt run: rank 1 on node 1 died of SIGTERM; stopping the others")


def test_signal_ends_the_wait_for_the_ranks_of_other_nodes(job: Job) -> None:
    job.write("if rank: time.sleep(600)")
    launchers = [job.start(node) for node in range(2)]
    assert exists("pid0", "pid1")
    (process,) = noted("pid0")
    assert wait_until(lambda: not Path(f"/proc/{process}").exists())  # node 0 knows that it ended
    launchers[0].send_signal(signal.SIGINT)
    first, second = (end_of(launcher) for launcher in launchers)
    assert first.code == 130
    assert second.code == 1
    assert "node 0 is lost" in second.err
