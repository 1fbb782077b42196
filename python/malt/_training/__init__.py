"""What all estimators have: their parameters' checks, their steps, and a bar that shows them.

May import: `malt._job` and what that may.
"""
