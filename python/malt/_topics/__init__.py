"""`malt.learn.LatentDirichletAllocation`.

Begin with `estimator.py`. `documents.py` checks what users give, `sources.py` keeps the tokens in
memory or reads them again for each sweep, `trainer.py` runs the sweeps and exchanges the counts,
and `held_out.py` measures perplexity; the sampler is in `src/learn`.
"""
