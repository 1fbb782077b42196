"""Figures in sentences are those of the tables in docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PERFORMANCE = "performance.md"


def rows() -> Iterator[tuple[str, dict[str, str]]]:
    """Each row of the tables: its headings and cells as text, and its cells by column."""
    heads = {2: "", 3: ""}
    header: list[str] = []
    for line in (DOCS / PERFORMANCE).read_text().splitlines():
        if heading := re.match(r"(##+) (.*)", line):
            level = len(heading[1])
            heads |= {deeper: "" for deeper in heads if deeper > level} | {level: heading[2]}
        if not line.startswith("| "):
            header = []
        elif not header:
            header = line[2:-2].split(" | ")
        elif not line.startswith("| ---"):
            cells = line[2:-2].split(" | ")
            # A later column of the same name does not count.
            named = dict(zip(reversed(header), reversed(cells), strict=True))
            yield " | ".join([heads[2], heads[3], *cells]), named


def values(of: str, column: str) -> list[float]:
    """The numbers of a column in the rows whose headings and cells match `of`."""
    cells = [named.get(column, "") for text, named in rows() if re.search(of, text)]
    return [
        float(n.replace(",", "")) for cell in cells for n in re.findall(r"\d[\d,.]*\d|\d", cell)
    ]


def test_verdicts_come_first_below_a_sentence() -> None:
    lines = (DOCS / PERFORMANCE).read_text().splitlines()
    for at, line in enumerate(lines):
        assert not re.search(r".\| (ok|\*\*short\*\*) \|", line), line
        if line.startswith("| target |"):
            assert re.fullmatch(r"\*\*Targets met: \d+ of \d+ rows\.\*\*", lines[at - 2])


ALIKE = r"^Consensus .*\| alike \| (quorum|max)"
# The page; its words, with {} for figures; the rows and the column whose least and most they are
# (of one figure: the most); whether the figures are the column's or one by these.
SENTENCES = [
    ("pipeline.md", "takes {} to {} times as many examples", r"^A layer.*\| 64 x 64", "x torch", 1),
    (PERFORMANCE, "of a message counts: up to {} times", r"^A layer.*\| 64 x 64", "x torch", 1),
    (
        PERFORMANCE,
        "caller's memory ({} to {} times, as",
        r"From Python.*\| (16|64) MB",
        "x gloo",
        1,
    ),
    (
        *(PERFORMANCE, "own memory with two ranks ({}).", r"From Python.*\| 2 \| 16 MB"),
        *("own memory: x MPI", 1),
    ),
    (PERFORMANCE, "whole fit*: on SYN {} to {}.", r"^Solved.*\| SYN.*MALT, 2 ranks", "x", 1),
    (PERFORMANCE, "Snap ML takes {} to {} times as", r"^Solved.*\| SYN.*Snap ML, 1", "x", 1),
    (PERFORMANCE, "log loss takes {} to {} times as", r"^Solved.*\| SYN, log.*liblinear", "x", 1),
    (PERFORMANCE, "of Snap ML take {} to {} times as", r"^Solved.*Snap ML, 2", "x", 1),
    ("consensus.md", "rounds were {} to {} times as fast", ALIKE, "x", -1),
    ("partition.md", "languages, {} to {} times fewer", r"GROUPS in.*malt.data.partition", "x", 1),
    ("partition.md", "groups it is {} to {} times, all", r"ZIPF in.*malt.data.partition", "x", 1),
    ("partition.md", "columns, and {} times on the words", r"NG in.*malt.data.partition", "x", 1),
]


@pytest.mark.parametrize(("page", "words", "of", "column", "power"), SENTENCES)
def test_a_sentence_has_the_figures_of_its_table(
    page: str, words: str, of: str, column: str, power: int
) -> None:
    text = " ".join((DOCS / page).read_text().split())
    pattern = re.escape(words).replace(r"\{\}", r"(\d+(?:\.\d+)?)")
    found = re.findall(pattern, text)
    assert len(found) == 1, f"{page}: {words}"
    figures = [found[0]] if isinstance(found[0], str) else list(found[0])
    from_table = [value**power for value in values(of, column)]
    bounds = [min(from_table), max(from_table)][-len(figures) :]
    for figure, bound in zip(figures, bounds, strict=True):
        digits = len(figure.partition(".")[2])
        assert float(figure) == round(bound, digits), f"{page}: {words}: the table has {bound:g}"
