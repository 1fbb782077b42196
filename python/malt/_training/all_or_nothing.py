"""Trainings that leave an estimator as it was if they fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from malt._job.agreement import resuming

Method = TypeVar("Method", bound=Callable[..., Any])


def all_or_nothing(method: Method) -> Method:
    """Make a method that trains leave the estimator as it was if it raises.

    Otherwise the attributes of refused data, such as n_features_in_, would stand beside what the
    last training learnt.

    Arguments that the method does not take are a TypeError that names the public class.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **settings: Any) -> Any:
        try:
            signature.bind(self, *args, **settings)
        except TypeError as error:
            name = f"malt.learn.{type(self).__name__}.{method.__name__}()"
            takes = ", ".join(list(signature.parameters)[1:])
            raise TypeError(f"{name} {error}; it takes {takes}") from None
        before = vars(self).copy()
        try:
            with resuming(method):
                return method(self, *args, **settings)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast(Method, call)
