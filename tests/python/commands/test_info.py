"""`malt info` and the rest of the command line."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from malt._commands import info, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "malt", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_table_is_aligned_and_complete() -> None:
    done = run("info")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    starts = {len(line) - len(line.split("  ", 1)[1].lstrip()) for line in lines}
    assert len(starts) == 1
    labels = [line.split("  ")[0] for line in lines]
    assert {"MALT", "cores", "memfd", "pidfd", "transport shm", "mpi4py", "NumPy"} <= set(labels)


def test_json_has_bare_values() -> None:
    facts = json.loads(run("info", "--json").stdout)
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["memory_available"] > 1 << 20
    assert facts["memfd"] is True
    assert facts["transport_tcp"] is True
    assert facts["transport_verbs"] is (facts["rdma_ports"] != [])
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert facts["open_files"] == (None if soft == resource.RLIM_INFINITY else soft)


def network_facts(monkeypatch: pytest.MonkeyPatch, **environ: str) -> dict[str, info.Fact]:
    rdma = (f"MALT_RDMA_{name}" for name in ("DEVICE", "PKEY", "SL", "TRAFFIC_CLASS"))
    for name in ("MALT_INTERFACE", "MALT_TLS", *rdma):
        monkeypatch.setenv(name, environ.get(name, ""))
    return {fact.key: fact for fact in info._transports()}


def test_networks_are_listed_and_the_one_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = network_facts(monkeypatch)
    assert facts["transport_tcp"].text == "yes, protected by the job's key"
    assert facts["tcp_address"].value is None
    assert "lo" not in facts["networks"].value
    chosen = network_facts(monkeypatch, MALT_INTERFACE="127.0.0.0/8")
    assert chosen["tcp_address"].value == "127.0.0.1"
    assert chosen["networks"].text.startswith("127.0.0.1 (MALT_INTERFACE=127.0.0.0/8); there are: ")
    assert facts["networks"].text in chosen["networks"].text


@pytest.mark.parametrize(
    ("transport", "variable", "value", "says"),
    [
        ("tcp", "MALT_INTERFACE", "eth77", "MALT_INTERFACE is 'eth77'"),
        ("tcp", "MALT_TLS", "/nowhere", "/nowhere/"),
        ("verbs", "MALT_RDMA_DEVICE", "no:1:2:3", "MALT_RDMA_DEVICE=no:1:2:3: must be"),
        ("verbs", "MALT_RDMA_PKEY", "0x10000", "MALT_RDMA_PKEY=0x10000: must be"),
        ("verbs", "MALT_RDMA_SL", "16", "MALT_RDMA_SL=16: must be"),
        ("verbs", "MALT_RDMA_TRAFFIC_CLASS", "-1", "MALT_RDMA_TRAFFIC_CLASS=-1: must be"),
    ],
)
def test_setting_that_a_transport_cannot_work_with_is_explained(
    monkeypatch: pytest.MonkeyPatch, transport: str, variable: str, value: str, says: str
) -> None:
    fact = network_facts(monkeypatch, **{variable: value})[f"transport_{transport}"]
    assert fact.value is False
    assert fact.text.startswith("no: ")
    assert says in fact.text


@pytest.mark.parametrize(
    ("environ", "value", "text"),
    [
        ({}, "none", "none: malt.init() makes a job of one rank"),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            "torch",
            "a launcher of torch.distributed, rank 1 of 2",
        ),
        ({"MALT_BOOTSTRAP": "slurm"}, None, "no: MALT_BOOTSTRAP=slurm, but its launcher"),
    ],
)
def test_launcher_that_init_would_use_is_shown(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], value: str | None, text: str
) -> None:
    for name, given in environ.items():
        monkeypatch.setenv(name, given)
    (fact,) = info._launcher()
    assert fact.value == value
    assert fact.text.startswith(text)


def test_missing_core_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "malt._core", None)
    facts = {fact.key: fact for fact in info.gather()}
    assert facts["transport_tcp"].text == "not without the compiled core"
    assert facts["core"].value is False
    assert "a wheel of MALT" in facts["core"].text
    assert facts["simd"].value is None


def test_limits_of_all_enclosing_control_groups_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "job"
    inner.mkdir()
    monkeypatch.setattr(info, "_own_cgroups", lambda: [inner, tmp_path])
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text("1048576\n")
    (inner / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    facts = {fact.key: fact for fact in info.gather()}
    assert facts["memory_limit"].text == "1 MiB"
    assert facts["cpu_quota"].value == 1.5


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "unknown"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5 TiB")],
)
def test_sizes_are_readable(size: int | None, text: str) -> None:
    assert info._size(size) == text


def test_version_and_help() -> None:
    assert run("--version").stdout == f"malt {main.version()}\n"
    for arguments in ((), ("--help",)):
        done = run(*arguments)
        assert done.returncode == 0
        assert "malt run" in done.stdout


def test_unknown_command_is_refused() -> None:
    done = run("fly")
    assert done.returncode == 2
    assert "invalid choice: 'fly'" in done.stderr
