"""The sum of the chunks' results: the same bits whichever rank does which chunk.

The results are the leaves of a binary tree, by chunk. A node is its left child plus its right one,
and an only child goes up as it is. It does not matter which process adds, so a rank
adds what it has of the tree, and the pool the rest.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

from malt._errors import ConfigError
from malt._messages.values import dtype_of_sum

_FIXED = (int, float, complex, np.generic, type(None))

# A node of the tree: its height, and its number among the nodes of that height.
Node = tuple[int, int]


class Tree:
    """The nodes that are known so far, without those below another one."""

    def __init__(self, leaves: int) -> None:
        self._leaves = leaves
        self._known: dict[Node, tuple[Any, bool]] = {}  # and whether the value is this tree's own

    def add(self, node: Node, value: object) -> None:
        """Add a node that is neither there nor below or above one that is."""
        is_own = False
        height, number = node
        while self._width(height) > 1:
            if number ^ 1 < self._width(height):
                if (other := self._known.pop((height, number ^ 1), None)) is None:
                    break
                pair = ((value, is_own), other)
                left, right = pair if number % 2 == 0 else pair[::-1]
                try:
                    value = _add(left[0], right[0], is_own=left[1])
                except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
                    raise _not_summable(height, number, left[0], right[0], error) from error
                is_own = True
            height, number = height + 1, number // 2
        self._known[height, number] = value, is_own

    def own(self) -> None:
        """Copy the values that are not this tree's own: whoever gave them may now change them."""
        for node, (value, is_own) in self._known.items():
            if not is_own:
                self._known[node] = _copy(value), True

    def nodes(self) -> list[tuple[Node, Any]]:
        return [(node, value) for node, (value, _) in self._known.items()]

    @property
    def is_whole(self) -> bool:
        """Whether all leaves are known."""
        return len(self._known) == 1 and self._width(next(iter(self._known))[0]) == 1

    def missing(self) -> list[int]:
        """Return the leaves that are in no known node."""
        known = {leaf for node in self._known for leaf in self.leaves_of(node)}
        return [leaf for leaf in range(self._leaves) if leaf not in known]

    def total(self) -> Any:
        """Return the sum of all leaves, which are all known; nobody else has its memory."""
        ((value, is_own),) = self._known.values()
        return value if is_own else _copy(value)

    def leaves_of(self, node: Any) -> range:
        """Return the leaves below a node; empty: there is no such node."""
        if not (isinstance(node, tuple) and len(node) == 2 and all(type(of) is int for of in node)):
            return range(0)
        height, number = node
        if not (0 <= height <= self._leaves.bit_length() and 0 <= number < self._leaves):
            return range(0)
        return range(number << height, min((number + 1) << height, self._leaves))

    def _width(self, height: int) -> int:
        return -(-self._leaves >> height) if height else self._leaves


def leaf(chunk: int) -> Node:
    return 0, chunk


def counted(value: Any) -> Any:
    """Return a chunk's result as a summand.

    Of arrays, matrices and tensors, truth values count as 0 or 1, and narrow integers are widened
    as by numpy.sum, to int64 or uint64, so that no sum wraps; float16 becomes float32.
    """
    if isinstance(value, tuple | list):
        items = map(counted, value)
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, dict):
        return {key: counted(item) for key, item in value.items()}
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        wide = dtype_of_sum(dtype)
        return value if wide == dtype else value.astype(wide)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        is_narrow_float = value.dtype in (torch.float16, torch.bfloat16)
        if is_narrow_float or not (value.is_floating_point() or value.is_complex()):
            return value.to(torch.float32 if is_narrow_float else torch.int64)
    return value


def _add(left: Any, right: Any, *, is_own: bool) -> Any:
    """Return left + right, for containers item by item; `is_own`: left may be written over."""
    if left is None and right is None:
        return None
    if isinstance(left, tuple | list):
        if type(left) is not type(right) or len(left) != len(right):
            raise ValueError("they differ in kind or length")
        items = [_add(one, other, is_own=is_own) for one, other in zip(left, right, strict=True)]
        return left._make(items) if hasattr(left, "_make") else type(left)(items)
    if isinstance(left, dict):
        if not isinstance(right, dict):
            raise TypeError("one is a dictionary, the other is not")
        total = {}
        for key, value in left.items():
            if key in right:
                total[key] = _add(value, right[key], is_own=is_own)
            else:
                total[key] = value if is_own else _copy(value)
        for key, value in right.items():
            if key not in total:
                total[key] = _copy(value)
        return total
    if isinstance(left, str | bytes):
        raise TypeError("text is no number")
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        if left.shape != right.shape:
            raise ValueError(f"their shapes are {left.shape} and {right.shape}")
        if (
            is_own
            and left.dtype == right.dtype
            and left.flags.writeable
            and left.dtype.kind in "fc"
        ):
            return np.add(left, right, out=left)
    with np.errstate(over="ignore"):
        total = left + right
    _check_wrapped(left, right, total)
    return total


def _check_wrapped(left: Any, right: Any, total: Any) -> None:
    """Raise ValueError if NumPy's sum of integers is beyond their dtype."""
    if not isinstance(total, np.ndarray | np.generic) or total.dtype.kind not in "iu":
        return
    is_unsigned = total.dtype.kind == "u"
    wrapped = total < left if is_unsigned else ((left ^ total) & (right ^ total)) < 0
    if wrapped.any():
        raise ValueError(f"the sum is beyond {total.dtype}; return floats")


def _copy(value: Any) -> Any:
    if isinstance(value, tuple | list):
        items = map(_copy, value)
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if isinstance(value, _FIXED) else copy.deepcopy(value)


def _not_summable(
    height: int, number: int, left: object, right: object, error: Exception
) -> ConfigError:
    first = (number & ~1) << height
    second = (number | 1) << height
    return ConfigError(
        f"pool.sum(): the results of chunk {first} ({_kind(left)}) and of chunk {second} "
        f"({_kind(right)}) cannot be added: {error}; return numbers or arrays whose shape does not "
        "depend on the chunk, or tuples, lists or dictionaries of them"
    )


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
