"""The folders of src/ include one another in one direction, and public headers only public ones.

python tests/python/project/test_layers.py      writes the layers into CONTRIBUTING.md
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
GUIDE = ROOT / "CONTRIBUTING.md"

# A folder may include those of a lower floor, and the public headers of src/dstorm.
FLOORS = {
    "dstorm/graph": 0,
    "dstorm/slot": 0,
    "dstorm/membership": 1,
    "dstorm/recorder": 1,
    "dstorm/host": 2,
    "dstorm/remote/net": 3,
    "dstorm/remote/transport": 4,
    "dstorm/remote/tcp": 5,
    "dstorm/remote/verbs": 5,
    "dstorm/remote": 6,
    "dstorm/segment": 7,
    "dstorm/group": 7,
    "dstorm/collective": 8,
    "dstorm/device": 8,
    "dstorm": 9,  # their sources, which join the parts
    "vol": 10,
    "vol/device": 11,
    "vol/ps": 11,
    "learn": 11,
}


def guide() -> str:
    """CONTRIBUTING.md with the layers that are checked."""
    floors = [
        [f"src/{name}/" for name in names]
        for _, names in itertools.groupby(sorted(FLOORS, key=FLOORS.__getitem__), FLOORS.get)
    ]
    settings = (ROOT / "pyproject.toml").read_text()
    (contract,) = re.findall(r'^layers = \[\n((?:  "[\w |]+",\n)+)\]', settings, flags=re.MULTILINE)
    layers = [re.findall(r"\w+", line) for line in reversed(contract.splitlines())]
    text = ""
    for title, lists in (("`src/`", floors), ("`python/malt/`", layers)):
        text += f"\n{title}, the lowest first:\n\n"
        text += "".join(f"- {', '.join(f'`{name}`' for name in names)}\n" for names in lists)
    begin, end = "<!-- layers -->\n", "<!-- end of layers -->"
    before, _, rest = GUIDE.read_text().partition(begin)
    return before + begin + text + "\n" + end + rest.partition(end)[2]


def test_the_layers_of_the_guide_are_those_that_are_checked() -> None:
    assert GUIDE.read_text() == guide(), "run this file as a program"


def included(file: Path) -> list[Path]:
    names = re.findall(r'^#include "(.+)"', file.read_text(), flags=re.MULTILINE)
    return [SOURCE / name for name in names]


def folder(file: Path) -> str:
    return str(file.parent.relative_to(SOURCE))


def is_public(file: Path) -> bool:
    return folder(file) == "dstorm" and file.suffix == ".hpp"


def public_headers() -> set[Path]:
    """The headers that a user of the installed library includes, directly or not."""
    found: set[Path] = set()
    left = [SOURCE / name for name in ("dstorm/dstorm.hpp", "vol/vol.hpp", "learn/learn.hpp")]
    left.append(SOURCE / "dstorm/mpi.hpp")
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += included(file)
    return found


def test_folders_include_lower_ones_alone() -> None:
    files = [*SOURCE.rglob("*.hpp"), *SOURCE.rglob("*.cpp")]
    assert len(files) > 150
    wrong = [
        f"{file.relative_to(SOURCE)} includes {other.relative_to(SOURCE)}"
        for file in files
        for other in included(file)
        if folder(other) != folder(file)
        and not is_public(other)
        and FLOORS[folder(other)] >= FLOORS[folder(file)]
    ]
    assert not wrong


def test_transports_are_named_where_they_are_chosen_alone() -> None:
    choosers = {"verbs": "dstorm/group/transports.cpp", "tcp": "dstorm/remote/transport_choice.cpp"}
    for name, chooser in choosers.items():
        named = {
            str(file.relative_to(SOURCE))
            for file in [*SOURCE.rglob("*.hpp"), *SOURCE.rglob("*.cpp")]
            if re.search(
                rf'\b{name}::|^#include "dstorm/remote/{name}/', file.read_text(), re.MULTILINE
            )
            and folder(file) != f"dstorm/remote/{name}"
        }
        assert named == {chooser}


def test_public_headers_are_those_installed() -> None:
    text = (ROOT / "cmake/install.cmake").read_text()
    installed = set((SOURCE / "dstorm").glob("*.hpp"))
    for names, part in re.findall(r"foreach\(name ([a-z_\s]+)\)\s+install\(FILES src/(\w+)/", text):
        installed |= {SOURCE / part / f"{name}.hpp" for name in names.split()}
    assert public_headers() == installed


if __name__ == "__main__":
    GUIDE.write_text(guide())
