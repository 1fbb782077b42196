"""MALT makes an existing training loop data-parallel, peer to peer, with two calls.

    import malt, numpy as np
    malt.init()                           # under a launcher (`malt run -n 4`, mpirun, …), or alone
    w = np.zeros(dim, dtype=np.float32)   # the loop's own array
    m = malt.vector(w, graph=malt.HALTON)
    ...
    m.scatter()                           # write it into the other ranks' memory
    m.gather(malt.AVG)                    # fold what has arrived here

After MALT: Distributed Data-Parallelism for Existing ML Applications (EuroSys 2015).
"""

import contextlib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malt import dask as dask
    from malt import data as data
    from malt import jax as jax
    from malt import jobs as jobs
    from malt import learn as learn
    from malt import messages as messages
    from malt import optimize as optimize
    from malt import ps as ps
    from malt import ray as ray
    from malt import spark as spark
    from malt import torch as torch
    from malt import types as types
    from malt._api import *  # noqa: F403
    from malt._api import __all__, __version__  # noqa: F401
    from malt._data.load import load_data as load_data
    from malt._pool.pool import Pool as Pool
else:
    # Names that are loaded only on first use: their module, and the extra that installs what they
    # import, or "" if nothing has to be installed.
    _WITH_EXTRAS = {
        "Pool": ("malt._pool.pool", "pool"),
        "dask": ("malt.dask", "dask"),
        "data": ("malt.data", "data"),
        "jax": ("malt.jax", "jax"),
        "jobs": ("malt.jobs", ""),
        "learn": ("malt.learn", "learn"),
        "load_data": ("malt._data.load", "data"),
        "messages": ("malt.messages", ""),
        "optimize": ("malt.optimize", ""),
        "ps": ("malt.ps", ""),
        "ray": ("malt.ray", "ray"),
        "spark": ("malt.spark", "spark"),
        "torch": ("malt.torch", "torch"),
        "types": ("malt.types", ""),
    }

    # Those whose names a misspelt or misplaced one may mean.
    _MODULES = ("data", "jobs", "learn", "messages", "optimize", "ps")

    def __getattr__(name: str) -> object:
        """Load malt's names, with NumPy and the compiled core, when the first one is asked for.

        The launcher asks for none of them, and so starts in a fraction of the time.
        """
        if name.startswith("_") and name not in ("__all__", "__version__"):
            # Either a submodule that Python is about to import, or a name that does not exist.
            raise AttributeError(f"module 'malt' has no attribute '{name}'")
        if name in _WITH_EXTRAS:
            return _load_with_extra(name)
        from malt import _api

        globals().update({each: getattr(_api, each) for each in ["__all__", *_api.__all__]})
        try:
            return globals()[name]
        except KeyError:
            from malt._words import no_attribute

            names = [*_api.__all__, *_WITH_EXTRAS]
            for module in _MODULES:
                with contextlib.suppress(ImportError):
                    found = importlib.import_module(f"malt.{module}")
                    names += [f"{module}.{each}" for each in found.__all__]
            raise no_attribute(name, names) from None

    def _load_with_extra(name: str) -> object:
        home, extra = _WITH_EXTRAS[name]
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            if missing == "malt":
                raise
            from malt._distribution import pip_install

            raise ImportError(
                f"malt.{name} needs {missing}, which is not installed: {pip_install(extra)}"
            ) from error
        found = module if home == f"malt.{name}" else getattr(module, name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        from malt import _api

        return sorted({"__all__", *_api.__all__, *_WITH_EXTRAS})
