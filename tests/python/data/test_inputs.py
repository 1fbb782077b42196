"""One table of inputs and formats: each is read rightly, or refused with its place and a way out.

An expectation is the rows of X, X and y as a tuple, or a pattern of the error's message. `#` stands
for the file.
"""

from __future__ import annotations

import decimal
import gzip
import io
import os
import re
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from jobs import refused, run_job
from scipy import sparse

import malt
from malt import _npy
from malt._data import chunks
from malt._data.files import find_files
from malt._data.parts import split
from malt._data.reader import Reading

NAN = float("nan")
NO_ROWS = "there are no rows in #$"
MARK = b"\xef\xbb\xbf"


def check(path: Path, expected: Any, **options: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(malt.ConfigError) as raised:
            malt.load_data(path, **options)
        pattern = expected.replace("#", re.escape(str(path)))
        assert re.search(pattern, str(raised.value)), raised.value
        assert not re.search("Arrow(Invalid|NotImpl)|KeyError|bad_alloc|Unicode", str(raised.value))
        return
    x, y = expected if isinstance(expected, tuple) else (expected, None)
    data = malt.load_data(path, **options)
    found = data.X.toarray() if sparse.issparse(data.X) else data.X
    assert found.tolist() == x
    assert (None if data.y is None else data.y.tolist()) == y
    if options.get("on_bad") != "count":
        check_parts(path, x, options)


def check_parts(path: Path, x: Any, options: dict[str, Any]) -> None:
    """Several ranks have each row once."""
    for size in (2, 3):
        rows: list[Any] = []
        for rank in range(size):
            asked = Reading("float32", len(x[0]), False, options.get("label"), "raise", None, 1)
            asked.header = options.get("header")
            for piece in chunks.pieces(split(find_files(path, None), rank, size), asked):
                rows += (piece.x.toarray() if sparse.issparse(piece.x) else piece.x).tolist()
        assert rows == x


# ---- Text ----------------------------------------------------------------------------------------

TWO = [[1, 2], [3, 4]]
BEYOND = "is beyond float32; dtype='float64' may hold it"
# The text of a .csv file, what is expected, and options.
CSV: dict[str, tuple[str | bytes, Any, dict[str, Any]]] = {
    "mark": (MARK + b"a,y\n1,2\n3,4\n", ([[1], [3]], [2, 4]), {"label": "y"}),
    "mark, no header": (MARK + b"1,2\n3,4\n", TWO, {}),
    "utf-16": ("a,y\n1,2\n".encode("utf-16"), "# is UTF-16 text; save it as UTF-8", {}),
    "latin-1 header": ("é,y\n1,2\n".encode("latin-1"), "#, line 1 has byte 0xe9.*as UTF-8", {}),
    "latin-1": ("a,y\n1,é\n".encode("latin-1"), "#, line 2 has byte 0xe9.*on_bad='count'", {}),
    "not named .gz": (
        gzip.compress(b"a\n1\n", mtime=ord("\r")),
        "#, line 1 has byte 0x8b.*ends in .gz",
        {},
    ),
    "blank lines first": ("\n\r\n  \n1,2\n3,4\n", TWO, {}),
    "blank lines": ("\n \na,b\n\n1,2\n \n3,4\n\n", TWO, {}),
    "blank lines, then bad": ("\na,b\n1,2\n\n3,x\n", "#, line 5, column 'b': 'x' is no num", {}),
    "only blank lines": ("\n \n", NO_ROWS, {}),
    "empty": ("", NO_ROWS, {}),
    "only a header": ("a,b", NO_ROWS, {}),
    "one row": ("a,b\n1,2", [[1, 2]], {}),
    "crlf": ("a,b\r\n1,2\r\n\r\n3,4\r\n", TWO, {}),
    "cr": ("1,2\r3,4\r", "#, line 1 has a carriage return inside; lines end with a line feed", {}),
    "quotes": ('"a","b"\n"1","2"\n', [[1, 2]], {}),
    "line end in quotes": ('a,b\n"1\n",2\n', "#, line 2: .*a quoted cell ends with its line", {}),
    "missing in line 1": ("1,,3\n4,5,6\n", "#, line 1, column '1': '': the value is missing", {}),
    "NA in line 1": ("1,NA\n4,5\n", [[4, 5]], {"on_bad": "count"}),
    "True in line 1": ("1,True\n2,3\n", "#, line 1, column '1': 'True' is no number", {}),
    "no header=": ("1,x\n4,5\n", "#, line 1, column '1': 'x' is no number", {"header": False}),
    "names or numbers": ("0,1\n5,6\n", "#, line 1 is 0,1: either names.*header=True or", {}),
    "names": ("0,1\n5,6\n", [[5, 6]], {"header": True}),
    "numbers": ("0,1\n5,6\n", [[0, 1], [5, 6]], {"header": False}),
    "years": ("2019,2020\n5,6\n", [[5, 6]], {"header": True}),
    "index": (",a,y\n0,5,1\n1,6,0\n", ([[5], [6]], [1, 0]), {"label": "y"}),
    "index of texts": (",a,y\nu,5,1\nv,6,0\n", ([[5], [6]], [1, 0]), {"label": -1}),
    "index, no names": (",0,1\n0,5,1\n1,6,0\n", [[5, 1], [6, 0]], {}),
    "a name twice": ("a,a\n1,2\n", "#: several columns have one name: a", {}),
    "only the label": ("y\n1\n", "# has no features: give it columns", {"label": "y"}),
    "a true label": ("y\n1\n", "label is True; it is the name of a column, or", {"label": True}),
    "semicolons": ("a;b\n1;2\n", "#, line 2, column 'a;b': '1;2' is no number", {}),
    "thousands": ('a,b\n"1,000",2\n', "#, line 2, column 'a': '1,000' is no number", {}),
    "other digits": ("a,b\n\u0661,2\n", "#, line 2, column 'a': '\u0661' is no number", {}),
    "beyond float32": ("a,b\n1e39,2\n", f"#, line 2, column 'a': 1e39 {BEYOND}", {}),
    "infinite": ("a,b\n1,inf\n", "#, line 2, column 'b': 'inf': the value is .*on_bad=", {}),
    "bad": (
        "a,b\n1,2\nx,2\n3\n,7\n8,1e39\n3,4\n",
        TWO,
        {"on_bad": "count"},
    ),
    "a long cell": ("1,2\n" + "1" * 200_000 + ",2\n3,4\n", TWO, {"on_bad": "count"}),
}


@pytest.mark.parametrize("name", CSV)
def test_csv(tmp_path: Path, name: str) -> None:
    content, expected, options = CSV[name]
    path = tmp_path / "x.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    check(path, expected, **options)


def test_lines_longer_than_a_block_are_read(tmp_path: Path) -> None:
    row = ",".join([f"0.{'3' * 600}"] * 2000)  # 1.2 MB
    (tmp_path / "x.csv").write_text(f"{row}\n{row}\n")
    assert malt.load_data(tmp_path / "x.csv").X.shape == (2, 2000)


def test_bad_lines_are_counted_with_their_numbers(tmp_path: Path) -> None:
    content, _, options = CSV["bad"]
    path = tmp_path / "x.csv"
    path.write_text(str(content))
    data = malt.load_data(path, **options)
    assert data.bad == 4
    assert [line.removeprefix(f"{path}, ")[:17] for line in data.bad_lines] == [
        "line 3, column 'a",
        "line 4: 1 cells, ",
        "line 5, column 'a",
        "line 6, column 'b",
    ]


SVMLIGHT: dict[str, tuple[str | bytes, Any, dict[str, Any]]] = {
    "mark": (MARK + b"1 1:5\n0 1:6\n", ([[5], [6]], [1, 0]), {}),
    "utf-16": ("1 1:5\n".encode("utf-16"), "# is UTF-16 text; save it as UTF-8", {}),
    "not named .gz": (gzip.compress(b"1 1:5\n"), "#, line 1: the label is not one number", {}),
    "blank lines": ("\n \n1 1:5\n\n0 1:6\n", ([[5], [6]], [1, 0]), {}),
    "crlf": ("1 1:5\r\n0 1:6\r\n", ([[5], [6]], [1, 0]), {}),
    "cr": ("1 1:5\r0 1:6\r", "#, line 1: index:value was expected", {}),
    "empty": ("", NO_ROWS, {}),
    "header": ("label f1\n1 1:1\n", "#, line 1: the label is not one number", {}),
    "beyond float32": ("1 1:1e39\n", "#, line 1: .*'1:1e39'; dtype='float64' may hold it", {}),
    "beyond float64": ("1 1:1e400\n", "#, line 1: .*'1:1e400'; on_bad=", {}),
    "label beyond float64": ("1e400 1:1\n", "#, line 1: .*'1e400 1:1'; on_bad=", {}),
    "too small for float64": ("1 1:1e-400\n", "#, line 1: .*'1:1e-400'; on_bad=", {}),
    "label NaN": ("nan 1:1\n", "#, line 1: the number is NaN or infinite: 'nan 1:1'; on_bad", {}),
    "index": ("1 3000000000:1\n", "#, line 1: the index is not from 0 to 2147483647", {}),
    "index 0": ("1 0:1\n", "from 1 to .*; zero_based=False counts .*True", {"zero_based": False}),
    "label=": ("1 1:1\n", "label is 0; svmlight text has labels of its own", {"label": 0}),
}


@pytest.mark.parametrize("name", SVMLIGHT)
def test_svmlight(tmp_path: Path, name: str) -> None:
    content, expected, options = SVMLIGHT[name]
    path = tmp_path / "x.svm"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    check(path, expected, **options)


# ---- Parquet and Arrow ---------------------------------------------------------------------------

FRAME = pd.DataFrame({"a": [5.0, 6, 7], "y": [0, 1, 0]})
BOTH = [[5, 0], [6, 1], [7, 0]]
SPLIT = ([[5], [6], [7]], [0, 1, 0])
NOT_NUMBERS = "#: column 'a' is of .*; all columns must be numbers: write it as numbers"


def indexed(values: Any, name: str | None = None) -> pa.Table:
    return pa.Table.from_pandas(FRAME.set_index(pd.Index(values, name=name)))


TABLES: dict[str, tuple[pa.Table | dict[str, Any], Any, dict[str, Any]]] = {
    "index": (indexed([3, 1, 4]), SPLIT, {"label": "y"}),
    "index of texts": (indexed(["u", "v", "w"]), SPLIT, {"label": "y"}),
    "index with a name": (indexed([0.5, 0.1, 0.9], "id"), SPLIT, {"label": -1}),
    "index as label": (indexed([3, 1, 4], "id"), (BOTH, [3, 1, 4]), {"label": "id"}),
    "range as label": (
        pa.Table.from_pandas(FRAME.set_index(pd.RangeIndex(5, 8, name="k"))),
        r"#: label is 'k', a RangeIndex, of which pandas writes no column; .*reset_index\(\)",
        {"label": "k"},
    ),
    "range with a column's name": (
        pa.Table.from_pandas(FRAME.set_index(pd.RangeIndex(5, 8, name="y"))),
        SPLIT,
        {"label": "y"},
    ),
    "index of two levels": (
        pa.Table.from_pandas(FRAME.set_index([pd.Index([3, 1, 4]), pd.Index([1, 3, 9])])),
        BOTH,
        {},
    ),
    "index, metadata lost": (indexed([3, 1, 4]).replace_schema_metadata(None), BOTH, {}),
    "Dask's index": ({"__null_dask_index__": [3], "a": [5]}, [[5]], {}),
    "odd metadata": (pa.table({"a": [5]}).replace_schema_metadata({"pandas": "[{"}), [[5]], {}),
    "categories of numbers": ({"a": pa.array([5, 6]).dictionary_encode()}, [[5], [6]], {}),
    "categories of texts": ({"a": pa.array(["u"]).dictionary_encode()}, NOT_NUMBERS, {}),
    "texts": ({"a": ["u"]}, NOT_NUMBERS, {}),
    "dates": ({"a": pa.array([1], pa.date32())}, NOT_NUMBERS, {}),
    "lists": ({"a": [[1.0]]}, NOT_NUMBERS, {}),
    "only nulls": ({"a": pa.nulls(2)}, NOT_NUMBERS, {}),
    "truth values": ({"a": [True, False]}, [[1], [0]], {}),
    "half floats": ({"a": pa.array(np.array([1.5], np.float16))}, [[1.5]], {}),
    "decimals": ({"a": [decimal.Decimal("1.5")]}, [[1.5]], {}),
    "unsigned": ({"a": pa.array([2**63], pa.uint64())}, [[2.0**63]], {}),
    "beyond float32": ({"a": [1.0, 1e39]}, rf"#.*, row 1 .*, column 'a': 1e\+39 {BEYOND}", {}),
    "a null": ({"a": [1, None]}, r"#.*, row 1 .*, column 'a': None: the value is .*on_bad=", {}),
    "a null truth value": ({"a": [True, None]}, "#.*, row 1 .*, column 'a': None", {}),
    "nulls left out": ({"a": [1, None, 3]}, [[1], [3]], {"on_bad": "count"}),
    "NaN label": ({"a": [1], "y": [NAN]}, "#.*, row 0 .*, column 'y': nan", {"label": "y"}),
    "no rows": ({"a": pa.array([], pa.float64())}, NO_ROWS, {}),
    "one row": ({"a": [1.0]}, [[1]], {}),
    "a name twice": (pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), "#: several colu", {}),
    "only the label": ({"y": [1]}, "# has no features", {"label": "y"}),
}


def write_ipc(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


TABLE_WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    ".parquet": pa.parquet.write_table,
    ".feather": pa.feather.write_feather,
    ".arrow": write_ipc,
}


@pytest.mark.parametrize("suffix", TABLE_WRITERS)
@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str, suffix: str) -> None:
    table, expected, options = TABLES[name]
    path = tmp_path / f"x{suffix}"
    TABLE_WRITERS[suffix](pa.table(table) if isinstance(table, dict) else table, path)
    check(path, expected, **options)


def test_an_arrow_stream_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as stream:
        stream.write_table(table)
    check(tmp_path / "x.arrow", "# is no Arrow file.*may be an Arrow stream.*write it with")


# ---- NumPy ---------------------------------------------------------------------------------------

ONES = np.ones((3, 2))
NPZ: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "y longer": ({"x": ONES, "y": np.arange(4)}, r"#: y has shape \(4,\) and x has 3 rows", {}),
    "y shorter": ({"x": ONES, "y": np.arange(2)}, r"#: y has shape \(2,\) and x has 3 rows", {}),
    "y a column": ({"x": ONES, "y": ONES[:, :1]}, r"#: y has shape \(3, 1\) and.*y\.ravel", {}),
    "Y": ({"X": [[1.0], [2]], "Y": [0, 1]}, ([[1], [2]], [0, 1]), {}),
    "one dimension": ({"x": np.ones(3)}, r"#: x has shape \(3,\); .*x\.reshape\(-1, 1\)", {}),
    "texts": ({"x": np.array([["a"]])}, r"#, array x holds <U1 .*array\.astype\(float\)", {}),
    "complex": ({"x": ONES * 1j}, "#, array x holds complex128", {}),
    "objects": (
        {"x": np.array([[None]])},
        "#, array x has Python objects, which are never unpickled",
        {},
    ),
    "truth values": ({"x": np.array([[True], [False]])}, [[1], [0]], {}),
    "half floats": ({"x": np.array([[1.5]], np.float16)}, [[1.5]], {}),
    "big-endian": ({"x": np.array([[1.5]], ">f8")}, [[1.5]], {}),
    "beyond float32": ({"x": [[1, 1e39]]}, rf"#, row 0 .*, column 1: 1e\+39 {BEYOND}", {}),
    "NaN label": ({"x": ONES, "y": [0, NAN, 1]}, "#, row 1 .*, column y: nan.*on_bad=", {}),
    "no rows": ({"x": ONES[:0]}, NO_ROWS, {}),
    "one row": ({"x": ONES[:1]}, [[1, 1]], {}),
    "label=": ({"x": ONES}, "#: label is 0; an .npz file has labels of its own", {"label": 0}),
    "nothing": ({"a": 1}, "# has the arrays a; it needs x and y", {}),
}


@pytest.mark.parametrize("name", NPZ)
def test_npz(tmp_path: Path, name: str) -> None:
    arrays, expected, options = NPZ[name]
    np.savez(tmp_path / "x.npz", **arrays)
    check(tmp_path / "x.npz", expected, **options)


MATRIX = np.array([[1.0, 0, 2, 0], [0, 0, 3, 0], [4, 0, 0, 5]])


@pytest.mark.parametrize("kind", ["matrix", "array"])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia"])
def test_matrices_of_any_layout(tmp_path: Path, layout: str, kind: str) -> None:
    path = tmp_path / "x.npz"
    for dense in (MATRIX, MATRIX[:, :3], MATRIX.T, MATRIX.astype(np.int8), MATRIX != 0):
        sparse.save_npz(path, getattr(sparse, f"{layout}_{kind}")(dense))
        check(path, dense.astype(float).tolist())
    for dense, message in (
        (MATRIX * 1j, "complex128"),
        (MATRIX * 1e39, f"#, row 0 .*, column 0: 1e.39 {BEYOND}"),
    ):
        sparse.save_npz(path, getattr(sparse, f"{layout}_{kind}")(dense))
        check(path, message)

    sparse.save_npz(path, getattr(sparse, f"{layout}_{kind}")(MATRIX))
    arrays = dict(np.load(path))
    np.savez(path, **arrays, y=[1, 0, 1])
    check(path, (MATRIX.tolist(), [1, 0, 1]))
    np.savez(path, **arrays, y=[1, 0, 1, 1])
    check(path, r"#: y has shape \(4,\) and x has 3 rows")


CSR = sparse.csr_matrix(MATRIX)
PARTS = {"data": CSR.data, "indices": CSR.indices, "indptr": CSR.indptr, "shape": CSR.shape}
DAMAGES: dict[str, tuple[dict[str, Any], Any]] = {
    "indices in any order": (
        {"indices": [2, 0, 2, 3, 0], "data": [2.0, 1, 3, 5, 4]},
        MATRIX.tolist(),
    ),
    "an index twice": ({"indices": [0, 0, 2, 0, 3]}, [[3, 0, 0, 0], *MATRIX.tolist()[1:]]),
    "indptr too long": ({"indptr": [0, 2, 3, 5, 5]}, r"no CSR matrix of 3 rows: indptr .* \(5,\)"),
    "indices too short": ({"indices": [0, 2, 2, 0]}, r"indices \(4,\) and data \(5,\)"),
    "indptr decreases": ({"indptr": [0, 3, 2, 5]}, "indptr decreases"),
    "indptr ends behind": ({"indptr": [0, 2, 3, 500]}, "ends behind data"),
    "half floats": ({"data": np.array([1, 2, 3, 4, 5], np.float16)}, MATRIX.tolist()),
    "an index too large": ({"indices": [0, 4, 2, 0, 3]}, "no CSR matrix: indices must be < 4"),
    "an index below 0": ({"indices": [0, -1, 2, 0, 3]}, "no CSR matrix: indices must be >= 0"),
    "no whole numbers": ({"indices": [0.0, 2, 2, 0, 3]}, "indices are no whole numbers"),
    "many rows": ({"shape": (10**15, 4)}, "no CSR matrix of 1000000000000000 rows"),
    "three dimensions": ({"shape": (3, 4, 1)}, r"the matrix has shape \(3, 4, 1\)"),
    "of LIL": ({"format": b"lil"}, "holds no sparse matrix"),
    "a column too large": ({"format": b"csc", "shape": (3, 3)}, "indices must be < 3"),
    "COO beyond memory": (
        {"format": "coo", "row": [0] * 5, "col": [0] * 5, "shape": (10**15, 4)},
        "# does not fit into memory .*chunk_rows=",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_matrices(tmp_path: Path, name: str) -> None:
    changed, expected = DAMAGES[name]
    np.savez(tmp_path / "x.npz", **(PARTS | changed))
    check(tmp_path / "x.npz", expected)


NPY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "label": ([[1, 2], [3, 4]], ([[1], [3]], [2, 4]), {"label": -1}),
    "one dimension": (np.ones(3), r"#: the array has shape \(3,\); .*x\.reshape\(-1, 1\)", {}),
    "records": (np.zeros(2, [("a", int)]), r"# holds \[\('a', '<i8'\)\] of shape", {}),
    "only the label": (np.ones((2, 1)), "# has no features", {"label": 0}),
    "beyond float32": ([[1, 1e39, 0]], rf"#, row 0 .*, column 1: 1e\+39 {BEYOND}", {"label": 0}),
    "a label by name": (ONES, "#: label is 'y'; it is a column from 0 to 1", {"label": "y"}),
}


@pytest.mark.parametrize("name", NPY)
def test_npy(tmp_path: Path, name: str) -> None:
    array, expected, options = NPY[name]
    np.save(tmp_path / "x.npy", array)
    check(tmp_path / "x.npy", expected, **options)


def test_an_array_larger_than_its_file_takes_no_memory(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": (10**14, 3)}
    )
    (tmp_path / "x.npy").write_bytes(file.getvalue())
    check(tmp_path / "x.npy", "# is cut short: 2400000000000000 bytes are missing")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_without_a_limit_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as file:
        file.writestr("x.npy", b"")
    check(tmp_path / "x.npz", f"#: x.npy is compressed by method {method}; it may be stored")


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_arrays_that_do_not_fit_into_memory_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(_npy, "available_bytes", lambda: 30_000_000)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 20, 4)))
    check(tmp_path / "x.npz", "#, array x does not fit into memory: .* chunk_rows=")
    large = sparse.csr_matrix(([1.0], [0], np.array([0] + [1] * (1 << 23))))
    sparse.save_npz(tmp_path / "x.npz", large if layout == "csr" else large.T)  # CSC
    check(
        tmp_path / "x.npz", "#.* does not fit into memory: .*; (read it in chunks|save it as a C)"
    )


def test_a_format_of_megabytes_is_not_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **(PARTS | {"format": np.array(b"c" * (1 << 24))}))
    check(tmp_path / "x.npz", "# holds no sparse matrix: the name of its format takes 16,777,")


def test_a_shape_of_many_numbers_is_not_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **(PARTS | {"shape": np.zeros(1 << 20, int)}))
    check(tmp_path / "x.npz", r"# is no CSR matrix: its shape has the shape \(1048576,\)")


# ---- Pipes ---------------------------------------------------------------------------------------


def written(suffix: str, folder: Path) -> bytes:
    path = folder / f"file{suffix}"
    if suffix == ".npy":
        np.save(path, np.array([[5.0], [6]]))
    elif suffix == ".npz":
        np.savez(path, x=np.array([[5.0], [6]]))
    elif suffix in TABLE_WRITERS:
        TABLE_WRITERS[suffix](pa.table({"a": [5.0, 6]}), path)
    else:
        text = b"0 1:5\n1 1:6\n" if ".svm" in suffix else b"\na\n5\n6\n"
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".svm", ".csv", ".csv.gz", ".npy", ".npz", *TABLE_WRITERS])
def test_a_pipe_is_read_to_its_end(tmp_path: Path, suffix: str) -> None:
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[written(suffix, tmp_path)])
    writer.start()
    data = malt.load_data(pipe)
    writer.join()
    assert np.asarray(data.X.toarray() if sparse.issparse(data.X) else data.X).tolist() == [
        [5],
        [6],
    ]


def test_a_pipe_that_nobody_writes_to_is_an_error_at_the_time_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.svm")
    check(tmp_path / "x.svm", "# is a pipe or a device, and nothing has come .* 0.3 s", timeout=0.3)


def test_a_pipe_whose_writer_stops_is_an_error_at_the_time_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.csv")
    ends = os.open(tmp_path / "x.csv", os.O_RDWR)
    try:
        os.write(ends, b"a\n5\n")
        check(tmp_path / "x.csv", "# is a pipe or a device, and nothing has come .*", timeout=0.3)
    finally:
        os.close(ends)


def test_ranks_that_wait_for_the_reader_of_a_pipe_name_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.svm")
    body = "malt.init(timeout=60)\ntell(error=error_of(malt.load_data, 'x.svm', timeout=1))"
    reader, other = run_job(tmp_path, 2, body).each("error")
    assert refused(reader, "rank 0: x.svm is a pipe or a device", "for 1 s")
    if other.kind == "TimeoutError":  # it may give up before the reader does
        assert other.ranks == (0,)
        assert other.says("rank 0 has not come to such a call, or is still at work in it")
    else:
        assert refused(other, "rank 0: x.svm is a pipe or a device")


def test_a_pipe_in_chunks_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.csv")
    check(tmp_path / "x.csv", "# is a pipe or a device.*leave chunk_rows= out", chunk_rows=2)
