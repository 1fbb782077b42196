"""`malt.learn.wrap`: a scikit-learn estimator trained on many ranks.

Begin with `wrap.py`.
"""
