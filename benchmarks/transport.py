"""Messages between two processes over loopback: a transport of MALT beside its peers, in one run.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/transport.py --transport tcp
    python benchmarks/transport.py --transport tcp --output docs/performance.md

MALT is measured at the level of dStorm, from C++ (transport.cpp): rank 0 scatters into a segment
with policy "queue", rank 1 gathers. As in the peers' own programs, the payload is whatever lies in
the memory. In each round all ways are measured once, one after the other, in an order that moves
on by one a round; ratios are made of medians over rounds. UCX's put is `ucx_perftest`'s (Debian:
ucx-utils), an RDMA write is perftest's; where one is missing, the report says so.

Over verbs, $BENCHMARK_ADAPTERS may name two adapters, one for each rank; in the guest of QEMU's:

    BENCHMARK_ADAPTERS=rxe1,rxe2 OUT=out tests/softroce/bed.sh run \
      "python benchmarks/transport.py --transport verbs --program build/release/transport"

Over shm a receiver reads where the sender wrote, so the time is that of the protocol alone, and
bandwidth grows with the size; UCX's put copies.
"""

import statistics
from collections import defaultdict
from pathlib import Path

import report
from exchange_extras import build
from report import KB, MB, microseconds, over, parser_with_output, say, size_text, table, times
from transport_peers import PEERS, IbWrite, Own, Ucx

SIZES = [8 * KB, 64 * KB, 1 * MB, 16 * MB]
LATENCY_BYTES = {"shm": 8, "tcp": 8, "verbs": 4 * KB}
# MALT's bandwidth by a peer's at least, and its latency by a peer's at most: by transport and peer.
LEAST_BANDWIDTH = {
    ("tcp", "bare stream"): {64 * KB: 0.95, 1 * MB: 0.95, 16 * MB: 0.95},
    ("tcp", "UCX put"): {8 * KB: 2.0, 1 * MB: 2.0},
    ("verbs", "ib_write"): {64 * KB: 0.95, 1 * MB: 0.95},
}
MOST_LATENCY = {("tcp", "bare stream"): 1.3, ("verbs", "ib_write"): 1.15}


def parse():
    parser = parser_with_output(__doc__)
    parser.add_argument("--transport", choices=PEERS, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--program",
        type=Path,
        help="transport.cpp, built (if not given, CMake's preset release builds it)",
    )
    return parser.parse_args()


def measure(ways, rounds, latency_bytes):
    """Medians by (what, size) and label."""
    wanted = [("latency", latency_bytes), *(("bandwidth", size) for size in SIZES)]
    found = {key: defaultdict(list) for key in wanted}
    for number in range(rounds):
        first = number % len(ways)
        for what, size in wanted:
            say(f"round {number + 1} of {rounds}, {what}, {size} bytes")
            for way in ways[first:] + ways[:first]:
                found[what, size][way.label].append(way.measure(what, size))
    return {
        key: {label: statistics.median(values) for label, values in by_label.items()}
        for key, by_label in found.items()
    }


class Report(report.Report):
    def __init__(self, transport, ways, missing, rounds):
        super().__init__(
            f"transport.py --transport {transport}", f"Transport {transport}", f"{rounds} rounds"
        )
        self._transport = transport
        self._malt, *self._peers = (way.label for way in ways)
        self._sections += [f"{way.label}: {way.settings}." for way in ways]
        self._sections += [f"{way.label} is not measured: it is not installed." for way in missing]

    def bandwidth(self, medians):
        rows = []
        for size in SIZES:
            by_label = medians["bandwidth", size]
            ratios = {peer: by_label[self._malt] / by_label[peer] for peer in self._peers}
            wanted = {
                peer: LEAST_BANDWIDTH.get((self._transport, peer), {}).get(size)
                for peer in self._peers
            }
            missed = [peer for peer in self._peers if not over(ratios[peer], wanted[peer])]
            rows.append(
                [size_text(size), *(f"{by_label[way] / 1e6:,.0f}" for way in self._ways())]
                + [times(ratios[peer]) for peer in self._peers]
                + [goals(wanted), self._verdict(f"{size_text(size)} messages", *missed)]
            )
        self._sections.append(
            "Bandwidth one way, 10^6 bytes a second; *x* is MALT's by the peer's, so above 1 MALT "
            "is faster.\n\n" + self._table("message", "at least", rows)
        )

    def latency(self, medians):
        size = LATENCY_BYTES[self._transport]
        by_label = medians["latency", size]
        ratios = {peer: by_label[self._malt] / by_label[peer] for peer in self._peers}
        wanted = {peer: MOST_LATENCY.get((self._transport, peer)) for peer in self._peers}
        missed = [peer for peer in self._peers if not over(wanted[peer], ratios[peer])]
        row = [size_text(size), *(microseconds(by_label[way]) for way in self._ways())]
        row += [times(ratios[peer]) for peer in self._peers]
        row += [goals(wanted), self._verdict("latency", *missed)]
        self._sections.append(
            "Half a round trip, microseconds; *x* is MALT's by the peer's, so below 1 MALT is "
            "faster.\n\n" + self._table("message", "at most", [row])
        )

    def _ways(self):
        return [self._malt, *self._peers]

    def _table(self, first, bound, rows):
        header = [first, *self._ways(), *(f"x {peer}" for peer in self._peers), bound, ""]
        return table(header, rows)


def goals(wanted):
    """A cell: the target beside each peer that has one."""
    cells = [f"{goal:g} ({peer})" for peer, goal in wanted.items() if goal is not None]
    return ", ".join(cells) or "-"


def main():
    options = parse()
    program = options.program or build("transport")
    malt = Own(program, options.transport, "MALT", "a segment, policy QUEUE, 4 to 16 slots")
    ways = [malt, *PEERS[options.transport](program)]
    missing = [way for way in ways if isinstance(way, (Ucx, IbWrite)) and not way.is_installed()]
    ways = [way for way in ways if way not in missing]
    made = Report(options.transport, ways, missing, options.rounds)
    medians = measure(ways, options.rounds, LATENCY_BYTES[options.transport])
    made.bandwidth(medians)
    made.latency(medians)
    say("")
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
