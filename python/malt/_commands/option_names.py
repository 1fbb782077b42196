"""Rewrites the library's messages for the command line: options instead of Python's parameters."""

from __future__ import annotations

import re

# By parameter of malt.load_data() and the estimators: the option of `malt train` and `predict`.
_OPTIONS = {
    "max_iter": "--passes",
    "passes": "--passes",
    "n_factors": "--factors",
    "learning_rate": "--lr",
    "random_state": "--seed",
    "eta0": "the ETA0 of --lr",
    "chunk_rows": "--chunk-rows",
    **{
        name: f"--{name}"
        for name in ("ranks", "graph", "staleness", "every", "exchange", "alpha", "penalty", "tol")
    },
    **{name: f"--{name}" for name in ("average", "format", "features", "label")},
}
# Advice that the command line words differently, or for which it has no option.
_ADVICE = (
    ("on_bad='count' skips", "--skip-bad-lines skips"),
    (" or MALT_TIMEOUT, or timeout= of a call that has it", " or MALT_TIMEOUT"),
    ("malt.init(timeout=...) or MALT_TIMEOUT", "MALT_TIMEOUT"),
    ("malt.data.Chunks have", "the examples have"),
    ("raise max_iter", "raise --passes"),
    ("for these ratings; lower it, or scale", "for these ratings; scale"),
)
_PARAMETER = re.compile(rf"(?<![\w.-])({'|'.join(_OPTIONS)})( is |=)")


def named_as_typed(message: str) -> str:
    """Return the message with options in place of the parameters that it names."""
    for there, here in _ADVICE:
        message = message.replace(there, here)
    return _PARAMETER.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    name, behind = found.groups()
    if behind == "=":  # either before a value, or the message says "give NAME="
        behind = " " if found.string[found.end() :][:1].strip(" ,;:.") else ""
    return _OPTIONS[name] + behind
