"""`malt run --rendezvous auto` on hosts with the names and variables of an Indexed Job's pods."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from host_jobs import KEY
from told import PREAMBLE, told_in

from hosts import Hosts, Process, ipv4

yaml = pytest.importorskip("yaml")

MANIFEST = Path(__file__).parents[2] / "deploy/kubernetes/job.yaml"
DOMAIN = "malt.default.svc.cluster.local"

SUM = """
w[:] = rank
v.allreduce(malt.SUM)
tell(rank=rank, sum=w[0], host=os.uname().nodename)
"""


def start_pod(hosts: Hosts, index: int, *, known: int) -> Process:
    """Start the manifest's command on host `index`, which knows the names of `known` pods."""
    name = f"train-{index}"
    lines = [f"{ipv4(index)} {name}.{DOMAIN} {name}"]
    lines += [f"{ipv4(other)} train-{other}.{DOMAIN}" for other in range(known) if other != index]
    names = hosts.directory / f"names-{index}"
    names.write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    hosts.run(index, "mount", "--bind", str(names), "/etc/hosts")
    hosts.run(index, "hostname", name)
    *_, job = yaml.safe_load_all(MANIFEST.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    script = str(hosts.directory / "train.py")
    arguments = [script if word == "/app/train.py" else word for word in container["args"]]
    arguments[arguments.index("--nnodes") + 1] = "3"  # as many hosts as there are here
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "MALT_JOB_KEY": KEY,
        "JOB_COMPLETION_INDEX": str(index),
    }
    return hosts.start(index, [sys.executable, "-m", "malt", *arguments], env=environ)


def test_pods_join_also_before_node_0_has_a_name(hosts: Hosts) -> None:
    (hosts.directory / "train.py").write_text(PREAMBLE + SUM)
    last = start_pod(hosts, 2, known=0)
    time.sleep(1)
    assert last.poll() is None, last.output  # node 0's name is not known yet
    first = [start_pod(hosts, index, known=3) for index in (0, 1)]
    names = hosts.directory / "names-2"
    with names.open("a") as file:  # in place: the file is mounted
        file.write(f"{ipv4(0)} train-0.{DOMAIN}\n")
    pods = [*first, last]
    for pod in pods:
        assert pod.wait(60) == 0, pod.output
    told = told_in("\n".join(re.sub(r"(?m)^.*?(?=\{)", "", pod.output) for pod in pods))
    assert [(values["sum"], values["host"]) for values in told] == [
        (15, f"train-{rank // 2}") for rank in range(6)
    ]
