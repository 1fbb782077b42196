"""Messages from one rank to another."""

from malt._job.edge import Edge

__all__ = ["Edge"]
