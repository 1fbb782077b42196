"""A job over several hosts: `malt run` on each, with a script as jobs.py describes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from jobs import Ranks

from hosts import Hosts, Process, ipv4

KEY = bytes(range(32)).hex()
PORT = 29500  # the hosts are new, so it is free


class HostJob(Ranks):
    """`ranks` ranks on each host of `on`, numbered in this order; ends with the hosts.

    Args:
        hosts: where it runs; a host may be several nodes.
        body: the script, which begins as jobs.py says.
        address: of the first host, as in --rendezvous; its IPv4 address if None.
        arguments: of `malt run`.
        command: what runs as a rank instead of the script.
        given: variables of the script.
    """

    def __init__(
        self,
        hosts: Hosts,
        body: str = "",
        *arguments: str,
        on: Sequence[int] = (0, 1, 2),
        ranks: int = 2,
        address: str | None = None,
        command: Sequence[object] = ("script.py",),
        **given: object,
    ) -> None:
        header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
        directory = hosts.directory / f"job-{len(list(hosts.directory.glob('job-*')))}"
        directory.mkdir()
        super().__init__(directory, len(on) * ranks, header + body)
        (directory / "key").write_text(KEY)
        (directory / "key").chmod(0o600)
        run = [sys.executable, "-m", "malt", "run", "-n", str(ranks), "--grace", "1"]
        run += ["--rendezvous", f"{address or ipv4(on[0])}:{PORT}", "--key-file", "key"]
        run += ["--nnodes", str(len(on)), *arguments]
        self.nodes = len(on)
        self.launchers: list[Process] = [
            hosts.start(
                host,
                [*run, "--node-rank", str(node), *map(str, command)],
                env=self.environ,
                cwd=directory,
            )
            for node, host in enumerate(on)
        ]

    @property
    def output(self) -> str:
        return "".join(
            f"--- node {node}, exit code {launcher.poll()}:\n{launcher.output}"
            for node, launcher in enumerate(self.launchers)
        )

    @property
    def has_ended(self) -> bool:
        return all(launcher.poll() is not None for launcher in self.launchers)

    def finish(self, limit: float = 100) -> list[dict[str, Any]]:
        """Wait for the end, which must be a good one; returns what was told, by rank."""
        deadline = time.monotonic() + limit
        for launcher in self.launchers:
            try:
                launcher.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the job hangs:\n{self.output}") from None
        assert [launcher.returncode for launcher in self.launchers] == [0] * self.nodes, self.output
        return [self.told(rank) for rank in range(self.size)]
