"""Type aliases of the vector classes."""

from __future__ import annotations

from typing import TypeAlias

from malt._core_import import (
    SparseVectorFloat32,
    SparseVectorFloat64,
    SparseVectorInt32,
    SparseVectorInt64,
    Vector,
)

SparseVector: TypeAlias = (
    SparseVectorFloat32 | SparseVectorFloat64 | SparseVectorInt32 | SparseVectorInt64
)
AnyVector: TypeAlias = Vector | SparseVector
SPARSE_VECTORS = (
    SparseVectorFloat32,
    SparseVectorFloat64,
    SparseVectorInt32,
    SparseVectorInt64,
)
