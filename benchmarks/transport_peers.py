"""What `transport.py` measures: MALT, and what each of its transports is held to."""

import os
import shutil
import subprocess
import time

from exchange_peers import clean_environ
from report import CORES, MB

UCX_PORT = 13337
IB_PORT = 18515
UCX_BYTES = 64 * MB  # to send at least, for a bandwidth
UCX_ROUND_TRIPS = 10_000
IB_BYTES = 32 * MB  # at least, too: little, for an adapter may be emulated
IB_ROUND_TRIPS = 1000
# Bytes of header and trailer of an update to a one-rank host (src/dstorm/remote/verbs/inbox.hpp).
HEADER = 88


class Own:
    """A way of our own program, transport.cpp: a transport of MALT, or a bare stream."""

    def __init__(self, program, way, label, settings):
        self._program, self._way = program, way
        self.label, self.settings = label, settings

    def measure(self, what, size):
        """Bytes a second ("bandwidth"), or seconds of half a round trip ("latency")."""
        done = subprocess.run(
            [str(self._program), self._way, what, str(size)],
            env=clean_environ(),
            check=True,
            stdout=subprocess.PIPE,
            timeout=120,
            text=True,
        )
        return float(done.stdout)


class Ucx:
    """UCX's put, by its own program."""

    label = "UCX put"

    def __init__(self, **environ):
        self._environ = clean_environ() | environ
        chosen = ", ".join(f"{name}={value}" for name, value in environ.items())
        self.settings = f"ucx_perftest's ucp_put_bw and ucp_put_lat with {chosen}, a core each"

    @staticmethod
    def is_installed():
        return shutil.which("ucx_perftest") is not None

    def _command(self, core, *more):
        return ["ucx_perftest", "-p", str(UCX_PORT), "-c", str(core), *more]

    def measure(self, what, size):
        cores = sorted(os.sched_getaffinity(0))
        latency = what == "latency"
        count = UCX_ROUND_TRIPS if latency else max(100, UCX_BYTES // size)
        test = ["-t", "ucp_put_lat" if latency else "ucp_put_bw", "-s", str(size)]
        test += ["-n", str(count), "-w", str(count // 10), "-f", "127.0.0.1"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(self._command(cores[0]), env=self._environ, **quiet) as server:
            try:
                return self._run_client(self._command(cores[1 % CORES], *test), latency)
            finally:
                server.kill()

    def _run_client(self, command, latency):
        deadline = time.monotonic() + 10
        while True:
            done = subprocess.run(
                command, env=self._environ, capture_output=True, timeout=120, text=True
            )
            if done.returncode == 0:
                # Iterations; microseconds: median, average, overall; MB/s: average, overall; ...
                columns = done.stdout.splitlines()[-1].split()
                return float(columns[3]) * 1e-6 if latency else float(columns[5]) * MB
            if time.monotonic() > deadline:  # until then, the server may not listen yet
                raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
            time.sleep(0.05)


class IbWrite:
    """RDMA writes, by the programs of Debian's perftest, of messages that are longer by `more`."""

    def __init__(self, label, more=0):
        adapters = os.environ.get("BENCHMARK_ADAPTERS", "").split(",")
        self._adapters = adapters if len(adapters) == 2 else [None, None]
        self._more = more
        self.label = label
        self.settings = (
            f"the same programs, but messages as long as what MALT writes: {more} bytes more"
            if more
            else f"perftest's ib_write_bw and ib_write_lat, adapters {self._adapters}"
        )

    @staticmethod
    def is_installed():
        return shutil.which("ib_write_bw") is not None

    def measure(self, what, size):
        latency = what == "latency"
        size += self._more
        count = IB_ROUND_TRIPS if latency else max(50, IB_BYTES // size)
        command = ["ib_write_lat" if latency else "ib_write_bw", "-F", "-p", str(IB_PORT)]
        command += ["-s", str(size), "-n", str(count)]
        server, client = (
            command + (["-d", adapter] if adapter else []) for adapter in self._adapters
        )
        with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as end:
            try:
                return self._run_client([*client, "127.0.0.1"], size, latency)
            finally:
                end.kill()

    def _run_client(self, command, size, latency):
        deadline = time.monotonic() + 10
        while True:
            done = subprocess.run(command, capture_output=True, timeout=120, text=True)
            rows = [line.split() for line in done.stdout.splitlines()]
            for row in rows:
                if done.returncode == 0 and row[:1] == [str(size)]:
                    # Bytes; iterations; microseconds: least, most, median, mean (transport.cpp's is
                    # a mean, too); or MiB/s: peak, mean.
                    if latency:
                        return float(row[5]) * 1e-6
                    return float(row[3]) * 2**20 * (size - self._more) / size
            if time.monotonic() > deadline:  # until then, the server may not listen yet
                raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
            time.sleep(0.1)


SLOT_STREAM = (
    "as the bare stream, but with a connection for each direction, and messages that take "
    "turns in as many buffers as MALT has slots"
)


def streams(program):
    return [
        Own(program, "stream", "bare stream", "one connection, send() and recv() of a message"),
        Own(program, "slot-stream", "stream of slots", SLOT_STREAM),
    ]


# By transport: makes what it is measured beside, which moves the same bytes over the same wire.
# A new transport is a row here, and its targets are rows in transport.py.
PEERS = {
    "shm": lambda _: [Ucx(UCX_TLS="shm")],
    "tcp": lambda program: [*streams(program), Ucx(UCX_TLS="tcp", UCX_NET_DEVICES="lo")],
    "verbs": lambda _: [IbWrite("ib_write"), IbWrite("with header", HEADER)],
}
