"""Vowpal Wabbit, by its own reader and driver: each run is a process of its own.

Its command line (https://vowpalwabbit.org) comes with `pip install vowpalwabbit`, as arguments of a
Workspace. Rows go to it as text, which its first run writes into a cache; what is timed reads that.
It may use all cores, and does: one thread reads, another learns.
"""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np

LOSSES = {"hinge": "hinge", "log_loss": "logistic"}  # its names
# 0 to 9.9999999 in as many characters as a column below 10^7 and its value take, so that they can
# be laid out by NumPy, 41 million in seconds.
_PAIR = np.frombuffer(b" 0000000:0.0000000", np.uint8)
_COLUMN, _UNITS, _DECIMALS = slice(1, 8), 9, slice(11, 18)
_ROWS = 50_000  # that are laid out at once

_DRIVER = """
import json, sys, time
import vowpalwabbit
begin = time.perf_counter()
model = vowpalwabbit.Workspace(sys.argv[1], enable_logging=False)  # reads, trains, returns
seconds = time.perf_counter() - begin
model.finish()
print(json.dumps(seconds))
"""


def is_installed():
    return importlib.util.find_spec("vowpalwabbit") is not None


def _digits(numbers, count):
    return ord("0") + numbers[:, None] // 10 ** np.arange(count - 1, -1, -1) % 10


def _write(path, matrix, signs):
    assert matrix.shape[1] < 10**7
    assert matrix.data.min() >= 0
    assert matrix.data.max() < 9.9
    with path.open("wb") as file:
        for first in range(0, matrix.shape[0], _ROWS):
            part = matrix[first : first + _ROWS]
            scaled = np.rint(part.data.astype(np.float64) * 10**7).astype(np.int64)
            pairs = np.tile(_PAIR, (part.nnz, 1))
            pairs[:, _COLUMN] = _digits(part.indices, 7)
            pairs[:, _UNITS] = ord("0") + scaled // 10**7
            pairs[:, _DECIMALS] = _digits(scaled, 7)
            for row, sign in enumerate(signs[first : first + _ROWS]):
                file.write(b"1 |" if sign > 0 else b"-1 |")
                file.write(pairs[part.indptr[row] : part.indptr[row + 1]].data)
                file.write(b"\n")


def _drive(arguments):
    command = [sys.executable, "-c", _DRIVER, f"--quiet {arguments}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


class VowpalWabbit:
    """A training set and a test set as it reads them, in a directory."""

    def __init__(self, directory, train, test):
        self._train, self._test = directory / "train.txt", directory / "test.txt"
        self._cache, self._model = directory / "train.cache", directory / "model"
        self._predictions = directory / "predictions"
        self._signs = test[1]
        _write(self._train, *train)
        _write(self._test, *test)
        _drive(f"--data {self._train} --cache_file {self._cache} -k --noconstant")
        os.truncate(self._train, 0)  # all is in the cache

    def train(self, loss, alpha, passes):
        """Seconds for so many passes over the cache, and the accuracy on the test set.

        Its rates are its default: AdaGrad's, normalised, safe from steps that are too long.
        """
        # 2^18 weights are the fewest in which no two columns share one. Without --holdout_off it
        # would train on nine rows of ten.
        options = f"--loss_function {LOSSES[loss]} --l2 {alpha} --noconstant -b 18 --holdout_off"
        seconds = _drive(
            f"{options} --data {self._train} --cache_file {self._cache} --passes {passes} "
            f"--final_regressor {self._model}"
        )
        _drive(
            f"--testonly --data {self._test} --initial_regressor {self._model} "
            f"--predictions {self._predictions}"
        )
        found = np.loadtxt(self._predictions)
        return seconds, float(np.mean((found > 0) == (self._signs > 0)))
