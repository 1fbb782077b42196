"""One rank's part of a consensus: its x, z and multipliers, and the arithmetic of a round.

With the scaled multipliers u and a rho for each rank, ADMM is an iteration on w = x + u alone:

    z = prox_g(sum of rho_j w_j / sum of rho_j),  u = w - z,  x' = argmin f + rho/2 |x - (z - u)|^2,
    w' = x' + u

A rank sends rho_j w_j and rho_j, by row, so that a sum over any ranks gives their z, whatever rows
they hold and whatever rho each has come to.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._consensus.arguments import Options, Rows
from malt._errors import ConfigError

Array = npt.NDArray[Any]

# Boyd et al., 3.4.1, with 10 for both. A rho that is too small costs more rounds than one that is
# too large, above all where updates come late.
_TOO_SMALL, _TOO_LARGE, _FACTOR = 4, 10, 2
_FURTHER = 1.2  # times as far, after rho has fallen: rho was what held x back
_MOST_CHANGES = 50  # of rho: ADMM converges when rho stays as it is
HERE, NOT_FINITE = 1, 2  # a rank's word in its payload


class Norms(NamedTuple):
    """Squares, summed over a rank's elements. Those of ranks can be added.

    A row that only this rank has is not in the residuals: no penalty concerns it, so neither do
    rho and the multipliers.
    """

    primal: float = 0.0  # |x - z|^2
    dual: float = 0.0  # |rho (z - z of the round before)|^2
    x: float = 0.0
    z: float = 0.0
    y: float = 0.0  # |rho u|^2
    elements: float = 0.0  # how many
    moved: float = 0.0  # of all rows: |x - x of the round before|^2
    all_x: float = 0.0
    all_elements: float = 0.0


class Residuals(NamedTuple):
    """Boyd et al., 3.3: the residuals and the bounds under which they count as small.

    That both are small is enough where each x is the minimum of its round. A solver that only comes
    closer from round to round may still be under way, with all ranks' x alike, or with a rho so
    small that no step counts; so x has to stay as well.
    """

    primal: float
    dual: float
    primal_bound: float
    dual_bound: float
    moved: float
    moved_bound: float

    @property
    def are_small(self) -> bool:
        bounds = self.primal_bound, self.dual_bound, self.moved_bound
        return (
            all(map(math.isfinite, bounds))  # elements of float32 may overflow
            and self.primal <= self.primal_bound
            and self.dual <= self.dual_bound
            and self.moved <= self.moved_bound
        )


def residuals_of(norms: Norms, options: Options) -> Residuals:
    absolute = math.sqrt(norms.elements) * options.atol
    return Residuals(
        math.sqrt(norms.primal),
        math.sqrt(norms.dual),
        absolute + options.rtol * math.sqrt(max(norms.x, norms.z)),
        absolute + options.rtol * math.sqrt(norms.y),
        math.sqrt(norms.moved),
        math.sqrt(norms.all_elements) * options.atol + options.rtol * math.sqrt(norms.all_x),
    )


class Layout:
    """Offsets in a rank's payload. Payloads of several ranks are added."""

    def __init__(self, rows: int, columns: int, size: int) -> None:
        self._shape = (rows, columns)
        self._values = rows * columns
        self._norms = self._values + rows
        self._words = self._norms + len(Norms._fields)
        self.length = self._words + size

    def values(self, payload: Array) -> Array:
        """(shared rows, columns): rho w."""
        return payload[: self._values].reshape(self._shape)

    def weights(self, payload: Array) -> Array:
        """(shared rows,): rho."""
        return payload[self._values : self._norms]

    def norms(self, payload: Array) -> Array:
        return payload[self._norms : self._words]

    def words(self, payload: Array) -> Array:
        """(size,): by rank: one of the words, or 0 if the rank has not added a payload."""
        return payload[self._words : self.length]

    def ranks(self, payload: Array, word: int | None = None) -> tuple[int, ...]:
        """The ranks that have given this word, or any."""
        words = self.words(payload)
        found = np.flatnonzero(words != 0 if word is None else words == word)
        return tuple(map(int, found))


class Local:
    """This rank's x, z and multipliers.

    Attributes:
        rho, z, u, is_shared: as malt.optimize.Consensus has them.
        norms: of the last sum.
        has_moved: whether x has changed in any round.
    """

    def __init__(self, x: Array, options: Options, rows: Rows, rank: int, size: int) -> None:
        self.rho = options.rho
        self.z: Array = x.copy()
        self.u: Array = np.zeros_like(x)
        self.is_shared = np.zeros(len(x), bool)
        self.norms = Norms()
        self.has_moved = False
        self.layout = Layout(rows.total, x[0].size, size)
        self._given, self._rows, self._prox, self._rank = x, rows, options.prox, rank
        self._has_ids = rows.has_ids
        self._x, self._w = x.copy(), x.copy()
        self._last = x.copy()  # x of the round before
        self._before = self.z  # z by which x was computed
        self._changes = 0  # of rho
        self._moved = 0.0  # by how much x moved when rho fell because it held x back

    def take_x(self) -> bool:
        """Begin a round with the x that the user has computed; return whether it is finite."""
        if not np.isfinite(self._given).all():
            return False
        np.copyto(self._x, self._given)
        np.add(self._x, self.u, out=self._w)
        self._before = self.z
        return True

    def write(self, payload: Array) -> None:
        """Write this rank's payload."""
        own, places = self._rows.own, self._rows.places
        payload[:] = 0
        self.layout.values(payload)[places] = self.rho * self._w.reshape(len(self._w), -1)[own]
        self.layout.weights(payload)[places] = self.rho
        self.write_norms(payload)

    def write_norms(self, payload: Array) -> None:
        self.layout.norms(payload)[:] = self.norms
        self.layout.words(payload)[self._rank] = HERE

    def write_word(self, payload: Array, word: int) -> None:
        """Write a payload that only says why this rank makes no round."""
        payload[:] = 0
        self.layout.words(payload)[self._rank] = word

    def begin(self, total: Array) -> None:
        """Set z to the mean of the ranks' x, before the first round."""
        self.z, self.is_shared = self._mean(total)

    def take_sum(self, total: Array) -> None:
        """Compute z and the multipliers from the sum of the payloads, in which this rank's is.

        Raises:
            ConfigError: prox() returned another shape, or a value that is not finite; nothing was
                changed.
        """
        z, is_shared = self._mean(total)
        if self._prox is not None:
            weight = float(self.layout.weights(total)[0])
            z[:] = _checked_prox(self._prox(z.copy(), 1 / weight), z)
        self.z, self.u, self.is_shared = z, np.subtract(self._w, z), is_shared
        moved = _square(self._x - self._last)
        self.has_moved = self.has_moved or moved > 0
        counts = is_shared if self._has_ids else slice(None)
        self.norms = Norms(
            _square((self._x - z)[counts]),
            self.rho**2 * _square((z - self._before)[counts]),
            _square(self._x[counts]),
            _square(z[counts]),
            self.rho**2 * _square(self.u[counts]),
            float(z[counts].size),
            moved,
            _square(self._x),
            float(z.size),
        )

    def _mean(self, total: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
        own, places = self._rows.own, self._rows.places
        weights = self.layout.weights(total)[places]
        z = self._w.copy()
        z.reshape(len(z), -1)[own] = self.layout.values(total)[places] / weights[:, None]
        is_shared = np.zeros(len(z), bool)
        is_shared[own] = weights > np.asarray(self.rho, weights.dtype)
        return z, is_shared

    def end_round(self) -> None:
        """Note that the next x is of another round."""
        np.copyto(self._last, self._x)

    def adapt(self, residuals: Residuals) -> bool:
        """Change rho if one residual is far larger than the other, and changes are left.

        Each is compared with its bound (Wohlberg 2017), so that neither the units of x nor those of
        the functions matter. If the ranks' x are alike already, a smaller rho makes the dual
        residual smaller without a step towards the optimum; unless it lets x move further, as where
        rho, and not the solver, is what holds x back.

        Returns:
            Whether rho is too small, changed or not.
        """
        primal = residuals.primal * residuals.dual_bound  # the quotients, times both bounds
        dual = residuals.dual * residuals.primal_bound
        if primal > _TOO_SMALL * dual:
            factor = float(_FACTOR)
        elif dual > _TOO_LARGE * primal and (
            residuals.primal > residuals.primal_bound or self._is_held_back(residuals)
        ):
            factor = 1 / _FACTOR
        else:
            return False
        if self._changes < _MOST_CHANGES:
            self._changes += 1
            self.rho *= factor
            self.u /= factor  # the unscaled multipliers, rho u, stay
            np.add(self.z, self.u, out=self._w)
        return factor > 1

    def _is_held_back(self, residuals: Residuals) -> bool:
        """Whether x still moves, and further than when this was so last."""
        moved = residuals.moved
        if moved <= residuals.moved_bound or moved <= _FURTHER * self._moved:
            return False
        self._moved = moved
        return True


def _square(values: Array) -> float:
    return float(np.vdot(values, values))


def _checked_prox(returned: npt.ArrayLike, z: Array) -> Array:
    array = np.asarray(returned)
    if array.shape != z.shape:
        raise ConfigError(
            f"prox() returned an array of the shape {array.shape}; z has the shape {z.shape}"
        )
    if not np.isfinite(array).all():
        raise ConfigError("prox() returned a value that is not finite")
    return array
