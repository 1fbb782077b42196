"""Hosts as network namespaces, on one machine: real TCP between them, and faults at will.

    with Hosts(directory) as hosts:          # three hosts, on one switch
        server = hosts.start(0, ["python3", "server.py"])
        hosts.link(1, up=False)

A host has network, process, mount, IPC and UTS namespaces of its own, so that what runs there can
neither reach the processes of another host nor map their memory; files are those of the machine.
Host h has the addresses 10.91.0.<h + 1> and fd91::<h + 1> on a link `eth0` to the switch, a bridge
in a namespace of its own.

Namespaces live as long as the processes in them, and nothing here has a name outside. The first
process of each host reads a pipe that only we hold: when we end, be it by SIGKILL, it ends, and the
kernel kills whatever else runs there. So nothing is left behind, and there is nothing to sweep.

    python tests/hosts/hosts.py              # says why hosts cannot be made here, if they cannot
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# The tools of an administrator, which others may not have in their PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

_OWN = ["--net", "--pid", "--mount", "--ipc", "--uts"]

# As PID 1 of a host, `cat` would not wait for orphans; ignored, they need nobody to wait for them.
_FIRST_PROCESS = """
hostname "$0"
mount -t tmpfs shm /dev/shm
trap "" CHLD
echo up
exec cat >/dev/null
"""

# What a firewall does with what comes from a host; and what it says, if it does not merely drop it.
# Those that say something concern connections between ranks alone, whose ports the system chooses.
_FAULTS = {
    "drop": "drop",
    "reset": "tcp dport >= 32768 tcp sport >= 32768 reject with tcp reset",
    "refuse": "tcp dport >= 32768 tcp sport >= 32768 reject with icmpx port-unreachable",
}

# Whom a host does not hear. Neighbour discovery goes on, as ARP does: without it, an IPv6 host
# could soon not send to whom it does not hear.
_CUTS = (
    "table inet cuts {\n"
    + "".join(
        f"set {fault}4 {{ type ipv4_addr; }}\nset {fault}6 {{ type ipv6_addr; }}\n"
        for fault in _FAULTS
    )
    + "chain input {\ntype filter hook input priority 0;\n"
    + "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n"
    + "".join(
        f"ip saddr @{fault}4 {verdict}\nip6 saddr @{fault}6 {verdict}\n"
        for fault, verdict in _FAULTS.items()
    )
    + "}\n}\n"
)


def _run(argv: Sequence[str], given: str | None = None) -> str:
    """Run it to its end, which must be a good one; returns its output."""
    done = subprocess.run(
        argv,
        env={**os.environ, "PATH": _PATH},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Process(subprocess.Popen[bytes]):
    """A process on a host. Its exit code is that of the program; its output goes to a file."""

    def __init__(self, argv: Sequence[str], output: Path, **options: Any) -> None:
        self._output = output
        with output.open("wb") as file:
            super().__init__(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, **options
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")


class _Namespaces:
    """Those of one host, or of the switch."""

    def __init__(self, name: str) -> None:
        self._first = subprocess.Popen(
            ["unshare", *_OWN, "--mount-proc", "--fork", "sh", "-ec", _FIRST_PROCESS, name],
            env={**os.environ, "PATH": _PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt of the tests is not for the hosts
        )
        assert self._first.stdout
        assert self._first.stderr
        if self._first.stdout.readline() != "up\n":
            why = self._first.stderr.read().strip()
            self.close()
            raise RuntimeError(f"a host with namespaces of its own cannot be made: {why}")

    @property
    def pid(self) -> int:
        """Of a process in these namespaces but for that of processes."""
        return self._first.pid

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in these namespaces."""
        own = f"/proc/{self.pid}/ns"
        flags = [f"--{kind}={own}/{kind}" for kind in ("net", "ipc", "uts")]
        flags += [f"--pid={own}/pid_for_children", f"--mount={own}/mnt", f"--wd={os.getcwd()}"]
        return ["nsenter", *flags, "--", *argv]

    def configure(self, command: str, given: str | None = None) -> str:
        """Run a command of the machine on this network; returns its output."""
        return _run(["nsenter", f"--net=/proc/{self.pid}/ns/net", *command.split()], given)

    def close(self) -> None:
        self._first.communicate(timeout=20)  # closes the pipe


class Hosts:
    """`count` hosts with one link each to a common switch; a context manager."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.directory = directory  # of the files with the processes' output
        self._processes: list[Process] = []
        self._all: list[_Namespaces] = []
        try:
            self._switch = self._make("switch")
            self._hosts = [self._make(f"host{host}") for host in range(count)]
            self._switch.configure("ip link add bridge type bridge mcast_snooping 0")
            self._switch.configure("ip link set bridge up")
            for host in range(count):
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def _make(self, name: str) -> _Namespaces:
        made = _Namespaces(name)
        self._all.append(made)
        return made

    def _connect(self, host: int) -> None:
        own = self._hosts[host]
        link = f"ip link add port{host} mtu 1500 type veth peer name eth0 mtu 1500 netns {own.pid}"
        self._switch.configure(link)
        self._switch.configure(f"ip link set port{host} master bridge up")
        for command in (
            "ip link set lo up",
            f"ip address add {ipv4(host)}/24 dev eth0",
            f"ip address add {ipv6(host)}/64 dev eth0 nodad",  # usable at once
            "ip link set eth0 up",
        ):
            own.configure(command)
        own.configure("nft -f -", given=_CUTS)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the hosts and all that runs there."""
        for made in self._all:
            made.close()
        for process in self._processes:
            process.wait(20)

    # ---- What runs there -------------------------------------------------------------------------
    def start(
        self,
        host: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a process, which ends with its host at the latest."""
        output = self.directory / f"host{host}-{len(self._processes)}.out"
        command = self._hosts[host].enter(["env", f"--chdir={cwd or self.directory}", *argv])
        process = Process(command, output, env=env, start_new_session=True)
        self._processes.append(process)
        return process

    def run(self, host: int, *argv: str) -> str:
        """Run a command to its end, which must be a good one; returns its output."""
        return _run(self._hosts[host].enter(argv))

    def kill(self, host: int) -> None:
        """SIGKILL for every process of the host, at once. The network stays up."""
        # Who is the first process shows that this is the host, and not the machine.
        self.run(host, "sh", "-ec", 'read first </proc/1/comm; test "$first" = cat; kill -9 -1')

    def command_on(self, host: int, *argv: str) -> list[str]:
        """What runs a command there, from outside."""
        return self._hosts[host].enter(argv)

    def pid_of_namespaces(self, host: int) -> int:
        """A process whose /proc/<pid>/ns are the host's namespaces."""
        return self._hosts[host].pid

    # ---- Faults ----------------------------------------------------------------------------------
    def link(self, host: int, *, up: bool) -> None:
        """Pull the host's cable at the switch, or put it back."""
        self._switch.configure(f"ip link set port{host} {'up' if up else 'down'}")

    def cut(self, *links: tuple[int, int], fault: str = "drop") -> None:
        """Drop what the first host of each pair sends to the second, and nothing else.

        With "reset" and "refuse" only connections between ranks are concerned, and the first host
        gets a TCP reset, or an ICMP message, as if nobody listened there.
        """
        self._set_cuts("add", links, fault)

    def heal(self, *links: tuple[int, int], fault: str = "drop") -> None:
        """Undo cut()."""
        self._set_cuts("delete", links, fault)

    def _set_cuts(self, verb: str, links: Sequence[tuple[int, int]], fault: str) -> None:
        """At once, as a network does it: who is cut off first makes a difference."""

        def set_at(dst: int) -> None:
            commands = [
                f"{verb} element inet cuts {fault}{kind} {{ {address(src)} }}\n"
                for src, to in links
                if to == dst
                for kind, address in ((4, ipv4), (6, ipv6))
            ]
            self._hosts[dst].configure("nft -f -", given="".join(commands))

        with ThreadPoolExecutor(len(self._hosts)) as pool:
            list(pool.map(set_at, {dst for _, dst in links}))

    def slow(self, host: int, rate: str = "8mbit") -> None:
        """Give the host's link this rate, in each direction."""
        shape = f"root tbf rate {rate} burst 16kb latency 50ms"
        self._hosts[host].configure(f"tc qdisc replace dev eth0 {shape}")
        self._switch.configure(f"tc qdisc replace dev port{host} {shape}")

    def fast(self, host: int) -> None:
        """Undo slow()."""
        self._hosts[host].configure("tc qdisc delete dev eth0 root")
        self._switch.configure(f"tc qdisc delete dev port{host} root")

    # ---- Counters --------------------------------------------------------------------------------
    def bytes_sent(self, host: int) -> int:
        """By the host's link, with the headers of packets as the kernel hands them on (up to 64 KB,
        which it leaves to the network card to cut)."""
        return self._sent(host, "bytes")

    def packets_sent(self, host: int) -> int:
        """Likewise."""
        return self._sent(host, "packets")

    def _sent(self, host: int, what: str) -> int:
        (link,) = json.loads(self._hosts[host].configure("ip -s -j link show eth0"))
        return int(link["stats64"]["tx"][what])


def ipv4(host: int) -> str:
    return f"10.91.0.{host + 1}"


def ipv6(host: int) -> str:
    return f"fd91::{host + 1}"


def why_not() -> str | None:
    """Why hosts cannot be made here, if they cannot."""
    try:
        with tempfile.TemporaryDirectory() as directory, Hosts(Path(directory), 1) as hosts:
            hosts.slow(0)
    except FileNotFoundError as error:
        return f"{error.filename} is missing: install util-linux, iproute2 and nftables"
    except RuntimeError as error:
        return f"{error} (it needs root, or a user namespace: unshare --user --map-root-user)"
    return None


if __name__ == "__main__":
    sys.exit(why_not())
