"""How processes of one job meet: a small server in the launcher of node 0, and its clients.

Begin with `wire.py`, which has the protocol. `server.py` is the server: `listener.py` lets clients
in, `sessions.py` has the clients that have proved the key, each a `connection.py`, `refusal.py`
says which of these the server refuses, and the `*_table.py` files have the state of the job,
without sockets. The clients are `session.py` (a rank that starts), `member_session.py` (a rank
whose job may change) and `node_session.py` (a launcher). Both sides speak through a `channel.py`.
Connections, handshakes and TLS are those of the ranks' own network (`src/dstorm/remote/net`).
"""
