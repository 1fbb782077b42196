"""MALT: an existing training loop, data-parallel and peer to peer, with two calls.

    import malt, numpy as np
    malt.init()                           # under `malt run -n 4`, mpirun, srun, or one process
    w = np.zeros(dim, dtype=np.float32)   # the loop's own array
    m = malt.vector(w, graph=malt.HALTON)
    ...
    m.scatter()                           # write it into the other ranks' memory
    m.gather(malt.AVG)                    # fold what has arrived here

After MALT: Distributed Data Parallelism for Existing ML Applications (EuroSys 2015).
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malt import torch as torch
    from malt._api import *  # noqa: F403
    from malt._api import __all__, __version__  # noqa: F401
    from malt._classifiers import LinearSVC as LinearSVC
    from malt._classifiers import LogisticRegression as LogisticRegression
    from malt._classifiers import SGDClassifier as SGDClassifier
    from malt._regressors import SGDRegressor as SGDRegressor
    from malt._wrap import wrap as wrap
else:
    # What takes an extra: where it is, and the extra.
    _WITH_EXTRAS = {
        "LinearSVC": ("malt._classifiers", "learn"),
        "LogisticRegression": ("malt._classifiers", "learn"),
        "SGDClassifier": ("malt._classifiers", "learn"),
        "SGDRegressor": ("malt._regressors", "learn"),
        "wrap": ("malt._wrap", "learn"),
    }

    def __getattr__(name: str) -> object:
        """Loads the names, NumPy and the compiled core with them, when the first is asked for.

        The launcher asks for none, and so starts in a fraction of the time.
        """
        if name.startswith("_") and name not in ("__all__", "__version__"):
            # A submodule that is to be imported now, or nothing.
            raise AttributeError(f"module 'malt' has no attribute '{name}'")
        if name == "torch":
            return importlib.import_module("malt.torch")
        if name in _WITH_EXTRAS:
            return _load_with_extra(name)
        from malt import _api

        globals().update({each: getattr(_api, each) for each in ["__all__", *_api.__all__]})
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module 'malt' has no attribute '{name}'") from None

    def _load_with_extra(name: str) -> object:
        module, extra = _WITH_EXTRAS[name]
        try:
            found = getattr(importlib.import_module(module), name)
        except ImportError as error:
            if error.name is None or error.name.startswith("malt"):
                raise
            raise ImportError(
                f"malt.{name} takes {error.name}, which is not installed: pip install malt[{extra}]"
            ) from error
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        from malt import _api

        return sorted({*globals(), *_api.__all__, *_WITH_EXTRAS, "torch"})
