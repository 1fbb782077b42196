"""How processes of one job meet: a small server in the launcher of node 0, and its clients.

Begin with `wire.py`, which has the protocol. `server.py` has the server's sockets, and the
`*_table.py` files its state, without sockets. The clients are `session.py` (a rank that starts),
`member_session.py` (a rank whose job may change) and `node_session.py` (a launcher).

May import: `malt._errors`.
"""
