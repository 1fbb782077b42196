"""Each rank tells the others its number and takes the average: malt run -n 4 examples/hello.py."""

import numpy as np

import malt

malt.init()
x = np.full(3, malt.rank(), dtype=np.float32)
m = malt.vector(x)
m.scatter()
got = m.gather(malt.AVG, staleness=0)
print(f"rank {malt.rank()} of {malt.size()}: {x} from ranks {got.ranks}")
malt.finalize()
