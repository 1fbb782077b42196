"""Every paper that code or a page names is in docs/references.md, once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
REFERENCES = "docs/references.md"
# "Boyd et al.", "Xing et al., KDD 2015", "Ma et al. (2015)"
OTHERS = re.compile(r"([A-Z][\w'-]+) et al\.(?:,? \(?(?:[A-Z]{3,} )?((?:19|20)\d\d))?")
# "Boyd 2011", "Lin, Mairal, Harchaoui 2015", "Smola and Narayanamurthy (VLDB 2010)"
NAMED = re.compile(
    r"(?!None)([A-Z][a-z][\w'-]+)(?:(?:,? (?:and|&) |, )[A-Z][\w'-]+)*"  # authors
    r",? \(?(?:[A-Z][A-Za-z]{2,} )?((?:19|20)\d\d)\b"  # venue, year
)
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")
COMMENT = re.compile(r"\n\s*(?://|#)?\s*")


def texts() -> Iterator[tuple[str, str]]:
    """Each file that may name papers: its path, and its text without the ends of lines."""
    files = [ROOT / "README.md"]
    for folder in ("docs", "src", "python", "examples", "benchmarks"):
        for ending in ("md", "py", "hpp", "cpp"):
            files += (ROOT / folder).rglob(f"*.{ending}")
    for file in sorted(files):
        path = str(file.relative_to(ROOT))
        if path != REFERENCES:
            yield path, COMMENT.sub(" ", file.read_text())


def papers() -> list[str]:
    return [
        line.split(" | ")[0]
        for line in (ROOT / REFERENCES).read_text().splitlines()
        if re.match(r'\| [^|]*"', line)
    ]


def missing(text: str, entries: list[str]) -> list[str]:
    """What the text cites that no entry has: author and year, or a number of arXiv."""
    cited = [
        [part for part in match.groups() if part]
        for pattern in (OTHERS, NAMED)
        for match in pattern.finditer(text)
    ]
    cited += [[number] for number in ARXIV.findall(text)]
    return [
        " ".join(parts) for parts in cited if not any(all(p in e for p in parts) for e in entries)
    ]


def test_every_paper_that_is_named_is_a_reference() -> None:
    entries = papers()
    found = {path: lacking for path, text in texts() if (lacking := missing(text, entries))}
    assert not found


def test_no_paper_is_a_reference_twice() -> None:
    titles = re.findall(r'^\| [^|]*?"([^"]+)"', (ROOT / REFERENCES).read_text(), re.MULTILINE)
    assert len(titles) == len({title.lower() for title in titles}) > 50


def test_a_citation_is_known_by_author_and_year() -> None:
    entries = ['Ma et al., "Adding vs. Averaging", ICML 2015']
    assert missing("(Ma et al. 2015, adding)", entries) == []
    assert missing("(Ma et al., KDD 2016)", entries) == ["Ma 2016"]
    assert missing("Lin, Mairal, Harchaoui 2015; 2311.08105", entries) == ["Lin 2015", "2311.08105"]
