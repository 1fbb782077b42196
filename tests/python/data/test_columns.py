"""Files with other columns than the first, and ranks with other arguments, are refused."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jobs import Result, run_job
from scipy import sparse

import malt
from malt._commands import main

FRAME = pd.DataFrame({"a": [1.0, 2, 3, 4], "b": [5.0, 6, 7, 8], "y": [0.0, 1, 0, 1]})

FRAME_WRITERS: dict[str, Callable[[pd.DataFrame, Path], object]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    ".parquet": lambda frame, path: frame.to_parquet(path),
    ".feather": lambda frame, path: frame.to_feather(path),
}
SAME_ORDER = "select or reorder the columns, so that all files have the same in one order"
# The frame of a second file beside FRAME; the columns of both, or a pattern of the error's message,
# in which 1 and 2 in angle brackets stand for the files; and options.
FRAMES: dict[str, tuple[pd.DataFrame, Any, dict[str, Any]]] = {
    "the same": (FRAME, ("a", "b"), {"label": "y"}),
    "the label elsewhere": (FRAME[["y", "a", "b"]], ("a", "b"), {"label": "y"}),
    "another order": (
        FRAME[["b", "a", "y"]],
        rf"<2>: feature 0 \(from 0\) is 'b', and in <1> it is 'a'; {SAME_ORDER}",
        {"label": "y"},
    ),
    "another name": (
        FRAME.rename(columns={"b": "c"}),
        r"<2>: feature 1 \(from 0\) is 'c', and in <1> it is 'b'",
        {"label": "y"},
    ),
    "one more": (
        FRAME.assign(c=0.0),
        r"<2>: feature 2 \(from 0\) is 'c', and in <1> it is missing",
        {"label": "y"},
    ),
    "one less": (
        FRAME[["a", "y"]],
        r"<2>: feature 1 \(from 0\) is missing, and in <1> it is 'b'",
        {"label": "y"},
    ),
    "another label": (
        FRAME.rename(columns={"y": "z"}),
        "<2>: the label is 'z', and in <1> it is 'y'",
        {"label": -1},
    ),
}


def both(path: Path, suffix: str) -> list[Path]:
    return [path / f"1{suffix}", path / f"2{suffix}"]


def check(files: list[Path], expected: Any, **options: Any) -> None:
    """Read the files at once, and in chunks."""
    if isinstance(expected, str):
        for i, file in enumerate(files, 1):
            expected = expected.replace(f"<{i}>", re.escape(str(file)))
        with pytest.raises(malt.ConfigError, match=expected):
            malt.load_data(files, **options)
        with pytest.raises(malt.ConfigError, match=expected):
            list(malt.load_data(files, chunk_rows=3, **options))
        return
    data = malt.load_data(files, **options)
    assert data.columns == expected
    chunks = malt.load_data(files, chunk_rows=3, **options)
    assert chunks.columns == expected
    assert {chunk.columns for chunk in chunks} == {expected}


@pytest.mark.parametrize("suffix", FRAME_WRITERS)
@pytest.mark.parametrize("name", FRAMES)
def test_tables(tmp_path: Path, name: str, suffix: str) -> None:
    other, expected, options = FRAMES[name]
    files = both(tmp_path, suffix)
    for file, frame in zip(files, (FRAME, other), strict=True):
        FRAME_WRITERS[suffix](frame, file)
    check(files, expected, **options)
    if not isinstance(expected, str):
        assert malt.load_data(files, **options).X.tolist() == FRAME[["a", "b"]].values.tolist() * 2


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("1,2\n", "3,4\n"), None),
        (("a,b\n", "a,b\n3,4\n"), ("a", "b")),
        (("", "a,b\n3,4\n"), ("a", "b")),
        (
            ("a,b\n1,2\n", "3,4\n"),
            r"<2>: feature 0 .* is without a name, and in <1> it is 'a'; write all .* a header",
        ),
        (("1,2\n", "a,b\n3,4\n"), r"<2>: feature 0 \(from 0\) is 'a', and .* without a name"),
        (("1,2\n", "3,4,5\n"), "<2> has 3 features, and <1> has 2; all files must have the same"),
    ],
)
def test_headers_of_csv(tmp_path: Path, texts: tuple[str, str], expected: Any) -> None:
    files = both(tmp_path, ".csv")
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    if texts[0]:
        check(files, expected)
    else:  # the first file has no columns
        assert malt.load_data(files).columns == expected


X, Y = np.arange(8.0).reshape(4, 2), np.arange(4.0)
CSR = sparse.csr_matrix(X)
MATRIX = {"data": CSR.data, "indices": CSR.indices, "indptr": CSR.indptr, "shape": CSR.shape}
MISSING = "<2>: the label is missing, and in <1> it is 'y'; save labels in all files or in none"


@pytest.mark.parametrize("x", [{"x": X}, MATRIX], ids=["array", "csr"])
def test_npz_with_labels_beside_one_without(tmp_path: Path, x: dict[str, Any]) -> None:
    files = both(tmp_path, ".npz")
    np.savez(files[0], **x, y=Y)
    np.savez(files[1], **x)
    check(files, MISSING)
    check(files[::-1], "<2>: the label is 'y', and in <1> it is missing")


# ---- Each rank reads another file ----------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two ranks that read two files of the same size, each one of them."""
    path = tmp_path_factory.mktemp("files")
    for suffix in (".csv", ".csv.gz", ".parquet", ".feather"):
        first, second = both(path, suffix)
        FRAME_WRITERS[suffix](FRAME, first)
        FRAME_WRITERS[suffix](FRAME[["b", "a", "y"]], second)
    FRAME.to_csv(path / "3.csv", index=False)
    np.savez(path / "1.npz", x=X, y=Y)
    np.savez(path / "2.npz", x=X, z=Y)
    for rank, text in enumerate(("a,b\n1,2\n3,4\n", "b,a\n1,2\n3,4\n")):
        (path / f"{rank}").mkdir()
        (path / f"{rank}" / "same.csv").write_text(text)
        pipe = path / f"pipe{rank}"
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_text, args=[text], daemon=True).start()
    return run_job(
        tmp_path_factory.mktemp("job"),
        2,
        """
malt.init()
here = os.getcwd()
for suffix in ("csv", "csv.gz", "parquet", "feather", "npz"):
    label = None if suffix == "npz" else "y"
    files = [f"{path}/{i}.{suffix}" for i in (1, 2)]
    chunks = malt.load_data(files, label=label, chunk_rows=2)
    tell(**{
        suffix: error_of(malt.load_data, files, label=label),
        f"{suffix} looked at": error_of(chunks.survey, "fit", labels=False),
        f"{suffix} in chunks": error_of(list, chunks),
    })
one, other = f"{path}/1.csv", f"{path}/3.csv"
for name, values in (
    ("label", ("a", "b")),
    ("dtype", ("float32", "float64")),
    ("on_bad", ("raise", "count")),
    ("features", (None, 2)),
    ("header", (None, True)),
):
    given = {"label": "y"} | {name: values[rank]}
    chunks = malt.load_data(one, chunk_rows=2, **given)
    tell(**{
        name: error_of(malt.load_data, one, **given),
        f"{name} in chunks": error_of(chunks.survey, "fit", labels=False),
    })
given = {"label": ("y", np.str_("y"))[rank], "features": (2, np.int64(2))[rank]}
tell(numpys=malt.load_data(one, **given).columns)
tell(url=error_of(malt.load_data, (one, other)[rank], label="y"))
tell(order=error_of(malt.load_data, [(one, other)[rank], (other, one)[rank]], label="y"))
os.chdir(f"{path}/{rank}")
error = error_of(malt.load_data, "same.csv")
os.chdir(here)
tell(folder=error)
tell(pipes=error_of(malt.load_data, [f"{path}/pipe{i}" for i in (0, 1)], format="csv"))
""",
        path=str(path),
    )


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "feather", "npz"])
def test_files_of_other_ranks_are_compared(job: Result, suffix: str) -> None:
    said = "the label is missing" if suffix == "npz" else "feature 0 (from 0) is 'b'"
    for error in (*job.each(suffix), *job.each(f"{suffix} looked at")):
        assert error.kind == "ConfigError"
        assert error.says(f"/2.{suffix}: {said}, and in ", f"/1.{suffix} it is")
    in_chunks = [error for error in job.each(f"{suffix} in chunks") if error]
    assert in_chunks, "at least the rank that reads the second file has an error"
    for error in in_chunks:
        assert error.says(f"/2.{suffix}: {said}, and in ", f"/1.{suffix} it is")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", ("'a'", "'b'")),
        ("dtype", ("'float32'", "'float64'")),
        ("on_bad", ("'raise'", "'count'")),
        ("features", ("None", "2")),
        ("header", ("None", "True")),
    ],
)
def test_other_arguments_on_a_rank_are_told_on_all(
    job: Result, name: str, values: tuple[str, str]
) -> None:
    for error in (*job.each(name), *job.each(f"{name} in chunks")):
        assert error.kind == "ConfigError"
        assert error.says(f"{name} is {values[0]} on rank 0, and {values[1]} on rank 1; give all")
    assert job.each("numpys") == [("a", "b")] * 2


def test_other_files_on_a_rank_are_told_on_all(job: Result) -> None:
    for error in job.each("url"):
        assert error.says(
            "the list of files is ", "/1.csv on rank 0, and ", "/3.csv on rank 1; all ranks"
        )
    for error in job.each("order"):
        assert error.says(
            "the list of files is ", "/3.csv on rank 0, ", "/1.csv on rank 1; all ranks"
        )
    for error in (*job.each("folder"), *job.each("pipes")):
        assert error.says(
            "the number of columns is 2 ('a', 'b') on rank 0, and 2 ('b', 'a') on rank 1; all ranks"
        )


# ---- Commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["", " --chunk-rows 3"])
def test_a_model_knows_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("tr.csv", index=False)
    FRAME[["b", "a", "y"]].to_csv("other.csv", index=False)
    FRAME.to_csv("no_names.csv", index=False, header=False)

    def run(line: str) -> str:
        try:
            assert main.main(f"{line}{how}".split()) == 0
        except SystemExit:
            return capfd.readouterr().err
        return capfd.readouterr().out

    train = "train svm tr.csv --label y -q --out m.npz --test "
    assert "accuracy on 4 examples of tr.csv" in run(train + "tr.csv")
    wrong = f"other.csv: feature 0 (from 0) is 'b', and in # it is 'a'; {SAME_ORDER}"
    changed = Path("m.npz").stat().st_mtime_ns
    assert wrong.replace("#", "tr.csv") in run(train + "other.csv")
    assert Path("m.npz").stat().st_mtime_ns == changed, "it is told before training"
    assert wrong.replace("#", "m.npz") in run("predict m.npz other.csv --label y")
    assert len(run("predict m.npz tr.csv --label y").split()) == 4
    assert len(run("predict m.npz no_names.csv --label 2").split()) == 4
