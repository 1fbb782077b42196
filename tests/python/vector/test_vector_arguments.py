"""Arguments of malt.vector and its calls that are refused; the error names limit and way out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import refused, run_job

import malt
import malt.ps

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


def test_a_masked_array_is_refused(alone: None) -> None:
    for call in (malt.vector, malt.allreduce, lambda array: malt.vector([array])):
        with pytest.raises(malt.ConfigError, match=r"its mask would be lost: fill it first"):
            call(np.ma.masked_array([1.0, 2.0], mask=[False, True]))


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
def test_data_that_are_no_array_are_refused(alone: None, data: Any) -> None:
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
        ({"policy": "newest"}, ("policy is 'newest'", "'latest', 'queue'")),
        ({"policy": "\ud800"}, (r"policy is '\ud800'", "'latest', 'queue'")),
        (
            {"name": "w\ud800"},
            (r"name is 'w\ud800'", r"UTF-8 cannot encode '\ud800': leave it out"),
        ),
        ({"depth": 0}, ("depth is 0", "from 1 to 1024")),
        ({"depth": 2**40}, (f"depth is {2**40}", "from 1 to 1024")),
        ({"depth": "x"}, ("depth is 'x'", "whole number")),
        ({"max_norm": "x"}, ("max_norm is 'x'", "number")),
        ({"max_norm": -(2**2000)}, (f"max_norm is {-(2**2000)}", "above 0")),
        ({"name": 5}, ("name is 5", "text")),
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
def test_refusal_of_an_invalid_graph_names_valid_ones(alone: None, graph: Any) -> None:
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
        (lambda: malt.RANDOM(2**70, 1), (str(2**70), "k is a whole number from 1 to 2147483647")),
        (lambda: malt.RANDOM(1, 2**70), (str(2**70), "seed one from 0 to 18446744073709551615")),
        (lambda: malt.Graph([(0, "a")]), ("(0, 'a')", "1048575")),  # type: ignore[list-item]
        (lambda: malt.Graph([(2**70, 0)]), (f"({2**70}, 0)", "from 0 to 1048575")),
        (lambda: malt.Graph(3), ("edges is 3", "(from, to) pairs")),  # type: ignore[arg-type]
        (lambda: malt.Graph([(0, 1, 2)]), ("(0, 1, 2)", "(from, to)")),  # type: ignore[list-item]
        (lambda: malt.RING.out(5, 3), ("rank 5", "size 3", "0..2")),
        (lambda: malt.RING.out(-1, 3), ("rank -1", "size 3", "0..2")),
        (lambda: malt.ALL.check(0), ("size of the job is 0", "at least 1")),
        (lambda: malt.TRIMMED_MEAN(0.5), ("0.5", "at least 0 and below 0.5")),
        (lambda: malt.TRIMMED_MEAN(-0.1), ("-0.1", "at least 0 and below 0.5")),
        (lambda: malt.TRIMMED_MEAN(math.nan), ("nan", "at least 0 and below 0.5")),
        (lambda: malt.TRIMMED_MEAN("a"), ("'a'", "below 0.5")),  # type: ignore[arg-type]
        (lambda: malt.TOP_K("a"), ("fraction is 'a'", "at most 1")),  # type: ignore[arg-type]
        (lambda: malt.TOP_K(2**2000), (str(2**2000), "above 0 and at most 1")),
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
    for each in (v, malt.sparse_vector(3, capacity=1)):
        for staleness in (-1, 1.5, 2**80, "0"):
            with pytest.raises(
                malt.ConfigError, match=rf"staleness is {staleness!r}; it is 0 \(BSP"
            ):
                each.gather(staleness=staleness)
        with pytest.raises(malt.ConfigError, match="timeout is '1 s'; it is a number of seconds"):
            each.gather(timeout="1 s")
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
        (lambda v: v.gather(7), "fold is 7; it is malt.AVG, SUM, WEIGHTED, REPLACE, MEDIAN"),
        (lambda v: v.gather("mean"), "fold is 'mean'; it is malt.AVG (the mean), SUM"),
        (lambda v: v.scatter("RING"), "scatter() 'RING' is no value for 'graph'"),
        (lambda v: v.allreduce(None), "fold is None; it is malt.AVG, SUM"),
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
def test_refusal_of_data_names_the_way_to_an_array(alone: None, data: Any, way: str) -> None:
    with pytest.raises(malt.ConfigError, match=way):
        malt.vector(data)


def test_refusal_of_pandas_and_scipy_names_the_way_to_an_array(alone: None) -> None:
    pandas = pytest.importorskip("pandas")
    scipy_sparse = pytest.importorskip("scipy.sparse")
    series, matrix = pandas.Series(np.zeros(30)), scipy_sparse.random(9, 9, 0.5, format="csr")
    with pytest.raises(malt.ConfigError, match=r"this is a Series: .*\(w = data\.to_numpy\("):
        malt.vector(series)
    with pytest.raises(malt.ConfigError, match=r"this is a csr_matrix: .*matrix\.toarray\(\)"):
        malt.vector(matrix)
    table = malt.ps.Table(9, 9, name="t")
    with pytest.raises(malt.ConfigError, match=r"real numbers \(.*matrix\.toarray\(\)\)"):
        table.push(range(9), matrix)
    table.close()


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
