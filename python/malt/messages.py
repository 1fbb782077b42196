"""Messages from one rank to another."""

from malt._messages.edge import Edge

__all__ = ["Edge"]
