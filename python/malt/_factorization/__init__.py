"""`malt.MatrixFactorization`.

Begin with `estimator.py`. `trainer.py` runs the passes, `exchange.py` makes one model of the
ranks' factors; the kernels are in `src/learn`.

May import: `malt._training`, `malt._launch` and what these may.
"""
