"""A table's counters."""

from __future__ import annotations

from typing import NamedTuple

from malt._core_import import Table


class TableStats(NamedTuple):
    """Counters of this rank's pushes and pulls."""

    bytes_out: int
    """Bytes that this rank has sent to the servers, its own among them."""
    bytes_in: int
    """Bytes that the servers have sent to this rank; rows read in place do not count."""
    rows_held_back: int
    """Rows whose gradients this rank holds back, because they are below the threshold."""
    hot_answers: int
    """Pulls of hot rows that this rank's server has answered, for ranks and for other servers."""
    bytes_own: int
    """Of bytes_out and bytes_in, those of this rank's own server, which cross no network."""

    @staticmethod
    def of(table: Table) -> TableStats:
        """Read the counters of a compiled table."""
        return TableStats(
            table.bytes_out,
            table.bytes_in,
            table.rows_held_back,
            table.hot_answers,
            table.bytes_own,
        )
