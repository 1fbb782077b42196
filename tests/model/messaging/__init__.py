"""The messages of pools and of the torch backend, simulated: see `pools` and `backend`."""
