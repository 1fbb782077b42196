"""Write the table of docs/estimators.md: what scikit-learn's classes have, and malt's have not.

Run from anywhere, with the version of scikit-learn that pyproject.toml pins:

    python docs/list_missing.py

It compares signatures, methods and the attributes of fitted estimators.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn import decomposition, linear_model, svm
from sklearn.utils._param_validation import StrOptions

import malt

PAGE = Path(__file__).parent / "estimators.md"
BEGIN, END = "<!-- made by docs/list_missing.py -->\n", "<!-- end -->\n"
PACKAGES = {decomposition: ["LatentDirichletAllocation"], svm: ["LinearSVC", "LinearSVR"]}
PACKAGES[linear_model] = [
    "ElasticNet", "Lasso", "LogisticRegression", "Ridge", "SGDClassifier", "SGDRegressor",
]  # fmt: skip
# The way out for attributes and arguments; the classes have that for their parameters.
INSTEAD = {
    "fit(check_input=)": "leave it out; X is always checked",
    "path": "`fit` for each alpha, from the largest, with `warm_start=True`",
    "l1_ratio": "`malt.learn.ElasticNet` has one",
    "loss_functions": "`loss` has the names",
    "set_callbacks": "`history_` has each measured gap",
    "bound_": "`perplexity(X)`",
    "exp_dirichlet_component_": "`components_`, each row divided by its sum",
    "n_batch_iter_": "`n_iter_` counts sweeps",
    "random_state_": "`random_state`",
    "perplexity(sub_sampling=)": "leave it out",
    "transform(normalize=)": "leave it out; each row adds up to 1",
    "fit_transform(normalize=)": "leave it out; each row adds up to 1",
    "solver_": "leave it out; the way is chosen by the data",
    "learning_rate='adaptive'": "`'invscaling'` or `'adagrad'`",
    "learning_rate='pa1'": "`'optimal'`",
    "learning_rate='pa2'": "`'optimal'`",
}
_OF_ROUTING = re.compile(r"set_\w+_request")


def fitted(kind: Any) -> Any:
    """Return an estimator of this kind, fitted to data that fit to all."""
    rng = np.random.default_rng(0)
    X = rng.integers(1, 5, (60, 4)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind().fit(X, (X[:, 0] + X[:, 1] > 5).astype(int))


def public(names: Any) -> set[str]:
    """Return the public names, without those of metadata routing."""
    return {name for name in names if not name.startswith("_") and not _OF_ROUTING.match(name)}


def refused_values(theirs: Any, ours: Any, name: str) -> Iterator[str]:
    """Yield the words that a parameter may be in scikit-learn's class only."""
    for one in theirs._parameter_constraints.get(name, ()):
        for value in sorted(one.options) if isinstance(one, StrOptions) else ():
            try:
                fitted(lambda value=value: ours(**{name: value}))
            except malt.ConfigError:
                yield f"{name}={value!r}"


def missing(theirs: Any, ours: Any) -> Iterator[str]:
    """Yield the names of what only scikit-learn's class has."""
    parameters = inspect.signature(ours).parameters
    for name in inspect.signature(theirs).parameters:
        if name not in parameters:
            yield f"{name}="
        else:
            yield from refused_values(theirs, ours, name)
    theirs_fitted, ours_fitted = fitted(theirs), fitted(ours)
    yield from sorted(public(dir(theirs_fitted)) - public(dir(ours_fitted)) - set(
        inspect.signature(theirs).parameters
    ))  # fmt: skip
    for name in sorted(public(dir(theirs)) & public(dir(ours))):
        method = getattr(theirs, name)
        if inspect.isfunction(method) and not _OF_ROUTING.match(name):
            known = inspect.signature(getattr(ours, name)).parameters
            for argument in inspect.signature(method).parameters.keys() - known.keys():
                yield f"{name}({argument}=)"


def instead(ours: Any, name: str) -> str:
    """Return what to do instead of using `name`."""
    return ours._instead[name[:-1]] if name.endswith("=") else INSTEAD[name]


def table() -> str:
    """Return the table, for the installed version of scikit-learn."""
    lines = [
        f"Beside scikit-learn {sklearn.__version__}:",
        "",
        "| class | has no | instead |",
        "| --- | --- | --- |",
    ]
    for package, names in PACKAGES.items():
        for name in names:
            ours = getattr(malt.learn, name)
            by_words: dict[str, list[str]] = defaultdict(list)
            for one in missing(getattr(package, name), ours):
                by_words[instead(ours, one)].append(f"`{one}`")
            lines += [
                f"| `{name}` | {', '.join(ones)} | {words} |" for words, ones in by_words.items()
            ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the table that this script makes."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
