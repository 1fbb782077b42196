"""The file that `malt train --out` writes and `malt predict` reads."""

from __future__ import annotations

import io
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from malt._data.files import reading
from malt._drafted import drafted
from malt._errors import ConfigError
from malt._system_limits import reason

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
    """Write the learnt arrays and the settings, as .npz without pickle.

    Raises:
        ConfigError: that cannot be written there; the model is in a temporary file if it can be.
    """
    try:
        _write(path, model, arrays)
    except OSError as error:
        size = sum(array.nbytes for array in arrays.values() if hasattr(array, "nbytes"))
        saved = _save_elsewhere(model, arrays)
        raise ConfigError(
            f"--out {path}: the model of {size} bytes cannot be written: {reason(error)}; "
            + (f"it is in {saved}" if saved else "make room, and train again")
        ) from error
    print(f"model: {path}")


def _save_elsewhere(model: Any, arrays: dict[str, Any]) -> str | None:
    """Write the model to a new temporary file, and return its name; None if that fails too."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="malt-model-", suffix=".npz")
        os.close(descriptor)
        _write(path, model, arrays)
    except OSError:
        return None
    return path


def _write(path: str, model: Any, arrays: dict[str, Any]) -> None:
    import numpy as np

    about = {"estimator": type(model).__name__, "settings": settings_of(model)}
    with drafted(path, "wb") as file:
        np.savez(file, allow_pickle=False, malt_model=json.dumps(about), **arrays)


def load(path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `malt predict` needs from a file that `malt train --out` has written.

    They take no more memory than the file has bytes, even if the file claims larger sizes.

    Raises:
        ConfigError: there is no such file, or `malt train --out` has not written it.
    """
    from malt._npy import Npz

    with reading(path), open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"  # every .npz begins so
        size = file.seek(0, io.SEEK_END)
        if not is_archive or "malt_model" not in (model := Npz(file, path)):
            raise ConfigError(f"{path} is no model: `malt train --out` has not written it")
        wanted = _OF_RATINGS if "user_factors" in model else _LINEAR
        names = [name for name in wanted if name in model]
        for name in names:
            if model.is_compressed(name):
                raise ConfigError(
                    f"{path}: {name} is compressed; `malt train --out` compresses nothing: train "
                    "the model again"
                )
        claimed = sum(model.size_of(name) for name in names)
        if claimed > size:
            raise ConfigError(
                f"{path} is damaged: its arrays are said to have {claimed:,} bytes, and the file "
                f"has {size:,}; train the model again"
            )
        return {name: model[name] for name in names}


def check(
    path: str, arrays: dict[str, npt.NDArray[Any]], name: str, kinds: str, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return the array `name`, after checks of its dtype, its shape and its values.

    Args:
        path: the model, for messages.
        arrays: as returned by load().
        name: of the array.
        kinds: NumPy's letters for the kinds of dtypes that are allowed.
        shape: the shape that it must have; -1 allows any extent but 0.

    Raises:
        ConfigError: the array is missing, has another dtype or shape, or has NaN or infinity.
    """
    import numpy as np

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
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(
            f"{path} is damaged, or its training diverged: {name} has NaN or infinity; train the "
            "model again, with a smaller learning rate if it diverged"
        )
    return array
