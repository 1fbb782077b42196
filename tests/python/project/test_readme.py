"""Runs the code blocks of README.md, and of docs/ those that say so: what a newcomer copies works.

In README.md every ```bash and ```python block runs, top to bottom, each in a process of its own,
all in one empty directory that holds links to the repository's files. Words after the language say
otherwise:

    ```bash norun            shown only: it installs, takes long, or is this test itself
    ```python file=hello.py  written to that file for a later block instead of being run
                             (any language)

In docs/ a block runs if it has the word `run`, as in ```python run.

A block passes if it exits with 0. In bash blocks `python`, `malt` and `mpirun` are those of the
environment the tests run in.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
LANGUAGES = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    words: list[str]
    text: str

    @property
    def file(self) -> str | None:
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), None)

    @property
    def shown_only(self) -> bool:
        if self.page != "README.md":
            return "run" not in self.words
        return "norun" in self.words or (self.file is None and self.language not in LANGUAGES)


def blocks_of(markdown: str, page: str = "README.md") -> list[Block]:
    pattern = re.compile(r"^```([a-z+]+)([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
    return [
        Block(page, markdown.count("\n", 0, m.start()) + 1, m[1], m[2].split(), m[3])
        for m in pattern.finditer(markdown)
    ]


PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCKS = [
    b for page in PAGES for b in blocks_of((ROOT / page).read_text(), page) if not b.shown_only
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme")
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (path / entry.name).symlink_to(entry)
    return path


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page}-line{b.line}-{b.language}")
def test_block_of_a_page_runs(block: Block, directory: Path) -> None:
    if block.file is not None:
        (directory / block.file).write_text(block.text)
        return
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        [*LANGUAGES[block.language], block.text],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stdout}{done.stderr}"


def test_readme_shows_code_that_runs() -> None:
    assert any(block.language == "python" for block in BLOCKS)
    assert any(block.language == "bash" for block in BLOCKS)


def test_blocks_are_told_apart() -> None:
    found = blocks_of(
        "x\n```python file=a.py\n1\n```\n```bash norun\nfalse\n```\n```text\nt\n```\n"
    )
    assert [(b.line, b.file, b.shown_only) for b in found] == [
        (2, "a.py", False),
        (5, None, True),
        (8, None, True),
    ]


def test_in_docs_a_block_runs_if_it_says_so() -> None:
    found = blocks_of("```python\n1\n```\n```python run\n2\n```\n", "docs/data.md")
    assert [(b.text, b.shown_only) for b in found] == [("1\n", True), ("2\n", False)]
