"""Values and arrays that go from rank to rank. Begin with `collective.py` and `edge.py`."""
