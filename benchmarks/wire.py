"""Bytes on the wire for one scatter: 4 ranks on 2 hosts, each sending to the 3 others.

    . .venv/bin/activate                                  # after ./dev test
    sudo -E python benchmarks/wire.py
    sudo -E python benchmarks/wire.py --output docs/performance.md

The hosts are network namespaces (tests/hosts/), TCP between them and shared memory within. What one
host sends is counted three times: as `bytes_out` of its ranks says, at its interface, and by a
capture of its packets. The least possible is one copy of each rank's vector for the other host.
Frames of up to 64 KB are counted, as the kernel hands them to the network card, which cuts them; on
an Ethernet of 1500 bytes each 1448 of payload have 78 bytes of headers and gaps.
"""

import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "hosts"), str(TESTS / "harness")]

import report  # noqa: E402 # after the path
from host_jobs import HostJob  # noqa: E402
from report import KB, MB, parser_with_output, size_text, table, times  # noqa: E402

from hosts import Hosts, why_not  # noqa: E402

SIZES = [8, 4 * KB, 64 * KB, 1 * MB, 16 * MB]
RANKS = 2  # a host
# What is sent by what has to be, at most.
MOST = {64 * KB: 1.02, 1 * MB: 1.01, 16 * MB: 1.01}

CAPTURE = """
import json, socket, struct, sys
from pathlib import Path
count, over = (Path(name) for name in sys.argv[1:])
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
wire.bind(("eth0", 0))
wire.settimeout(0.2)
frames = frame_bytes = payload_bytes = 0
count.with_suffix(".ready").touch()
while True:
    try:
        head, _, _, address = wire.recvmsg(128, 0, socket.MSG_TRUNC)
    except TimeoutError:
        if over.exists():
            break
        continue
    if address[2] != socket.PACKET_OUTGOING or head[12:14] != b"\\x08\\x00" or head[23] != 6:
        continue  # TCP over IPv4, from here
    ip = (head[14] & 15) * 4
    size = struct.unpack("!H", head[16:18])[0]
    frames += 1
    frame_bytes += 14 + size
    payload_bytes += size - ip - (head[14 + ip + 12] >> 4) * 4
count.write_text(json.dumps([frames, frame_bytes, payload_bytes]))
"""

SCATTER = """
malt.init(timeout=30)
v = malt.vector(np.random.default_rng(rank).random(items))
malt.barrier()
tell(ready=True)
await_flag("go")
v.scatter()
got = v.gather(malt.SUM, staleness=0)
tell(heard=len(got.ranks), bytes_out=v.stats().bytes_out)
await_flag("over")
"""


def measure(size):
    """What host 0 sends: by bytes_out, at the interface, and captured (frames, bytes, payload)."""
    with tempfile.TemporaryDirectory() as directory, Hosts(Path(directory), 2) as hosts:
        job = HostJob(hosts, SCATTER, on=(0, 1), ranks=RANKS, items=size // 8)
        job.await_told("ready")
        count, over = Path(directory) / "count", Path(directory) / "over"
        capture = hosts.start(0, [sys.executable, "-c", CAPTURE, str(count), str(over)])
        while not count.with_suffix(".ready").exists():
            assert capture.poll() is None, capture.output
        before = hosts.bytes_sent(0)
        job.raise_flag("go")
        job.await_told("heard")
        over.touch()
        assert capture.wait(20) == 0, capture.output
        at_interface = hosts.bytes_sent(0) - before
        job.raise_flag("over")
        told = job.finish()
        assert [each["heard"] for each in told] == [2 * RANKS - 1] * 2 * RANKS
        bytes_out = sum(each["bytes_out"] for each in told[:RANKS])
        return bytes_out, at_interface, *json.loads(count.read_text())


class Report(report.Report):
    def scatters(self, found):
        rows = []
        for size, (bytes_out, at_interface, frames, frame_bytes, payload) in found.items():
            least = RANKS * size
            missed = payload > MOST.get(size, float("inf")) * least
            row = [size_text(size), f"{bytes_out:,}", f"{least:,}", f"{payload:,}"]
            row += [f"{frame_bytes:,} in {frames}", f"{at_interface:,}", times(payload / least)]
            row += [f"{MOST[size]:g}" if size in MOST else "-"]
            row += [self._verdict(f"{size_text(size)} vectors", missed and "payload")]
            rows.append(row)
        header = ["vector", "`bytes_out` of its 2 ranks", "least", "TCP payload", "frames"]
        header += ["at the interface", "x least", "at most", ""]
        self._sections.append(
            "Bytes that one host sends for one `scatter` of each of its 2 ranks to the 3 others, "
            "and the `gather` after it, over TCP. `bytes_out` counts it once a receiver, of whom "
            "2 are on the other host, which gets one copy for both. *x least* is TCP's payload: "
            "vectors, headers of updates, cursors, acknowledgements of our own.\n\n"
            + table(header, rows)
        )


def main():
    parser = parser_with_output(__doc__)
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    made = Report("wire.py", "Bytes on the wire", "1 scatter")
    made.scatters({size: measure(size) for size in SIZES})
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
