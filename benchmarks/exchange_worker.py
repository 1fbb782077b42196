"""One rank of one library under `exchange.py`, which starts it in that library's environment.

    python exchange_worker.py LIBRARY SOCKET

Between measurements it sleeps in a read of the socket, so that the jobs of several libraries can
stay alive side by side and take turns. Each request and each answer is one line of JSON:

    {"do": "prepare", "bytes": B}               make vectors, check one average of each variant
    {"do": "time", "variant": V, "repeats": R, "blocks": N}     seconds an exchange, by block
    {"do": "memory", "bytes": B, "depth": D}    shared memory that a MALT vector maps
    {"do": "drop"} and {"do": "quit"}
"""

import gc
import itertools
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np


class Channel:
    """Values as lines of JSON over a socket; receive() gives None when the other side is gone."""

    def __init__(self, connection):
        self._socket, self._lines = connection, connection.makefile("r")

    def send(self, value):
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def receive(self):
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self):
        self._lines.close()
        self._socket.close()


class Malt:
    """All three ways that MALT has; `allreduce_own` is the one over memory of MALT's own."""

    variants = ("scatter_gather", "allreduce", "allreduce_own")

    def __init__(self):
        import malt

        self.malt = malt
        malt.init()
        self.rank, self.size, self.barrier = malt.rank(), malt.size(), malt.barrier

    def prepare(self, count):
        callers, own = np.zeros(count, np.float32), self.malt.vector(count)
        vector = self.malt.vector(callers)
        average = self.malt.AVG

        def scatter_gather():
            vector.scatter()
            vector.gather(average, staleness=0)

        def allreduce():
            vector.allreduce(average)

        def allreduce_own():
            own.allreduce(average)

        return {
            "scatter_gather": (callers, scatter_gather),
            "allreduce": (callers, allreduce),
            "allreduce_own": (own.array, allreduce_own),
        }

    def memory(self, count, depth):
        """Shared memory before a vector is made and with it; see shared_mappings()."""
        before = shared_mappings()
        array = np.ones(count, np.float32)
        vector = self.malt.vector(array, depth=depth)
        for _ in range(2 * depth):
            vector.scatter()
            vector.gather(self.malt.AVG, staleness=0)
            vector.allreduce(self.malt.AVG)
        self.barrier()
        answer = {"before": before, "with": shared_mappings(), "pss_shmem": pss_shmem()}
        self.barrier()
        return answer


class Mpi:
    variants = ("allreduce",)

    def __init__(self):
        from mpi4py import MPI

        self.mpi, world = MPI, MPI.COMM_WORLD
        self.rank, self.size, self.barrier = world.Get_rank(), world.Get_size(), world.Barrier

    def prepare(self, count):
        array = np.zeros(count, np.float32)
        allreduce, in_place = self.mpi.COMM_WORLD.Allreduce, self.mpi.IN_PLACE
        buffer = [array, self.mpi.FLOAT]
        size, divide = np.float32(self.size), np.divide

        def exchange():
            allreduce(in_place, buffer)
            divide(array, size, array)

        return {"allreduce": (array, exchange)}


class Gloo:
    """RANK and WORLD_SIZE are set; the ranks meet in the file next to the socket."""

    variants = ("allreduce",)

    def __init__(self):
        import torch
        from torch import distributed

        self.torch, self.distributed = torch, distributed
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        distributed.init_process_group(
            "gloo", init_method=f"file://{sys.argv[2]}.gloo", rank=self.rank, world_size=self.size
        )
        self.barrier = distributed.barrier

    def prepare(self, count):
        array = np.zeros(count, np.float32)
        tensor = self.torch.from_numpy(array)
        all_reduce, size = self.distributed.all_reduce, self.size

        def exchange():
            all_reduce(tensor)
            tensor.div_(size)

        return {"allreduce": (array, exchange)}


LIBRARIES = {"malt": Malt, "openmpi": Mpi, "mpich": Mpi, "gloo": Gloo}


def fill(array, rank):
    """Small integers, so that the average is exact whatever the order of the sum."""
    np.add(np.arange(array.size, dtype=np.uint32) % 97, 2 * rank, out=array, casting="unsafe")


def check(array, size, what):
    """The average of what fill() gave the ranks; averaging it again must not change it."""
    expected = np.empty_like(array)
    fill(expected, 0)
    expected += size - 1
    if not np.array_equal(array, expected):
        wrong = int(np.flatnonzero(array != expected)[0])
        raise SystemExit(
            f"{what}: element {wrong} of the average is {array[wrong]}, not {expected[wrong]}"
        )


def time_blocks(exchange, barrier, repeats, blocks):
    """Seconds an exchange, the mean over each block of `repeats` back to back."""
    seconds = []
    for _ in range(blocks):
        turns = itertools.repeat(None, repeats)
        barrier()
        start = time.perf_counter()
        for _ in turns:
            exchange()
        seconds.append((time.perf_counter() - start) / repeats)
    return seconds


def shared_mappings():
    """Mappings of shared memory: [inode, first byte, end] of the file each of them shows."""
    mappings = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, offset, _, inode, *name = line.split(maxsplit=5)
        if "s" in mode and name and name[0].startswith(("/memfd:", "/dev/shm/")):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            mappings.append([int(inode), int(offset, 16), int(offset, 16) + end - begin])
    return mappings


def pss_shmem():
    """This process's share of the shared memory that is really there, in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Shmem:"):
            return 1024 * int(line.split()[1])
    return 0


def answer(library, name, ways, request):
    match request["do"]:
        case "prepare":
            ways.update(library.prepare(request["bytes"] // 4))
            for variant, (array, exchange) in ways.items():
                fill(array, library.rank)
                exchange()
                check(array, library.size, f"{name} {variant}, {request['bytes']} bytes")
            return list(ways)
        case "time":
            array, exchange = ways[request["variant"]]
            fill(array, library.rank)
            seconds = time_blocks(exchange, library.barrier, request["repeats"], request["blocks"])
            check(array, library.size, f"{name} {request['variant']}, {array.nbytes} bytes")
            return seconds
        case "memory":
            return library.memory(request["bytes"] // 4, request["depth"])
        case "drop":
            library.barrier()
            ways.clear()
            gc.collect()
            return None
    raise SystemExit(f"unknown request {request}")


def main():
    name = sys.argv[1]
    control = socket.socket(socket.AF_UNIX)
    control.connect(sys.argv[2])
    channel = Channel(control)
    library = LIBRARIES[name]()
    channel.send({"rank": library.rank, "size": library.size})
    ways = {}
    gc.disable()
    while (request := channel.receive()) is not None and request["do"] != "quit":
        channel.send({"answer": answer(library, name, ways, request)})
    ways.clear()


if __name__ == "__main__":
    main()
