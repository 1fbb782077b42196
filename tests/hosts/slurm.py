"""A Slurm cluster over Hosts: hosts 0 and 1 are its nodes, and host 2 is where users log in.

    with Hosts(directory) as hosts:
        slurm = Slurm(hosts)
        slurm.run("srun -N 2 hostname")

Its daemons are real and its own: munged with a new key, slurmctld, and a slurmd on each node. All
that they write is in the hosts' directory, and they end with the hosts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from hosts import Hosts, Process, ipv4

_PATH = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
)

_NODES, _LOGIN = (0, 1), 2

# Nothing that needs cgroups or accounting, and CPUs as slurm.conf says, whatever the machine has.
# TmpFS is for PMIx's files: it must be each host's own, and other folders are the machine's. The
# spool is there too, for a short name: in it are sockets, whose names may have 107 bytes. A rank
# that fails ends its job, as on many clusters.
_SETTINGS = """
ClusterName=test
SlurmUser=root
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
TmpFS=/dev/shm
SlurmdSpoolDir=/dev/shm/spool
KillOnBadExit=1
"""


class Slurm:
    """The cluster of three hosts; ends with them."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        directory = hosts.directory
        names = "".join(f"{ipv4(host)} host{host}\n" for host in (*_NODES, _LOGIN))
        (directory / "names").write_text("127.0.0.1 localhost\n" + names)
        for host in (*_NODES, _LOGIN):
            hosts.run(host, "mount", "--bind", str(directory / "names"), "/etc/hosts")
        (directory / "state").mkdir()
        (directory / "key").write_bytes(secrets.token_bytes(64))
        (directory / "key").chmod(0o600)
        (directory / "slurm.conf").write_text(
            f"{_SETTINGS}SlurmctldHost=host{_LOGIN}\n"
            f"AuthInfo=socket={directory}/munge\n"
            f"StateSaveLocation={directory}/state\n"
            f"SlurmctldPidFile={directory}/slurmctld.pid\n"
            f"SlurmdPidFile={directory}/slurmd-%n.pid\n"
            f"NodeName={','.join(f'host{node}' for node in _NODES)} CPUs=2\n"
            "PartitionName=all Nodes=ALL Default=YES\n"
        )
        own = {name: value for name, value in os.environ.items() if name[:5] != "MALT_"}
        self._environ = own | {
            "PATH": _PATH,
            "SLURM_CONF": str(directory / "slurm.conf"),
            "HOME": str(directory),  # which all nodes share
            "TMPDIR": "/dev/shm",  # Open MPI leaves a folder there
        }
        munge = [f"--socket={directory}/munge", f"--key-file={directory}/key"]
        munge += [f"--{kind}-file={directory}/munged.{kind}" for kind in ("pid", "seed", "log")]
        hosts.run(_LOGIN, "munged", "--force", *munge)  # goes on once it is up
        daemons = [self._start(_LOGIN, "slurmctld", "-D", "-i")]
        daemons += [self._start(node, "slurmd", "-D") for node in _NODES]
        deadline = time.monotonic() + 30
        while self.run("sinfo --noheader --format=%D,%t")[1] != f"{len(_NODES)},idle\n":
            ended = any(daemon.poll() is not None for daemon in daemons)
            if ended or time.monotonic() > deadline:
                outputs = "\n".join(daemon.output for daemon in daemons)
                raise RuntimeError(f"Slurm does not come up:\n{outputs}")
            time.sleep(0.05)

    def _start(self, host: int, *argv: str) -> Process:
        return self._hosts.start(host, argv, env=self._environ)

    def start(self, command: str) -> Process:
        """Start a shell's command where users log in, in a folder that all nodes share."""
        return self._start(_LOGIN, "sh", "-c", command)

    def run(self, command: str) -> tuple[int, str, str]:
        """Run it likewise, to its end; returns the exit code, output and errors."""
        directory = self._hosts.directory
        done = subprocess.run(
            self._hosts.command_on(_LOGIN, "env", f"--chdir={directory}", "sh", "-c", command),
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    def write(self, name: str, text: str) -> None:
        """Write a file to that folder."""
        (self._hosts.directory / name).write_text(text)


def missing() -> list[str]:
    """The programs that a cluster needs and that are not installed."""
    needed = ("munged", "slurmctld", "slurmd", "srun")
    return [name for name in needed if not shutil.which(name, path=_PATH)]
