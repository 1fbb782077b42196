"""The losses of the dual ascent over arrays of rows: values, slopes, curvatures and conjugates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, xlogy

from malt._linear.problems import Problem
from malt._linear.rank_sums import Sums

Array = npt.NDArray[Any]

KINKED = ("hinge", "epsilon_insensitive")


class Bent(NamedTuple):
    """The rows' smooth losses at some decision values."""

    alphas: Array  # minus their first derivatives
    bends: Array  # their second derivatives


class Losses(NamedTuple):
    """Each row's loss, times its cost."""

    problem: Problem
    targets: Array
    costs: Array

    @property
    def is_kinked(self) -> bool:
        return self.problem.loss in KINKED

    def values(self, decisions: Array) -> Array:
        """Return each row's loss, without its cost."""
        loss = self.problem.loss
        if loss == "log_loss":
            return np.asarray(np.logaddexp(0, -self.targets * decisions))
        if loss == "squared_error":
            return np.asarray((self.targets - decisions) ** 2 / 2)
        if loss in ("hinge", "squared_hinge"):
            beyond = np.maximum(0, 1 - self.targets * decisions)
        else:
            beyond = np.maximum(0, np.abs(self.targets - decisions) - self.problem.epsilon)
        return np.asarray(beyond**2 if loss.startswith("squared") else beyond)

    def bend(self, decisions: Array) -> Bent:
        """Return a smooth loss's derivatives."""
        _, targets, costs = self
        loss = self.problem.loss
        if loss == "log_loss":
            share = expit(-targets * decisions)
            alphas = costs * share
            return Bent(targets * alphas, alphas * (1 - share))
        errors = targets - decisions
        if loss == "squared_error":
            return Bent(costs * errors, costs)
        if loss == "squared_hinge":  # y is -1 or 1: y - p is y (1 - y p)
            steep = 2 * costs * (targets * errors > 0)
            return Bent(steep * errors, steep)
        beyond = np.maximum(0, np.abs(errors) - self.problem.epsilon)
        return Bent(2 * costs * np.copysign(beyond, errors), 2 * costs * (beyond > 0))

    def allowed(self, alphas: Array) -> Array:
        """Return the alphas nearest to these that the dual allows; of a smooth loss."""
        loss = self.problem.loss
        if loss not in ("log_loss", "squared_hinge"):
            return alphas
        most = self.costs if loss == "log_loss" else np.inf
        return np.asarray(self.targets * np.clip(self.targets * alphas, 0, most))

    def duals(self, alphas: Array) -> Array:
        """Return each row's part of the dual objective (dual_at() in learn/dual_step.hpp)."""
        _, targets, costs = self
        loss = self.problem.loss
        linear = alphas * targets
        if loss == "log_loss":
            share = np.clip(linear / np.where(costs > 0, costs, 1), 0, 1)
            return np.asarray(-costs * (xlogy(share, share) + xlogy(1 - share, 1 - share)))
        if loss.endswith("epsilon_insensitive"):
            linear = linear - self.problem.epsilon * np.abs(alphas)
        if loss.startswith("squared"):
            curvature = 2 if loss == "squared_error" else 4
            linear = linear - alphas**2 / (curvature * np.where(costs > 0, costs, 1))
        return np.asarray(linear)


def balanced(alphas: Array, few: Sums) -> Array:
    """Return alphas that sum to 0 over all ranks: those of one sign are scaled down. Collective."""
    positive, negative = np.maximum(alphas, 0), np.maximum(-alphas, 0)
    of_positive, of_negative, *_ = few.add_few(float(positive.sum()), float(negative.sum()))
    kept = min(of_positive, of_negative)
    return np.asarray(
        positive * (kept / (of_positive or 1)) - negative * (kept / (of_negative or 1))
    )
