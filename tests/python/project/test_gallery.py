"""The notebooks of docs/gallery run as they are, and are kept with what they printed and drew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

GALLERY = Path(__file__).parents[3] / "docs" / "gallery"
NOTEBOOKS = sorted(GALLERY.glob("*.ipynb"))


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    kept = code_of(notebook)
    # jupyter execute --inplace docs/gallery/*.ipynb
    assert [cell.execution_count for cell in kept] == [*range(1, len(kept) + 1)]
    assert any("image/png" in output.get("data", {}) for cell in kept for output in cell.outputs)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for cell in code_of(notebook):
        assert not [output for output in cell.outputs if output.get("name") == "stderr"]


def test_gallery_names_every_notebook() -> None:
    page = (GALLERY / "index.md").read_text()
    assert NOTEBOOKS
    assert all(f"({path.name})" in page for path in NOTEBOOKS)
