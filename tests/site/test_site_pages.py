"""How .ci/site_pages.py makes pages of the site from those of the repository."""

from __future__ import annotations

import runpy
from pathlib import Path

MADE = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "site_pages.py"))


def adapt(markdown: str, file: str = "docs/data.md") -> tuple[str, set[str]]:
    linked: set[str] = set()
    return MADE["adapt"](markdown, file, linked), linked


def test_list_and_table_after_a_line_get_an_empty_line_before() -> None:
    assert adapt("Text:\n- a\n- b\n")[0] == "Text:\n\n- a\n- b\n"
    assert adapt("Text:\n| a |\n|---|\n| 1 |\n")[0] == "Text:\n\n| a |\n|---|\n| 1 |\n"


def test_content_of_a_list_is_indented_twice_as_far() -> None:
    text, _ = adapt("- a\n  - b\n  ```python\n  if x:\n      y\n  ```\n\nText\n  more\n")
    assert text == "- a\n    - b\n    ```python\n    if x:\n        y\n    ```\n\nText\n  more\n"


def test_code_is_left_alone_but_for_the_words_of_its_fence() -> None:
    assert adapt("```bash norun\n- [x](y.md)\n| a\n```\n")[0] == "```bash\n- [x](y.md)\n| a\n```\n"
    assert adapt("```python file=a.py\n1\n```\n")[0] == '```python title="a.py"\n1\n```\n'


def test_links_lead_to_pages_of_the_site() -> None:
    text, linked = adapt("[a](docs/graphs.md#the-graphs) [b](examples/hello.py)", "README.md")
    assert text == "[a](graphs.md#the-graphs) [b](source/examples/hello.py.md)\n"
    assert linked == {"docs/graphs.md", "examples/hello.py"}
    text, _ = adapt("[a](../../README.md) [b](../graphs.md)", "docs/tutorials/ray.md")
    assert text == "[a](../index.md) [b](../graphs.md)\n"
