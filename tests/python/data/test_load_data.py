"""malt.load_data: what is read of each format, each rank's part, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import http.server
import lzma
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from jobs import Result, run_job
from scipy import sparse

import malt
from malt._data.files import find_files
from malt._data.parts import Lines, split

ROWS, FEATURES = 1000, 40


def random_csr() -> sparse.csr_matrix:
    random = np.random.default_rng(0)
    values = random.random((ROWS, FEATURES)) * (random.random((ROWS, FEATURES)) < 0.1)
    values[0, [0, FEATURES - 1]] = 1  # the first and the last column are used
    return sparse.csr_matrix(values)


CSR = random_csr()
LABELS = np.arange(ROWS, dtype=np.float64)


def svmlight_text(first_index: int = 1) -> str:
    lines = []
    for i in range(ROWS):
        entries = slice(CSR.indptr[i], CSR.indptr[i + 1])
        pairs = zip(CSR.indices[entries].tolist(), CSR.data[entries].tolist(), strict=True)
        lines.append(f"{i} " + " ".join(f"{j + first_index}:{v!r}" for j, v in pairs))
    return "\n".join(lines) + "\n"


TEXT = svmlight_text()


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "data.svm"
    path.write_text(TEXT)
    return path


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def dense(x: Any) -> npt.NDArray[np.float64]:
    return np.asarray(x.toarray() if sparse.issparse(x) else x, dtype=np.float64)


def assert_all_rows(data: malt.data.Data, dtype: str = "float64") -> None:
    assert data.X.dtype == dtype
    np.testing.assert_array_equal(dense(data.X), CSR.toarray().astype(dtype))
    np.testing.assert_array_equal(data.y, LABELS)


# ---- Formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("first_index", [0, 1])
def test_svmlight_text_is_a_csr_matrix_of_what_was_written(
    tmp_path: Path, dtype: Any, first_index: int
) -> None:
    path = tmp_path / "data.libsvm"
    path.write_text(svmlight_text(first_index))

    data = malt.load_data(path, dtype=dtype)

    assert_all_rows(data, dtype)
    assert isinstance(data.X, sparse.csr_matrix)
    assert data.X.has_sorted_indices
    assert data.files == (str(path),)
    assert data.zero_based is (first_index == 0)
    assert malt.load_data(path, features=90, zero_based=first_index == 0).X.shape == (ROWS, 90)


def table() -> pa.Table:
    columns = {f"c{i}": CSR.toarray()[:, i] for i in range(FEATURES)}
    return pa.table(columns | {"y": LABELS.astype(np.int64)})


def write_npy(path: Path, order: Any = "C") -> None:
    np.save(path, np.asarray(np.column_stack([CSR.toarray(), LABELS]), order=order))


def write_arrow(path: Path) -> None:
    pa.feather.write_feather(table(), path, chunksize=290)


WRITERS: dict[str, tuple[Callable[[Path], object], Any]] = {
    "rows.npy": (write_npy, -1),
    "columns.npy": (partial(write_npy, order="F"), -1),
    "dense.npz": (lambda path: np.savez(path, x=CSR.toarray(), y=LABELS), None),
    "dense_compressed.npz": (
        lambda path: np.savez_compressed(path, X=CSR.toarray(), y=LABELS),
        None,
    ),
    "sparse.npz": (
        lambda path: np.savez(
            path, data=CSR.data, indices=CSR.indices, indptr=CSR.indptr, shape=CSR.shape, y=LABELS
        ),
        None,
    ),
    "table.csv": (lambda path: pa.csv.write_csv(table(), path), "y"),
    "data.parquet": (lambda path: pa.parquet.write_table(table(), path, row_group_size=70), "y"),
    "data.feather": (write_arrow, "y"),
    "data.svm": (lambda path: path.write_text(TEXT), None),
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_format_is_read_whole_in_chunks_and_in_parts(tmp_path: Path, name: str) -> None:
    write, label = WRITERS[name]
    path = tmp_path / name
    write(path)

    assert_all_rows(malt.load_data(path, label=label, dtype="float64"))

    chunks = list(
        malt.load_data(
            [path], label=label, dtype="float64", chunk_rows=64, features=FEATURES, zero_based=False
        )
    )
    assert [len(chunk.y) for chunk in chunks if chunk.y is not None] == [64] * 15 + [40]
    np.testing.assert_array_equal(np.vstack([dense(c.X) for c in chunks]), CSR.toarray())
    assert {chunk.zero_based for chunk in chunks} == {False if name == "data.svm" else None}

    parts = [
        np.concatenate([chunk.y for chunk in part_of(path, rank, 3, label)]) for rank in range(3)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), LABELS)
    assert all(200 < len(part) < 500 for part in parts)


def part_of(path: Path, rank: int, size: int, label: Any) -> Iterator[Any]:
    """What `rank` of a job of `size` would read."""
    from malt._data import chunks
    from malt._data.reader import Reading

    asked = Reading("float64", FEATURES, False, label, "raise", 100, 1)
    return chunks.pieces(split(find_files(path, None), rank, size), asked)


def test_a_csr_matrix_saved_by_scipy_is_read(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "x.npz", CSR)

    data = malt.load_data(tmp_path / "x.npz", dtype="float64")

    assert (data.X != CSR).nnz == 0
    assert data.y is None


def test_a_table_without_header_or_label_is_all_features(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")

    data = malt.load_data(tmp_path / "x.csv")

    assert data.X.tolist() == [[1, 2], [3, 4]]
    assert data.y is None
    assert malt.load_data(tmp_path / "x.csv", label=0).X.tolist() == [[2], [4]]


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_text_is_read_and_named_where_it_is_cut_short(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"data.svm{suffix}"
    stored = COMPRESSIONS[suffix](TEXT.encode())
    path.write_bytes(stored)
    assert_all_rows(malt.load_data(path, dtype="float64"))

    path.write_bytes(stored[: len(stored) // 2])
    with pytest.raises(malt.ConfigError, match=re.escape(str(path))):
        malt.load_data(path)


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    lines = TEXT.splitlines(keepends=True)
    (tmp_path / "part-1.svm").write_text("".join(lines[:300]).rstrip("\n"))
    (tmp_path / "part-2.svm").write_text("".join(lines[300:]))

    data = malt.load_data(f"{tmp_path}/part-*.svm", dtype="float64")

    assert_all_rows(data)
    assert len(data.files) == 2


# ---- Parts ---------------------------------------------------------------------------------------


def lines_that_begin_in(text: str, begin: int, end: int) -> str:
    starts = np.cumsum([0, *map(len, text.splitlines(keepends=True))])
    lines = zip(starts.tolist(), text.splitlines(keepends=True), strict=False)
    return "".join(line for start, line in lines if begin <= start < end)


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("end", ["\n", ""])
def test_each_line_is_in_the_part_that_it_begins_in(
    tmp_path: Path, block_bytes: int, end: str
) -> None:
    texts = ["a\n\nbc\nlonger than most\nd" + end, "e\n", "f"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    files = find_files(f"{tmp_path}/?.txt", None)

    for size in range(1, 12):
        got = ""
        for rank in range(size):
            for part in split(files, rank, size):
                lines = b"".join(bytes(block) for block in Lines(part, block_bytes)).decode()
                text = texts[files.index(part.file)]
                assert lines == lines_that_begin_in(text, part.begin, part.end)
                got += lines
        assert got == "".join(texts)


def test_lines_are_numbered_as_in_the_file_also_in_the_middle_of_it(tmp_path: Path) -> None:
    (tmp_path / "x.svm").write_text("1 1:1\n" * 90 + "1 1:x\n" + "1 1:1\n" * 9)
    (part,) = split(find_files(tmp_path / "x.svm", None), 1, 2)

    lines = Lines(part)
    kept = b"".join(bytes(block) for block in lines).decode().splitlines()

    assert lines.name_of(kept.index("1 1:x") + 1) == f"{tmp_path}/x.svm, line 91"


def test_files_that_cannot_be_cut_go_to_ranks_that_have_least(tmp_path: Path) -> None:
    for name, size in (("a", 50), ("b", 30), ("c", 30), ("d", 10)):
        (tmp_path / f"{name}.svm.gz").write_bytes(bytes(size))
    files = find_files(f"{tmp_path}/*.gz", None)

    parts = [[Path(p.file.name).name[0] for p in split(files, r, 2)] for r in range(2)]

    assert parts == [["a", "d"], ["b", "c"]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two ranks that load files together, of which the first is wide in its first half alone."""
    path = tmp_path_factory.mktemp("files")
    narrow = "".join(f"{i} 1:1\n" for i in range(ROWS, 2 * ROWS))
    write(path / "wide_and_narrow.svm", TEXT + narrow)
    write(path / "one.svm", "1 1:1\n")
    write(path / "empty.svm", "")
    write(path / "bad.svm", "1 1:1\n" * 50 + "1 1:1 oops\n")
    write(path / "rank-0.svm", "1 1:1\n" * 9)
    write(path / "rank-1.svm", "1 1:1\n" * 10)
    return run_job(
        tmp_path_factory.mktemp("job"),
        2,
        """
tell(imported={"scipy", "pyarrow", "fsspec"} & set(sys.modules))
malt.init()
data = malt.load_data(f"{path}/wide_and_narrow.svm", dtype="float64")
tell(labels=data.y, features=data.X.shape[1], sum=data.X.sum())
for name in ("one", "empty", "bad", "none", f"rank-{rank}"):
    tell(**{name[:4]: error_of(malt.load_data, f"{path}/{name}.svm")})
tell(all=malt.load_data(f"{path}/one.svm", shard=False).X.shape)
""",
        path=str(path),
    )


def test_two_ranks_read_two_parts_of_one_file_and_agree_on_the_features(job: Result) -> None:
    labels = job.each("labels")
    assert np.concatenate(labels).tolist() == list(range(2 * ROWS))
    assert min(map(len, labels)) > 100
    assert max(labels[0]) < ROWS, "what the second rank reads would have one feature"
    assert job.each("features") == [FEATURES, FEATURES]
    np.testing.assert_allclose(sum(job.each("sum")), CSR.sum() + ROWS)
    assert job.each("all") == [(1, 1), (1, 1)]


def test_failure_on_one_rank_raises_on_all(job: Result) -> None:
    for error in job.each("one"):
        assert error.kind == "ConfigError"
        assert error.says("no rows for rank 1 of 2", "all files together have 1", "shard=False")
        assert error.says("one.svm")
    for error in job.each("empt"):
        assert error.says("there are no rows in ", "empty.svm")
        assert "fewer ranks" not in error.text
    for error in job.each("bad"):
        assert error.says("rank 1", "bad.svm, line 51: index:value was expected: 'oops'")
    for error in job.each("none"):
        assert error.says("rank 0", "none.svm: there is no such file", "and also rank 1")
    for error in job.each("rank"):
        assert error.says("bytes is 54 on rank 0, and 60 on rank 1; all ranks must see the same")


def test_malt_alone_imports_no_optional_library(job: Result) -> None:
    assert job.each("imported") == [set(), set()]


# ---- From a web server ---------------------------------------------------------------------------


class WebServer(http.server.BaseHTTPRequestHandler):
    """Gives TEXT: under /parts/ any part of it, elsewhere only the whole."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body, code = TEXT.encode(), 200
        if "gone" in self.path:
            self.send_error(404)
            return
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        has_parts = self.path.startswith("/parts/")
        headers = {"Accept-Ranges": "bytes"} if has_parts else {}
        if has_parts and asked:
            first, last = int(asked[1]), min(int(asked[2] or len(body)), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body, code = body[first : last + 1], 206
        self.send_response(code)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebServer) as web:
        thread = threading.Thread(target=web.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()


def test_a_web_server_gives_parts_if_it_says_so_and_the_whole_file_if_not(server: str) -> None:
    for folder, can_be_cut in (("parts", True), ("whole", False)):
        url = f"{server}/{folder}/data.svm?version=1"
        assert_all_rows(malt.load_data(url, dtype="float64"))
        (file,) = find_files(url, None)
        assert file.has_ranges == can_be_cut
    second = split(find_files(f"{server}/parts/data.svm", None), 1, 2)
    lines = b"".join(bytes(block) for block in Lines(second[0])).decode()
    assert lines == lines_that_begin_in(TEXT, len(TEXT) // 2, len(TEXT))

    with pytest.raises(malt.ConfigError, match=r"/gone\.svm: there is no such file"):
        malt.load_data(f"{server}/gone.svm")


# ---- What is wrong -------------------------------------------------------------------------------


def test_bad_lines_raise_or_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "x.svm", "1 1:1\n1 2:1 1:1\n1 1:nan\n2 2:1\n")

    with pytest.raises(
        malt.ConfigError, match=r"x\.svm, line 2: the indices do not increase: '1:1'"
    ):
        malt.load_data(path)
    data = malt.load_data(path, on_bad="count")

    assert data.y is not None
    assert data.y.tolist() == [1, 2]
    assert data.bad == 2
    assert "line 3: the number is NaN or infinite: '1:nan'" in data.bad_lines[1]


def test_bad_lines_of_a_table_raise_or_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,y\n1,2\n3\n,4\n5,inf\n6,7\n8,9,10\n")

    with pytest.raises(
        malt.ConfigError, match=r"x\.csv, line 3: 1 cells, where there are 2 columns: '3'"
    ):
        malt.load_data(path, label="y")
    data = malt.load_data(path, label="y", on_bad="count")

    assert data.X.tolist() == [[1], [6]]
    assert data.bad == 4
    lines = sorted(int(re.findall(r"line (\d+)", said)[0]) for said in data.bad_lines)
    assert lines == [3, 4, 5, 7]


WRONG_FILES: dict[str, tuple[str | bytes, str]] = {
    "binary.svm": (bytes(range(256)) * 9, r"line 1: the label is not one number: '\?\?"),
    "word.csv": ("a,b\n1,2\n3,x\n", "word.csv, line 3, column 'b': 'x' is no number"),
    "twice.csv": ("a,a\n1,2\n", "several columns have one name"),
    "wide.csv": ("1," * (1 << 17) + "1\n", "131,073 columns .* at most 131,072 .* write wider"),
    "long.csv": ("a" * (1 << 24) + "b,c\n1,2\n", "line 1 has 2 columns in 16,777,219 bytes"),
    "wrong.npy": (b"no numpy", "wrong.npy"),
    "wrong.npz": (b"no zip", "wrong.npz"),
    "wrong.parquet": (b"PAR1 no table", "wrong.parquet"),
    "wrong.arrow": (b"no arrow", "wrong.arrow"),
    "endless.csv": ("1\n" + "a" * (1 << 25), "line 2 has .* bytes or more; .* write wider"),
    "wrong.svm.gz": (b"no gzip", "cannot read .*wrong.svm.gz: BadGzipFile"),
    "empty.svm": ("# nothing\n", r"there are no rows in .*empty\.svm$"),
    "empty.csv": ("a,b\n", r"there are no rows in .*empty\.csv$"),
    "data.xyz": ("1 1:1\n", r"suffix '\.xyz' does not tell its format; give format="),
    "data.npy.gz": (b"", "decompress it"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_named(tmp_path: Path, name: str) -> None:
    content, message = WRONG_FILES[name]
    write(tmp_path / name, content)

    with pytest.raises(malt.ConfigError, match=message):
        malt.load_data(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.npy", "dense.npz", "data.parquet", "data.feather"])
def test_a_file_cut_short_is_named(tmp_path: Path, name: str) -> None:
    writer, label = WRITERS[name]
    writer(tmp_path / name)
    write(tmp_path / name, (tmp_path / name).read_bytes()[:-3000])

    with pytest.raises(malt.ConfigError, match=re.escape(str(tmp_path / name))):
        malt.load_data(tmp_path / name, label=label)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 3}, r"line 1: the index is not from 0 to 3: .*; features is 3, and index "),
        ({"features": 3, "zero_based": False}, r"the index is not from 1 to 3: "),
        (
            {"features": FEATURES, "zero_based": True},
            "from 0 to 39: '40:.*; features is 40, and index 40 needs 41: give features=41 or more",
        ),
        ({"features": 0}, "features is 0; it must be a whole number at least 1"),
        ({"chunk_rows": 2.5}, r"chunk_rows is 2\.5"),
        ({"threads": -1}, "threads is -1"),
        ({"dtype": "int32"}, "dtype is 'int32'; it is 'float32' or 'float64'"),
        ({"zero_based": 2}, "zero_based is 2"),
        ({"on_bad": "ignore"}, "on_bad is 'ignore'; it is 'raise' or 'count'"),
        ({"format": "libsvm"}, "format is 'libsvm'; it is one of svmlight"),
        ({"label": "y"}, "label is 'y'; svmlight text has labels of its own"),
        ({"shard": "no"}, "shard is 'no'; it is True or False"),
        ({"timeout": -1}, "timeout is -1; it must be a number at least 0 seconds, or None"),
    ],
)
def test_wrong_arguments_are_refused(text_file: Path, options: Any, message: str) -> None:
    with pytest.raises(malt.ConfigError, match=message):
        malt.load_data(text_file, **options)


def test_chunks_of_unknown_columns_are_refused_by_a_loop(text_file: Path) -> None:
    chunks = malt.load_data(text_file, chunk_rows=5)
    with pytest.raises(malt.ConfigError, match=r"need features=, and zero_based=.*looks first"):
        list(chunks)


def test_a_label_or_width_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1,2\n")
    np.save(tmp_path / "x.npy", np.ones((4, 3)))

    with pytest.raises(malt.ConfigError, match=r"label is 'y'; the columns are 'a', 'b'"):
        malt.load_data(path, label="y")
    with pytest.raises(malt.ConfigError, match="label is 3; it is a column from 0 to 2"):
        malt.load_data(tmp_path / "x.npy", label=3)
    with pytest.raises(malt.ConfigError, match="has 3 features; 2 are asked for"):
        malt.load_data(tmp_path / "x.npy", features=2)


def test_urls_that_name_no_file_are_refused(tmp_path: Path, text_file: Path) -> None:
    write(tmp_path / "x.csv", "1,2\n")
    for url, message in (
        (tmp_path / "*.npy", "no file matches"),
        (tmp_path, "is a directory; name its files"),
        ([], "empty list"),
        ([3], "url has 3; it is a path, a URL or a list of these"),
        (None, "url is None; it is a path, a URL or a list of these"),
        (3, "url is 3; it is a path, a URL or a list of these"),
        ([text_file, tmp_path / "x.csv"], "several formats, csv, svmlight"),
        ("nowhere://x.svm", "cannot read nowhere://x.svm"),
        ("http://127.0.0.1:9/x.svm", "no such file, or it cannot be reached"),
    ):
        with pytest.raises(malt.ConfigError, match=message):
            malt.load_data(url)  # type: ignore[arg-type]


def test_without_an_optional_library_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    write(tmp_path / "x.csv", "1,2\n")

    with pytest.raises(malt.ConfigError, match=r'needs pyarrow: pip install "malt-sgd\[data\]"'):
        malt.load_data(tmp_path / "x.csv")
