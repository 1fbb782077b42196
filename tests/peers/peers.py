"""Peers whose own tests are run with malt's classes in place of theirs.

    python tests/peers/peers.py                     the tests of all peers
    python tests/peers/peers.py sklearn -k ridge    of one, with arguments of pytest

`stand_ins.py` replaces the classes; PEER.txt lists the tests that fail, by reason. implicit and
tomotopy are no such peers: their wheels have no tests, and those of their repositories call
functions that malt has not.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ANY: tuple[Any, ...] = ()  # any value


class Peer(NamedTuple):
    """A package with tests of its own.

    Attributes:
        version: of the package whose tests PEER.txt is about.
        modules: its modules of tests.
        classes: where tests find the classes that malt has, too: module -> names.
        dropped: options that tests may give: those that choose how an answer is found, not which,
            with any value, and others with values that change nothing in malt.
        left_out: words in the ids of tests that are of other classes, and take long.
    """

    version: str
    modules: str
    classes: dict[str, list[str]]
    dropped: dict[str, dict[str, tuple[Any, ...]]]
    left_out: tuple[str, ...] = ()


def any_of(names: str) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names.split(), ANY)


_DESCENT = any_of("copy_X precompute selection")
_CELER = {**any_of("max_epochs p0 prune"), "weights": (None,)}
_SKGLM = any_of("max_epochs p0 ws_strategy")

PEERS = {
    "sklearn": Peer(
        "1.9.1",
        """
        linear_model.tests.test_base linear_model.tests.test_common
        linear_model.tests.test_coordinate_descent linear_model.tests.test_logistic
        linear_model.tests.test_ransac linear_model.tests.test_ridge linear_model.tests.test_sgd
        linear_model.tests.test_sparse_coordinate_descent
        svm.tests.test_bounds svm.tests.test_sparse svm.tests.test_svm
        decomposition.tests.test_online_lda
        compose.tests.test_target ensemble.tests.test_bagging ensemble.tests.test_stacking
        ensemble.tests.test_voting ensemble.tests.test_weight_boosting
        feature_selection.tests.test_from_model feature_selection.tests.test_rfe
        feature_selection.tests.test_sequential
        inspection.tests.test_partial_dependence inspection.tests.test_permutation_importance
        metrics.tests.test_score_objects
        model_selection.tests.test_classification_threshold model_selection.tests.test_search
        model_selection.tests.test_successive_halving model_selection.tests.test_validation
        preprocessing.tests.test_target_encoder
        tests.test_calibration tests.test_multiclass tests.test_multioutput tests.test_pipeline
        utils.tests.test_response utils.tests.test_set_output
        """,
        {
            "sklearn.decomposition": ["LatentDirichletAllocation"],
            "sklearn.linear_model": [
                *("ElasticNet", "Lasso", "LogisticRegression", "Ridge"),
                *("SGDClassifier", "SGDRegressor"),
            ],
            "sklearn.svm": ["LinearSVC", "LinearSVR"],
        },
        {
            "ElasticNet": _DESCENT,
            "Lasso": _DESCENT,
            "LatentDirichletAllocation": any_of(
                "batch_size evaluate_every learning_method learning_offset n_jobs total_samples "
                "verbose"
            ),
            "LinearSVC": {"dual": ANY, "multi_class": ("ovr",), "penalty": ("l2",)},
            "LinearSVR": {"dual": ANY},
            "LogisticRegression": {
                **any_of("dual n_jobs solver"),
                "l1_ratio": (0,),
                "penalty": ("l2",),
            },
            "Ridge": {**any_of("copy_X solver"), "max_iter": (None,), "positive": (False,)},
        },
    ),
    "celer": Peer(
        "0.7.4",
        "tests.test_enet tests.test_lasso",
        {"celer": ["ElasticNet", "Lasso"], "celer.dropin_sklearn": ["ElasticNet", "Lasso"]},
        {"ElasticNet": _CELER, "Lasso": _CELER},
    ),
    "skglm": Peer(
        "0.5",
        "tests.test_estimators",
        {"skglm.estimators": ["ElasticNet", "Lasso", "LinearSVC"]},
        {"ElasticNet": _SKGLM, "Lasso": _SKGLM, "LinearSVC": _SKGLM},
        ("LogisticRegression", "MCP", "SparseLogReg", "generic", "wLasso"),
    ),
}


def main(arguments: list[str]) -> int:
    """Run the tests of the peer that is named first, or of all; return an exit status."""
    names = [arguments.pop(0)] if arguments and arguments[0] in PEERS else list(PEERS)
    failed = 0
    for name in names:
        modules = [f"{name}.{module}" for module in PEERS[name].modules.split()]
        (folder,) = importlib.util.find_spec(name).submodule_search_locations
        command = [
            *(sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--peer", name),
            f"--rootdir={Path(folder).parent}",  # so that a test's id begins with the peer
        ]
        failed |= subprocess.call([*command, *arguments, "--pyargs", *modules], cwd=HERE)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
