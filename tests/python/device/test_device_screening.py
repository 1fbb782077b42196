"""Updates that are refused or scaled down before they are folded, and what top-k leaves out."""

from __future__ import annotations

from pathlib import Path

from gpus import run_gpu_job


def test_nonfinite_and_large_updates_are_screened_as_on_the_host(tmp_path: Path) -> None:
    """Rank 1 sends NaN in one round of three, rank 2 infinity, and rank 3 too large values."""
    result = run_gpu_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
CODECS = {"none": None, "float16": malt.FLOAT16, "int8": malt.INT8, "top-k": malt.TOP_K(0.1)}
rows, wrong = {}, []
for dtype in ("float32", "float64"):
    for options in ({"reject_nonfinite": True}, {"max_norm": 3.0}):
        for name, codec in CODECS.items():
            w, x = np.zeros(1001, dtype), DeviceArray(1001, dtype)
            pair = [malt.vector(data, codec=codec, **options) for data in (w, x)]
            seen = []
            for step in range(3):
                values = np.random.default_rng(rank + 10 * step).standard_normal(1001).astype(dtype)
                values /= np.linalg.norm(values) / 2
                if rank == 3: values *= 100
                if step == 1: values[500] = {1: np.nan, 2: -np.inf}.get(rank, 0)
                w[:] = values
                x.set(values)
                for v in pair: v.scatter()
                w[:] = rank
                x.set(rank)
                host, gpu = (v.gather(malt.SUM, staleness=0) for v in pair)
                got = x.get()
                for what in ("count", "ranks", "rejected", "clipped"):
                    if getattr(host, what) != getattr(gpu, what):
                        wrong.append((dtype, options, name, step, what))
                if not np.allclose(got, w, rtol=0 if "max_norm" not in options else 1e-5, atol=0):
                    wrong.append((dtype, options, name, step, float(np.abs(got - w).max())))
                seen.append((gpu.ranks, gpu.rejected, gpu.clipped))
            stats = [(s.rejected_from, s.clipped_from) for s in (v.stats() for v in pair)]
            if stats[0] != stats[1]: wrong.append((dtype, options, name, *stats))
            rows[dtype, "max_norm" in options, name] = seen
            for v in pair: v.close()
tell(wrong=wrong, rows=rows)
malt.barrier()
""",
    )
    assert result.each("wrong") == [[]] * 4
    for rank, rows in enumerate(result.each("rows")):
        for (_, has_norm, codec), seen in rows.items():
            others = tuple(r for r in range(4) if r != rank)
            clipped = (3,) if has_norm and rank != 3 else ()
            if codec not in ("none", "float16"):  # the others' encodings of NaN are their own
                continue
            bad = tuple(r for r in (1, 2) if r != rank)
            good = tuple(r for r in others if r not in bad)
            assert seen[0] == seen[2] == (others, (), clipped), (rank, codec)
            assert seen[1] == (good, bad, clipped), (rank, codec)


def test_top_k_sends_later_what_it_left_out(tmp_path: Path) -> None:
    """Error feedback, bit for bit as on the host. From round 20 on only what was left is sent."""
    result = run_gpu_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
def values_of(r, step, dtype):
    return np.random.default_rng(100 * r + step).standard_normal(2000).astype(dtype)
differing, off = [], []
for dtype in ("float32", "float64"):
    w, x = np.zeros(2000, dtype), DeviceArray(2000, dtype)
    pair = [malt.vector(data, codec=malt.TOP_K(0.05), policy="queue") for data in (w, x)]
    sent, came = np.zeros(2000), np.zeros(2000)
    for step in range(60):
        w[:] = values_of(rank, step, dtype) if step < 20 else 0
        x.set(w)
        for v in pair: v.scatter()
        w[:] = 0
        x.set(0)
        for v in pair: v.gather(malt.SUM, staleness=0)
        got = x.get()
        if got.tobytes() != w.tobytes(): differing.append((dtype, step))
        came += got
    for other in range(size):
        for step in range(20):
            if other != rank: sent += values_of(other, step, dtype)
    off.append(float(np.abs(came - sent).max()))
tell(differing=differing, off=off)
malt.barrier()
""",
    )
    assert result.each("differing") == [[]] * 3
    assert max(max(off) for off in result.each("off")) < 1e-4
