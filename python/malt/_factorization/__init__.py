"""`malt.learn.MatrixFactorization`.

Begin with `estimator.py`. `trainer.py` runs the passes, and `exchange.py` combines the ranks'
factors into one model; the kernels are in `src/learn`.
"""
