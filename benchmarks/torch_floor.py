"""The least that a call of torch.distributed takes: of a group that does nothing, of one rank.

    . .venv/bin/activate && pip install torch==2.13.0
    python benchmarks/torch_floor.py                      # some seconds

torch calls a process group in Python by its method. It calls a backend in C++ through its
dispatcher, here that of torch's own fake process group.
"""

import statistics
import time

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import malt.torch  # noqa: F401 - registers the backend

CALLS, RUNS = 2000, 15


class Done(torch._C._distributed_c10d.Work):
    def wait(self, *_):
        return True


class InPython(distributed.ProcessGroup):
    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.done = Done()

    def allreduce(self, *_):
        return self.done

    def getBackendName(self):
        return "in_python"


def microseconds(backend, store, size=2):
    distributed.init_process_group(backend, store=store, rank=0, world_size=size)
    tensor = torch.zeros(1024)
    found = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(CALLS):
            distributed.all_reduce(tensor)
        found.append((time.perf_counter() - start) / CALLS * 1e6)
    distributed.destroy_process_group()
    return statistics.median(found)


def main():
    distributed.Backend.register_backend(
        "in_python", lambda _, rank, size, __: InPython(rank, size), devices=["cpu"]
    )
    print(f"torch {torch.__version__}, all_reduce of 4 KB:")
    print(f"  nothing, in C++, through the dispatcher: {microseconds('fake', FakeStore()):.1f} us")
    print(f"  nothing, in Python: {microseconds('in_python', distributed.HashStore()):.1f} us")
    print(f"  malt with one rank: {microseconds('malt', distributed.HashStore(), 1):.1f} us")


if __name__ == "__main__":
    main()
