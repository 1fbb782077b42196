"""Runs PyTorch's own tests of a process group with gloo and with malt, and compares them.

    python tests/harness/torch_suite.py                  # all of them, on 2 ranks: two minutes
    python tests/harness/torch_suite.py --ranks 4 all_reduce DistributedDataParallel

They are the class `_DistTestBase` in torch.testing._internal.distributed.distributed_test, which
ships with PyTorch. Many of these tests are for a backend named "gloo" alone. So malt runs them
under that name: where PyTorch would make a ProcessGroupGloo, this file has it make one of MALT's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from typing import Any

BACKENDS = ("gloo", "malt")
# Under gloo's name these look into gloo itself, so malt runs them under its own.
BY_OWN_NAME = frozenset({"test_ddp_logging_data_cpu"})


def _prepare(ranks: int, name: str) -> None:
    """Set what the module of the tests reads when it is imported."""
    os.environ.update(
        BACKEND=name,
        WORLD_SIZE=str(ranks),
        TEMP_DIR=tempfile.mkdtemp(prefix="malt-torch-suite-"),
        OMP_NUM_THREADS="1",
    )


def _put_malt_for_gloo() -> None:
    """Have PyTorch make process groups of MALT's where it would make gloo's."""
    import torch.distributed.distributed_c10d as c10d

    import malt.torch  # noqa: F401 - registers
    from malt.torch._backend import process_group

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, process_group.MaltProcessGroup)

        def __call__(cls, store: Any, rank: int, size: int, timeout: Any, **_: Any) -> Any:
            names = c10d._world.malt_names if rank >= 0 else []
            options = types.SimpleNamespace(
                store=store,
                group_rank=rank,
                group_size=size,
                global_ranks_in_group=names,
                timeout=timeout,
            )
            made = process_group.create(options)
            made.core.title = "gloo"
            made.options = types.SimpleNamespace()  # torch writes to gloo's
            return made

    class ProcessGroupGloo(metaclass=Kind):
        pass

    make = c10d._new_process_group_helper

    def noting(group_size: int, group_rank: int, ranks: list[int], *args: Any, **named: Any) -> Any:
        c10d._world.malt_names = ranks  # for errors; gloo is not told
        return make(group_size, group_rank, ranks, *args, **named)

    c10d._new_process_group_helper = noting
    c10d.ProcessGroupGloo = ProcessGroupGloo


def _let_malt_take_part() -> None:
    """Let tests that ask what a backend can do run with one named "malt"."""
    from torch.testing._internal.common_distributed import DistTestCases

    import malt.torch  # noqa: F401 - registers

    for names in DistTestCases.backend_feature.values():
        names.add("malt")


def load() -> unittest.TestSuite:
    """Return all tests; each starts its ranks by forking this process."""
    import torch
    from torch.testing._internal.distributed import distributed_test

    from malt.torch._backend.versions import IS_OLD

    if IS_OLD:  # events end at once there, which these tests take for synchronous
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

    class Suite(  # type: ignore[misc]
        distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
    ):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return unittest.defaultTestLoader.loadTestsFromTestCase(Suite)


class _Results(unittest.TestResult):
    """Prints a line of JSON for each test: its name, what it came to, and why."""

    def _tell(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        print(json.dumps([test._testMethodName, outcome, why]), file=sys.__stdout__, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._tell(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, "failed", str(err[1]))

    addError = addFailure  # noqa: N815 - unittest's name


def _run_here(backend: str, ranks: int, patterns: list[str], *, exact: bool) -> None:
    _prepare(ranks, "malt" if backend == "malt-by-name" else "gloo")
    if backend == "malt":
        _put_malt_for_gloo()
    elif backend == "malt-by-name":
        _let_malt_take_part()
    chosen = unittest.TestSuite(
        test
        for test in load()
        if not patterns
        or (test._testMethodName in patterns if exact else any(p in test.id() for p in patterns))
    )
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise):
        chosen.run(_Results())


def run(
    backend: str, ranks: int = 2, patterns: list[str] | None = None, *, exact: bool = False
) -> dict[str, tuple[str, str]]:
    """Run tests in a process of its own.

    Args:
        backend: "gloo" or "malt".
        ranks: the size of the process group.
        patterns: parts of the tests' names; None: all tests.
        exact: `patterns` are whole names.

    Returns:
        By the tests' names: "passed", "skipped" or "failed", and the reason.
    """
    found = _run_in_process(backend, ranks, patterns or [], exact=exact)
    if backend == "malt" and (named := BY_OWN_NAME & set(found)):
        found |= _run_in_process("malt-by-name", ranks, sorted(named), exact=True)
    return found


def _run_in_process(
    backend: str, ranks: int, patterns: list[str], *, exact: bool
) -> dict[str, tuple[str, str]]:
    command = [sys.executable, __file__, "--backend", backend, "--ranks", str(ranks)]
    command += ["--exact"] * exact + patterns
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith('["test'):
            name, outcome, why = json.loads(line)
            found[name] = (outcome, f"{why}\n{done.stderr[-6000:]}" if outcome == "failed" else why)
    if done.returncode:
        raise RuntimeError(f"the tests with {backend} ended with {done.returncode}: {done.stderr}")
    return found


def main() -> int:
    """Run the tests with both backends and print a table of the tests that one of them ran."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("patterns", nargs="*", help="parts of the tests' names (default: all)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--backend", choices=(*BACKENDS, "malt-by-name"), help="run one here, for this script"
    )
    parser.add_argument("--exact", action="store_true", help="the patterns are whole names")
    given = parser.parse_args()
    if given.backend:
        _run_here(given.backend, given.ranks, given.patterns, exact=given.exact)
        return 0
    results = {each: run(each, given.ranks, given.patterns) for each in BACKENDS}
    worse = []
    print(f"{'test':70} {'gloo':8} {'malt':8}")
    for name, (by_gloo, _) in results["gloo"].items():
        by_malt, why = results["malt"].get(name, ("missing", ""))
        if by_gloo != "skipped" or by_malt != "skipped":
            print(f"{name:70} {by_gloo:8} {by_malt:8}")
        if by_gloo == "passed" != by_malt:
            worse.append((name, why))
    for backend, found in results.items():
        outcomes = [outcome for outcome, _ in found.values()]
        counts = (f"{outcomes.count(o)} {o}" for o in ("passed", "failed", "skipped"))
        print(f"{backend}: {', '.join(counts)}")
    for name, why in worse:
        print(f"\n{name}: {why}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
