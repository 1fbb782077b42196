"""deploy/: the manifests by Kubernetes' and JobSet's published schemas, and the Containerfile.

The schemas find misspelt fields and wrong types. What a cluster would do with them, they cannot
tell; `tests/hosts/test_kubernetes.py` runs the same command on hosts that look like the pods.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from malt._commands import run_options

kubernetes_validate = pytest.importorskip("kubernetes_validate")
jsonschema = pytest.importorskip("jsonschema")
yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[3] / "deploy"
SCHEMA = json.loads((Path(__file__).parent / "jobset.schema.json").read_text())
VERSIONS = ("1.28", "1.37")  # of Kubernetes: the oldest that JobSet supports, and the newest


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def strict(schema: Any) -> Any:
    """The schema, which refuses fields that it does not name, as the server's strict check does."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def check_jobset(document: Any, version: str) -> None:
    jsonschema.validate(document, strict(SCHEMA))
    for job in document["spec"]["replicatedJobs"]:
        inner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        kubernetes_validate.validate(inner | job["template"], version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_keep_to_the_published_schemas(version: str) -> None:
    by_job = documents("job.yaml")
    assert [one["kind"] for one in by_job] == ["Service", "NetworkPolicy", "Job"]
    policy, jobset = documents("jobset.yaml")
    for document in (*by_job, policy):
        kubernetes_validate.validate(document, version, strict=True)
    check_jobset(jobset, version)


def test_misspelt_fields_are_found() -> None:
    *_, job = documents("job.yaml")
    job["spec"]["completionMod"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)
    _, jobset = documents("jobset.yaml")
    wrong = copy.deepcopy(jobset)
    wrong["spec"]["network"]["enableDNSHostname"] = True
    with pytest.raises(jsonschema.ValidationError):
        check_jobset(wrong, VERSIONS[-1])


def test_both_start_the_same_pods_with_one_number_of_nodes() -> None:
    service, _, job = documents("job.yaml")
    _, jobset = documents("jobset.yaml")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    pods = []
    for spec in (job["spec"], replicated["template"]["spec"]):
        pod = copy.deepcopy(spec["template"]["spec"])
        pod.pop("subdomain", None)
        pods.append(pod)
        (container,) = pod["containers"]
        command, *arguments = container["args"]
        options, program = run_options.split(arguments)
        parsed = run_options.parse(options)
        assert command == "run"
        assert program == ["/app/train.py"]
        assert parsed.rendezvous == "auto"
        assert spec["completions"] == spec["parallelism"] == parsed.nnodes
        assert spec["completionMode"] == "Indexed"
    assert pods[0] == pods[1]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_pods_have_no_right_that_a_rank_does_not_need(name: str) -> None:
    spec = documents(name)[-1]["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"/dev/shm", "/tmp"} <= {each["mountPath"] for each in container["volumeMounts"]}


# The labels that the controllers give the pods of a Job or JobSet.
@pytest.mark.parametrize(
    ("name", "label"),
    [("job.yaml", "job-name"), ("jobset.yaml", "jobset.sigs.k8s.io/jobset-name")],
)
def test_only_pods_of_the_job_reach_one_another(name: str, label: str) -> None:
    *_, policy, job = documents(name)
    pods = {"podSelector": {"matchLabels": {label: job["metadata"]["name"]}}}
    spec = policy["spec"]
    assert spec["podSelector"] == pods["podSelector"]
    assert sorted(spec["policyTypes"]) == ["Egress", "Ingress"]
    assert spec["ingress"] == [{"from": [pods]}]
    own, names = spec["egress"]
    assert own == {"to": [pods]}
    assert [each["namespaceSelector"]["matchLabels"] for each in names["to"]] == [
        {"kubernetes.io/metadata.name": "kube-system"}
    ]
    assert {each["port"] for each in names["ports"]} == {53}


def test_the_image_is_built_from_what_a_wheel_is_made_of_and_nothing_else() -> None:
    root = DEPLOY.parent
    lines = (root / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"  # so the others are a list of what is let in
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    assert let_in == {
        *("CMakeLists.txt", "LICENSE", "NOTICE.md", "README.md", "pyproject.toml"),
        *("cmake", "python", "src"),
    }
    assert {"**/__pycache__", "**/*.so", "**/*.pem", "**/.*"} <= set(rules)


def test_containerfile_builds_a_wheel_of_this_folder_and_runs_malt() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    assert [step for step, _ in steps if step == "FROM"] == ["FROM", "FROM"]
    assert ["COPY", ". /malt"] in steps
    assert ["ENTRYPOINT", '["malt"]'] in steps
    version = re.search(r"^FROM \S+/python:3\.(\d+)", "\n".join(lines), re.MULTILINE)
    assert version is not None
    supported = (DEPLOY.parent / "pyproject.toml").read_text()
    assert f'"Programming Language :: Python :: 3.{version[1]}"' in supported
