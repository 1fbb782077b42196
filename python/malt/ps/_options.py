"""The checked arguments of a table, from which the core's table is made."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from malt import _core_import as core
from malt._arguments import finite, whole
from malt._core_import import Codec
from malt._job import job as jobs
from malt._partition import Partition
from malt.ps._arguments import (
    check_codec,
    check_memory,
    check_rule,
    check_threshold,
    float_type,
    hot_rows_of,
)
from malt.ps._placing import Placing
from malt.ps._rules import Add, Rule, UpdateFunction, states_of

_MOST_ROWS = 1 << 40
_MOST_ROW_BYTES = 64 << 10
_MOST_CACHED_KEYS = 1 << 30


class TableOptions:
    """The arguments of a Table, which says what they mean. Raises ConfigError if one is wrong.

    Attributes:
        row_shape: (width,), or () if a row is one number.
        placing: where rows lie that follow a partition; None without one.
        row_bytes: of a row with the rule's state.
        places: how many rows the core's table has; a partition needs more than `rows`.
    """

    def __init__(
        self,
        name: str,
        job: jobs.Job,
        *,
        rows: int,
        width: int | None,
        update: Rule | UpdateFunction | None,
        dtype: npt.DTypeLike,
        initial: float,
        replicas: int,
        staleness: int | None,
        codec: Codec | None,
        threshold: float,
        cached_keys: int,
        hot: npt.ArrayLike,
        partition: Partition | None,
    ) -> None:
        self.name = name
        self.rows = whole("rows", rows, 1, _MOST_ROWS)
        self.dtype = float_type(dtype)
        most_width = _MOST_ROW_BYTES // self.dtype.itemsize
        self.row_shape = () if width is None else (whole("width", width, 1, most_width),)
        self.width = 1 if width is None else int(width)
        self.rule = Add() if update is None else update
        check_rule(self.rule)
        self.initial = finite("initial", initial)
        if staleness is not None:
            whole("staleness", staleness, 0, 1 << 30)
        self.staleness = staleness
        check_codec(codec)
        self.codec = codec
        check_threshold(threshold, self.rule)
        self.threshold = float(threshold)
        self.cached_keys = whole("cached_keys", cached_keys, 0, _MOST_CACHED_KEYS)
        self.hot = hot_rows_of(hot, self.rows, staleness)
        self.placing: Placing | None = None
        self.places = self.rows
        if partition is not None:
            self.placing = Placing(partition, self.rows, job.size)
            self.places = self.placing.room
            self.hot = np.sort(self.placing.places[self.hot])
        # None if this rank is evicted, which it learns where it forms the group.
        live = max(len(jobs.alive()), 1)
        most, why = live - 1, f", as {live} ranks are live"
        if job.generations is not None:
            most, why = max(job.size - 1, 0), f", as there are {job.size} ranks"
        self.replicas = whole("replicas", replicas, 0, most, why)
        self.row_bytes = self.width * self.dtype.itemsize * (1 + len(states_of(self.rule)))
        self._check_memory(live)

    def _check_memory(self, live: int) -> None:
        hot_bytes = len(self.hot) * self.width * self.dtype.itemsize
        list_bytes = 2 * 8 * self.cached_keys * live + hot_bytes
        here = self.rows // live if self.placing is None else self.placing.most
        check_memory(self.name, self.rows, here, self.row_bytes, self.replicas, live, list_bytes)

    @property
    def text(self) -> str:
        """The text that the ranks compare."""
        rule = self.rule if isinstance(self.rule, Rule) else "a function"
        partition = None if self.placing is None else self.placing.text
        return (
            f"rows={self.rows}, width={self.width}, update={rule}, dtype={self.dtype}, "
            f"initial={self.initial}, replicas={self.replicas}, staleness={self.staleness}, "
            f"codec={self.codec}, threshold={self.threshold}, cached_keys={self.cached_keys}, "
            f"hot={len(self.hot)} rows (checksum {zlib.crc32(self.hot.tobytes()):08x}), "
            f"partition={partition}"
        )

    def make(self) -> core.Table:
        rule = self.rule
        return core.Table(
            name=self.name,
            rows=self.places,
            width=self.width,
            dtype=self.dtype,
            initial=self.initial,
            rule=(type(rule).__name__, rule.numbers() if isinstance(rule, Rule) else []),
            function=None if isinstance(rule, Rule) else rule,
            row_shape=self.row_shape,
            replicas=self.replicas,
            staleness=self.staleness,
            codec=self.codec,
            threshold=self.threshold,
            cached_keys=self.cached_keys,
            hot=self.hot.tolist(),
            owners=[] if self.placing is None else self.placing.owners.tolist(),
        )
