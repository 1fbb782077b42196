"""`malt train` and `malt predict`, from files to files."""

from __future__ import annotations

import bz2
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from reports import Report
from sklearn.datasets import dump_svmlight_file, load_digits

from malt._commands import main, train
from malt._job import job as jobs
from malt._linear import trainer
from malt._pool import forked

X, Y = load_digits(return_X_y=True)
X /= 16


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In which the commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def digits(folder: Path) -> Path:
    """The folder, with train.svm and test.svm."""
    dump_svmlight_file(X[:1400], Y[:1400], "train.svm")
    dump_svmlight_file(X[1400:], Y[1400:], "test.svm")
    return folder


def malt(capfd: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    capfd.readouterr()
    try:
        code = main.main(line.split())
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capfd.readouterr()


def test_a_model_is_trained_saved_reported_and_predicts(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, shown = malt(
        capfd,
        "train svm train.svm --test test.svm -n 2 --graph halton --staleness 4 --every 100 "
        "--average --out m.npz --report r.html --trace t.json",
    )
    assert code == 0, shown
    assert out.startswith("model: m.npz\n")  # before anything that may fail
    rows = [line.split() for line in out.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["rank", "0", "1"]
    assert "rank 0: 100%" in shown
    accuracy = float(re.findall(r"accuracy on 397 examples of test.svm: (\S+)", out)[0])
    assert accuracy > 0.88

    trace = json.loads((digits / "t.json").read_text())["traceEvents"]
    exchanges = [event for event in trace if event["name"] == "exchange"]
    assert {event["tid"] for event in exchanges} == {0, 1}
    assert all(event["dur"] >= 0 for event in exchanges)
    page = Report(digits / "r.html")
    for heading in ("Megabytes sent", "Exchanges"):
        assert len(page.parts[heading]["chart"]["lines"]) == 2
    assert page.bars(1, "waiting")
    assert ["penalty", "l2"] in page.rows("Settings")

    code, out, shown = malt(capfd, "predict m.npz test.svm")
    assert code == 0
    labels = np.array(out.split(), float)
    assert (labels == Y[1400:]).mean() == pytest.approx(accuracy, abs=1e-4)
    assert f"accuracy {accuracy:.4f} of 397" in shown


@pytest.mark.parametrize("options", ["", " --chunk-rows 8"])
def test_an_index_means_the_same_in_files_that_happen_to_have_no_0(
    folder: Path, capfd: pytest.CaptureFixture[str], options: str
) -> None:
    Path("train.svm").write_text(10 * "1 0:1 2:1\n-1 3:1\n")
    Path("test.svm").write_text("-1 3:1\n1 2:1\n")
    code, out, shown = malt(capfd, f"train svm train.svm --test test.svm -q --out m.npz{options}")
    assert code == 0, shown
    assert "accuracy on 2 examples of test.svm: 1.0000" in out
    assert malt(capfd, f"predict m.npz test.svm{options}")[1].split() == ["-1", "1"]


def test_regression_of_a_table(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3))
    price = rows @ [1, -2, 3] + 5
    np.savetxt("houses.csv", np.column_stack([rows, price]), delimiter=",", header="a,b,c,price",
               comments="")  # fmt: skip
    code, out, shown = malt(
        capfd, "train regression houses.csv --label price --test houses.csv -q --out m.npz"
    )
    assert code == 0, shown
    assert float(re.findall(r"R squared .*: (\S+)", out)[0]) > 0.99
    _, out, shown = malt(capfd, "predict m.npz houses.csv --label price")
    np.testing.assert_allclose(np.array(out.split(), float), price, atol=0.3)
    assert "R squared 1.0000" in shown


def test_the_table_has_the_bytes_of_an_exchange_by_allreduce(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, shown = malt(capfd, "train regression train.svm -n 2 -q --passes 1 --tol=-1")
    assert code == 0, shown
    ranks = [line.split() for line in out.splitlines()[1:3]]
    assert [row[-3] for row in ranks] == ["0.003"] * 2  # MB: 10 times 65 float32


def test_ratings_are_factorised(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 40, 2000), rng.integers(0, 30, 2000)
    taste = rng.normal(size=(40, 2)), rng.normal(size=(30, 2))
    lines = [
        f"u{u},i{i},{3 + taste[0][u] @ taste[1][i]:.3f}" for u, i in zip(users, items, strict=True)
    ]
    Path("train.csv").write_text("\n".join(["user,item,rating", *lines[:1800]]))
    Path("test.csv").write_text("\n".join(lines[1800:]))
    code, out, shown = malt(
        capfd,
        "train mf train.csv --test test.csv -n 2 --graph ring --every 100 --factors 16 --out m.npz "
        "--report r.html --trace t.json",
    )
    assert code == 0, shown
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["model:", "rank", "0", "1"]
    assert re.search(r"rank \d: 100%", shown)
    assert Report(Path("r.html")).bars(1, "waiting")
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    losses = [event["args"]["loss"] for event in events if event["name"] == "train"]
    trained = float(re.findall(r"1,800 ratings of 40 users and 30 items: RMSE (\S+)", out)[0])
    assert max(losses[:2]) > 1.2 > 2 * trained
    error = float(re.findall(r"RMSE on 200 ratings of test.csv: (\S+)", out)[0])
    assert error < 0.7  # the mean alone: 1.4
    Path("mixed.csv").write_text("\n".join([lines[0], "stranger,i1,3", "u1,novelty,3"]))
    code, out, shown = malt(capfd, "predict m.npz mixed.csv")
    assert code == 0, shown
    assert re.search(r"RMSE \S+ of 1 ratings; 2 of users or items not seen", shown)
    model = np.load("m.npz")
    known_item = model["mean"] + model["item_biases"][list(model["items"]).index("i1")]
    known_user = model["mean"] + model["user_biases"][list(model["users"]).index("u1")]
    assert [float(x) for x in out.split()[1:]] == pytest.approx([known_item, known_user], abs=1e-5)
    Path("strange.csv").write_text("stranger,novelty")
    code, _, shown = malt(capfd, "predict m.npz strange.csv")
    assert code == 2
    assert "strange.csv has no line of known users and items" in shown
    Path("pairs.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines[1800:]))
    for option in ("--chunk-rows 9", "--skip-bad-lines"):
        code, _, shown = malt(capfd, f"predict m.npz pairs.csv {option}")
        assert code == 2
        assert f"{option.split()[0]} means nothing to m.npz, a model of mf" in shown
    code, out, shown = malt(capfd, "predict m.npz pairs.csv")
    assert code == 0, shown
    wanted = [float(line.rpartition(",")[2]) for line in lines[1800:]]
    assert np.sqrt(np.mean((np.array(out.split(), float) - wanted) ** 2)) == pytest.approx(
        error, abs=1e-3
    )


def test_predict_keeps_the_old_file_at_out_until_it_has_labels(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert malt(capfd, "train svm train.svm --passes 1 -q --out m.npz")[0] == 0
    Path("labels.txt").write_text("what was there")
    Path("bad.svm").write_text("1 1:1\n1 no\n")
    for data in ("nothing.svm", "bad.svm"):
        assert malt(capfd, f"predict m.npz {data} --out labels.txt")[0] == 2
        assert Path("labels.txt").read_text() == "what was there"
    Path("link.txt").symlink_to("labels.txt")
    assert malt(capfd, "predict m.npz test.svm --out link.txt")[0] == 0
    assert len(Path("labels.txt").read_text().split()) == 397
    os.mkfifo("pipe")
    end = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert malt(capfd, "predict m.npz test.svm --out pipe")[0] == 0
    assert len(os.read(end, 1 << 16).split()) == 397
    os.close(end)
    assert not list(digits.glob("*.draft"))


def test_the_model_is_saved_before_anything_is_measured(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (digits / "bad.svm").write_text("1 no\n")
    code, _, shown = malt(capfd, "train svm train.svm --test bad.svm --passes 1 -q --out m.npz")
    assert code == 2
    assert "bad.svm, line 1" in shown
    assert malt(capfd, "predict m.npz test.svm")[0] == 0


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (KeyError("no such thing"), "rank 1: KeyError: 'no such thing'"),
        (OSError("the disk is gone"), "rank 1: OSError: the disk is gone"),
        (MemoryError("8 PiB"), "rank 1: MemoryError: 8 PiB"),
    ],
)
def test_failure_of_a_rank_is_reported_without_a_traceback(
    digits: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    words: str,
) -> None:
    def run(trainer: object, stopping: object) -> None:
        if jobs.rank() == 1:
            raise failure
        time.sleep(60)

    monkeypatch.setattr(trainer.Trainer, "run", run)
    code, _, shown = malt(capfd, "train svm train.svm -n 2 -q")
    assert code == 2
    assert words in shown
    assert "Traceback" not in shown


def test_too_little_memory_is_said_with_a_way_out(
    digits: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(model: object, *data: object) -> None:
        raise MemoryError("Unable to allocate 8 PiB")

    monkeypatch.setattr(train, "fit", fit)
    code, _, shown = malt(capfd, "train svm train.svm -q")
    assert code == 2
    assert "not enough memory (Unable to allocate 8 PiB): take a smaller --chunk-rows" in shown


@pytest.mark.parametrize("header", [b"{'descr': (((\n", b"\x00\n"])
def test_a_damaged_model_is_refused_in_words(
    digits: Path, capfd: pytest.CaptureFixture[str], header: bytes
) -> None:
    with zipfile.ZipFile("m.npz", "w") as file:
        text = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        file.writestr("malt_model.npy", b"")
        file.writestr("coef.npy", text)
    code, _, shown = malt(capfd, "predict m.npz test.svm")
    assert code == 2
    assert re.search("m.npz, array coef has a damaged header", shown)


LINEAR: dict[str, object] = {
    "malt_model": "{}",
    "coef": np.ones((3, 64)),
    "intercept": np.zeros(3),
    "classes": np.arange(3.0),
    "zero_based": True,
}
REGRESSION: dict[str, object] = {
    "malt_model": "{}",
    "coef": np.ones(64),
    "intercept": np.zeros(1),
}
OF_RATINGS: dict[str, object] = {
    "malt_model": "{}",
    "users": np.array(["a", "d"]),
    "items": np.array(["b", "c"]),
    "user_factors": np.ones((2, 4), np.float32),
    "item_factors": np.ones((2, 4), np.float32),
    "user_biases": np.zeros(2, np.float32),
    "item_biases": np.zeros(2, np.float32),
    "mean": 3.5,
}


@pytest.mark.parametrize(
    ("arrays", "name", "value"),
    [
        (LINEAR, "coef", None),
        (LINEAR, "coef", np.ones(64)),
        (LINEAR, "coef", np.ones((0, 64))),
        (LINEAR, "coef", np.ones((3, 64), np.complex128)),
        (LINEAR, "coef", np.full((3, 64), np.nan)),
        (LINEAR, "intercept", np.array([0, np.inf, 0])),
        (LINEAR, "intercept", None),
        (LINEAR, "intercept", np.zeros(4)),
        (LINEAR, "classes", None),
        (LINEAR, "classes", np.arange(2.0)),
        (LINEAR, "classes", np.array(["a", "b", "c"])),
        (LINEAR, "classes", np.array([0, np.inf, 1])),
        (LINEAR, "zero_based", np.zeros(2, bool)),
        (REGRESSION, "coef", np.ones((1, 64))),
        (REGRESSION, "intercept", np.zeros(2)),
        (OF_RATINGS, "users", None),
        (OF_RATINGS, "users", np.array(["d", "a"])),
        (OF_RATINGS, "users", np.arange(2)),
        (OF_RATINGS, "items", np.array(["b"])),
        (OF_RATINGS, "item_factors", None),
        (OF_RATINGS, "item_factors", np.ones((2, 3))),
        (OF_RATINGS, "user_biases", np.zeros(1)),
        (OF_RATINGS, "item_biases", None),
        (OF_RATINGS, "mean", "3"),
        (OF_RATINGS, "mean", np.nan),
        (OF_RATINGS, "user_factors", np.full((2, 4), np.nan, np.float32)),
        (OF_RATINGS, "item_biases", np.array([np.inf, 0], np.float32)),
    ],
)
def test_a_model_whose_arrays_do_not_go_together_is_refused_in_words(
    digits: Path,
    capfd: pytest.CaptureFixture[str],
    arrays: dict[str, object],
    name: str,
    value: object,
) -> None:
    Path("pairs.csv").write_text("a,b,1\nd,c,2\n")
    command = "predict m.npz " + ("pairs.csv" if arrays is OF_RATINGS else "test.svm")
    np.savez("m.npz", **arrays)  # type: ignore[arg-type]
    assert malt(capfd, command)[0] == 0
    spoilt = {key: given for key, given in (arrays | {name: value}).items() if given is not None}
    np.savez("m.npz", **spoilt)  # type: ignore[arg-type]
    code, _, shown = malt(capfd, command)
    assert code == 2
    assert "m.npz is damaged" in shown
    array = np.asarray(value)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        assert f"{name} has NaN or infinity; train the model again" in shown


def test_arrays_that_no_model_has_are_not_read(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez("m.npz", **LINEAR)  # type: ignore[arg-type]
    with zipfile.ZipFile("m.npz", "a") as file:
        file.writestr("others.npy", b"no array")
    assert malt(capfd, "predict m.npz test.svm")[0] == 0


def test_a_model_takes_no_more_memory_than_its_file_has_bytes(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez_compressed("m.npz", **LINEAR)  # type: ignore[arg-type]
    code, _, shown = malt(capfd, "predict m.npz test.svm")
    assert code == 2
    assert "coef is compressed; `malt train --out` compresses nothing" in shown

    with zipfile.ZipFile("m.npz", "w") as file:
        file.writestr("malt_model.npy", b"")
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1000000000)}\n"
        text = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        file.writestr("coef.npy", text + bytes(8))
    code, _, shown = malt(capfd, "predict m.npz test.svm")
    assert code == 2
    assert "m.npz, array coef is cut short: 7999999992 bytes are missing" in shown


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_model_that_claims_to_be_small_is_not_decompressed(
    digits: Path, capfd: pytest.CaptureFixture[str], method: int
) -> None:
    with zipfile.ZipFile("m.npz", "w") as file:
        file.writestr("malt_model.npy", b"")
        file.writestr("coef.npy", bz2.compress(bytes(1 << 20)))  # whose two sizes are equal
        file.getinfo("coef.npy").compress_type = method
    code, _, shown = malt(capfd, "predict m.npz test.svm")
    assert code == 2
    assert f"m.npz: coef.npy is compressed by method {method}; it may be stored" in shown


def test_a_model_whose_arrays_share_the_bytes_of_the_file_is_refused(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez("m.npz", **(LINEAR | {"classes": np.zeros(9999)}))  # type: ignore[arg-type]
    with zipfile.ZipFile("m.npz", "a") as file:
        for name in ("coef.npy", "intercept.npy"):
            classes = file.getinfo("classes.npy")
            info = file.getinfo(name)
            info.header_offset, info.CRC = classes.header_offset, classes.CRC
            info.file_size = info.compress_size = classes.file_size
        file.writestr("others.npy", b"")  # so that the directory is written again
    code, _, shown = malt(capfd, "predict m.npz test.svm")
    assert code == 2
    assert "m.npz is damaged: its arrays are said to have 24" in shown


def test_the_first_rank_of_a_job_tells_of_all(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("train.svm", "a") as file:
        file.write("9 no\n")  # in the part of the last

    def work() -> dict[str, int]:
        options = "--passes 2 --tol=-1 -q --skip-bad-lines --out m.npz --report r.html"
        code = train.main(f"svm train.svm {options}".split())
        sys.stdout.flush()
        return {"code": code}

    capfd.readouterr()
    assert forked.run(2, work) == [{"code": 0}, {"code": 0}]
    out, _ = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["model:", "rank", "0", "1"]
    assert "2 passes over 1,400 examples of 63 features\n" in out
    assert "1 bad lines skipped: by other ranks\n" in out
    assert out.count("model: m.npz") == 1
    assert Report(Path("r.html")).title.endswith("train.svm, rank 0 of 2")


def test_ctrl_c_saves_what_has_been_learnt(digits: Path) -> None:
    command = "train svm train.svm -n 2 --passes 1000000 --tol=-1 --every 50 -q --out m.npz"
    running = subprocess.Popen(
        [sys.executable, "-m", "malt", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()) < 2:
        time.sleep(0.02)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, shown = running.communicate(timeout=60)
    assert running.returncode == 0, shown
    assert "ends after this pass" in shown
    assert "model: m.npz" in out
    assert np.load(digits / "m.npz")["coef"].any()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("train svm nothing.svm", "nothing.svm: there is no such file"),
        ("train svm train.svm --graph web", "--graph is 'web'; it is one of all, halton"),
        ("train svm no.svm -n 100000", "100000 ranks are too many for 2 cores: at most 128, 64 a"),
        ("train mf no.csv -n 129", "129 ranks are too many for 2 cores"),
        ("train svm train.svm -n 0", "--ranks is 0; it must be a whole number at least 1"),
        ("train svm train.svm --out no/m.npz", "there is no folder for no/m.npz"),
        ("train svm no.svm --out .", ". is a folder; name a file"),
        ("train svm no.svm --test mistyped.svm", "mistyped.svm: there is no such file"),
        ("train svm train.svm --staleness never", "--staleness is 'never'"),
        ("train mf train.svm", "is not a user, an item and a rating"),
        ("train mf train.csv --test mistyped.csv", "mistyped.csv cannot be read as ratings"),
        ("train mf train.csv --test others.csv", "others.csv has no line of known users and"),
        ("train mf train.csv -n 0", "--ranks is 0; it must be a whole number at least 1"),
        (
            "train mf train.csv --staleness never",
            "--staleness is 'never'; it must be a",
        ),
        ("train mf train.csv --chunk-rows 9", "--chunk-rows means nothing to mf"),
        ("train svm train.svm --factors 9", "--factors means nothing to svm"),
        ("train svm train.svm --lr optimal:0.5", "--lr is 'optimal:0.5'; optimal follows from"),
        ("train svm train.svm --lr constant:x", "--lr is 'constant:x'; behind the colon is a"),
        ("train deep train.svm", "invalid choice: 'deep'"),
        ("train svm train.svm --every 0", "--every is 0; it must be a whole number"),
        ("train svm train.svm --passes 0", "--passes is 0; it must be a whole number"),
        ("train svm train.svm --lr constant:0", "the ETA0 of --lr is 0.0; it must be"),
        ("train svm train.svm --label 3", "--label is 3; svmlight text has labels of its own"),
        ("train svm train.svm --alpha 0", "--lr 'optimal' divides by the penalty's weight"),
        ("train svm bad.svm", "--skip-bad-lines skips such lines"),
        ("train svm train.unknown", "give --format, one of svmlight"),
        ("train svm table.csv", "table.csv has no targets: --label names the column"),
        ("train svm table.csv --chunk-rows 1", "the examples have no targets: --label names"),
        ("train svm table.csv --label z", "--label is 'z'; the columns are 'a', 'b'"),
        ("train mf train.csv --factors 0", "--factors is 0; it must be a whole number"),
        ("predict train.svm test.svm", "train.svm is no model"),
        ("predict nothing.npz test.svm", "nothing.npz: there is no such file"),
    ],
)
def test_misuse_is_reported_without_a_traceback(
    digits: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    error: str,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    Path("train.csv").write_text("a,b,1\na,c,2\nd,c,3\n")
    Path("others.csv").write_text("a,x,1\ny,c,2\n")
    Path("bad.svm").write_text("1 1:1\n1 1:x\n")
    Path("train.unknown").write_text("1 1:1\n")
    Path("table.csv").write_text("a,b\n1,2\n3,4\n")
    code, _, shown = malt(capfd, words)
    assert code == 2
    assert error in shown
    assert "Traceback" not in shown


def test_a_file_to_write_follows_no_link_that_somebody_has_put_there(tmp_path: Path) -> None:
    from malt._drafted import drafted

    mine, out = tmp_path / "mine", tmp_path / "model.npz"
    mine.write_text("mine")
    for name in ("model.npz.draft", ".model.npz.draft"):
        (tmp_path / name).symlink_to(mine)
    with drafted(str(out), "w") as file:
        file.write("model")
    assert (mine.read_text(), out.read_text()) == ("mine", "model")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".model.npz.draft",
        "mine",
        "model.npz",
        "model.npz.draft",
    ]
