"""Consensus of ranks that each minimise a function of their own: `malt.optimize.Consensus`.

Begin at consensus.py. local.py: one rank's state, and the arithmetic of a round. arguments.py: what
the ranks agree on before the first round.
"""
