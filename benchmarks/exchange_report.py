"""The tables of `exchange.py`, beside the targets they are held to."""

import report
from exchange_peers import CORES, LABELS, SETTINGS
from report import KB, MB, microseconds, over, size_text, table, times

# At least so many times faster than the better MPI: (ranks, size): (caller's memory, MALT's own).
TARGETS = {
    (2, 4 * KB): (2.0, None),
    (2, 64 * KB): (2.5, None),
    (2, 1 * MB): (1.6, 2.0),
    (2, 16 * MB): (1.0, 1.5),
    (2, 64 * MB): (1.5, 1.5),
    (8, 4 * KB): (5.0, None),
    (8, 64 * KB): (3.0, None),
    (8, 1 * MB): (1.3, 2.0),
    (8, 16 * MB): (1.3, 2.0),
    (8, 64 * MB): (1.3, 2.0),
}
GLOO_TARGET = 5.0
CPP_TARGETS = {4 * KB: 2.0}  # 2 ranks, against the better MPI, both from C++
MOST_PYTHON_SECONDS = 2e-6  # a scatter and a gather of 4 bytes, beyond C++
MOST_IMPORT_SECONDS = 0.1  # beyond NumPy's
HEADERS = 0.01  # of a segment's memory, for slots' headers and whole pages


class Report(report.Report):
    def __init__(self, options):
        medians = f"{options.rounds} x {options.turns} turns of {options.blocks} blocks"
        super().__init__("exchange.py", "Exchange", medians)

    def exchange(self, medians):
        libraries = list(dict.fromkeys(key[2] for key in medians if key[2] != "malt"))
        mpis = [name for name in libraries if name != "gloo"]
        rows = []
        for ranks, size in dict.fromkeys(key[:2] for key in medians):

            def taken(name, variant="allreduce", at=(ranks, size)):
                return medians.get((*at, name, variant))

            malt = [taken("malt", v) for v in ("scatter_gather", "allreduce", "allreduce_own")]
            mpi = min((taken(name) for name in mpis), default=None)
            gloo = taken("gloo")
            callers = mpi and mpi / min(malt[:2])
            own = mpi and mpi / malt[2]
            beyond_gloo = gloo and gloo / min(malt[:2])
            wanted = TARGETS.get((ranks, size), (None, None))
            missed = [
                "" if over(callers, wanted[0]) else "caller's memory",
                "" if over(own, wanted[1]) else "own memory",
                "" if over(beyond_gloo, GLOO_TARGET) else "gloo",
            ]
            goal = [
                f"{wanted[0]:g}" if wanted[0] else "",
                f"own {wanted[1]:g}" if wanted[1] else "",
            ]
            rows.append(
                [str(ranks), size_text(size)]
                + [microseconds(seconds) for seconds in malt]
                + [microseconds(taken(name)) for name in libraries]
                + [times(mpi and mpi / malt[0]), times(callers), times(own), times(beyond_gloo)]
                + [", ".join(filter(None, goal)) or "-"]
                + [self._verdict(f"{ranks} ranks, {size_text(size)}", *missed)]
            )
        header = [
            "ranks",
            "size",
            "MALT scatter + gather",
            "MALT allreduce",
            "MALT allreduce, own memory",
        ]
        header += [LABELS[name] for name in libraries]
        header += [
            "scatter + gather: x MPI",
            "caller's memory: x MPI",
            "own memory: x MPI",
            "x gloo",
        ]
        settings = " ".join(f"{LABELS[name]}: {SETTINGS[name]}." for name in libraries)
        self._sections.append(
            f"### From Python\n\n{self._beside_mpi(rows)}"
            "Microseconds an average of one float32 vector over all ranks; more ranks than "
            f"{CORES} share the cores. *x MPI* is the better MPI's time by MALT's, so above 1 "
            "MALT is faster; over the caller's memory, the better of MALT's two ways. *x gloo* is "
            f"gloo's time by MALT's, wanted: {GLOO_TARGET:g}. {settings}\n\n"
            + table([*header, "wanted", ""], rows)
        )

    @staticmethod
    def _beside_mpi(rows):
        """The conclusion, from the column "caller's memory: x MPI"."""
        ratios = [float(row[-5]) for row in rows if row[-5]]
        if not ratios:
            return ""
        return (
            f"Over the caller's memory MALT is {times(min(ratios))} to {times(max(ratios))} times "
            "as fast as the better MPI.\n\n"
        )

    def cpp(self, medians):
        libraries = list(dict.fromkeys(key[2] for key in medians if key[2] != "malt"))
        rows = []
        for size in dict.fromkeys(key[0] for key in medians):
            malt = [
                medians[size, "cpp", "malt", v]
                for v in ("scatter_gather", "allreduce", "allreduce_own")
            ]
            mpi = [medians[size, "cpp", name, "allreduce"] for name in libraries]
            ratio = min(mpi) / min(malt[:2]) if mpi else None
            wanted = CPP_TARGETS.get(size)
            rows.append(
                [
                    size_text(size),
                    *map(microseconds, malt + mpi),
                    times(ratio),
                    f"{wanted:g}" if wanted else "-",
                    self._verdict(f"C++, {size_text(size)}", "" if over(ratio, wanted) else "MPI"),
                ]
            )
        header = ["size", "MALT scatter + gather", "MALT allreduce", "MALT allreduce, own memory"]
        header += [LABELS[name] for name in libraries] + ["caller's memory: x MPI", "wanted", ""]
        key = (4, "python", "malt", "scatter_gather")
        python, cpp = medians[key], medians[4, "cpp", "malt", "scatter_gather"]
        self._sections.append(
            "### From C++\n\nMicroseconds, 2 ranks, `exchange.cpp` and `exchange_mpi.c`.\n\n"
            + table(header, rows)
            + "\n\nPython's part of `scatter` + `gather` on 4 bytes: "
            f"{microseconds(python)} us from Python, {microseconds(cpp)} us from C++, so "
            f"{microseconds(python - cpp)} us more (at most {MOST_PYTHON_SECONDS * 1e6:g}): "
            + self._verdict("Python", "" if python - cpp <= MOST_PYTHON_SECONDS else "beyond C++")
        )

    def imports(self, medians):
        more = medians["malt"] - medians["numpy"]
        self._sections.append(
            f"### Import\n\nA new Python with `import numpy` takes {medians['numpy']:.3f} s, with "
            f"`import malt` {medians['malt']:.3f} s, so {more:.3f} s more (at most "
            f"{MOST_IMPORT_SECONDS:g}): "
            + self._verdict("import malt", "" if more <= MOST_IMPORT_SECONDS else "time")
        )

    def memory(self, found):
        most = found["most"] * (1 + HEADERS)
        self._sections.append(
            "### Memory of a segment\n\n"
            f"A vector of {size_text(found['bytes'])} over the caller's memory, {found['ranks']} "
            f"ranks, depth {found['depth']}: {found['mapped'] / MB:.2f} MB of shared memory on the "
            f"whole host, of which {found['resident'] / MB:.2f} MB were resident after some rounds "
            "of both kinds; ranks x depth x slot bytes and one vector are "
            f"{found['most'] / MB:.2f} MB: "
            + self._verdict(
                "memory", "" if max(found["mapped"], found["resident"]) <= most else "host"
            )
        )
