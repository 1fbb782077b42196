"""Why the server of the rendezvous refuses a client that knows the key."""

from __future__ import annotations

from malt._rendezvous import wire
from malt._rendezvous.connection import Connection
from malt._rendezvous.node_table import Nodes


def refusal_of(
    client: Connection, first: Connection | None, nodes: Nodes, size: int, is_taking_over: bool
) -> str:
    """Return why a client is refused; empty if it is let in.

    `first` has joined already as the same rank or node; `size` is that of the job, 0 before its
    launchers have come.
    """
    number, count = client.number, client.size
    if client.kind == wire.NODE:
        return _refusal_of_node(number, count, first, nodes, has_started=size > 0)
    if count != size or number >= count:
        return f"rank {number} of {count} is not of this job of {size}"
    # A rank may come before its launcher does.
    if not is_taking_over and not nodes.has(number):
        return f"rank {number} has ended, or was lost with its node: it is no longer in the job"
    if first:
        return (
            f"rank {number} has joined already, as process {first.process}; a process that a "
            "rank starts must not join the job again"
        )
    return ""


def _refusal_of_node(
    number: int, count: int, first: Connection | None, nodes: Nodes, *, has_started: bool
) -> str:
    if count != nodes.nnodes or number >= count:
        return (
            f"node {number} says --nnodes {count}, node 0 says --nnodes {nodes.nnodes}: give each "
            "launcher the same"
        )
    if first:
        return (
            f"--node-rank {number} is taken by process {first.process} on {first.host}: "
            "give each launcher one of its own"
        )
    if has_started and number not in nodes.missing:
        return (
            f"the job has started already, and its node {number} cannot rejoin: start the "
            "whole job again, or with --elastic start ranks on the other nodes (malt scale)"
        )
    return ""
