"""`malt scale`: adds ranks to a running elastic job, or asks some to leave."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from malt._errors import ConfigError
from malt._launch.scale import COUNT, LEAVE, ask


def _count(text: str) -> int:
    if (count := _rank(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return count


def _rank(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt scale` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt scale",
        description="Have COUNT ranks run in a job of `malt run --elastic MIN:MAX`: start some, or "
        "ask those with the highest numbers to leave (malt.jobs.leaving() is true there). Several "
        "hosts get equally many. Or ask one rank of your choice to leave.",
    )
    parser.add_argument(
        "process",
        metavar="PID",
        type=_count,
        help="the process id of `malt run` on this host, which may be any host of the job",
    )
    change = parser.add_mutually_exclusive_group(required=True)
    change.add_argument("count", metavar="COUNT", type=_count, nargs="?", help="MIN to MAX")
    change.add_argument(
        "--leave", metavar="RANK", type=_rank, help="the rank that is to leave, on any host"
    )
    parsed = parser.parse_args(arguments)
    try:
        if parsed.leave is None:
            done = ask(parsed.process, COUNT, parsed.count)
        else:
            done = ask(parsed.process, LEAVE, parsed.leave)
    except ConfigError as error:
        parser.error(str(error))
    print(f"malt scale: {done}")
    return 0
