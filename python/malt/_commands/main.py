"""The command line: `malt run` and the other commands."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

from malt._distribution import NAME

_COMMANDS = {
    "run": "start N ranks of a program on this host, or on each of several, without MPI",
    "top": "show what the ranks of a running job do, live",
    "plan": "say what a job will need on each host, before it is started",
    "doctor": "say in words what is wrong with this machine, or with a running job",
    "trace": "make one trace of those that several hosts of a job wrote",
    "scale": "add ranks to a job of `malt run --elastic`, or have some leave",
    "train": "train a model on examples in files, on N ranks, and save it",
    "predict": "predict the labels or values of other examples with such a model",
    "info": "show what this machine can do, and its limits",
}


def version() -> str:
    """Return the installed version of MALT."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `malt`; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Each command parses its own arguments, because a user's program must get its own unchanged.
    if words and words[0] in _COMMANDS:
        command = importlib.import_module(f"malt._commands.{words[0]}")
        return int(command.main(words[1:]))
    parser = argparse.ArgumentParser(
        prog="malt",
        description="Peer-to-peer data-parallel machine learning.",
        epilog="\n".join(f"  malt {name:8}{what}" for name, what in _COMMANDS.items())
        + "\n\n`malt COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"malt {version()}")
    parser.add_argument("command", choices=_COMMANDS, help="see below")
    parser.parse_args(words or ["--help"])
    return 2


if __name__ == "__main__":
    sys.exit(main())
