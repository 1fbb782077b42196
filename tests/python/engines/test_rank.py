"""A function as a rank in an engine's worker process, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

import malt
from malt._engines import rank as ranks_here

DIFFERS = """
import json, sys
import malt
from malt._engines import rank
if "old" in sys.argv: rank.__version__ = "0.0.9"
try: rank.run(json.loads(sys.stdin.read()), 20, print, ["begun"])
except malt.ConfigError as error: print(error)
"""


def test_function_finds_its_job_and_leaves_nothing_behind() -> None:
    before = dict(os.environ)
    with malt.jobs.Rendezvous(1) as rendezvous:
        for _ in range(2):
            assert ranks_here.run(rendezvous.environ(0), 5, joined, ["a"], {"b": 1}) == ("a", 1, 1)
    assert dict(os.environ) == before
    with pytest.raises(malt.ConfigError, match="in no job"):
        malt.size()


def joined(a: str, *, b: int) -> tuple[str, int, int]:
    malt.init()
    assert os.environ["MALT_LOCAL_RANK"] == "0"
    return a, b, malt.size()


def test_second_rank_in_one_process_is_refused() -> None:
    with malt.jobs.Rendezvous(1) as rendezvous, malt.jobs.Rendezvous(1) as other:
        with pytest.raises(malt.ConfigError, match="a process can be one rank only"):
            ranks_here.run(
                rendezvous.environ(0), 5, ranks_here.run, [other.environ(0), 5, joined, ["a"]]
            )
        assert ranks_here.run(other.environ(0), 5, joined, ["a"], {"b": 2}) == ("a", 2, 1)


def test_function_is_stopped_in_its_thread_and_the_process_can_be_a_rank_again() -> None:
    stopped = []
    has_begun = threading.Event()

    def wait() -> None:
        malt.init()
        has_begun.set()
        while True:
            time.sleep(0.01)

    with malt.jobs.Rendezvous(1) as rendezvous:

        def work() -> None:
            with pytest.raises(ranks_here.StoppedError, match="another rank of the job"):
                ranks_here.run(rendezvous.environ(0), 5, wait)
            stopped.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        assert has_begun.wait(20)
        assert ranks_here.stop(rendezvous.address)
        thread.join(20)
        assert stopped
        assert not ranks_here.stop(rendezvous.address)
        assert ranks_here.run(rendezvous.environ(0), 5, joined, ["a"], {"b": 3}) == ("a", 3, 1)


def test_ranks_of_different_versions_are_refused() -> None:
    with malt.jobs.Rendezvous(2) as rendezvous:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", DIFFERS, *version],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for version in ([], ["old"])
        ]
        for number, process in enumerate(ranks):
            assert process.stdin is not None
            process.stdin.write(json.dumps(rendezvous.environ(number)))
            process.stdin.close()
        for process in ranks:
            assert process.stdout is not None
            said = process.stdout.read()
            assert "different versions of MALT" in said
            assert "0.0.9 (rank 1)" in said
            process.stdout.close()
            process.wait(20)
