"""Default names, by which ranks match what they make: a count of what each has made.

A rank whose call is interrupted after the others have ended theirs counts one less than they do.
Their names then differ in the next such call, which fails on all of them. From that error each rank
learns how far the others have counted, so that the names are alike when all repeat the call.
"""

from __future__ import annotations

import re

from malt._errors import ConfigError

_DEFAULT_NAME = re.compile(r"'(?:vector-|shared-|shard-|consensus-|table )(\d+)\b")


def recount(count: int, error: ConfigError) -> int:
    """Return how much a rank has to count as made, if it says `count` and a call fails so."""
    numbers = list(map(int, _DEFAULT_NAME.findall(str(error))))
    return max(numbers) - 1 if len(set(numbers)) > 1 else count
