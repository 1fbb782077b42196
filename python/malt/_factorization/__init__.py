"""`malt.learn.MatrixFactorization`.

Begin with `estimator.py`. `trainer.py` runs the passes, and `exchange.py` combines the ranks'
factors into one model; the kernels are in `src/learn`.

May import: `malt._training`, `malt._launch` and what these may.
"""
