"""What `malt run` shows of its ranks' output."""

from __future__ import annotations

import os
import pty
import select
from pathlib import Path

import pytest
from launches import Script, assert_gone, noted, run, running

from malt._launch.output import Sink, Stream
from malt._launch.tracebacks import Tracebacks, Watched


def test_lines_get_their_rank_and_keep_their_stream(script: Script) -> None:
    path = script("print('out', rank, *sys.argv[1:]); print('err', file=sys.stderr)")
    done = run("-n", 3, path, "-n", "9", "--keep-going", "--", "-m")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        b"[%d] out %d -n 9 --keep-going -- -m" % (r, r) for r in range(3)
    ]
    ranks_lines = [line for line in done.stderr.splitlines() if line[:1] == b"["]
    assert sorted(ranks_lines) == [b"[%d] err" % r for r in range(3)]


def test_one_rank_is_passed_through_as_it_is(script: Script) -> None:
    done = run("-n", 1, script("sys.stdout.write('plain\\rbytes'); sys.exit(7)"))
    assert (done.returncode, done.stdout) == (7, b"plain\rbytes")
    assert done.stderr.startswith(b"malt run: rank 0 exited with code 7 after ")


def test_prefix_can_be_asked_for_and_left_out(script: Script) -> None:
    path = script("print('x')")
    assert run("-n", 1, "--prefix", path).stdout == b"[0] x\n"
    assert run("-n", 2, "--no-prefix", path).stdout == b"x\nx\n"


def test_lines_of_many_ranks_stay_whole(script: Script) -> None:
    path = script(
        "line = bytes([97 + rank]) * 5000 + b'\\n'\n"
        "for i in range(200):\n"
        "    for piece in (line[:777], line[777:]): os.write(1, piece)\n"
    )
    lines = run("-n", 4, path).stdout.splitlines()
    assert len(lines) == 800
    for rank in range(4):
        assert lines.count(b"[%d] " % rank + bytes([97 + rank]) * 5000) == 200


def test_bytes_pass_unchanged(script: Script) -> None:
    everything = bytes(range(256)) * 1000 + b"end"
    path = script("if rank == 1: os.write(1, bytes(range(256)) * 1000 + b'end')")
    assert run("-n", 2, "--no-prefix", path).stdout == everything


def test_last_line_without_an_end_is_shown(script: Script) -> None:
    done = run("-n", 2, script("os.write(1, b'last')"))
    assert sorted(done.stdout.splitlines(keepends=True)) == [b"[0] last\n", b"[1] last\n"]


def test_words_before_a_hang_are_shown(script: Script) -> None:
    with running("-n", 2, script("os.write(1, b'loading'); time.sleep(600)")) as job:
        assert job.stdout is not None
        seen = b""
        while seen.count(b"loading") < 2:
            assert select.select([job.stdout], [], [], 10)[0]
            seen += os.read(job.stdout.fileno(), 4096)
        assert sorted(seen.splitlines()) == [b"[0] loading", b"[1] loading"]


def test_progress_bar_is_reduced_to_its_last_state(script: Script) -> None:
    path = script(
        "for i in range(50): os.write(2, b'\\r%d%%' % (2 * i + 2)); time.sleep(0.002)\n"
        "os.write(2, b'\\nnext\\r\\n')\n"
    )
    lines = run("-n", 2, path).stderr.split(b"\n")
    ranks_lines = [line for line in lines if line[:1] == b"["]
    assert sorted(ranks_lines) == [b"[0] 100%", b"[0] next\r", b"[1] 100%", b"[1] next\r"]


def test_progress_bar_is_redrawn_in_place_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    read_end, write_end = os.pipe()
    sink = Sink(terminal)
    stream = Stream(read_end, sink, 0)
    try:
        for state in (b"10%", b"20%"):
            os.write(write_end, b"\r" + state)
            stream.read(0.0)
            assert stream.show_at() is not None
            stream.show()
        sink.say("other")
        os.write(write_end, b"\r30%\n")
        stream.read(0.0)
        prefix = b"\x1b[36m[0]\x1b[0m "
        expected = prefix + b"10%\r\x1b[K" + prefix + b"20%\r\nother\r\n" + prefix + b"30%\r\n"
        seen = b""
        while len(seen) < len(expected):
            assert select.select([controller], [], [], 5)[0]
            seen += os.read(controller, 4096)
        assert seen == expected
    finally:
        stream.finish()
        for descriptor in (controller, terminal, write_end):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([b"a\nb\n"], b"[7] a\n[7] b\n"),
        ([b"a", b"b\nc\n"], b"[7] ab\n[7] c\n"),
        ([b"10%\r", b"20%\r", b"\n"], b"[7] 10%\n[7] 20%\n"),
        ([b"\r", b"10%\n"], b"[7] 10%\n"),
        ([b"\n\n"], b"[7] \n[7] \n"),
        ([b"a\rb\rc\n"], b"[7] c\n"),
        ([b"a\r\nb\r\n"], b"[7] a\r\n[7] b\r\n"),
        ([b"x", b"\r\n"], b"[7] x\n"),
        ([b"\xff\xfe\x00\n"], b"[7] \xff\xfe\x00\n"),
    ],
)
def test_pieces_that_are_shown_one_by_one_make_lines(
    tmp_path: Path, writes: list[bytes], expected: bytes
) -> None:
    with (tmp_path / "output").open("wb") as file:
        read_end, write_end = os.pipe()
        stream = Stream(read_end, Sink(file.fileno()), 7)
        for data in writes:
            os.write(write_end, data)
            stream.read(0.0)
            stream.show()
        os.close(write_end)
        stream.finish()
    assert (tmp_path / "output").read_bytes() == expected


def test_of_tracebacks_from_one_place_the_first_is_shown_whole(script: Script) -> None:
    path = script("""
def fail():
    raise ValueError(f"rank {rank} cannot")
while rank and not os.path.exists("pid0.done"): time.sleep(0.01)
if rank == 0:
    import atexit; atexit.register(lambda: (time.sleep(0.5), note("pid0.done")))
if rank == 2:
    raise ValueError("elsewhere")
fail()
""")
    lines = run("-n", 3, "--keep-going", path).stderr.decode().splitlines()
    shown = {rank: [line for line in lines if line.startswith(f"[{rank}]")] for rank in range(3)}
    assert shown[0][0] == "[0] Traceback (most recent call last):"
    assert shown[0][-1] == "[0] ValueError: rank 0 cannot"
    assert shown[1] == ["[1] (traceback as on rank 0)", "[1] ValueError: rank 1 cannot"]
    assert shown[2][0] == "[2] Traceback (most recent call last):"
    assert shown[2][-1] == "[2] ValueError: elsewhere"


def test_a_traceback_without_an_end_is_shown_too(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        read_end, write_end = os.pipe()
        stream = Stream(read_end, Sink(file.fileno()), 7, Tracebacks())
        os.write(write_end, b"a\nTraceback (most recent call last):\n  File\n    li")
        stream.read(0.0)
        assert stream.show_at() is not None
        stream.show()
        os.write(write_end, b"ne\nError\n")
        os.close(write_end)
        stream.read(0.0)
        stream.finish()
    shown = b"[7] a\n[7] Traceback (most recent call last):\n[7]   File\n[7]     line\n[7] Error\n"
    assert (tmp_path / "output").read_bytes() == shown


def test_reader_that_goes_away_ends_the_job(script: Script) -> None:
    path = script("wait_for('pid0', 'pid1')\nwhile True: print('x' * 1000)")
    with running("-n", 2, path) as job:
        assert job.stdout is not None
        job.stdout.read(100)
        job.stdout.close()
        assert job.wait(100) != 0
        job.stdout = None
    assert_gone(*noted("pid0", "pid1"))


def test_of_warnings_alike_the_first_is_shown_and_of_other_lines_all(script: Script) -> None:
    path = script("""
import logging, warnings
warnings.warn("alike")
warnings.warn(f"of rank {rank}")
logging.getLogger("malt").warning("malt: rank %d has NaN", rank)
print("malt is here", file=sys.stderr)
""")
    lines = run("-n", 3, path).stderr.splitlines()
    for text, times in {
        b"UserWarning: alike": 1,
        b'  warnings.warn("alike")': 1,
        b"UserWarning: of rank ": 3,
        b"  warnings.warn(f": 3,
        b"malt: rank ": 1,
        b"malt is here": 3,
    }.items():
        assert sum(line[:1] == b"[" and text in line for line in lines) == times, text


def test_a_rank_may_repeat_its_own_warning() -> None:
    shown = Tracebacks()
    first, other = (Watched(rank, shown) for rank in range(2))
    assert [first.take(b"malt: late\n") for _ in range(2)] == [b"malt: late\n"] * 2
    assert other.take(b"malt: late\n  indented\nnext\n") == b"next\n"
