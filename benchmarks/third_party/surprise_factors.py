"""surprise: an algorithm of one's own, matrix factorisation by SGD, on generated ratings."""

import time

import numpy as np
from surprise import AlgoBase, Dataset, Reader, accuracy

import malt  # +

users, items, passes = 600, 300, 10
random = np.random.default_rng(0)
left, right = random.normal(size=(users, 4)), random.normal(size=(items, 4))
pairs = np.unravel_index(random.choice(users * items, 30_000, replace=False), (users, items))
values = 3 + 0.5 * np.sum(left[pairs[0]] * right[pairs[1]], axis=1)
values = np.clip(values + 0.3 * random.normal(size=len(values)), 1, 5)
ratings = [(str(u), str(i), r, None) for u, i, r in zip(*pairs, values, strict=True)]


class Factors(AlgoBase):
    def fit(self, trainset):
        AlgoBase.fit(self, trainset)
        random = np.random.default_rng(0)
        self.p = 0.1 * random.normal(size=(trainset.n_users, 8))
        self.q = 0.1 * random.normal(size=(trainset.n_items, 8))
        ratings = list(trainset.all_ratings())
        ratings = [each for each in ratings if each[0] % malt.size() == malt.rank()]  # +
        dp, dq = np.zeros_like(self.p), np.zeros_like(self.q)  # +
        v = malt.vector([dp, dq])  # +
        for _ in range(passes):
            # - self.learn(random.permutation(ratings))
            for piece in np.array_split(random.permutation(ratings), 10):  # +
                before = self.p.copy(), self.q.copy()  # +
                self.learn(piece)  # +
                dp[:], dq[:] = self.p - before[0], self.q - before[1]  # +
                v.allreduce(malt.SUM)  # +
                self.p, self.q = before[0] + dp, before[1] + dq  # +
        return self

    def learn(self, ratings):
        for user, item, rating in ratings:
            u, i = int(user), int(item)
            error = rating - self.trainset.global_mean - self.p[u] @ self.q[i]
            slope = error * self.q[i] - 0.02 * self.p[u]
            self.q[i] += 0.02 * (error * self.p[u] - 0.02 * self.q[i])
            self.p[u] += 0.02 * slope

    def estimate(self, u, i):
        known = self.trainset.knows_user(u) and self.trainset.knows_item(i)
        return self.trainset.global_mean + (self.p[u] @ self.q[i] if known else 0)


trainset = Dataset(Reader()).construct_trainset(ratings[3_000:])
algorithm = Factors()
malt.init()  # +
start, own = time.perf_counter(), time.process_time()
algorithm.fit(trainset)
own, seconds = time.process_time() - own, time.perf_counter() - start

test = [each[:3] for each in ratings[:3_000]]
error = accuracy.rmse(algorithm.test(test), verbose=False)
print(f"score {error:.4f} seconds {seconds:.3f} processor {own:.3f}")
