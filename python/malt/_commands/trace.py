"""`malt trace merge`: makes one trace of those that several hosts wrote."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from malt._errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt trace` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt trace",
        description="Work with the traces of `malt run --trace` and MALT_TRACE.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "merge",
        help="make one trace of those that several hosts of a job wrote",
        description="Make one trace of those that several hosts of a job wrote. An update is "
        "folded after it was scattered: by that the hosts' clocks are aligned to the first file's, "
        "and the error is said, also in the file.",
        allow_abbrev=False,
    )
    one.add_argument("files", metavar="FILE.json", nargs="+", type=Path)
    one.add_argument("-o", "--out", metavar="FILE.json", type=Path, required=True)
    parsed = parser.parse_args(arguments)
    if len(parsed.files) < 2:
        one.error("one file is nothing to merge: give those of all hosts")
    if parsed.out.resolve() in [file.resolve() for file in parsed.files]:
        one.error(f"--out {parsed.out} is one of the files to merge: give another name")
    from malt._watching.merge import merge

    try:
        for remark in merge(parsed.files, parsed.out):
            print(remark)
    except (ConfigError, OSError) as error:
        print(f"malt trace merge: error: {error}", file=sys.stderr)
        return 2
    return 0
