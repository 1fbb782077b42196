"""What ranks that another launcher starts tell on standard output: they share no folder."""

from __future__ import annotations

import json
from typing import Any

# Begins their script; tell() writes a line, at once and whole.
PREAMBLE = """
import json, os, signal, sys, time, numpy as np, malt
malt.init(timeout=30)
rank, size = malt.rank(), malt.size()
w = np.zeros(1000)
v = malt.vector(w)
def tell(**values): os.write(1, (json.dumps(values) + "\\n").encode())
"""


def told_in(output: str) -> list[dict[str, Any]]:
    """What the ranks told, by rank; `malt run` marks lines with the rank."""
    lines = [line[line.index("{") :] for line in output.splitlines() if "{" in line]
    return sorted(map(json.loads, lines), key=lambda values: values["rank"])
