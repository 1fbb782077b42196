"""Parts that the adapters to engines (`malt.ray`, `malt.dask`, `malt.spark`) share.

An engine's worker runs a function as a rank: `rank.py`. The ranks meet in a `malt.jobs.Rendezvous`.
"""
