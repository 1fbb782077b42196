"""The base of the estimators, which refuse what only scikit-learn's classes have."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from sklearn.base import BaseEstimator


class Estimator(BaseEstimator):
    """An estimator whose errors about parameters name its public class, and what to do instead."""

    # Parameters of scikit-learn's class that this one has not -> what to do instead.
    _instead: ClassVar[dict[str, str]] = {}

    def __new__(cls, *args: Any, **parameters: Any) -> Any:  # noqa: ARG004
        known = inspect.signature(cls.__init__).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            for name in parameters.keys() - known.keys():
                raise TypeError(cls._refusal(name))
        return super().__new__(cls)

    def set_params(self, **params: Any) -> Any:
        """Set parameters, as in scikit-learn.

        Raises:
            ValueError: the estimator has no such parameter.
        """
        for name in params.keys() & self._instead.keys():
            raise ValueError(self._refusal(name))
        return super().set_params(**params)

    @classmethod
    def _refusal(cls, name: str) -> str:
        names = ", ".join(cls._get_param_names())
        instead = cls._instead.get(name, f"it has {names}")
        return f"malt.learn.{cls.__name__} has no parameter {name!r}: {instead}"
