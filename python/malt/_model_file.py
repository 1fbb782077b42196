"""The file that `malt train --out` writes and `malt predict` reads."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malt._errors import ConfigError
from malt._files import reading

if TYPE_CHECKING:
    import numpy.typing as npt


def settings_of(model: Any) -> dict[str, str]:
    """Those of an estimator that are not None, as text."""
    return {name: str(value) for name, value in model.get_params().items() if value is not None}


def save(path: str, model: Any, arrays: dict[str, Any]) -> None:
    """Write what it has learnt, and its settings, as .npz without pickle."""
    import numpy as np

    about = {"estimator": type(model).__name__, "settings": settings_of(model)}
    with drafted(path, "wb") as file:
        np.savez(file, allow_pickle=False, malt_model=json.dumps(about), **arrays)
    print(f"model: {path}")


def load(path: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays that `malt train --out` has written.

    Raises:
        ConfigError: there is no such file, or it is none of these.
    """
    import numpy as np

    with reading(path), open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"  # as every .npz
        file.seek(0)
        arrays = dict(np.load(file, allow_pickle=False)) if is_archive else {}
    if "malt_model" not in arrays:
        raise ConfigError(f"{path} is no model: `malt train --out` has not written it")
    return arrays


@contextmanager
def drafted(path: str, mode: str) -> Iterator[Any]:
    """A file to write, which takes the place of what is at `path` once all of it is written."""
    if Path(path).exists() and not Path(path).is_file():  # a device or a pipe stays what it is
        with open(path, mode) as file:
            yield file
        return
    target = Path(path).resolve()
    # A name that nobody can have put a link at; and mode "x" follows none.
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}.draft")
    try:
        with draft.open(mode.replace("w", "x")) as file:
            yield file
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
