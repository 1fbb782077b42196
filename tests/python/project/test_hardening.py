"""How the compiled core is built, as the file itself says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from malt import _core

CORE = Path(_core.__file__)


def readelf(option: str) -> str:
    command = ["readelf", "--wide", option, str(CORE)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_addresses_of_functions_are_resolved_at_once_and_read_only_then() -> None:
    assert "BIND_NOW" in readelf("--dynamic")
    assert "GNU_RELRO" in readelf("--segments")


@pytest.mark.parametrize("symbol", ["__stack_chk_fail", "_chk@"])
def test_stacks_and_copies_are_checked(symbol: str) -> None:
    assert symbol in readelf("--symbols")
