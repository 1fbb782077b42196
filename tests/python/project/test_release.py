"""What a release says about itself in several files is the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import malt
from malt._distribution import NAME

ROOT = Path(__file__).parents[3]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_wheels_are_built_for_the_supported_pythons() -> None:
    supported = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PYPROJECT)
    build = re.search(r"^build = \[(.*)\]", PYPROJECT, flags=re.MULTILINE)
    assert build is not None
    assert re.findall(r'"cp3(\d+)-\*"', build[1]) == supported


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == malt.__version__
    assert f'version = "{malt.__version__}"' in PYPROJECT


def test_actions_of_the_workflows_are_named_by_commit_and_version() -> None:
    files = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
    used = [line for f in files for line in f.read_text().splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_jobs_of_the_release_have_no_right_that_they_do_not_need() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        wanted = {"id-token": "write"} if name == "publish" else {"contents": "read"}
        assert job["permissions"] == wanted, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_pages_and_messages_name_the_distribution_and_its_extras() -> None:
    assert f'\nname = "{NAME}"\n' in PYPROJECT
    optional = PYPROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", optional, flags=re.MULTILINE))
    files = [ROOT / "README.md"]
    files += [f for folder in ("docs", "examples", "python") for f in (ROOT / folder).rglob("*")]
    text = "\n".join(f.read_text() for f in files if f.suffix in (".md", ".py"))
    assert not re.findall(r"pip install ['\"]?malt\b(?!-)", text)
    named = ",".join(re.findall(rf"\b{NAME}\[([\w,]+)\]", text)).split(",")
    named += re.findall(r"\bpip_install\('(\w+)'\)", text)
    assert set(named) - {"extra"} <= extras


def test_software_of_others_is_named_with_its_licence() -> None:
    notice = (ROOT / "NOTICE.md").read_text()
    files = [f for folder in ("docs", "python", "src") for f in (ROOT / folder).rglob("*LICENSE*")]
    assert len(files) >= 2
    wheels = re.findall(
        r'"([^"]+)"', PYPROJECT.partition("\nlicense-files = ")[2].partition("\n")[0]
    )
    assert {"LICENSE", "NOTICE.md"} <= set(wheels)
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        assert f"({name})" in notice, name
        assert name in wheels or name.startswith("docs/"), name
