"""Writes the Markdown tree that the site is built from: python .ci/site_pages.py FOLDER

The pages are README.md, which comes first, the project's other pages, docs/ with its notebooks as
they were run, and the public C++ headers. GitHub's Markdown becomes Python-Markdown's. A link to
another file of the repository leads to a page with that file's text, so the site can be read
without the repository.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "NOTICE.md": "notice.md",
}
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(`{3,})(\S*)(.*)$")
LIST = re.compile(r"^ *([-*]|\d+\.) ")
LANGUAGES = {".py": "python", ".cpp": "cpp", ".hpp": "cpp", ".txt": "cmake", ".yaml": "yaml"}


def place_of(file: str) -> str:
    """Where a file of the repository is on the site."""
    if file in PAGES:
        return PAGES[file]
    if file.startswith("docs/") and not file.endswith(".py"):
        return file.removeprefix("docs/").replace(".ipynb", ".md")
    return f"source/{file}.md"


# ---- From GitHub's Markdown to Python-Markdown's -------------------------------------------------
def with_links(text: str, file: str, linked: set[str]) -> str:
    """The text with its links as they are on the site; adds the files they lead to to `linked`."""
    here = posixpath.dirname(place_of(file))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), found[1]))
        if not (ROOT / target).exists():
            raise SystemExit(f"{file}: {found[1]} leads to no file of the repository")
        linked.add(target)
        return f"]({posixpath.relpath(place_of(target), here or '.')}{found[2] or ''})"

    return LINK.sub(link, text)


def fence_of(found: re.Match[str]) -> str:
    """A fence without the words that are for the test of the blocks."""
    indent, ticks, language, words = found.groups()
    name = re.search(r"\bfile=(\S+)", words)
    return f"{indent}{ticks}{language}" + (f' title="{name[1]}"' if name else "")


def lines_of(markdown: str) -> Iterator[tuple[str, str | None]]:
    """Each line, and if it is code or its fence, the fence's indentation."""
    fence = None
    for line in markdown.splitlines():
        found = FENCE.match(line)
        if fence:
            yield line, fence[1]
            if found and found[2] == fence[2] and not found[3]:
                fence = None
        elif found:
            fence = found
            yield fence_of(found), found[1]
        else:
            yield line, None


def spaced(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line with the space that Python-Markdown wants, and whether it is code.

    It wants an empty line before a list and a table, where GitHub needs none, and inside a list
    twice the indentation.
    """
    before = ""
    in_list = False
    for line, fence in lines_of(markdown):
        begins_list = fence is None and bool(LIST.match(line))
        begins_table = fence is None and line.startswith("|") and not before.startswith("|")
        if before and ((begins_list and not in_list) or begins_table):
            yield "", False
        if begins_list:
            in_list = True
        elif line and not line.startswith(" ") and (fence == "" or not before):
            in_list = False
        indent = line[: len(line) - len(line.lstrip())] if fence is None else fence
        yield (indent if in_list and line else "") + line, fence is not None
        before = line


def adapt(markdown: str, file: str, linked: set[str]) -> str:
    """A page of the repository as a page of the site."""
    made = []
    for is_code, lines in groupby(spaced(markdown), key=lambda each: each[1]):
        text = "\n".join(line for line, _ in lines)
        made.append(text if is_code else with_links(text, file, linked))
    return "\n".join(made) + "\n"


# ---- Pages that are not written by hand ----------------------------------------------------------
def listing(path: Path) -> str:
    """A file's text, as a block of code."""
    language = LANGUAGES.get(path.suffix, "text")
    return f"`````{language}\n{path.read_text().rstrip()}\n`````\n"


def files_below(folder: str) -> list[str]:
    return subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def source_page(target: str) -> str:
    """The page of a file or a folder that pages link to; searches do not find it."""
    head = f"---\nsearch:\n  exclude: true\n---\n# {target}\n\n"
    if (ROOT / target).is_file():
        return head + listing(ROOT / target)
    return head + "\n".join(f"## {file}\n\n{listing(ROOT / file)}" for file in files_below(target))


def public_headers() -> dict[str, list[Path]]:
    """The headers that are installed (cmake/install.cmake), by library."""
    installed = (ROOT / "cmake" / "install.cmake").read_text()
    found = {"dstorm": sorted((ROOT / "src" / "dstorm").glob("*.hpp"))}
    for library in ("vol", "learn"):
        names = re.search(rf"foreach\(name ([^)]*)\)\s*install\(FILES src/{library}/", installed)
        assert names, library
        found[library] = [ROOT / "src" / library / f"{n}.hpp" for n in names[1].split()]
    return found


def header_listings() -> str:
    """The public headers, which hold the contract."""
    made = [""]
    for library, headers in public_headers().items():
        made.append(f"## {library}\n")
        for header in headers:
            made.append(f"### {library}/{header.name}\n\n{listing(header)}")
    return "\n".join(made)


# ---- The tree ------------------------------------------------------------------------------------
def write(folder: Path, place: str, text: str) -> None:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_notebook(notebook: Path, folder: Path) -> None:
    """Its page, with the outputs that it has, and its pictures."""
    page, found = MarkdownExporter().from_filename(str(notebook))
    for name, data in found["outputs"].items():
        picture = f"{notebook.stem}-{name}"
        page = page.replace(f"]({name})", f"]({picture})")
        (folder / "gallery" / picture).write_bytes(data)
    write(folder, f"gallery/{notebook.stem}.md", page)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    linked: set[str] = set()
    pages = [*PAGES, *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    for page in pages:
        write(folder, place_of(page), adapt((ROOT / page).read_text(), page, linked))
    for files in ("images", "third_party"):
        shutil.copytree(ROOT / "docs" / files, folder / files)
    for notebook in (ROOT / "docs" / "gallery").glob("*.ipynb"):
        write_notebook(notebook, folder)
    for target in sorted(linked):
        if place_of(target).startswith("source/"):
            write(folder, place_of(target), source_page(target))
    cpp = folder / "reference" / "cpp.md"
    cpp.write_text(cpp.read_text() + header_listings())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
