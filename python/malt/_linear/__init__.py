"""`malt.learn.SGDClassifier` and the other linear models, with scikit-learn's interface.

Two families share `input.py` and `classifier.py`. For those that SGD trains, begin with `sgd.py`;
`sgd_classifier.py` and `sgd_regressor.py` have the classes, `trainer.py` runs the passes. For those
that are solved to a known gap, begin with `exact_estimator.py`; `logistic_svc.py` and
`ridge_svr.py` have the classes. `dual.py` chooses how to solve: by ascent, or by `second_order.py`,
which has `newton.py` and `interior.py` on the equations of `equations.py`. `softmax.py` solves
multinomial problems, `lbfgs.py` those over files. `lasso.py` has the lasso and the elastic net,
`descent.py` their solver. The kernels are in `src/learn`.
"""
