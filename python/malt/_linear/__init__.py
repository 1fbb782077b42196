"""`malt.SGDClassifier` and the other linear models, with scikit-learn's interface.

Begin with `model.py`, which they share; `classifiers.py`, `regressors.py` and `logistic_svc.py`
have the classes. `trainer.py` runs the passes; the kernels are in `src/learn`.

May import: `malt._training`, `malt._launch`, `malt._data` and what these may.
"""
