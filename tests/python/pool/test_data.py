"""What pool.share() takes: the ranks see the rows as they were given, in shared memory."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

import malt

torch = pytest.importorskip("torch")

X = np.random.default_rng(7).normal(size=(100, 5))


@pytest.mark.parametrize(
    "data",
    [
        X,
        np.asfortranarray(X),
        X[:, ::2],
        X.astype(np.float32),
        (X > 0),
        np.array([("a", 1.0), ("b", 2.0)] * 5, dtype=[("name", "U1"), ("value", "f8")]),
        np.array(["some", "words"] * 5, dtype=object),
        sp.csr_array(X * (X > 1)),
        sp.csc_array(X * (X > 1)),
        sp.coo_matrix(X * (X > 1)),
        torch.arange(30.0).reshape(10, 3),
        torch.arange(10, dtype=torch.bfloat16),
        pd.DataFrame({"a": np.arange(10), "b": np.arange(10.0), "c": list("abcdefghij")}),
        pd.Series(np.arange(10.0), name="s"),
        pa.table({"a": np.arange(10), "b": [str(i) for i in range(10)]}),
        pa.chunked_array([[1, 2, None], [4, 5, 6]]),
        pa.array(["x", "yy", None, "z"]),
        ["a", "b", "c", "d"],
    ],
    ids=lambda data: f"{type(data).__module__}.{type(data).__name__}",
)
def test_ranks_see_the_rows_that_were_shared(pool: malt.Pool, data: Any) -> None:
    rows = data.shape[0] if hasattr(data, "shape") else len(data)
    halves = pool.sum(
        lambda theta, chunk, index: {int(index[0]): pickle.dumps(chunk)},
        None,
        pool.share(data, np.arange(rows), chunks=2),
    )
    middle = rows // 2
    assert sorted(halves) == [0, middle]
    assert_same(pickle.loads(halves[0]), slice_of(data, 0, middle))
    assert_same(pickle.loads(halves[middle]), slice_of(data, middle, rows))


def slice_of(data: Any, begin: int, end: int) -> Any:
    if isinstance(data, pd.DataFrame | pd.Series):
        return data.iloc[begin:end]
    return data.tocsr()[begin:end] if sp.issparse(data) else data[begin:end]


def assert_same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(got, np.ndarray):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype
    elif isinstance(got, pd.DataFrame):
        pd.testing.assert_frame_equal(got, wanted)
    elif isinstance(got, pd.Series):
        pd.testing.assert_series_equal(got, wanted)
    elif sp.issparse(got):
        assert (got != wanted).nnz == 0
    elif isinstance(got, torch.Tensor):
        assert torch.equal(got, wanted)
    elif isinstance(got, list):
        assert got == wanted
    else:
        assert got.equals(wanted)


def test_arrays_of_a_chunk_lie_in_shared_memory(pool: malt.Pool) -> None:
    def where(theta: None, *chunk: Any) -> int:
        arrays = [chunk[0], chunk[1].data, chunk[2].numpy(), chunk[3]["a"].to_numpy()]
        arrays.append(chunk[4].chunk(0).to_numpy())
        spans = []
        with open("/proc/self/maps") as maps:
            for line in maps:
                if "malt-pool-data" in line:
                    spans.append([int(end, 16) for end in line.split()[0].split("-")])
        places = [array.__array_interface__["data"][0] for array in arrays]
        return sum(any(a <= place < b for a, b in spans) for place in places)

    dense = np.arange(60.0).reshape(20, 3)
    data = pool.share(
        dense,
        sp.csr_array(dense),
        torch.from_numpy(dense),
        pd.DataFrame(dense, columns=list("abc")),
        pa.chunked_array([dense[:, 0].copy()]),
        chunks=2,
    )
    assert pool.sum(where, None, data) == 2 * 5


def test_tensor_as_theta(pool: malt.Pool) -> None:
    data = pool.share(X, chunks=4)
    tensor = torch.arange(5000.0)
    assert pool.sum(lambda theta, x: float(theta.sum()), tensor, data) == 4 * 12_497_500
