"""malt.data.partition: what travels, and the seconds to place it, beside random places and METIS.

    . .venv/bin/activate                                  # after ./dev build
    pip install scikit-learn pymetis                      # the last one may be missing
    python benchmarks/partition.py
    python benchmarks/partition.py --output docs/performance.md

GROUPS and ZIPF are power-law matrices: the lengths of rows are Pareto numbers of exponent 1.5, and
the columns of a row Zipf numbers of exponent 1.1. In GROUPS each row is of one of 200 groups, whose
sizes fall as the root of their rank; 80 % of its columns are among those of its group, 20 % any. In
ZIPF all are any, so there is nothing to find but that most columns are in few rows. NG is 20
Newsgroups (examples/newsgroups.py): documents and words.

METIS partitions the graph of rows and columns, in which only rows have a weight; its columns get
their owners from malt.data.Partition.from_rows, as those of random rows do.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report
from report import parser_with_output, run_ranks, say, table, times
from scipy import sparse

import malt

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import newsgroups  # after the path

RANKS = 4  # that measure
PARTS = (4, 8)
BATCHES = 10  # of a rank's rows
GROUPS = 200
SHARE, FASTER = 2.0, 10.0  # bytes by those of random; seconds by METIS'
RANDOM, PLACED, OURS, METIS = "random", "random rows", "malt.data.partition", "METIS"
GOALS = ("GROUPS", "ZIPF")  # NG is reported, whatever it gives


def power_law(rows, columns, mean, any_share):
    random = np.random.default_rng(0)
    pareto = (random.pareto(1.5, rows) + 1) * mean / 3
    lengths = np.minimum(pareto, 20 * mean).astype(np.int64) + 1
    sizes = np.arange(1, GROUPS + 1) ** -0.5
    groups = random.choice(GROUPS, rows, p=sizes / sizes.sum())

    def zipf(count, bound):
        sums = np.cumsum(np.arange(1, bound + 1) ** -1.1)
        return np.searchsorted(sums / sums[-1], random.random(count))

    of_rows = np.repeat(np.arange(rows), lengths)
    count = len(of_rows)
    of_group = zipf(count, columns // GROUPS) * GROUPS + groups[of_rows]
    is_any = random.random(count) < any_share
    chosen = random.permutation(columns)[np.where(is_any, zipf(count, columns), of_group)]
    X = sparse.csr_matrix((np.ones(count, np.float32), (of_rows, chosen)), (rows, columns))
    X.sum_duplicates()
    return X


LOAD = {
    "GROUPS": lambda: power_law(100_000, 200_000, 20, 0.2),
    "ZIPF": lambda: power_law(100_000, 200_000, 20, 1.0),
    "NG": lambda: newsgroups.load().x_train,
}


def seconds_of(call, repeats):
    """The least processor time, which other programs disturb less; and the last result."""
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        found = call()
        taken.append(time.process_time() - began)
    return min(taken), found


def metis_rows(X, parts):
    """The seconds of METIS, and its parts of the rows; None without pymetis."""
    try:
        import pymetis
    except ImportError:
        return None
    used = X[:, np.unique(X.indices)]
    graph = sparse.bmat([[None, used], [used.T, None]]).tocsr()
    adjacency = pymetis.CSRAdjacency(adj_starts=graph.indptr, adjacent=graph.indices)
    weights = [1] * X.shape[0] + [0] * used.shape[1]
    seconds, (_, placed) = seconds_of(
        lambda: pymetis.part_graph(parts, adjacency=adjacency, vweights=weights), 1
    )
    return seconds, np.array(placed[: X.shape[0]], np.int32)


def random_rows(X, parts):
    return np.random.default_rng(1).integers(0, parts, X.shape[0]).astype(np.int32)


# ---- measured by ranks ---------------------------------------------------------------------------
def run_rank(out, folder):
    malt.init(timeout=120)
    X = sparse.load_npz(folder / "X.npz")
    found = {}
    for path in sorted(folder.glob("*.partition.npz")):
        name = path.name.partition(".")[0]
        p = malt.data.Partition.load(path)
        given = None if name == RANDOM else p
        rows = X[p.rows_of(malt.rank())]
        bytes_of = {
            "table": bytes_of_table(rows, given, 1),
            "table, batches": bytes_of_table(rows, given, BATCHES),
            "sparse vector": bytes_of_sparse_vector(rows, given),
            "factorisation": bytes_of_factorization(X, p, given),
        }
        sums = malt.vector(np.array(list(bytes_of.values()), np.float64))
        sums.allreduce(malt.SUM)
        found[name] = dict(zip(bytes_of, sums.array.tolist(), strict=True))
        sums.close()
    if malt.rank() == 0:
        Path(out).write_text(json.dumps(found))


def bytes_of_table(rows, partition, batches):
    """Pull and push each column of each batch."""
    with malt.ps.Table(rows.shape[1], partition=partition) as rows_of_table:
        malt.barrier()
        for batch in np.array_split(np.arange(rows.shape[0]), batches):
            keys = np.unique(rows[batch].indices).astype(np.int64)
            rows_of_table.push(keys, rows_of_table.pull(keys))
        rows_of_table.wait()
        stats = rows_of_table.stats()
        return stats.bytes_out + stats.bytes_in - stats.bytes_own


def bytes_of_sparse_vector(rows, partition):
    """Send the sums of the columns to all ranks."""
    width = rows.shape[1]
    vector = malt.sparse_vector(width, capacity=width, partition=partition)
    indices = np.unique(rows.indices)
    vector.set(indices, np.ones(len(indices), np.float32))
    vector.scatter()
    vector.gather(malt.SUM, staleness=0)
    sent = vector.stats().bytes_out
    vector.close()
    return sent


def bytes_of_factorization(X, placed, partition):
    """Ten epochs on the elements as ratings."""
    ratings = X[placed.rows_of(malt.rank())].tocoo()
    users = placed.rows_of(malt.rank())[ratings.row]
    model = malt.learn.MatrixFactorization(
        16, 10, shape=X.shape, partition=partition, verbose=False, random_state=0
    )
    model.fit((users, ratings.col, np.ones(len(users), np.float32)))
    return int(model.history_["bytes_out"].max())


# ---- the report ----------------------------------------------------------------------------------
class Partitions(report.Report):
    def __init__(self, repeats):
        super().__init__("partition.py", "Placing data and keys together", "")
        self._sections = [f"{report.measured()}."]
        self._sections.append(
            "*random* draws the ranks of rows and, without `partition=`, leaves the owners of "
            "columns to hashing. *random rows* gives the columns of these rows owners that need "
            "them (`Partition.from_rows`) and passes this as `partition=`. *columns* are those "
            "that travel when each rank uses each of its columns once; of *random* the mean that "
            "`Traffic.random` expects. *x* is how many times fewer travel than at random. *s* is "
            f"processor time: the least of {repeats} runs of `malt.data.partition`, and of one "
            "call of METIS, whose graph is not counted; *x of METIS* is how many times faster MALT "
            "is. *rows* and *elements* are those of the fullest part, by the mean. *at least* are "
            "the goals."
        )

    def predicted(self, name, X, parts, repeats):
        seconds, ours = seconds_of(lambda: malt.data.partition(X, parts), repeats)
        found = {
            PLACED: (None, malt.data.Partition.from_rows(X, random_rows(X, parts), parts)),
            OURS: (seconds, ours),
        }
        if metis := metis_rows(X, parts):
            found[METIS] = (metis[0], malt.data.Partition.from_rows(X, metis[1], parts))
        base = ours.traffic(X).random
        lines = [[RANDOM, f"{base:,.0f}", "", "", "", "", "", "", "", ""]]
        for key, (taken, each) in found.items():
            ratio = base / max(each.traffic(X).total, 1)
            cells = [key, f"{each.traffic(X).total:,}", times(ratio), "", ""]
            if key == OURS and name in GOALS:
                missed = ratio < SHARE and f"{times(ratio)} times fewer columns"
                cells[3:] = [times(SHARE), self._verdict(f"{name}, {parts} parts", missed)]
            cells += ["" if taken is None else f"{taken:.3f}", "", ""]
            if key == METIS:
                faster = taken / seconds
                missed = faster < FASTER and f"{times(faster)} times as fast as METIS"
                cells[-2:] = [times(faster), self._verdict(f"{name}, {parts} parts", missed)]
            counts = [np.bincount(each.rows, minlength=parts), np.zeros(parts)]
            counts[1] = np.bincount(each.rows, np.diff(X.indptr), parts)
            cells += [f"{of.max() / of.mean():.2f}" for of in counts]
            lines.append(cells)
        header = ["placed by", "columns", "x", "at least", "", "s"]
        header += [f"x of METIS (at least {FASTER:.0f})", ""]
        self._sections.append(
            f"### {name} in {parts} parts\n\n{X.shape[0]:,} rows, {X.shape[1]:,} columns, "
            f"{X.nnz:,} elements.\n\n{table([*header, 'rows', 'elements'], lines)}"
        )
        return {key: each for key, (_, each) in found.items()}

    def measured(self, name, X, found):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            sparse.save_npz(folder / "X.npz", X)
            found = {RANDOM: found[PLACED], **found}
            for key, each in found.items():
                each.save(folder / f"{key}.partition.npz".replace("malt.", "malt-"))
            sent = run_ranks(
                RANKS, __file__, "--folder", folder, MALT_TRANSPORT="tcp", OMP_NUM_THREADS="1"
            )
        sent[OURS] = sent.pop("malt-partition")
        lines = []
        for user, base in sent[RANDOM].items():
            ours = base / max(sent[OURS][user], 1)
            cells = [user, *(f"{sent[key][user] / 1e6:.2f}" for key in found), times(ours)]
            if name in GOALS:
                missed = ours < SHARE and f"{times(ours)} times fewer bytes"
                cells += [times(SHARE), self._verdict(f"{name}, {user}", missed)]
            else:
                cells += ["", ""]
            lines.append(cells)
        header = ["MB", *found, "x", "at least", ""]
        self._sections.append(
            f"### {name}: measured bytes on {RANKS} ranks over TCP\n\n"
            "*table* pulls and pushes each column that a rank's rows have, in one batch or in "
            f"{BATCHES}. *sparse vector* sends the sums of these columns to all ranks once. "
            "*factorisation* is of the elements as ratings, 16 factors and 10 epochs; with "
            "`partition=` it also exchanges fewer rows, of which *random rows* shows the part that "
            "is not due to the places. In batches the frequent columns travel in each one, whoever "
            "owns them. Bytes are those of MALT's counters, of all ranks, without those to a "
            "rank's own server.\n\n"
            f"{table(header, lines)}"
        )


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--only", choices=LOAD, nargs="+", help="of the data sets")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    p.add_argument("--out", help=argparse.SUPPRESS)
    knobs = p.parse_args()
    if knobs.out:
        run_rank(knobs.out, knobs.folder)
        return
    result = Partitions(knobs.repeats)
    for name in knobs.only or LOAD:
        X = LOAD[name]()
        for parts in PARTS:
            say(f"{name}, {parts} parts")
            found = result.predicted(name, X, parts, knobs.repeats)
            if parts == RANKS:
                say(f"{name}, measured")
                result.measured(name, X, found)
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
