"""`malt top`: a table of what the ranks of a running job do, live on a terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from malt._distribution import pip_install
from malt._errors import ConfigError

if TYPE_CHECKING:
    from malt._watching.rates import Rates
    from malt._watching.sources import Source


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt top` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt top",
        description="Show what the ranks of a running job of this host do: iterations and bytes a "
        "second, the part of the time spent waiting, and for which rank. The job is one of `malt "
        "run --record` (or --trace, --metrics, …), or has MALT_RECORD=1. Ends with the job, or "
        "with Ctrl-C. If the output is no terminal, or a dumb one, it is one table.",
        allow_abbrev=False,
    )
    add_process(parser)
    parser.add_argument(
        "--interval",
        metavar="S",
        type=seconds,
        default=1.0,
        help="seconds from one table to the next (default: %(default)g)",
    )
    parsed = parser.parse_args(arguments)
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _show_live(parsed.process, parsed.interval)
        else:
            _print_once(parsed.process, parsed.interval)
    except ConfigError as error:
        print(f"malt top: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def add_process(parser: argparse.ArgumentParser) -> None:
    """Let the command take the process of the job to look at."""
    parser.add_argument(
        "process",
        metavar="PID",
        nargs="?",
        type=_process_number,
        help="the process of `malt run`, of a rank, or of another launcher (default: the only job)",
    )


def _process_number(text: str) -> int:
    """Read the number of a process."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a process, 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """Read an interval."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0.05 to 3600")
    return value


def _tables(process: int | None, interval: float) -> Iterator[list[Rates]]:
    """Yield the rates of all ranks after each interval; ends when all ranks have ended."""
    from malt._watching import sources
    from malt._watching.rates import rates_of

    found = sources.find(process)
    looks = {source.recording.process: source.look() for source in found}
    while True:
        time.sleep(interval)
        found = _again(found, process)
        before, looks = looks, {source.recording.process: source.look() for source in found}
        rates = [rates_of(before.get(key, look), look) for key, look in looks.items()]
        yield sorted(rates, key=lambda one: one.rank)
        if all(look.state == "ended" for look in looks.values()):
            return


def _again(found: list[Source], process: int | None) -> list[Source]:
    """Look for new ranks; keep those that have ended while others run."""
    from malt._watching import sources

    try:
        newest = {source.rank: source for source in sources.find(process)}
    except ConfigError:  # the launcher has ended, or another job has begun
        return found
    return list(({source.rank: source for source in found} | newest).values())


def _print_once(process: int | None, interval: float) -> None:
    from malt._watching import table

    print("\n".join(table.lines_of(next(_tables(process, interval)))))


def _show_live(process: int | None, interval: float) -> None:
    try:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise ConfigError(
            f"the live table needs rich, which is not installed: {pip_install('watch')}; "
            "`malt top | cat` prints one table without it"
        ) from None
    from malt._watching import table

    styles = {"ended": "red", "stopped": "red", "runs": "green"}
    with Live(console=Console(), auto_refresh=False) as live:
        for rates in _tables(process, interval):
            header, *rows = table.lines_of(rates)
            lines = [Text(header, "bold", no_wrap=True, overflow="crop")]
            for one, row in zip(rates, rows, strict=True):
                # A narrow terminal shows what fits: lines that wrap could not be read.
                style = styles.get(one.state, "yellow")
                lines.append(Text(row, style, no_wrap=True, overflow="crop"))
            live.update(Group(*lines), refresh=True)
