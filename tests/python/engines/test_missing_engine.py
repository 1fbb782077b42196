"""An engine that is not installed is named, with the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "package"), [("dask", "distributed"), ("ray", "ray"), ("spark", "pyspark")]
)
def test_missing_engine_is_named_with_what_installs_it(name: str, package: str) -> None:
    program = f"""
import sys
sys.modules["{package}"] = None
import malt
malt.init()
try: malt.{name}.run
except ImportError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert f"malt.{name} needs" in done.stdout, done.stderr
    assert f'pip install "malt-sgd[{name}]"' in done.stdout
