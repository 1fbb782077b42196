"""Model files that `malt predict` is given: of the input the first byte is which member the rest is
the content of, the others being those of an honest model; or the rest is the whole file.

As fuzz/checkpoint.py, in Python over Atheris.

usage: model.py [OPTION]... [FOLDER OR FILE]...
"""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import atheris
from target import instrument

with atheris.instrument_imports(include=["malt", "numpy.lib", "zipfile"]):
    import numpy as np
    from make_corpus import LINEAR, OF_RATINGS

    import malt
    from malt._commands import model_file, predict, train_mf

NAMES = [(model, name) for model in (LINEAR, OF_RATINGS) for name in model]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def archive(model: dict[str, Any], name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("malt_model.npy", b"")
        for other, array in model.items():
            members.writestr(f"{other}.npy", content if other == name else npy(array))
    return file.getvalue()


def run(given: bytes, folder: Path) -> None:
    """Predict by it: it is taken, or refused in words."""
    kind, content = given[0] % (len(NAMES) + 1) if given else 0, given[1:]
    whole = content if kind == len(NAMES) else archive(*NAMES[kind], content)
    path, pairs = folder / "m.npz", folder / "pairs.csv"
    path.write_bytes(whole)
    try:
        arrays = model_file.load(str(path))
        if "user_factors" in arrays:
            pairs.write_text("a,b,1\n")
            train_mf.predict(str(path), arrays, str(pairs))
        else:
            model = predict.SavedModel.of(str(path), arrays)
            model.predict(np.ones((1, model.coef.shape[-1])))
    except malt.Error:
        pass


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        instrument("malt._commands", "malt._npy", "malt._linear")
        atheris.Setup(sys.argv, lambda given: run(given, Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
