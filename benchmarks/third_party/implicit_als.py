"""implicit: AlternatingLeastSquares on generated purchases."""

import time

import numpy as np
from implicit.als import AlternatingLeastSquares
from implicit.evaluation import precision_at_k
from scipy.sparse import csr_matrix

import malt  # +


def purchases(users, items, factors, each):
    """Whom a user's factors are alike to; the last tenth of each user's is held out."""
    random = np.random.default_rng(0)
    taste = random.normal(size=(users, factors)) @ random.normal(size=(factors, items))
    chosen = np.argsort(-taste - 2 * random.gumbel(size=taste.shape), axis=1)[:, :each]
    chosen = random.permuted(chosen, axis=1)

    def matrix(columns):
        rows = np.repeat(np.arange(users), columns.shape[1])
        values = np.ones(columns.size, dtype=np.float32)
        return csr_matrix((values, (rows, columns.ravel())), shape=(users, items))

    return matrix(chosen[:, : -each // 10]), matrix(chosen[:, -each // 10 :])


train, held_out = purchases(3_000, 1_500, 16, 100)
options = {"factors": 128, "regularization": 0.1, "alpha": 4, "num_threads": 1, "random_state": 0}
model = AlternatingLeastSquares(iterations=15, **options)
malt.init()  # +


def solve_part(c, x, y, regularization, num_threads):  # +
    """Solves this rank's rows of x, and takes those of the others from them."""  # +
    v, rank, size = vectors[len(x)], malt.rank(), malt.size()  # +
    mine = slice(rank * len(x) // size, (rank + 1) * len(x) // size)  # +
    v.array[:] = 0  # the sum has the others' rows here  # +
    v.array[mine] = x[mine]  # +
    solve(c[mine], v.array[mine], y, regularization, num_threads=num_threads)  # +
    v.allreduce(malt.SUM)  # +
    x[:] = v.array  # +


vectors = {n: malt.vector((n, 128), dtype="float32") for n in train.shape}  # +
solve, type(model).solver = model.solver, staticmethod(solve_part)  # +
start, own = time.perf_counter(), time.process_time()
model.fit(train, show_progress=False)
own, seconds = time.process_time() - own, time.perf_counter() - start

right = 100 * precision_at_k(model, train, held_out, K=10, show_progress=False, num_threads=1)
print(f"score {right:.4f} seconds {seconds:.3f} processor {own:.3f}")
