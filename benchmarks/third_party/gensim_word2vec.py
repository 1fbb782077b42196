"""gensim: Word2Vec on generated sentences, whose words belong to topics."""

import logging
import time

import numpy as np
from gensim.models import Word2Vec

import malt  # +

logging.getLogger("gensim").setLevel(logging.ERROR)
words, topics, passes = 2_000, 40, 4

random = np.random.default_rng(0)
share = 1 / np.arange(1, words // topics + 1) ** 0.7  # Zipf's law within a topic
sentences = []
for _ in range(8_000):
    of_topic = random.choice(words // topics, 20, p=share / share.sum()) * topics
    noise = random.integers(words, size=20)
    mixed = np.where(random.random(20) < 0.3, of_topic + random.integers(topics), noise)
    sentences.append([str(word) for word in mixed])

model = Word2Vec(vector_size=50, window=5, min_count=1, sg=1, negative=5, workers=1, seed=1)
model.build_vocab(sentences)
malt.init()  # +
weights = [model.wv.vectors, model.syn1neg]  # +
differences = [np.zeros_like(w) for w in weights]  # +
v = malt.vector(differences)  # +
sentences = malt.shard(sentences)  # +

start, own = time.perf_counter(), time.process_time()
# - model.train(sentences, total_examples=len(sentences), epochs=passes)
pieces = 8  # exchanges a pass  # +
rates = np.linspace(0.025, 0.0001, passes * pieces + 1)  # as gensim lets them fall  # +
for n in range(passes * pieces):  # +
    before = [w.copy() for w in weights]  # +
    piece = sentences[n % pieces :: pieces]  # +
    fall = {"start_alpha": rates[n], "end_alpha": rates[n + 1]}  # +
    model.train(piece, total_examples=len(piece), epochs=1, **fall)  # +
    for d, w, b in zip(differences, weights, before, strict=True):  # +
        d[:] = w - b  # +
    v.allreduce(malt.SUM)  # +
    for d, w, b in zip(differences, weights, before, strict=True):  # +
        w[:] = b + d  # +
own, seconds = time.process_time() - own, time.perf_counter() - start

table = np.array([model.wv[str(word)] for word in range(words)])
table /= np.linalg.norm(table, axis=1, keepdims=True)
nearest = np.argsort(-(table @ table.T - 2 * np.eye(words)), axis=1)[:, :10]
right = 100 * np.mean(nearest % topics == np.arange(words)[:, None] % topics)
print(f"score {right:.4f} seconds {seconds:.3f} processor {own:.3f}")
