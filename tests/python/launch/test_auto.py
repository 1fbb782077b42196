"""`malt run --rendezvous auto` in what looks like a pod of an Indexed Job, or does not."""

from __future__ import annotations

import socket

import pytest
from launches import run

from malt._errors import ConfigError
from malt._launch import kubernetes

DOMAIN = "malt.default.svc.cluster.local"


def in_pod(monkeypatch: pytest.MonkeyPatch, host: str, names: list[str]) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "gethostbyaddr", lambda _: (names[0], names[1:], ["10.0.0.7"]))
    monkeypatch.setattr(socket, "getfqdn", lambda _="": names[0])


@pytest.mark.parametrize(
    ("host", "index", "value", "address"),
    [
        ("train-0", "0", "auto", f"train-0.{DOMAIN}:29500"),
        ("train-12", "12", "auto:7000", f"train-0.{DOMAIN}:7000"),
        ("set-nodes-0-3", "3", "auto", f"set-nodes-0-0.{DOMAIN}:29500"),
    ],
)
def test_pod_finds_its_number_and_node_0(
    monkeypatch: pytest.MonkeyPatch, host: str, index: str, value: str, address: str
) -> None:
    in_pod(monkeypatch, host, [f"{host}.{DOMAIN}", host])
    found = kubernetes.find_node(value, {"JOB_COMPLETION_INDEX": index})
    assert found == (int(index), address)


@pytest.mark.parametrize(
    ("names", "environ", "says"),
    [
        ([f"train-1.{DOMAIN}"], {}, "JOB_COMPLETION_INDEX in their environment; it is not set"),
        (["train-1"], {"JOB_COMPLETION_INDEX": "1"}, "headless service"),
        ([f"train-1.{DOMAIN}"], {"JOB_COMPLETION_INDEX": "2"}, "NAME-NUMBER"),
    ],
)
def test_pod_of_no_indexed_job_is_refused(
    monkeypatch: pytest.MonkeyPatch, names: list[str], environ: dict[str, str], says: str
) -> None:
    in_pod(monkeypatch, "train-1", names)
    with pytest.raises(ConfigError, match=says):
        kubernetes.find_node("auto", environ)


def test_port_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pod(monkeypatch, "train-1", [f"train-1.{DOMAIN}"])
    with pytest.raises(ConfigError, match="port from 1 to 65535"):
        kubernetes.find_node("auto:none", {"JOB_COMPLETION_INDEX": "1"})


def test_auto_outside_of_kubernetes_and_with_a_number_is_refused() -> None:
    done = run("--nnodes", 2, "--rendezvous", "auto", "-n", 1, "true")
    assert done.returncode == 2
    assert b"is for pods of an Indexed Job of Kubernetes" in done.stderr
    done = run("--nnodes", 2, "--node-rank", 0, "--rendezvous", "auto", "-n", 1, "true")
    assert b"leave --node-rank out" in done.stderr
