"""The table of `malt top`: a row for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from malt._watching.rates import Rates

_HEADER = ("rank", "state", "iteration", "iter/s", "out/s", "in/s", "waiting", "for", "staleness")


def _header_of(rates: Sequence[Rates]) -> tuple[str, ...]:
    """Return the headings: those of all jobs, then the names of malt.report()."""
    return (*_HEADER, *_names(rates))


def _rows_of(rates: Sequence[Rates]) -> list[tuple[str, ...]]:
    """Return the cells of each rank, as _header_of() names them."""
    names = _names(rates)
    return [
        (
            str(one.rank),
            _state(one),
            f"{one.iteration:,}",
            f"{one.iterations:,.1f}",
            size_text(one.bytes_out),
            size_text(one.bytes_in),
            f"{one.waiting:.0%}",
            "" if one.waits_for is None else f"rank {one.waits_for}",
            str(one.staleness),
            *(f"{one.reports[name]:.5g}" if name in one.reports else "" for name in names),
        )
        for one in rates
    ]


def _names(rates: Sequence[Rates]) -> list[str]:
    return list(dict.fromkeys(name for one in rates for name in one.reports))


def _state(one: Rates) -> str:
    is_long = one.state == "waits" and one.waits_seconds >= 1
    return f"waits {one.waits_seconds:.0f} s" if is_long else one.state


def size_text(size: float) -> str:
    """Return a number of bytes in the unit that fits, such as "12.5 MB"."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:  # which three digits round up
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def lines_of(rates: Sequence[Rates]) -> list[str]:
    """Return the table as lines of plain text: the headings, then a line for each rank."""
    rows = [_header_of(rates), *_rows_of(rates)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
