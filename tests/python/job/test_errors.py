"""Bad input: a clear error of the right kind, with value, limit and way out; nothing hangs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Err, run_job, start_job

import malt

# Far more than any error takes to come, far less than the time limits it must not wait for.
PROMPT = 15.0


@pytest.fixture
def in_no_job() -> Iterator[None]:
    malt.finalize()
    yield
    malt.finalize()


def refused(error: Err | None, *parts: object) -> bool:
    """A ConfigError that came at once and says all this."""
    assert error is not None, f"no error that says {parts}"
    assert error.kind == "ConfigError", error
    assert error.seconds < PROMPT, error
    assert error.says(*parts), error
    return True


# Every kind of error


def test_malts_errors_are_what_python_programs_catch() -> None:
    assert issubclass(malt.ConfigError, malt.Error)
    assert issubclass(malt.ConfigError, ValueError)
    assert issubclass(malt.TimeoutError, malt.Error)
    assert issubclass(malt.TimeoutError, TimeoutError)
    assert issubclass(malt.PeerError, malt.Error)
    assert issubclass(malt.PeerError, ConnectionError)


# What a vector is made of


@pytest.mark.parametrize(
    "dtype",
    ["float16", "uint8", "int8", "uint32", "complex64", "bool", "object", "U3", "longdouble"],
)
def test_dtype_that_is_none_of_the_four_is_refused(alone: None, dtype: str) -> None:
    array = np.zeros(3, dtype=dtype)
    with pytest.raises(malt.ConfigError) as info:
        malt.vector(array)
    for part in (f"dtype is {array.dtype}", "float32, float64, int32 or int64", ".astype("):
        assert part in str(info.value)
    with pytest.raises(malt.ConfigError, match="float32, float64, int32 or int64"):
        malt.vector((2, 2), dtype=dtype)


def test_foreign_byte_order_is_refused(alone: None) -> None:
    with pytest.raises(malt.ConfigError, match=r"byte order.*astype"):
        malt.vector(np.zeros(3).astype(np.dtype("float64").newbyteorder()))


@pytest.mark.parametrize(
    "array",
    [np.zeros(10)[::2], np.zeros((3, 4)).T, np.zeros((3, 4), order="F"), np.zeros((4, 4))[:, :2]],
    ids=["strided", "transposed", "fortran", "columns"],
)
def test_memory_that_is_not_contiguous_is_refused(alone: None, array: Any) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.vector(array)
    for part in (str(array.shape), "not contiguous", str(array.strides), "np.ascontiguousarray(w)"):
        assert part in str(info.value)


def test_read_only_memory_is_refused(alone: None) -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(malt.ConfigError, match=r"read-only.*copy it"):
        malt.vector(array)
    with pytest.raises(malt.ConfigError, match=r"read-only.*copy it"):
        malt.vector(np.frombuffer(b"12345678"))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_an_empty_array_is_refused(alone: None, shape: tuple[int, ...]) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.vector(np.zeros(shape))
    assert f"shape {shape} is empty; a vector needs an element" in str(info.value)
    with pytest.raises(malt.ConfigError, match="is empty"):
        malt.vector([np.ones(3), np.zeros(shape)])


@pytest.mark.parametrize("shape", [0, -1, (), (0,), (3, -1)])
def test_an_impossible_shape_is_refused(alone: None, shape: Any) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.vector(shape)
    assert f"shape is {shape!r}; every extent must be at least 1" in str(info.value)


@pytest.mark.parametrize("data", [None, "abc", b"abc", {1: 2}, 3.5, [1.0, 2.0], [[1.0], [2.0]], []])
def test_what_is_no_array_is_refused(alone: None, data: Any) -> None:
    with pytest.raises(malt.ConfigError):
        malt.vector(data)


def test_arrays_of_several_dtypes_are_refused_as_one_vector(alone: None) -> None:
    with pytest.raises(malt.ConfigError, match="one dtype, not float32, float64"):
        malt.vector([np.zeros(3), np.zeros(3, dtype=np.float32)])


def test_another_dtype_than_the_arrays_is_refused(alone: None) -> None:
    with pytest.raises(
        malt.ConfigError, match=r"dtype is float32, but the array has float64.*astype"
    ):
        malt.vector(np.zeros(3), dtype="float32")


def test_memory_of_a_device_is_refused(alone: None) -> None:
    class OnDevice:
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("the tensor is on a GPU")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(malt.ConfigError, match=r"OnDevice.*only memory on the CPU"):
        malt.vector(OnDevice())


def options_and_errors() -> list[Any]:
    chain = malt.Graph([(0, 1), (1, 0)])
    return [
        ({"policy": "newest"}, ("policy is 'newest'", "'latest' or 'queue'")),
        ({"depth": 0}, ("depth is 0", "from 1 to")),
        ({"depth": -3}, ("depth is -3", "from 1 to")),
        ({"depth": 10**6}, ("depth is 1000000", "from 1 to")),
        ({"graph": chain}, ("(0, 1)", "1 ranks", "start 2 ranks")),
    ]


@pytest.mark.parametrize(("options", "parts"), options_and_errors())
def test_an_impossible_option_is_refused(
    alone: None, options: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.vector(np.zeros(3), **options)
    assert all(part in str(info.value) for part in parts), info.value
    malt.vector(np.zeros(3))  # and the next one is all right


@pytest.mark.parametrize("graph", ["RING", None, malt.RANDOM])
def test_what_is_no_graph_is_refused_with_what_is_one(alone: None, graph: Any) -> None:
    with pytest.raises((malt.ConfigError, TypeError), match=r"graph.*malt\.ALL"):
        malt.vector(np.zeros(3), graph=graph)


@pytest.mark.parametrize("size", [10**13, 10**16, 2**62, 10**19, 10**30])
def test_a_vector_larger_than_memory_is_refused(alone: None, size: int) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.vector((size,), dtype="float64")
    assert any(
        part in str(info.value) for part in ("available", "which no machine has", "any memory")
    )
    if size == 10**13:
        assert "needs 2" in str(info.value)  # two slots and the vector itself: 240,000,000 MB
        assert "000000 MB of shared memory, but only" in str(info.value)
        assert "use fewer ranks, a smaller depth or a smaller vector" in str(info.value)


# Graphs and folds


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: malt.Graph([(0, -1)]), ("(0, -1)", "negative")),
        (lambda: malt.Graph([(0, 1), (1, 1)]), ("(1, 1)", "to itself")),
        (lambda: malt.Graph([(0, 1), (1, 0)]).check(3), ("0..1", "start 2 ranks")),
        (
            lambda: malt.Graph([(0, 1), (1, 2), (2, 0)]).check(2),
            ("(1, 2)", "2 ranks", "start 3 ranks"),
        ),
        (lambda: malt.Graph([(0, 1), (1, 0), (2, 3), (3, 2)]).check(4), ("2, 3",)),
        (lambda: malt.Graph([(0, 1), (1, 2)]).check(3), ("1, 2",)),
        (lambda: malt.RANDOM(0, seed=1), ("k=0", "at least 1")),
        (lambda: malt.RANDOM(-2, seed=1), ("k=-2", "at least 1")),
        (lambda: malt.RING.out(5, 3), ("rank 5", "size 3", "0..2")),
        (lambda: malt.RING.out(-1, 3), ("rank -1", "size 3", "0..2")),
        (lambda: malt.ALL.check(0), ("0 ranks", "at least 1")),
        (lambda: malt.TRIMMED_MEAN(0.5), ("0.5", "at least 0 and below 0.5")),
        (lambda: malt.TRIMMED_MEAN(-0.1), ("-0.1", "at least 0 and below 0.5")),
        (lambda: malt.TRIMMED_MEAN(math.nan), ("nan", "at least 0 and below 0.5")),
    ],
)
def test_an_impossible_graph_or_fold_is_refused(
    make: Callable[[], object], parts: tuple[str, ...]
) -> None:
    with pytest.raises(malt.ConfigError) as info:
        make()
    assert all(part in str(info.value) for part in parts), info.value


def test_impossible_limits_of_a_wait_are_refused(alone: None) -> None:
    v = malt.vector(np.zeros(3))
    with pytest.raises(malt.ConfigError, match=r"staleness is -1; it is 0 \(BSP\)"):
        v.gather(staleness=-1)
    for seconds in (-1, math.nan, -math.inf):
        with pytest.raises(malt.ConfigError, match=r"timeout is .* at least 0"):
            v.gather(timeout=seconds)
        with pytest.raises(malt.ConfigError, match=r"timeout is .* at least 0"):
            v.allreduce(timeout=seconds)
        with pytest.raises(malt.ConfigError, match=r"timeout is .* at least 0"):
            malt.barrier(seconds)
    v.gather(staleness=0, timeout=math.inf)
    malt.barrier(math.inf)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: v.gather(malt.AVG, 0), "gather() takes at most 1 positional arguments, not 2"),
        (lambda v: v.gather(malt.AVG, fold=malt.SUM), "gather() got two values for 'fold'"),
        (lambda v: v.gather(stale=0), "gather() has no parameter 'stale'"),
        (lambda v: v.gather(staleness=1.5), "gather() 1.5 is no value for 'staleness'"),
        (lambda v: v.gather(staleness=2**80), "is no value for 'staleness'"),
        (lambda v: v.gather(7), "neither a built-in fold (AVG, SUM, ...) nor a callable: 7"),
        (lambda v: v.scatter("RING"), "scatter() 'RING' is no value for 'graph'"),
        (lambda v: v.allreduce(None), "neither a built-in fold"),
        (lambda v: v.allreduce(timeout="1 s"), "allreduce() '1 s' is no value for 'timeout'"),
        (lambda v: type(v).__new__(type(v)).scatter(), "__init__() was not called"),
    ],
)
def test_a_call_with_the_wrong_arguments_says_which(
    alone: None, call: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(TypeError) as info:
        call(malt.vector(np.zeros(3)))
    assert message in str(info.value)


def test_arguments_may_have_any_type_that_counts(alone: None) -> None:
    v = malt.vector(np.ones(3))
    v.scatter(graph=None)
    # A name that is equal to the parameter's, but another object.
    v.gather(**{"".join(("stale", "ness")): np.int64(0), "fold": malt.AVG, "timeout": 1})
    v.allreduce(fold=malt.SUM, timeout=None)


def test_bsp_with_a_single_replaceable_slot_is_refused(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(3), depth=1, name="w")
v.scatter()
tell(error=error_of(v.gather, staleness=0))
malt.barrier()
""",
    )
    for error in result.each("error"):
        assert refused(error, "'w'", "depth >= 2", "it is 1", "raise depth or use 'queue'")


@pytest.mark.parametrize("data", [[1.0, 2.0], 3.5, [[1, 2], [3, 4]]])
def test_numbers_are_to_be_an_array_first(alone: None, data: Any) -> None:
    with pytest.raises(malt.ConfigError, match=r"this is .*np\.array\(\.\.\.\)\), then use that w"):
        malt.vector(data)


class Model:
    def parameters(self) -> list[object]:
        return []


ONE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("data", "way"),
    [
        ([(600, 8), (300, 8)], r"give arrays, not shapes \(\[np\.zeros\(shape"),
        ([ONE, [ONE.copy()]], "give one flat list of arrays"),
        ({"w": ONE}, "give one flat list of arrays"),
        (Model(), r"malt\.torch\.average\(model\), or give list\(model\.parameters\(\)\)"),
    ],
)
def test_what_is_no_array_names_the_way_to_one(alone: None, data: Any, way: str) -> None:
    with pytest.raises(malt.ConfigError, match=way):
        malt.vector(data)


@pytest.mark.parametrize("call", [malt.save, malt.restore])
def test_vectors_without_names_are_refused(alone: None, tmp_path: Path, call: Any) -> None:
    with pytest.raises(malt.ConfigError, match="vectors is a Vector; it is a dict by name"):
        call(tmp_path, malt.vector(3))


def test_a_data_loader_is_not_shared_out(alone: None) -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader([1.0, 2.0, 3.0])
    with pytest.raises(malt.ConfigError, match=r"DataLoader\(malt\.shard\(dataset\)"):
        malt.shard(loader)


def test_two_open_vectors_do_not_share_a_name(alone: None) -> None:
    first = malt.vector(np.zeros(3), name="w")
    with pytest.raises(malt.ConfigError, match=r"already has a segment or vector named 'w'"):
        malt.vector(np.zeros(3), name="w")
    with pytest.raises(malt.ConfigError, match=r"already has a segment or vector named 'w'"):
        malt.sparse_vector(5, capacity=2, name="w")
    first.close()
    assert malt.vector(np.zeros(3), name="w").name == "w"


# Init and finalize


def test_without_init_every_call_says_what_to_do(in_no_job: None) -> None:
    for call in (
        malt.rank,
        malt.size,
        malt.alive,
        malt.epoch,
        malt.barrier,
        lambda: malt.vector(np.zeros(3)),
        lambda: malt.sparse_vector(5, capacity=2),
        lambda: malt.shard([1, 2, 3]),
        lambda: malt.shard([1, 2, 3], chunk=1),
    ):
        with pytest.raises(malt.ConfigError, match=r"call malt\.init\(\) first"):
            call()


def test_after_finalize_vectors_refuse_to_work_and_memory_stays(in_no_job: None) -> None:
    malt.init()
    v, own, s = malt.vector(np.ones(3)), malt.vector(3), malt.sparse_vector(5, capacity=2)
    own.array[:] = 5
    malt.finalize()
    malt.finalize()
    for call in (v.scatter, v.gather, v.allreduce, own.scatter, own.allreduce, s.scatter, s.gather):
        with pytest.raises(malt.ConfigError, match="has left the job"):
            call()
    assert (v.array.tolist(), own.array.tolist()) == ([1, 1, 1], [5, 5, 5])
    assert v.stats().sent == 0
    malt.init()  # another job: the vectors are still those of the first
    with pytest.raises(malt.ConfigError, match="has left the job"):
        v.scatter()
    assert malt.vector(v.array).gather().count == 0


def test_after_finalize_nothing_waits_for_the_ranks_that_go_on(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v, own, s = malt.vector(np.ones(3)), malt.vector((3,)), malt.sparse_vector(5, capacity=2)
if rank == 1:
    v.scatter()
    malt.finalize()
    calls = (v.scatter, v.gather, lambda: v.gather(staleness=0), v.allreduce,
             own.scatter, own.gather, own.allreduce, s.scatter, s.gather)
    tell(errors=[error_of(call) for call in calls])
    raise_flag("done")
else:
    await_flag("done")
    assert v.gather(malt.SUM).ranks == (1,)  # what was sent before is there
    malt.barrier()
""",
    )
    for error in result.told[1]["errors"]:
        assert refused(error, "has left the job")


def test_a_closed_vector_says_so(alone: None) -> None:
    v = malt.vector(np.zeros(3), name="w")
    v.close()
    v.close()
    for call in (v.scatter, v.gather, v.allreduce):
        with pytest.raises(malt.ConfigError, match="'w' has been closed"):
            call()


def test_init_twice_is_one_job_unless_the_settings_differ(in_no_job: None) -> None:
    job = malt.init(timeout=20, transport="shm")
    assert malt.init() is malt.init(timeout=20.0) is malt.init(transport="shm", timeout=20) is job
    with pytest.raises(malt.ConfigError) as info:
        malt.init(timeout=21)
    for part in ("timeout=21", "in a job already", "timeout=20.0", "malt.finalize()"):
        assert part in str(info.value)
    with pytest.raises(malt.ConfigError, match="in a job already, with transport='shm'"):
        malt.init(transport="auto")
    malt.finalize()
    assert malt.init(timeout=21) is not job


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_timeout_of_nothing_is_refused(in_no_job: None, timeout: float) -> None:
    with pytest.raises(malt.ConfigError, match=r"timeout .* a number of seconds above 0"):
        malt.init(timeout=timeout)


def test_an_unknown_transport_is_refused_with_those_there_are(in_no_job: None) -> None:
    with pytest.raises(malt.ConfigError, match=r"no transport 'carrier pigeon'.*'auto', 'shm'"):
        malt.init(transport="carrier pigeon")
    malt.init(transport="shm")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("MALT_TIMEOUT", "soon", "MALT_TIMEOUT.* is 'soon'; it is a number of seconds above 0"),
        ("MALT_TIMEOUT", "-1", "'-1'"),
        ("MALT_TRANSPORT", "fax", "no transport 'fax'"),
        ("MALT_LOG", "loud", "MALT_LOG is 'LOUD'; it is DEBUG, INFO, WARNING or ERROR"),
    ],
)
def test_settings_from_outside_are_checked(
    in_no_job: None, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(malt.ConfigError, match=expected):
        malt.init()


# Between ranks


def test_vectors_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    """One rank's vector is another than the others'; after each error the job goes on."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
odd = rank == 1
attempts = {
    "length": lambda: malt.vector(np.zeros(10 + odd)),
    "dtype": lambda: malt.vector(np.zeros(10, dtype="int64" if odd else "float64")),
    "graph": lambda: malt.vector(np.zeros(10), graph=malt.RING if odd else malt.ALL),
    "edges": lambda: malt.vector(np.zeros(10), graph=malt.Graph(
        [(0, 1), (1, 2), (2, 0), (1, 0) if odd else (0, 2)])),
    "seed": lambda: malt.vector(np.zeros(10), graph=malt.RANDOM(1, seed=5 + odd)),
    "policy": lambda: malt.vector(np.zeros(10), policy="queue" if odd else "latest"),
    "depth": lambda: malt.vector(np.zeros(10), depth=3 if odd else 2),
    "memory": lambda: malt.vector((10,)) if odd else malt.vector(np.zeros(10, dtype="float32")),
    "kind": lambda: malt.sparse_vector(10, capacity=5) if odd else malt.vector((10,)),
    "capacity": lambda: malt.sparse_vector(10, capacity=5 + odd),
    "name": lambda: malt.vector((10,), name="mine" if odd else "theirs"),
    "order": lambda: malt.barrier() if odd else malt.vector((10,)),
}
tell(errors={name: error_of(attempt) for name, attempt in attempts.items()})
w = np.full(2, rank + 1.0)
malt.vector(w, name="last").allreduce(malt.SUM)
tell(w=w)
malt.barrier()
""",
    )
    for told in result.told:
        errors = told["errors"]
        for name, one, two in (
            ("length", "dense float64 x 10 on ranks 0, 2", "dense float64 x 11 on rank 1"),
            ("dtype", "dense float64 x 10 on ranks 0, 2", "dense int64 x 10 on rank 1"),
            ("graph", "ALL on ranks 0, 2", "RING on rank 1"),
            ("edges", "on ranks 0, 2", "on rank 1"),
            ("seed", "seed=5) on ranks 0, 2", "seed=6) on rank 1"),
            ("policy", "latest on ranks 0, 2", "queue on rank 1"),
            ("depth", "2 on ranks 0, 2", "3 on rank 1"),
            ("memory", "on ranks 0, 2", "on rank 1"),
            (
                "kind",
                "dense float32 x 10 on ranks 0, 2",
                "sparse float32 x 10, capacity 5 on rank 1",
            ),
            ("capacity", "capacity 5 on ranks 0, 2", "capacity 6 on rank 1"),
        ):
            way_out = "every rank must make its vectors in the same order with the same options"
            assert refused(errors[name], "is not the same on all ranks", one, two, way_out)
        for name, one, two in (
            ("name", "ranks 0, 2: segment 'theirs'", "rank 1: segment 'mine'"),
            ("order", "ranks 0, 2: segment 'vector-", "rank 1: barrier"),
        ):
            assert refused(errors[name], "different collective calls at once", one, two)
        assert told["w"].tolist() == [6, 6]


def test_a_vector_that_one_rank_cannot_make_ends_on_the_others_too(tmp_path: Path) -> None:
    """Rank 1's array is refused before the others hear of it; all can try again, without names."""
    result = run_job(
        tmp_path,
        3,
        """
meet("here")
malt.init(timeout=1)
w = np.full(4, rank + 1.0)
tell(first=error_of(malt.vector, np.zeros(8)[::2] if rank == 1 else w))
if rank == 1:
    await_flag(0), await_flag(2)
raise_flag(rank)
v = malt.vector(w)
v.allreduce(malt.SUM, timeout=30)
tell(w=w)
malt.barrier(30)
""",
    )
    assert refused(result.told[1]["first"], "not contiguous")
    for rank in (0, 2):
        error = result.told[rank]["first"]
        assert error.kind in ("TimeoutError", "ConfigError", "PeerError")
        assert error.says("rank 1")
        assert error.seconds < PROMPT
    assert [told["w"].tolist() for told in result.told] == [[6.0] * 4] * 3


def test_graph_for_another_size_or_without_a_way_is_refused_on_every_rank(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(3))
three = malt.Graph([(0, 1), (1, 2), (2, 0)])
five = malt.Graph([(i, (i + 1) % 5) for i in range(5)])
apart = malt.Graph([(0, 1), (1, 0), (2, 3), (3, 2)])
oneway = malt.Graph([(0, 1), (1, 2), (2, 0), (2, 3)])
errors = [error_of(malt.vector, np.zeros(3), graph=g) for g in (three, five, apart, oneway)]
tell(errors=errors, once=[error_of(v.scatter, g) for g in (three, five, apart, oneway)])
malt.barrier()
v.allreduce()
""",
    )
    for told in result.told:
        for errors in (told["errors"], told["once"]):
            three, five, apart, oneway = errors
            assert refused(three, "0..2", "start 3 ranks")
            assert refused(five, "4", "start 5 ranks")
            assert refused(apart, "2, 3")
            assert refused(oneway, "3")


def test_no_space_is_an_error_on_every_rank_that_names_both_sizes(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
big = 1 << 37
tell(own=error_of(malt.vector, (big,)), sparse=error_of(malt.sparse_vector, 2**31 - 1,
     capacity=2**31 - 1, depth=500))
w = np.ones(2)
malt.vector(w).allreduce(malt.SUM)
tell(w=w)
malt.barrier()
""",
    )
    for told in result.told:
        # Two ranks with two slots and the vector, and one result: 7 vectors of 549,755 MB.
        assert refused(told["own"], "needs 38482", "MB of shared memory", "but only", "available")
        assert refused(told["own"], "use fewer ranks, a smaller depth or a smaller vector")
        assert refused(told["sparse"], "MB of shared memory", "but only", "available")
        assert told["w"].tolist() == [2, 2]


def test_too_many_open_files_is_an_error_and_no_hang(tmp_path: Path) -> None:
    """Rank 1 may open none, then one, which is what a vector needs for a moment."""
    result = run_job(
        tmp_path,
        3,
        """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
malt.init(timeout=60)
if rank == 1:
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
errors = [error_of(malt.vector, np.zeros(10)) for _ in range(2)]
if rank == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
w = np.ones(2)
malt.vector(w).allreduce(malt.SUM)
tell(errors=errors, w=w)
malt.barrier()
""",
    )
    for told in result.told:
        for error in told["errors"]:
            assert refused(error, "rank 1", "Too many open files", "ulimit -n")
        assert told["w"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("transport", "files"),
    [*(("shm", n) for n in range(6)), *(("tcp", n) for n in range(0, 24, 3))],
)
def test_too_many_open_files_at_init_is_an_error_and_no_hang(
    tmp_path: Path, transport: str, files: int
) -> None:
    """A job of four needs a descriptor to watch each other rank, one for memory, and more.

    Between hosts it needs one for each connection.
    """
    result = run_job(
        tmp_path,
        4,
        """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if rank == 1:
    # What is imported in the middle of it is not what this is about.
    import encodings.idna, hashlib, hmac, socket, ssl, malt._job.mpi, malt._rendezvous.session
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + files, hard))
error = error_of(malt.init, timeout=10)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
tell(error=error)
if error is None:
    malt.barrier(1)
""",
        "--keep-going",
        code=0 if files < 4 else None,
        files=files,
        environ={"MALT_TRANSPORT": transport},
    )
    errors = result.each("error")
    if errors == [None] * 4 and files >= 4:
        return
    assert errors[1].kind in ("ConfigError", "Error"), errors[1]
    assert errors[1].says("open files"), errors[1]
    assert errors[1].says("ulimit -n"), errors[1]
    for rank in (0, 2, 3):
        assert errors[rank].kind in ("ConfigError", "TimeoutError", "PeerError"), errors[rank]
        assert errors[rank].says("rank 1"), errors[rank]
        assert errors[rank].seconds < 10 + PROMPT


def test_two_jobs_with_the_same_names_do_not_meet(tmp_path: Path) -> None:
    script = """
malt.init(timeout=60)
w = np.ones(10)
v = malt.vector(w, name="w")
tell(joined=True)
await_flag("both are there")
for step in range(50):
    v.scatter()
    v.gather(malt.SUM, staleness=0)
tell(w=w)
malt.barrier()
"""
    with start_job(tmp_path / "a", 2, script) as a, start_job(tmp_path / "b", 3, script) as b:
        for job in (a, b):
            job.await_told("joined")
        for job in (a, b):
            job.raise_flag("both are there")
        results = a.finish(), b.finish()
    for result, factor in zip(results, (2, 3), strict=True):
        assert result.code == 0, result.output
        assert [w.tolist() for w in result.each("w")] == [[float(factor) ** 50] * 10] * factor


# Ranks that do not come


def test_a_rank_that_never_joins_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
if rank == 1:
    await_flag(0), await_flag(2)
else:
    raise_flag(f"here {rank}")
    await_flag(f"here {2 - rank}")  # one that starts much later would find that the other is gone
    tell(error=error_of(malt.init, timeout=1))
    raise_flag(rank)
""",
    )
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert error.kind == "TimeoutError"
        assert 1 in error.ranks
        assert error.says("rank", "1 s", "malt.init(timeout=...)", "MALT_TIMEOUT")
        assert error.seconds < PROMPT
    # The one that gave up first may itself be missed by the other; one names rank 1 alone.
    assert any(result.told[rank]["error"].ranks == (1,) for rank in (0, 2))


def test_a_rank_that_ends_without_joining_is_named_at_once(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
if rank != 1:
    tell(error=error_of(malt.init, timeout=60))
""",
    )
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert error.kind == "PeerError"
        assert error.ranks == (1,)
        assert error.says("rank 1")
        assert error.seconds < PROMPT


def test_waits_for_a_rank_that_does_nothing_name_it_and_can_be_repeated(tmp_path: Path) -> None:
    """Rank 2 joins and makes three vectors, then sleeps; the others' waits end in time."""
    result = run_job(
        tmp_path,
        3,
        """
meet("here")
malt.init(timeout=1 if rank != 2 else 60)
malt.barrier(60)
w = np.full(3, rank + 1.0)
v = malt.vector(w, name="w")
circle = malt.Graph([(0, 1), (1, 2), (2, 0)])
q = malt.vector(np.zeros(1), name="q", policy="queue", depth=2)
if rank == 2:
    await_flag(0), await_flag(1)
else:
    v.scatter()
    tell(bsp=error_of(v.gather, malt.SUM, staleness=0), short=error_of(
        v.gather, malt.SUM, staleness=0, timeout=0.1), kept=w.copy())
    q.scatter(); q.scatter()
    iteration = q.iteration
    tell(full=error_of(q.scatter), iterations=(iteration, q.iteration))
    tell(allreduce=error_of(v.allreduce, timeout=0.5))
    tell(barrier=error_of(malt.barrier, 0.2), again=error_of(malt.barrier))
    tell(busy=error_of(malt.vector, np.zeros(3), name="n"))
    raise_flag(rank)
malt.barrier(60)
tell(never=error_of(malt.vector, np.zeros(3), name="n") if rank != 2 else None)
raise_flag(f"never {rank}")
if rank == 2:
    await_flag("never 0"), await_flag("never 1")
n = malt.vector(w, name="n")
if rank == 2:
    v.scatter()
v.gather(malt.SUM, staleness=0, timeout=60)
tell(w=w, pending=q.gather(malt.SUM).count)
malt.barrier(60)
""",
    )
    for rank in (0, 1):
        told = result.told[rank]
        other = 1 - rank
        for name, seconds in (("bsp", 1), ("short", 0.1)):
            assert told[name].ranks == (2,)
            assert told[name].says("gather of segment 'w'", "rank 2", "iteration 1")
            assert seconds <= told[name].seconds < PROMPT
        assert told["full"].ranks in ((2,), tuple(sorted((2, other))))
        assert told["full"].says("scatter of segment 'q'", "all 2 slots", "rank", "raise depth")
        assert told["iterations"] == (2, 2)
        assert 2 in told["allreduce"].ranks or told["allreduce"].says("gave up waiting")
        assert told["barrier"].ranks[-1] == 2
        assert told["barrier"].says("barrier", "rank", "did not come within 0.2 s")
        assert told["again"].ranks[-1] == 2
        assert refused(told["busy"], "'barrier' timed out on this rank", "repeat that first")
        assert told["never"].ranks[-1] == 2
        assert told["never"].says("segment 'n'", "did not come within 1 s")
        for name in ("bsp", "short", "full", "allreduce", "barrier", "again", "never"):
            assert told[name].kind == "TimeoutError", told[name]
            assert told[name].seconds < PROMPT
        assert told["kept"].tolist() == [rank + 1] * 3
    assert [told["w"].tolist() for told in result.told] == [[6.0] * 3] * 3
    assert [told["pending"] for told in result.told] == [2, 2, 4]


INTERRUPTED = {
    "gather": "v.gather(staleness=0)",
    "scatter": "q.scatter()",
    "barrier": "malt.barrier()",
    "allreduce": "v.allreduce()",
    "vector": "malt.vector(np.zeros(3), name='n')",
}


def test_ctrl_c_ends_each_wait_at_once(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=100)
w = np.full(3, rank + 1.0)
v = malt.vector(w, name="v")
q = malt.vector(np.zeros(1), name="q", policy="queue", depth=1)
if rank == 0:
    v.scatter()
    q.scatter()
    errors = {}
    for name in calls:
        errors[name] = interrupted(lambda: exec(calls[name], globals()))
        if name in ("barrier", "vector"):
            raise_flag(name)
            exec(calls[name])
    tell(errors=errors)
else:
    await_flag("barrier")
    malt.barrier()
    await_flag("vector")
    malt.vector(np.zeros(3), name="n")
    v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(w=w, count=g.count)
malt.barrier()
""",
        calls=INTERRUPTED,
    )
    for name, error in result.told[0]["errors"].items():
        assert error is not None, f"{name} went on through Ctrl-C"
        assert error.kind == "builtins.KeyboardInterrupt", (name, error)
        assert 0.2 < error.seconds < PROMPT, (name, error)
    assert [told["w"].tolist() for told in result.told] == [[3.0] * 3] * 2


def test_allreduce_that_ctrl_c_ended_does_not_leave_its_rank_out_of_the_others(
    tmp_path: Path,
) -> None:
    """It is over for all of them, or for none: whoever gets a result has the sum of both."""
    result = run_job(
        tmp_path,
        2,
        """
meet("here")
malt.init(timeout=5)
w = np.full(3, rank + 1.0)
v = malt.vector(w)
if rank == 1:
    tell(interrupted=interrupted(lambda: v.allreduce(malt.SUM)))
    raise_flag("interrupted")
else:
    await_flag("interrupted")
    time.sleep(0.3)  # rank 1 is in its second call
errors = []
for attempt in range(3):
    error = error_of(v.allreduce, malt.SUM)
    errors.append(error)
    if error is None:
        break
tell(errors=errors, w=w)
malt.barrier(30)
""",
    )
    assert result.told[1]["interrupted"].kind == "builtins.KeyboardInterrupt"
    for told in result.told:
        assert told["errors"][-1] is None, told["errors"]
        assert told["w"].tolist() == [3.0] * 3


def test_an_error_of_one_rank_ends_the_job_with_its_code(tmp_path: Path) -> None:
    """The example of a newcomer's first mistake: one rank's message is seen, and nothing hangs."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=100)
v = malt.vector(np.zeros(3, dtype="float16" if rank == 1 else "float32"))
""",
        code=1,
    )
    assert "[1] malt._errors.ConfigError: dtype is float16; a vector has float32" in result.output


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_slow_wait_says_for_whom_and_goes_on(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(3), name="v")
q = malt.vector(np.zeros(3), name="q", policy="queue", depth=2)
def late(call):
    if rank == 1:
        time.sleep(0.6)
    call()
v.scatter()
late(lambda: v.scatter())
v.gather(malt.SUM, staleness=0)
late(lambda: v.allreduce(malt.SUM))
late(malt.barrier)
if rank == 0:
    for _ in range(3): q.scatter()
late(lambda: q.gather(malt.SUM))
malt.barrier()
""",
        environ={"MALT_TRANSPORT": transport, "MALT_SLOW_AFTER": "0.3"},
    )
    notices = [line for line in result.output.splitlines() if "rank 0 waits: " in line]
    for call, lacks in (
        ("gather of segment 'v'", "rank 1 did not scatter iteration 2"),
        ("allreduce of ", "rank 1 did not come"),
        ("barrier", "rank 1 did not come"),
        ("scatter of segment 'q'", "all 2 slots hold updates that rank 1 did not gather"),
    ):
        about = [line for line in notices if f"waits: {call}" in line]
        assert len(about) == 1, (call, result.output)
        assert lacks in about[0]
        assert about[0].endswith("; this rank waits on, for up to 60 s")


def test_a_rank_that_gives_up_says_where_the_missing_one_is(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=0.5 if rank == 0 else 60)
v = malt.vector(np.zeros(3), name="v")
v.scatter()
if rank == 0:
    for _ in range(2): v.scatter()
    tell(gather=error_of(v.gather, malt.SUM, staleness=0), barrier=error_of(malt.barrier))
    raise_flag("told")
await_flag("told")
malt.barrier(60)
""",
    )
    told = result.told[0]
    assert told["gather"].says("within 0.5 s (this rank is at iteration 3, rank 1 at 1)")
    assert told["barrier"].says("(rank 1 was last in segment 'v')")
    for error in told.values():
        assert error.says(
            "a longer limit: the call's timeout=, malt.init(timeout=) or MALT_TIMEOUT"
        )
