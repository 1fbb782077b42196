"""Estimators that all ranks train together, with the names of scikit-learn's; `wrap` for others."""

from malt._factorization.estimator import MatrixFactorization
from malt._linear.lasso import ElasticNet, Lasso
from malt._linear.logistic_svc import LinearSVC, LogisticRegression
from malt._linear.ridge_svr import LinearSVR, Ridge
from malt._linear.sgd_classifier import SGDClassifier
from malt._linear.sgd_regressor import SGDRegressor
from malt._topics.estimator import LatentDirichletAllocation
from malt._wrapping.wrap import wrap

__all__ = [
    "ElasticNet",
    "Lasso",
    "LatentDirichletAllocation",
    "LinearSVC",
    "LinearSVR",
    "LogisticRegression",
    "MatrixFactorization",
    "Ridge",
    "SGDClassifier",
    "SGDRegressor",
    "wrap",
]
