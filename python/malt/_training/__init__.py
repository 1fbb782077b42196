"""The parts that all estimators share: their steps, and a progress bar.

May import: `malt._job` and what that may.
"""
