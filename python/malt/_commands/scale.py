"""`malt scale`: adds ranks to a running elastic job, or asks some to leave."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence

from malt._launch.scale import ANSWER_SECONDS, DONE, MOST_BYTES, name_of, peer_of


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt scale` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt scale",
        description="Have COUNT ranks run in a job of `malt run --elastic MIN:MAX`: start some, or "
        "ask those with the highest numbers to leave (malt.leaving() is true there). Several hosts "
        "get equally many.",
    )
    parser.add_argument(
        "process",
        metavar="PID",
        type=_count,
        help="the process id of `malt run` on this host, which may be any host of the job",
    )
    parser.add_argument("count", metavar="COUNT", type=_count, help="MIN to MAX")
    parsed = parser.parse_args(arguments)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            name = name_of(parsed.process)
            if name is None:
                parser.error(f"process {parsed.process} is not a `malt run --elastic`")
            connection.connect(f"\0{name}")
            process, user = peer_of(connection)
            if process != parsed.process or os.getuid() not in (0, user):
                parser.error(f"process {parsed.process} is not a `malt run --elastic` of this user")
            connection.send(str(parsed.count).encode())
            answer = connection.recv(MOST_BYTES)
        except FileNotFoundError:
            parser.error(f"process {parsed.process} does not run on this host")
        except PermissionError:
            parser.error(f"process {parsed.process} is another user's")
        except ConnectionRefusedError:
            parser.error(
                f"process {parsed.process} is not a `malt run --elastic`: it has just ended"
            )
        except OSError as error:
            parser.error(f"process {parsed.process} does not answer: {error}")
    if answer[:1] != DONE:
        parser.error(answer[1:].decode() or f"process {parsed.process} has ended")
    print(f"malt scale: {answer[1:].decode()}")
    return 0
