"""Several launchers of one job on this host, as if each was on a host of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from jobs import Ranks, free_port
from launches import MALT_RUN

KEY = bytes(range(32)).hex()


class Nodes(Ranks):
    """The script in a job of one launcher for each of `options`, with `ranks` ranks each."""

    def __init__(
        self,
        directory: Path,
        body: str,
        options: Sequence[str],
        ranks: int = 2,
        places: int | None = None,
        **environ: str,
    ) -> None:
        """`places` is how many ranks the job has at most; None: as many as at first."""
        super().__init__(directory, places or len(options) * ranks, body)
        self.environ |= {"MALT_JOB_KEY": KEY} | environ
        address = f"127.0.0.1:{free_port()}"
        same = f"-n {ranks} --nnodes {len(options)} --rendezvous {address} --grace 1".split()
        self.launchers: list[subprocess.Popen[bytes]] = []
        for node, own in enumerate(options):
            with (directory / f"output-{node}").open("wb") as output:
                self.launchers.append(
                    subprocess.Popen(
                        [*MALT_RUN, *same, "--node-rank", str(node), *own.split(), "script.py"],
                        cwd=directory,
                        env=self.environ,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def output_of(self, node: int) -> str:
        return (self.directory / f"output-{node}").read_text()

    @property
    def output(self) -> str:
        return "".join(
            f"node {node}:\n{self.output_of(node)}" for node in range(len(self.launchers))
        )

    @property
    def has_ended(self) -> bool:
        return all(launcher.poll() is not None for launcher in self.launchers)

    def kill_launcher(self, node: int) -> None:
        self.launchers[node].kill()
        self.launchers[node].wait(20)

    def close(self) -> None:
        for launcher in self.launchers:
            launcher.kill()  # its guard ends the ranks
            launcher.wait(20)
