"""The PyTorch backend `malt`: `torch.distributed.init_process_group("malt")`.

Begin with `process_group.py`, whose classes torch calls, by the methods in `operations.py`. A
process group consists of a `core.py`: its `members.py`, the `collectives.py` and messages
(`point_to_point.py`) between them, and `work.py`, the calls in progress. `store_bootstrap.py` is
how the ranks find one another through torch's store. `streams.py` lets the calls take CUDA tensors.
"""
