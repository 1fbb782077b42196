"""Two ranks exchange a vector each: python -m malt run -n 2 exchange.py."""

from __future__ import annotations

import numpy as np

import malt

with malt.init():
    w = np.full(1000, malt.rank(), dtype=np.float32)
    v = malt.vector(w)
    v.scatter()
    gathered = v.gather(malt.AVG, staleness=0)
    assert gathered.count == malt.size() - 1, gathered
    assert (w == (malt.size() - 1) / 2).all(), w
    malt.barrier()
