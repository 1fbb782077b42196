"""malt.allreduce and malt.broadcast: numbers and settings, without a vector."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job

import malt


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_rank_gets_the_same(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
tell(
    mean=malt.allreduce(rank), sum=malt.allreduce(2**70 * rank, malt.SUM),
    worst=malt.allreduce(rank / 10, max), all=malt.allreduce(rank, list),
    array=malt.allreduce(np.array([rank, 10.0], np.float32)),
    long=malt.allreduce(np.arange(1000) * rank, malt.SUM),
    setting=malt.broadcast({"lr": 0.1, ("a", 1): [b"x", None]} if rank == 1 else object(), root=1),
)
""",
        environ={"MALT_TRANSPORT": transport},
    )
    for told in result.told:
        assert (told["mean"], type(told["mean"])) == (1.0, float)
        assert told["sum"] == 3 * 2**70
        assert told["worst"] == 0.2
        assert told["all"] == [0, 1, 2]
        assert (told["array"].tolist(), told["array"].dtype) == ([1.0, 10.0], np.float32)
        assert told["long"].tolist() == (3 * np.arange(1000)).tolist()
        assert told["setting"] == {"lr": 0.1, ("a", 1): [b"x", None]}


def test_invalid_call_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
tell(
    shapes=error_of(malt.allreduce, np.zeros(1 + rank)),
    object=error_of(malt.broadcast, object()),
    long=error_of(malt.broadcast, "x" * 2**21),
    fold=error_of(malt.allreduce, 1.0, malt.WEIGHTED),
    root=error_of(malt.broadcast, 1, root=2),
    roots=error_of(malt.broadcast, 1, root=rank),
    word=error_of(malt.allreduce, "x" if rank == 0 else 1.0),
    after=malt.allreduce(rank),
)
""",
    )
    for told in result.told:
        assert told["shapes"].says("rank 0: an array of float64 [1]; rank 1: ", "[2]")
        assert told["object"].says(
            "malt.broadcast: rank 0: the value cannot be sent", "object is no"
        )
        assert told["long"].says("at most 2097152", "malt.vector")
        assert told["fold"].says(
            "malt.AVG, malt.SUM, malt.MEDIAN, malt.TRIMMED_MEAN(f), or a function"
        )
        assert told["root"].says("root is 2; it must be a whole number from 0 to 1")
        assert told["roots"].says("malt.broadcast: root is 0 on rank 0, and 1 on rank 1")
        assert told["word"].says("rank 0: str of dtype <U1 is no number", "give float(value)")
        assert told["after"] == 0.5
        assert {told[name].kind for name in told if name != "after"} == {"ConfigError"}


def test_medians_and_trimmed_means_are_those_of_a_vector(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
given = np.array([[5.0, 1.0, np.inf], [2.0, 9.0, 3.0], [-7.0, 4.0, 8.0]])[rank]
for name, fold in {"median": malt.MEDIAN, "trimmed": malt.TRIMMED_MEAN(0.34)}.items():
    v = malt.vector(given.copy())
    v.allreduce(fold)
    tell(**{name: (malt.allreduce(given, fold), v.array, malt.allreduce(given[0], fold))})
tell(
    whole=[malt.allreduce(2**70 + rank, malt.MEDIAN), malt.allreduce(rank > 0, malt.MEDIAN)],
    mean=malt.allreduce(given[0], malt.TRIMMED_MEAN(0.1)),
    complex=error_of(malt.allreduce, 1j, malt.MEDIAN),
    cuts=error_of(malt.allreduce, 1.0, malt.TRIMMED_MEAN(0.1 + rank / 10)),
)
""",
    )
    for told in result.told:
        for name in ("median", "trimmed"):
            array, vector, number = told[name]
            assert array.tolist() == vector.tolist() == [2.0, 4.0, 8.0]
            assert number == 2.0
        assert told["whole"] == [float(2**70), 1.0]
        assert told["mean"] == 0.0
        assert told["complex"].says("complex values have no order")
        assert told["cuts"].says("fold is malt.TRIMMED_MEAN(0.1) on rank 0")
        assert {told["complex"].kind, told["cuts"].kind} == {"ConfigError"}


def test_folds_that_differ_are_an_error_on_all_ranks(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
one = rank == 1
tell(
    built_in=error_of(malt.allreduce, 1.0 + rank, malt.SUM if one else malt.AVG),
    function=error_of(malt.allreduce, 1.0 + rank, max if one else malt.AVG),
    functions=error_of(malt.allreduce, 1.0 + rank, max if one else min),
    wrong=error_of(malt.allreduce, 1.0, malt.WEIGHTED if one else malt.AVG),
    after=malt.allreduce(rank, lambda values: values[-1]),
)
""",
    )
    for told in result.told:
        assert told["built_in"].says("fold is malt.AVG on rank 0, and malt.SUM on rank 1")
        assert told["function"].says("fold is malt.AVG on rank 0, and max on rank 1")
        assert told["functions"].says("fold is min on rank 0, and max on rank 1")
        assert told["wrong"].says("rank 1: fold is WEIGHTED; malt.allreduce takes malt.AVG")
        assert told["after"] == 1
        assert {told[name].kind for name in told if name != "after"} == {"ConfigError"}


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (malt.allreduce, r"v\.allreduce\(malt\.AVG\)"),
        (malt.broadcast, r"malt\.broadcast\(v\.array\)"),
    ],
)
def test_a_vector_is_no_value(alone: None, call: Any, way_out: str) -> None:
    for vector in (malt.vector(3), malt.sparse_vector(3, capacity=1)):
        with pytest.raises(malt.ConfigError, match=f"the value is a vector.*{way_out}"):
            call(vector)


def test_a_dictionary_is_given_one_value_a_call(alone: None) -> None:
    with pytest.raises(malt.ConfigError, match=r"one number or array a call.*malt\.vector"):
        malt.allreduce({"loss": 1.0})


def test_one_process_is_a_job_of_one_rank() -> None:
    with malt.init():
        assert malt.allreduce(3) == 3.0
        assert malt.broadcast("x") == "x"


def test_the_dead_do_not_count_and_a_dead_root_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
malt.barrier()
if rank == 2:
    os.kill(os.getpid(), 9)
tell(mean=malt.allreduce(rank), root=error_of(malt.broadcast, 1, root=2))
""",
        "--keep-going",
        code=None,
    )
    for told in result.told[:2]:
        assert told["mean"] == 0.5
        assert told["root"].kind == "PeerError"
        assert told["root"].ranks == (2,)


# The values of two ranks; the mean and the sum, or a pattern of the error.
SUMS: dict[str, tuple[str, object, object]] = {
    "truth value": ("True", 1.0, 2),
    "NumPy's truth value": ("np.True_", 1.0, 2),
    "truth values": ("np.array([True, False])", [1.0, 0.0], [2, 0]),
    "list": ("[True, True]", [1.0, 1.0], [2, 2]),
    "large": ("2**70", 2.0**70, 2**71),
    "uint8": ("np.uint8(200)", 200.0, 400),
    "uint8 array": ("np.array([200], np.uint8)", [200.0], [400]),
    "int8 array": ("np.array([-100], np.int8)", [-100.0], [-200]),
    "int32": ("np.int32(2**31 - 1)", 2.0**31 - 1, 2**32 - 2),
    "int32 array": ("np.array([2**31 - 1], np.int32)", [2.0**31 - 1], [2**32 - 2]),
    "int64": ("np.int64(2**62)", 2.0**62, 2**63),
    "int64 array": ("np.array([2**62])", [2.0**62], "sum of 4611686018427387904, .*beyond int64"),
    "uint64 array": ("np.array([2**63], np.uint64)", [2.0**63], "beyond uint64: give value.astype"),
    "float16": ("np.float16(60000)", 60000.0, 120000.0),
    "float16 array": ("np.array([60000], np.float16)", [60000.0], [120000.0]),
    "float32 array": ("np.array([3e38], np.float32)", [3e38], r"sum of 3e\+38, 3e\+38 .*wider"),
    "float64 array": ("np.array([1.7e308])", [1.7e308], "beyond float64: .*malt.AVG"),
    "float": ("1.7e308", 1.7e308, "beyond float64: give smaller numbers"),
    "infinite": ("np.array([np.inf, 1])", [np.inf, 1.0], [np.inf, 2.0]),
    "complex": ("np.array([1 + 2j], np.complex64)", [1 + 2j], [2 + 4j]),
    "no dimensions": ("np.array(3, np.uint8)", 3.0, 6),
    "no elements": ("np.zeros(0, np.int8)", [], []),
    "tensor": ("torch.tensor([200], dtype=torch.uint8)", [200.0], [400]),
    "bfloat16": ("torch.ones(1, dtype=torch.bfloat16)", "Tensor is no number.*float", "float"),
    "tensor with a gradient": ("torch.ones(1, requires_grad=True)", "detach", "detach"),
    "masked": ("np.ma.masked_array([1.0], [True])", "its mask would be lost", "filled"),
    "text": ("'x'", "str of dtype <U1 is no number", "give float"),
    "None": ("None", "NoneType of dtype object is no number", "give float"),
    "dates": ("np.array(['2020'], 'M8[D]')", r"dtype datetime64\[D\] is no number", "astype"),
    "unlike rows": ("[[1], [2, 3]]", "list is no number or array", "list is no"),
}
DTYPES = {
    "uint8 array": ("float64", "uint64"),
    "int8 array": ("float64", "int64"),
    "truth values": ("float64", "int64"),
    "float16 array": ("float16", "float32"),
    "complex": ("complex64", "complex64"),
}
# The value of rank 1, which all get; or a pattern of the error.
GIVEN: dict[str, tuple[str, str]] = {
    "float16": ("np.float16(2)", "np.float16(2.0)"),
    "truth value": ("np.True_", "np.True_"),
    "big-endian": ("np.ones(1, '>f4')", "array([1.], dtype='>f4')"),
    "text": ("np.str_('a')", "np.str_('a')"),
    "dates": ("np.array(['2020'], 'M8[Y]')", "array(['2020'], dtype='datetime64[Y]')"),
    "tensor": ("torch.ones(1, dtype=torch.int8)", "tensor([1], dtype=torch.int8)"),
    "nested": ("{'a': (1, [2j, None])}", "{'a': (1, [2j, None])}"),
    "named tuple": ("collections.namedtuple('P', 'a')(1)", "P is no array"),
    "ordered dictionary": ("collections.OrderedDict(a=1)", "OrderedDict is no array.*dict()"),
    "matrix": ("np.matrix([[1]])", "numpy.matrix is no array.*numpy.asarray"),
    "masked": ("np.ma.masked_array([1.0], [True])", "MaskedArray is no array"),
    "parameter": ("torch.nn.Parameter(torch.ones(1))", "Parameter is no array"),
    "set": ("{1}", "set is no array"),
    "COO": ("sparse.coo_matrix(np.eye(2))", "coo_matrix is no array.*tocsr"),
    "many digits": ("10**5000", "4300 digits"),
}


KINDS = ("means", "sums")


def test_numbers_of_all_types_and_their_means_and_sums(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = run_job(
        tmp_path,
        2,
        """
import collections, warnings, torch
from scipy import sparse
warnings.simplefilter("error")
warnings.simplefilter("ignore", PendingDeprecationWarning)  # of np.matrix
malt.init()
def tried(call, *args, **options):
    try:
        return call(*args, **options)
    except malt.ConfigError as error:
        return str(error)
means, sums, given = {}, {}, {}
for name, text in values.items():
    value = eval(text)
    means[name], sums[name] = tried(malt.allreduce, value), tried(malt.allreduce, value, malt.SUM)
for name, text in broadcasts.items():
    value = tried(malt.broadcast, eval(text) if rank == 1 else 0, root=1)
    given[name] = value if isinstance(value, str) and type(value) is str else repr(value)
tell(means=means, sums=sums, given=given)
""",
        values={name: text for name, (text, *_) in SUMS.items()},
        broadcasts={name: text for name, (text, _) in GIVEN.items()},
    )
    for told in result.told:
        for name, (_, *expected) in SUMS.items():
            for found, want in zip([told[each][name] for each in KINDS], expected, strict=True):
                if isinstance(want, str):
                    assert re.search(want, found), (name, found)
                else:
                    exact = np.asarray(want).astype(getattr(found, "dtype", None))
                    assert np.array_equal(found, exact), (name, found)
        for name, dtypes in DTYPES.items():
            assert tuple(told[each][name].dtype.name for each in KINDS) == dtypes
        for name, (_, want) in GIVEN.items():
            assert told["given"][name] == want or re.search(want, told["given"][name]), name
