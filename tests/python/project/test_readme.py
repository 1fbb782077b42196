"""Runs the code blocks of README.md and docs/: what a newcomer copies works.

Every ```bash and ```python block runs, top to bottom, each in a process of its own. A page's blocks
run in one empty directory that holds links to the repository's files. Words after the language say
otherwise:

    ```bash norun            shown only: it installs, takes long, or is this test itself
    ```python then           goes on from the python block before it: both run in one process
    ```python file=hello.py  written to that file for a later block instead of being run
                             (any language)

A block passes if it exits with 0. In bash blocks `python`, `malt` and `mpirun` are those of the
environment the tests run in.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
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
        return "norun" in self.words or (self.file is None and self.language not in LANGUAGES)


def blocks_of(markdown: str, page: str = "README.md") -> list[Block]:
    pattern = re.compile(r"^( *)```([a-z+]+)([^\n]*)\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
    return [
        Block(
            page,
            markdown.count("\n", 0, m.start()) + 1,
            m[2],
            m[3].split(),
            textwrap.dedent(m[4]),
        )
        for m in pattern.finditer(markdown)
    ]


def programs_of(blocks: list[Block]) -> list[Block]:
    """The blocks that run or are written; those that go on from another one are joined to it."""
    made: list[Block] = []
    for block in blocks:
        if block.shown_only:
            continue
        if "then" not in block.words:
            made.append(block)
            continue
        at = max(
            (i for i, b in enumerate(made) if b.language == "python" and b.file is None), default=-1
        )
        assert at >= 0, f"{block.page}:{block.line} goes on from no python block"
        made[at] = made[at]._replace(text=f"{made[at].text}\n{block.text}")
    return made


PAGES = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
BLOCKS = [b for page in PAGES for b in programs_of(blocks_of((ROOT / page).read_text(), page))]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a page."""

    @functools.cache
    def of_page(page: str) -> Path:
        path = tmp_path_factory.mktemp(Path(page).stem)
        for entry in ROOT.iterdir():
            if not entry.name.startswith("."):
                (path / entry.name).symlink_to(entry)
        return path

    return of_page


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "block",
    # A page's blocks need its directory, so one worker of xdist runs them all.
    [pytest.param(b, marks=pytest.mark.xdist_group(b.page)) for b in BLOCKS],
    ids=lambda b: f"{b.page}-line{b.line}-{b.language}",
)
def test_block_of_a_page_runs(
    block: Block, directories: Callable[[str], Path], request: pytest.FixtureRequest
) -> None:
    directory = directories(block.page)
    if block.file is not None:
        path = directory / block.file
        path.parent.mkdir(exist_ok=True)
        assert ROOT not in path.resolve().parents, f"{block.file} is a file of the repository"
        path.write_text(block.text)
        return
    environment = dict(os.environ)
    if "cmake" in block.text:
        environment["CMAKE_PREFIX_PATH"] = str(request.getfixturevalue("installed"))
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
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


def test_programs_of_the_first_page_fit_a_terminal() -> None:
    for block in blocks_of((ROOT / "README.md").read_text()):
        if block.language == "python":
            assert max(map(len, block.text.splitlines())) <= 80, block.text


@pytest.mark.parametrize(("program", "ranks"), [("loop.py", "4"), ("fold.py", "2")])
def test_the_first_page_shows_what_its_programs_print(
    program: str, ranks: str, tmp_path: Path
) -> None:
    blocks = blocks_of((ROOT / "README.md").read_text())
    at = next(i for i, block in enumerate(blocks) if block.file == program)
    source, command, shown = blocks[at : at + 3]
    assert command.text == f"malt run -n {ranks} {program}\n"
    (tmp_path / program).write_text(source.text)
    words = [sys.executable, "-m", "malt", "run", "-n", ranks, program]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    # Shares differ from run to run, as ranks do not wait for one another.
    masked = [
        sorted(re.sub(r"\d+\.\d%", "%", line) for line in text.splitlines())
        for text in (shown.text, done.stdout)
    ]
    assert masked[0] == masked[1], done.stdout + done.stderr


def test_blocks_are_told_apart() -> None:
    found = blocks_of(
        "x\n```python file=a.py\n1\n```\n```bash norun\nfalse\n```\n```text\nt\n```\n"
    )
    assert [(b.line, b.file, b.shown_only) for b in found] == [
        (2, "a.py", False),
        (5, None, True),
        (8, None, True),
    ]


def test_a_block_in_a_list_is_a_block() -> None:
    found = blocks_of("- x\n  ```python\n  if 1:\n      2\n  ```\n")
    assert [(b.line, b.text, b.shown_only) for b in found] == [(2, "if 1:\n    2\n", False)]


def test_a_block_goes_on_from_the_python_block_before_it() -> None:
    page = "```python\n1\n```\n```bash\nls\n```\n```python then\n2\n```\n```python\n3\n```\n"
    assert [b.text for b in programs_of(blocks_of(page))] == ["1\n\n2\n", "ls\n", "3\n"]
    with pytest.raises(AssertionError, match=r"docs/data\.md:1 goes on from no python block"):
        programs_of(blocks_of("```python then\n1\n```\n", "docs/data.md"))
