"""What the targets in Python that have many decoders do alike: of an input the first byte is which
decoder takes the rest.

Each input is taken, or refused by an error that the decoder's documentation names. It takes no more
memory than stated, and makes no file, process or connection.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

try:
    import atheris
except ImportError:  # it exists for x86-64 only
    atheris = None

MIB = 1 << 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FORBIDDEN = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"),
    *("socket.connect", "pickle.find_class"),
}


class Decoder(NamedTuple):
    """A decoder: what takes the input, the errors by which it may refuse, and its most memory."""

    take: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    most_bytes: int = 4 * MIB


def instrument(*packages: str) -> None:
    """Have libFuzzer see the paths through the functions of these packages that are loaded.

    Atheris' own instrument_imports() sees nothing of a package that is installed to be edited: its
    loader is not Python's.
    """
    if atheris is None:
        return
    for module in [each for name, each in sys.modules.items() if name.startswith(packages)]:
        holders = [module, *filter(inspect.isclass, vars(module).values())]
        for found in [each for holder in holders for each in vars(holder).values()]:
            function = getattr(found, "fget", None) or inspect.unwrap(found)
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                _instrument(function)


@functools.cache
def _instrument(function: FunctionType) -> None:
    atheris.instrument_func(function)


def frames(given: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut an input into frames: a byte (which sender, say), two of the length, and as many."""
    at = 0
    while at + 3 <= len(given):
        end = at + 3 + int.from_bytes(given[at + 1 : at + 3], "little")
        yield given[at], given[at + 3 : end]
        at = end


def fuzz(names: Sequence[str], decoders: dict[str, Decoder], folder: str = "") -> None:
    """Fuzz the decoders, whose inputs' first byte counts `names`; `folder` may be written to.

    Without Atheris, and as with its -runs=0, the given files and folders' files run once.
    """
    assert list(decoders) == list(names), "fuzz/make_corpus.py has the decoders in this order"
    table = list(decoders.values())
    made: list[str] = []
    is_running = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_running:
            return
        if event == "open" and (not folder or not str(arguments[0]).startswith(folder)):
            mode, flags = arguments[1:3]
            if flags & _WRITES or (isinstance(mode, str) and not {*mode} <= {*"rbtU"}):
                made.append(f"{event} {arguments}")
        elif event in _FORBIDDEN:
            made.append(f"{event} {arguments}")

    def run(given: bytes) -> None:
        nonlocal is_running
        decoder = table[given[0] % len(table) if given else 0]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        is_running = True
        try:
            decoder.take(given[1:])
        except decoder.refusals:
            pass
        finally:
            is_running = False
        taken = tracemalloc.get_traced_memory()[1] - before
        assert taken <= decoder.most_bytes, f"it takes {taken:,} bytes"
        assert not made, made

    sys.addaudithook(watch)
    tracemalloc.start()
    if atheris is not None:
        atheris.Setup(sys.argv, run)
        atheris.Fuzz()
    for given in map(Path, sys.argv[1:]):
        for file in given.iterdir() if given.is_dir() else [given] * given.exists():
            run(file.read_bytes())
