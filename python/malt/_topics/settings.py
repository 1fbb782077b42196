"""The settings of a topic model, checked."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from malt._arguments import whole
from malt._core_import import TopicTokens, available_bytes
from malt._errors import ConfigError
from malt._topics.documents import MOST_TOKENS
from malt._topics.trainer import Priors


class TopicSettings(NamedTuple):
    """The parameters of LatentDirichletAllocation that must be the same on all ranks."""

    n_components: int
    doc_topic_prior: Any
    topic_word_prior: Any
    max_iter: int
    learn_priors: bool
    every: int | None

    def check(self) -> None:
        """Raise ConfigError for values that are not allowed."""
        whole("n_components", self.n_components, 1, TopicTokens.most_topics)
        whole("max_iter", self.max_iter, 1, 2**31)
        if self.every is not None:
            whole("every", self.every, 1, MOST_TOKENS)
        if not isinstance(self.learn_priors, (bool, np.bool_)):
            raise ConfigError(f"learn_priors is {self.learn_priors!r}; it is True or False")
        self.priors()

    def priors(self) -> Priors:
        """Return the first priors.

        Raises:
            ConfigError: a prior is not above 0, one or their sum is no normal float32, or
                there is not one for each topic.
        """
        alpha = _prior("doc_topic_prior", self.doc_topic_prior, 0.1)
        beta = _prior("topic_word_prior", self.topic_word_prior, 0.01)
        if alpha.shape not in ((), (self.n_components,)):
            raise ConfigError(
                f"doc_topic_prior has shape {alpha.shape}; it is a number, or one number for each "
                f"of the {self.n_components} topics"
            )
        if beta.shape != ():
            raise ConfigError(f"topic_word_prior has shape {beta.shape}; it is one number")
        alpha = np.broadcast_to(alpha, (self.n_components,)).copy()
        for value in (alpha.min(), alpha.max()):
            _check_single("doc_topic_prior", value)
        with np.errstate(over="ignore"):
            _check_single("the sum of doc_topic_prior over the topics", alpha.sum())
        _check_single("topic_word_prior", float(beta))
        _check_single("topic_word_prior times n_components", float(beta) * self.n_components)
        return Priors(alpha, float(beta))

    def check_words(self, words: int) -> None:
        """Raise ConfigError for a topic_word_prior that is too large for so many words."""
        _check_single(f"topic_word_prior times {words} words", self.priors().beta * words)

    def described(self) -> dict[str, str]:
        """Return the values as text, to be compared among ranks."""
        return {name: _described(value) for name, value in self._asdict().items()}


def check_memory(vocabulary: int, topics: int, copies: int) -> None:
    """Raise ConfigError if so many copies of the counts do not fit into this rank's memory."""
    needed, free = copies * 4 * vocabulary * topics, available_bytes()
    if needed > free:
        raise ConfigError(
            f"{vocabulary} words x {topics} topics need {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; take fewer topics, or leave out rare words "
            "(CountVectorizer(min_df=5))"
        )


def _described(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim == 0:
        return str(array)
    array = array.astype(np.float64)
    digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]  # of what the text leaves out, too
    return f"{np.array2string(array, threshold=32)} (digest {digest})"


def _check_single(name: str, value: float) -> None:
    """Raise ConfigError for a value with which the sampler cannot compute in float32."""
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value:g}; it is a number from {least:.3g} to {most:.3g}")


def _prior(name: str, given: Any, default: float) -> Any:
    try:
        value = np.asarray(default if given is None else given, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {given!r}; it is a number above 0") from None
    if not (np.isfinite(value).all() and (value > 0).all()):
        raise ConfigError(f"{name} is {given!r}; it is a finite number above 0")
    return value
