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

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malt import dask as dask
    from malt import jax as jax
    from malt import ps as ps
    from malt import ray as ray
    from malt import schedule as schedule
    from malt import spark as spark
    from malt import torch as torch
    from malt._api import *  # noqa: F403
    from malt._api import __all__, __version__  # noqa: F401
    from malt._data.chunks import Chunks as Chunks
    from malt._data.chunks import Data as Data
    from malt._data.load import load_data as load_data
    from malt._factorization.estimator import MatrixFactorization as MatrixFactorization
    from malt._linear.lasso import ElasticNet as ElasticNet
    from malt._linear.lasso import Lasso as Lasso
    from malt._linear.logistic_svc import LinearSVC as LinearSVC
    from malt._linear.logistic_svc import LogisticRegression as LogisticRegression
    from malt._linear.ridge_svr import LinearSVR as LinearSVR
    from malt._linear.ridge_svr import Ridge as Ridge
    from malt._linear.sgd_classifier import SGDClassifier as SGDClassifier
    from malt._linear.sgd_regressor import SGDRegressor as SGDRegressor
    from malt._pool.pool import Pool as Pool
    from malt._topics.estimator import LatentDirichletAllocation as LatentDirichletAllocation
    from malt._wrapping.wrap import wrap as wrap
else:
    # Names that are loaded only on first use: their module, and the extra that installs what they
    # import, or "" if nothing has to be installed.
    _WITH_EXTRAS = {
        "Chunks": ("malt._data.chunks", "data"),
        "Data": ("malt._data.chunks", "data"),
        "ElasticNet": ("malt._linear.lasso", "learn"),
        "Lasso": ("malt._linear.lasso", "learn"),
        "LatentDirichletAllocation": ("malt._topics.estimator", "learn"),
        "LinearSVC": ("malt._linear.logistic_svc", "learn"),
        "LinearSVR": ("malt._linear.ridge_svr", "learn"),
        "LogisticRegression": ("malt._linear.logistic_svc", "learn"),
        "MatrixFactorization": ("malt._factorization.estimator", "learn"),
        "Pool": ("malt._pool.pool", "pool"),
        "Ridge": ("malt._linear.ridge_svr", "learn"),
        "SGDClassifier": ("malt._linear.sgd_classifier", "learn"),
        "SGDRegressor": ("malt._linear.sgd_regressor", "learn"),
        "dask": ("malt.dask", "dask"),
        "jax": ("malt.jax", "jax"),
        "load_data": ("malt._data.load", "data"),
        "ps": ("malt.ps", ""),
        "ray": ("malt.ray", "ray"),
        "schedule": ("malt.schedule", ""),
        "spark": ("malt.spark", "spark"),
        "torch": ("malt.torch", "torch"),
        "wrap": ("malt._wrapping.wrap", "learn"),
    }

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

            raise no_attribute(name, [*_api.__all__, *_WITH_EXTRAS]) from None

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

        return sorted({*globals(), *_api.__all__, *_WITH_EXTRAS})
