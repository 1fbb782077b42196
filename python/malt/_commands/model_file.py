"""The file that `malt train --out` writes and `malt predict` reads."""

from __future__ import annotations

import io
import json
import math
import secrets
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malt._data.files import reading
from malt._errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt


_LINEAR = ("coef", "intercept", "classes", "zero_based", "columns")
_OF_RATINGS = (
    "users",
    "items",
    "user_factors",
    "item_factors",
    "user_biases",
    "item_biases",
    "mean",
)


def settings_of(model: Any) -> dict[str, str]:
    """Return an estimator's settings that are not None, as text."""
    return {name: str(value) for name, value in model.get_params().items() if value is not None}


def save(path: str, model: Any, arrays: dict[str, Any]) -> None:
    """Write the learnt arrays and the settings, as .npz without pickle."""
    import numpy as np

    about = {"estimator": type(model).__name__, "settings": settings_of(model)}
    with drafted(path, "wb") as file:
        np.savez(file, allow_pickle=False, malt_model=json.dumps(about), **arrays)
    print(f"model: {path}")


def load(path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `malt predict` needs from a file that `malt train --out` has written.

    They take no more memory than the file has bytes, even if the file claims larger sizes.

    Raises:
        ConfigError: there is no such file, or `malt train --out` has not written it.
    """
    with reading(path), open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"  # every .npz begins so
        size = file.seek(0, io.SEEK_END)
        members = {}
        if is_archive:
            archive = zipfile.ZipFile(file)
            members = {member.filename: member for member in archive.infolist()}
        if "malt_model.npy" not in members:
            raise ConfigError(f"{path} is no model: `malt train --out` has not written it")
        wanted = _OF_RATINGS if "user_factors.npy" in members else _LINEAR
        arrays = {}
        for name in wanted:
            member = members.get(f"{name}.npy")
            if member is not None:
                if member.compress_size != member.file_size or member.file_size > size:
                    raise ConfigError(
                        f"{path}: {name} is {member.file_size} bytes out of "
                        f"{member.compress_size}, in a file of {size}; `malt train --out` "
                        "compresses nothing"
                    )
                arrays[name] = _read(path, name, archive.read(member))
    return arrays


def _read(path: str, name: str, content: bytes) -> npt.NDArray[Any]:
    """Read a member's array, after a check that it is as long as its header says."""
    import numpy as np
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    stored = len(content) - file.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != stored:
        raise ConfigError(f"{path}: {name} is not {shape} of {dtype}: it has {stored} bytes")
    array = np.frombuffer(content, dtype, math.prod(shape), file.tell())
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)


def check(
    path: str, arrays: dict[str, npt.NDArray[Any]], name: str, kinds: str, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return the array `name`, after checks of its dtype and shape.

    Args:
        path: the model, for messages.
        arrays: as returned by load().
        name: of the array.
        kinds: NumPy's letters for the kinds of dtypes that are allowed.
        shape: the shape that it must have; -1 allows any extent but 0.

    Raises:
        ConfigError: the array is missing, or has another dtype or shape.
    """
    array = arrays.get(name)
    if array is None:
        raise ConfigError(f"{path} is damaged: a model has {name!r}")
    fits = array.ndim == len(shape) and all(
        given == asked or (asked == -1 and given > 0)
        for given, asked in zip(array.shape, shape, strict=True)
    )
    if array.dtype.kind not in kinds or not fits:
        raise ConfigError(
            f"{path} is damaged: {name} is {array.dtype} of shape {array.shape}, which does not go "
            "with the rest"
        )
    return array


@contextmanager
def drafted(path: str, mode: str) -> Iterator[Any]:
    """Yield a file to write; it replaces the file at `path` once all of it is written."""
    if Path(path).exists() and not Path(path).is_file():  # a device or a pipe stays what it is
        with open(path, mode) as file:
            yield file
        return
    target = Path(path).resolve()
    # A name at which nobody can have put a link; besides, mode "x" follows no link.
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}.draft")
    try:
        with draft.open(mode.replace("w", "x")) as file:
            yield file
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
