"""The options of `malt run`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from malt._launch.options import Options
from malt._rendezvous import wire

_DESCRIPTION = """\
Start N ranks of a program on this host and stay with them to the end. The program is a Python
script (run by this Python), a module (-m) or any executable; what follows it is left untouched:

  malt run -n 4 train.py --lr 0.1
  malt run -n 4 -m package.train
  malt run -n 4 -- ./train --threads 1

A job over several hosts has one `malt run` on each, with the same key and node 0's address:

  export MALT_JOB_KEY=...        64 hexadecimal digits, as `openssl rand -hex 32` makes them
  malt run --nnodes 2 --node-rank 0 --rendezvous host0:29500 -n 4 train.py      on host0
  malt run --nnodes 2 --node-rank 1 --rendezvous host0:29500 -n 4 train.py      on the other
"""

_EPILOG = """\
Every line that a rank writes gets its rank in front and is passed on whole, standard output and
standard error each to its own. Rank 0 reads the standard input unless that is a terminal; with one
rank everything is passed through as it is. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2
are passed on to all ranks; a second Ctrl-C kills them. What a rank leaves running in its process
group is ended too; when `malt run` itself is killed, so are the ranks.

The exit code is the first bad one: the rank's own, or 128 + the signal that it died of; 2 when
nothing could be started. With several hosts each `malt run` stays until all ranks have ended, says
which failed where, and has the same exit code; 1 when a whole node was lost. -n may differ: ranks
are numbered node by node.

Set for the ranks: MALT_RANK, MALT_SIZE, MALT_LOCAL_RANK, MALT_NODE_RANK, MALT_NNODES,
MALT_RENDEZVOUS and MALT_JOB_KEY (how they find one another), MALT_TIMEOUT (--timeout),
MALT_RESTARTS (--respawn, --elastic: how often it has been started since), PYTHONUNBUFFERED=1, and,
where they are not set already, MALT_LOG=info (-v) and OMP_NUM_THREADS = cores / N, at least 1, so
that the ranks do not take the cores from one another.
"""


class _RunParser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        self.with_value: set[str] = set()  # options, each of which takes the next word
        self.with_number: set[str] = set()  # those that take it if it is a number
        super().__init__(**settings)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        if action.nargs is None:
            self.with_value.update(names)
        elif action.nargs == "?":
            self.with_number.update(names)
        return action

    def error(self, message: str) -> NoReturn:
        fail(message)


def fail(message: str) -> NoReturn:
    """End the command: these options cannot be taken."""
    print(f"malt run: error: {message} (malt run --help)", file=sys.stderr)
    raise SystemExit(2)


def _number_of(what: str, limit: float = float("inf")) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = 0
        if not 1 <= number <= limit:
            bounds = "1 or more" if limit == float("inf") else f"1 to {limit}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}, {bounds}")
        return number

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return seconds


def _seconds_above_0(text: str) -> float:
    with contextlib.suppress(argparse.ArgumentTypeError):
        if seconds := _seconds(text):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _limits(text: str) -> range:
    least, _, most = text.partition(":")
    try:
        limits = range(int(least), int(most) + 1)
    except ValueError:
        limits = range(0)
    if not limits or limits[0] < 1 or limits[-1] > wire.MAX_RANKS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not MIN:MAX, with 1 <= MIN <= MAX <= {wire.MAX_RANKS}"
        )
    return limits


def _parser() -> _RunParser:
    parser = _RunParser(
        prog="malt run",
        usage="malt run -n N [options] [--] script.py | -m module | executable [arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n",
        dest="ranks",
        metavar="N",
        type=_number_of("ranks"),
        help="the number of ranks on this host",
    )
    parser.add_argument(
        "--nnodes",
        metavar="M",
        type=_number_of("nodes", wire.MAX_NODES),
        help="the number of hosts of the job (default: 1)",
    )
    parser.add_argument(
        "--node-rank",
        metavar="K",
        help="the number of this host among them, 0 to M - 1; needed with M > 1",
    )
    parser.add_argument(
        "--rendezvous",
        metavar="HOST:PORT",
        help="an address of node 0's host, where its `malt run` listens; needed with M > 1. In a "
        "pod of an Indexed Job of Kubernetes, auto or auto:PORT finds it, and the node's number",
    )
    parser.add_argument(
        "--key-file",
        metavar="PATH",
        help="a file with the key that all nodes share, in place of MALT_JOB_KEY",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="when a rank fails leave the others running; without it they are stopped",
    )
    parser.add_argument(
        "--respawn",
        metavar="TIMES",
        nargs="?",
        const=3,
        type=_number_of("times"),
        help="start each failed rank again, at most TIMES times (default: %(const)s); "
        "it rejoins the job and gets the values of the other ranks",
    )
    parser.add_argument(
        "--elastic",
        metavar="MIN:MAX",
        type=_limits,
        default=range(0),
        help="let `malt scale PID COUNT` add and remove ranks, so that MIN to MAX run, on "
        "all hosts together; when ranks fail, the job goes on while at least MIN run",
    )
    parser.add_argument(
        "--grace",
        metavar="S",
        type=_seconds,
        default=5.0,
        help="seconds between SIGTERM and SIGKILL when ranks are stopped (default: %(default)g)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds_above_0,
        help="seconds that a rank's waits last at most, from malt.init() on (MALT_TIMEOUT), and "
        f"that nodes wait for one another at start (default there: {Options.start_seconds:g})",
    )
    parser.add_argument(
        "--preload",
        action=argparse.BooleanOptionalAction,
        help="import what a Python program imports at its beginning once, in a process from which "
        "the ranks are forked (default: with more ranks on this host than it has cores)",
    )
    parser.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        help="put the rank before each line (default: with two ranks or more); without it the "
        "bytes are passed on unchanged",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="record what each rank does, for `malt top` and `malt doctor` (MALT_RECORD=1)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="write what each rank did, and for which ranks it waited, for ui.perfetto.dev",
    )
    parser.add_argument(
        "--report",
        metavar="FILE.html",
        help="write a page about the run: when each rank did what, what malt.report() was told, "
        "who waited for whom",
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve counters of this host's ranks to Prometheus (default host: 127.0.0.1)",
    )
    parser.add_argument(
        "--otel",
        action="store_true",
        help="send these counters by OpenTelemetry; its variables say where to (OTEL_…)",
    )
    parser.add_argument(
        "--dashboard",
        metavar="[HOST:]PORT",
        nargs="?",
        const="",
        help="serve a live page of all ranks, and print its URL (--dashboard 8080; "
        "default: 127.0.0.1 and any free port)",
    )
    parser.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="write what the program tells by malt.report() for TensorBoard (MALT_TENSORBOARD)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say what is started and sent, and how the ranks reach one another (MALT_LOG=info)",
    )
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    return _parser().parse_args(arguments)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into the launcher's options, and the program with its arguments, unparsed."""
    parser = _parser()
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        is_number = arguments[index + 1 : index + 2] and arguments[index + 1].isdecimal()
        takes_next = word in parser.with_value or (word in parser.with_number and is_number)
        index += 2 if takes_next else 1
    return list(arguments[:index]), list(arguments[index:])
