from __future__ import annotations

import faulthandler
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from cloud_tpu_diagnostics._dumps.parser import Dump, DumpParser, Frame, ThreadStack, Trigger, parse_dumps
from cloud_tpu_diagnostics._dumps.text import HEADER_START
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = f"{HEADER_START}600 seconds.\n"

# --- What CPython itself writes ---


@pytest.fixture
def waiting_threads() -> Iterator[None]:
    """Start three threads that wait in a function of a known name."""
    release = threading.Event()

    def waits_for_release() -> None:
        release.wait()

    threads = [threading.Thread(target=waits_for_release) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    release.set()
    for thread in threads:
        thread.join()


def _written(write: Callable[[IO[bytes]], object]) -> list[Dump]:
    with tempfile.TemporaryFile() as file:
        write(file)
        file.seek(0)
        return parse_dumps(file.read())


def test_a_real_dump_of_all_threads_is_read(waiting_threads: None) -> None:
    dumps = _written(lambda file: faulthandler.dump_traceback(file, all_threads=True))
    assert [dump.trigger for dump in dumps] == [Trigger.SIGNAL]
    waiting = [thread for thread in dumps[0].threads if any(f.function == "waits_for_release" for f in thread.frames)]
    assert len(waiting) == 3
    assert all(thread.thread.startswith("0x") and not thread.is_current for thread in waiting)
    assert all(frame.file.endswith(".py") and frame.line > 0 for thread in waiting for frame in thread.frames)
    current = [thread for thread in dumps[0].threads if thread.is_current]
    assert [thread.frames[0].file for thread in current] == [__file__]
    assert dumps[0].threads[-1] is current[0]  # The main thread is the last.


def test_two_real_dumps_in_a_row_are_two(waiting_threads: None) -> None:
    def write(file: IO[bytes]) -> None:
        for all_threads in (True, False, True):
            faulthandler.dump_traceback(file, all_threads=all_threads)

    dumps = _written(write)
    assert [len(dump.threads) > 1 for dump in dumps] == [True, False, True]
    assert dumps[1].threads[0].thread == ""
    assert dumps[1].threads[0].is_current


def test_a_real_fault_is_read(tmp_path: Path) -> None:
    crash = "import faulthandler, ctypes\nfaulthandler.enable()\ndef crashes(): ctypes.string_at(0)\ncrashes()"
    done = subprocess.run([sys.executable, "-c", crash], stderr=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGSEGV
    (dump,) = parse_dumps(done.stderr)
    assert (dump.trigger, dump.headline) == (Trigger.FAULT, "Fatal Python error: Segmentation fault")
    assert "crashes" in [frame.function for frame in dump.threads[-1].frames]


def test_real_dumps_of_the_timer_and_a_cut_are_read() -> None:
    hang = (
        "import faulthandler, threading, time\n"
        "for _ in range(120): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "faulthandler.dump_traceback_later(0.5, repeat=True)\n"
        "input()\n"
        "faulthandler.cancel_dump_traceback_later()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hang], stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stderr is not None
        written = b""
        while written.count(b"\n...\n") < 2:
            written += process.stderr.read(65536) or pytest.fail("it ended")
        written += process.communicate(b"\n")[1]
    assert process.returncode == 0
    dumps = parse_dumps(written)
    assert len(dumps) >= 2
    assert {(dump.trigger, dump.is_cut, len(dump.threads)) for dump in dumps} == {(Trigger.TIMER, True, 100)}
    assert dumps[0].headline.startswith("Timeout (0:00:00.5")


# --- What may be around it ---

STACK = '  File "/a b/train.py", line 7 in step\n  File "<string>", line 1 in <module>\n'
FRAMES = (Frame("/a b/train.py", 7, "step"), Frame("<string>", 1, "<module>"))


def test_the_header_belongs_to_the_dump_after_it() -> None:
    text = f"{HEADER}Timeout (0:10:00)!\nThread 0x1 (most recent call first):\n{STACK}"
    assert parse_dumps(text) == [
        Dump(Trigger.TIMER, "Timeout (0:10:00)!", (ThreadStack("0x1", False, FRAMES),), False, text)
    ]


def test_periodic_dumps_of_the_public_package_are_dumps_of_the_timer() -> None:
    (dump,) = parse_dumps(f"{HEADER}Current thread 0x1 (most recent call first):\n{STACK}")
    assert (dump.trigger, dump.headline) == (Trigger.TIMER, "")


def test_a_header_alone_is_not_a_dump() -> None:
    assert parse_dumps(HEADER * 3) == []


def test_names_of_threads_and_c_stacks_of_newer_pythons_are_read() -> None:
    text = (
        "Fatal Python error: Aborted\n\n"
        f"Current thread 0x00007f12 [MainThread] (most recent call first):\n  Garbage-collecting\n{STACK}\n"
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python3", at _Py_DumpStack+0x1e [0x5581]\n'
        "  <truncated rest of calls>\n\n"
        "Extension modules: numpy.core, a.b (total: 2)\n"
    )
    (dump,) = parse_dumps(text)
    assert dump.threads == (ThreadStack("0x00007f12 [MainThread]", True, FRAMES),)
    assert dump.text == text


def test_a_fault_is_complete_with_the_names_of_modules() -> None:
    parser = DumpParser()
    assert (
        parser.feed(f"Fatal Python error: Bus error\n\nThread 0x1 (most recent call first):\n{STACK}\n".encode()) == []
    )
    assert len(parser.feed(b"Extension modules: a (total: 1)\n")) == 1


def test_a_cut_is_reported_at_once() -> None:
    parser = DumpParser()
    assert parser.feed(f"Thread 0x1 (most recent call first):\n{STACK}\n".encode()) == []
    (dump,) = parser.feed(b"...\n")
    assert dump.is_cut


def test_a_dump_behind_a_progress_bar_is_found() -> None:
    text = f"\r 45%|####   | 9/20Timeout (0:00:10)!\nThread 0x1 (most recent call first):\n{STACK}"
    (dump,) = parse_dumps(text)
    assert (dump.headline, dump.threads[0].frames) == ("Timeout (0:00:10)!", FRAMES)


def test_text_of_the_program_between_the_lines_of_a_dump_is_left_out() -> None:
    text = (
        "Timeout (0:00:10)!\nThread 0x1 (most recent call first):\n"
        '  File "/a b/train.py", line 7 in step\n'
        'step 12, the password is secret\n  File "<string>", line 1 in <module>\n'
        "Traceback (most recent call last):\n"
        '  File "/elsewhere.py", line 3, in f\n'
    )
    (dump,) = parse_dumps(text)
    assert dump.threads[0].frames == FRAMES
    assert "secret" not in dump.text
    assert "elsewhere" not in dump.text


def test_a_torn_dump_has_its_existing_threads() -> None:
    threads = [f"Thread {thread} (most recent call first):\n{STACK}" for thread in ("0x2", "0x1")]
    whole = "Timeout (0:00:10)!\n" + "\n".join(threads)
    for length in range(len("Timeout (0:00:10)!"), len(whole)):
        (dump,) = parse_dumps(whole[:length])
        assert len(dump.threads) <= 2


# --- For every text ---

_names = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
_functions = st.from_regex(r"[a-z_<][a-z0-9_]{0,8}>?", fullmatch=True)
_frames = st.builds(Frame, _names.map(lambda name: f"/lib/{name}.py"), st.integers(0, 10**6), _functions)
_stacks = st.lists(_frames, max_size=5).map(tuple)


@st.composite
def _dumps(draw: st.DrawFn) -> tuple[Dump, str]:
    """Draw a dump, and the text that faulthandler would write."""
    trigger = draw(st.sampled_from([Trigger.TIMER, Trigger.FAULT, Trigger.SIGNAL]))
    stacks = draw(st.lists(_stacks, min_size=1, max_size=4))
    threads = [ThreadStack(f"0x{number:016x}", number == 2, frames) for number, frames in enumerate(stacks)]
    headline = {Trigger.TIMER: "Timeout (0:10:00)!", Trigger.FAULT: "Fatal Python error: Bus error"}.get(trigger, "")
    head = {Trigger.TIMER: HEADER + headline + "\n", Trigger.FAULT: headline + "\n\n"}.get(trigger, "")
    text = head + "\n".join(_thread_text(thread) for thread in threads)
    is_cut = draw(st.booleans())
    text += "\n...\n" if is_cut else ""
    return Dump(trigger, headline, tuple(threads), is_cut, text), text


def _thread_text(thread: ThreadStack) -> str:
    head = "Current thread" if thread.is_current else "Thread"
    lines = [f'  File "{frame.file}", line {frame.line or "???"} in {frame.function}\n' for frame in thread.frames] or [
        "  <no Python frame>\n"
    ]
    return f"{head} {thread.thread} (most recent call first):\n{''.join(lines)}"


@given(st.lists(_dumps(), max_size=4))
def test_dumps_are_read_as_they_were_written(dumps: list[tuple[Dump, str]]) -> None:
    assert parse_dumps("".join(text for _, text in dumps)) == [dump for dump, _ in dumps]


@given(st.lists(_dumps(), min_size=1, max_size=3), st.lists(st.integers(1, 40), min_size=1))
def test_a_dump_in_pieces_is_parsed_like_the_whole(dumps: list[tuple[Dump, str]], sizes: list[int]) -> None:
    data = "".join(text for _, text in dumps).encode()
    parser, found, at, turn = DumpParser(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += parser.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found + parser.finish() == [dump for dump, _ in dumps]


_PIECES = [
    b"\n", b"\r\n", b"\r", b"\x00", b"\xff", b"...\n", b"  ...\n", b"  <truncated rest of calls>\n",
    b"Thread 0x1 (most recent call first):\n", b"Thread 0x", b"Current thread 0x2 (most recent call first):",
    b"Stack (most recent call first):\n", b'  File "a", line 3 in f\n', b"  File ???, line ??? in ???\n",
    b"Timeout (0:00:01)!\n", b"Fatal Python error: x\n", b"Extension modules: a\n", HEADER.encode(), b"\xe2\x80\xa8",
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=8))), st.integers(1, 30))
def test_any_text_is_parsed_without_an_error_and_the_same_in_pieces(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    parser = DumpParser()
    found = [dump for at in range(0, len(data), size) for dump in parser.feed(data[at : at + size])]
    assert found + parser.finish() == parse_dumps(data)
    assert parser.finish() == []


@pytest.mark.parametrize(
    "text",
    ["x" * 65536, "\n" * 65536, STACK * 700, "\nThread 0x{round}{round} (most recent call first):\n" + STACK * 300],
    ids=["a line without end", "empty lines", "a stack without end", "threads without end"],
)
def test_memory_stays_bounded(text: str) -> None:
    def held_after(rounds: int) -> int:
        parser = DumpParser()
        parser.feed(b"Timeout (0:00:01)!\nThread 0x2 (most recent call first):\n")
        tracemalloc.start()
        try:
            for number in range(rounds):
                assert parser.feed(text.replace("{round}", f"{number:x}").encode()) == []
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert held_after(300) < 1.2 * held_after(150) + 1_000_000
