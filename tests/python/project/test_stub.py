"""The type stub of the compiled core, which is made of the core itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).parents[3] / "python/malt/_core.pyi"


def test_stub_has_what_the_core_has(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", "malt._core", "-o", str(tmp_path)], check=True
    )
    text = (tmp_path / "malt/_core.pyi").read_text()
    text = re.sub(" +$", "", text, flags=re.MULTILINE)
    text = re.sub("^(__version__: str) = .*$", r"\1", text, flags=re.MULTILINE)
    if sys.version_info >= (3, 12):  # where Buffer has moved; the stub is for older ones, too
        text = text.replace("collections.abc.Buffer", "typing_extensions.Buffer")
        text = text.replace("import typing\n", "import typing\nimport typing_extensions\n", 1)
    renewed = tmp_path / "_core.pyi"
    renewed.write_text(text)
    assert STUB.read_text() == text, f"the bindings have changed: cp {renewed} {STUB}"
