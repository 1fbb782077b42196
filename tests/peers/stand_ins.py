"""A pytest plugin: a peer's tests (peers.py) get malt's classes in place of the peer's own.

The peer's public modules have malt's classes while the tests run; its other modules keep the
classes that they have imported. A test that uses none of these classes is left out.

PEER.txt lists the tests that fail, each below its reason. The list may only shrink: a listed test
that passes fails the run, and so does one that is no more.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Iterable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import malt
from peers import PEERS, Peer

THEIRS: dict[str, type] = {}


class StandIn(type):
    """The type of malt's classes as a peer's tests call them: without the options to drop."""

    peer: Peer | None = None
    is_collecting = True

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if StandIn.peer is None:  # in a process that a test has started
            return super().__call__(*args, **options)
        name = next(kind.__name__ for kind in cls.__mro__ if kind.__name__ in THEIRS)
        dropped = StandIn.peer.dropped.get(name, {})
        kept = {
            option: value
            for option, value in options.items()
            if option not in dropped
            or (dropped[option] and not (np.ndim(value) == 0 and value in dropped[option]))
        }
        try:
            return super().__call__(*args, **kept)
        except TypeError:
            # A module makes it while it is imported: what malt refuses would end all of its tests.
            if StandIn.is_collecting:
                return THEIRS[name](*args, **options)
            raise


@functools.cache
def stand_in(name: str) -> StandIn:
    ours = getattr(malt.learn, name)
    return StandIn(name, (ours,), {"__module__": __name__, "__signature__": signature(ours)})


def __getattr__(name: str) -> StandIn:  # pickle looks for them here, also in other processes
    if name.startswith("_") or not hasattr(malt.learn, name):
        raise AttributeError(name)
    return stand_in(name)


def replace(peer: Peer) -> None:
    """Put malt's classes into the peer's public modules."""
    StandIn.peer = peer
    for name in peer.classes:
        module = importlib.import_module(name)
        for kind in peer.classes[name]:
            THEIRS.setdefault(kind, getattr(module, kind))
            setattr(module, kind, stand_in(kind))


def names_in(code: types.CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))


@functools.cache
def names_ours(function: Any, module: types.ModuleType) -> bool:
    """Whether a function names a class of ours, itself or through others of its module."""
    seen: set[str] = set()
    left = [function]
    while left:
        code = getattr(left.pop(), "__code__", None)
        new = names_in(code) - seen if code is not None else set()
        seen |= new
        if seen & THEIRS.keys():
            return True
        for name in new & vars(module).keys():
            left.append(vars(module)[name])
            if any(isinstance(kind, StandIn) for kind in kinds_in(vars(module)[name])):
                return True
    return False


def kinds_in(value: Any, depth: int = 4) -> Iterator[type]:
    """Yield the classes of a value and of the values in it."""
    yield value if isinstance(value, type) else type(value)
    inner: Iterable[Any] = ()
    if isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif hasattr(value, "get_params") and hasattr(value, "__dict__"):
        inner = vars(value).values()
    if depth:
        for one in inner:
            yield from kinds_in(one, depth - 1)


def uses_ours(item: pytest.Function) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return names_ours(item.function, item.module) or any(
        isinstance(kind, StandIn) for kind in kinds_in(list(parameters.values()))
    )


def known_failures(peer: str) -> dict[str, str]:
    """Return the reason of each listed test: tests are indented, below their reason."""
    known, reason = {}, ""
    for line in Path(__file__).with_name(f"{peer}.txt").read_text().splitlines():
        if line.startswith("    "):
            known[line[4:]] = reason
        elif not line.startswith("#"):
            reason = line
    return known


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--peer", choices=list(PEERS), required=True)


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--peer")
    version = importlib.import_module(name).__version__
    if version != PEERS[name].version:
        raise pytest.UsageError(
            f"{name} {version} is installed, and {name}.txt is about {PEERS[name].version}: run "
            "the tests with that one, or renew the list and the version in peers.py"
        )
    if name == "sklearn":
        importlib.import_module("sklearn.utils").all_estimators()  # imports all of its modules
    replace(PEERS[name])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    StandIn.is_collecting = False
    name = config.getoption("--peer")
    left_out = PEERS[name].left_out
    out = [
        item
        for item in items
        if not uses_ours(item) or any(words in item.nodeid for words in left_out)
    ]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in set(out)]
    known = known_failures(name)
    for item in items:
        reason = known.pop(item.nodeid.removeprefix(f"{name}/"), None)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    if known and not config.option.keyword:
        raise pytest.UsageError(f"{name}.txt lists tests that are no more: {', '.join(known)}")
