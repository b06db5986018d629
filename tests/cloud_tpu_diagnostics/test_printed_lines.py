"""The last lines that Python prints in a block, where no file has them; the streams stay those of the program."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics._collect.printed_lines import PrintedLines
from cloud_tpu_diagnostics._console.memory import TAIL_BYTES
from cloud_tpu_diagnostics._console.ring import Ring, read_ring, written_bytes
from cloud_tpu_diagnostics.entries import CONSOLE
from hypothesis import given
from hypothesis import strategies as st

from ..waiting import LONG_SECONDS, wait_until
from .accompanied_jobs import of_kind
from .test_run import _RUN

_HEAD = """
import ctypes, os, signal, sys, threading, time
from cloud_tpu_diagnostics import diagnose
"""


def run(program: str, *wrapper: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, sys.executable, "-c", _HEAD + program]
    return subprocess.run(command, **{"capture_output": True, **popen}, text=True, timeout=LONG_SECONDS, check=False)


def recorded() -> dict[str, str]:
    """Return the last lines by stream, once the companion has recorded them."""
    wait_until(lambda: bool(of_kind(CONSOLE)))
    wait_until(lambda: len(of_kind(CONSOLE)) >= 2)
    return {entry["stream"]: entry["message"] for entry in of_kind(CONSOLE) if entry.get("is_of_python")}


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(4)", "ctypes.string_at(0)"])
def test_what_python_has_printed_survives_any_end_of_the_process(end: str) -> None:
    done = run(
        f"""
with diagnose(hangs=True):
    print("step", 12, "loss", 0.5)
    print("careful: μ is small", file=sys.stderr)
    sys.stdout.writelines(["one\\n", "two\\n"])
    os.write(1, b"native line\\n")
    {end}
""",
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert done.stdout == "native line\n"  # Python's own buffer is lost with the process.
    assert recorded() == {"out": "step 12 loss 0.5\none\ntwo\n", "err": "careful: μ is small\n"}


def test_the_streams_of_a_program_are_as_before_after_the_block() -> None:
    done = run(
        """
streams = sys.stdout, sys.stderr
before = [dict(vars(stream)) for stream in streams]
with diagnose(hangs=True):
    print("inside")
    assert (sys.stdout, sys.stderr) == streams
    assert [stream.fileno() for stream in streams] == [1, 2]
assert [dict(vars(stream)) for stream in streams] == before
print("after")
"""
    )
    assert (done.returncode, done.stdout) == (0, "inside\nafter\n"), done.stderr


def test_a_program_that_wraps_the_stream_later_keeps_its_own_wrapper() -> None:
    done = run(
        """
with diagnose(hangs=True):
    ours = sys.stdout.write
    def theirs(text):
        return ours(text.upper())
    sys.stdout.write = theirs
    print("inside")
print("after")
assert sys.stdout.write is theirs
"""
    )
    assert (done.returncode, done.stdout) == (0, "INSIDE\nAFTER\n"), done.stderr


def test_a_wrapper_that_was_there_before_is_restored() -> None:
    done = run(
        """
plain = sys.stdout.write
def theirs(text):
    return plain(text.upper())
sys.stdout.write = theirs
with diagnose(hangs=True):
    print("inside")
assert sys.stdout.write is theirs
print("after")
"""
    )
    assert (done.returncode, done.stdout) == (0, "INSIDE\nAFTER\n"), done.stderr


def test_a_forked_child_prints_to_its_own_stream_and_not_to_the_record_of_its_parent() -> None:
    done = run(
        """
with diagnose(hangs=True):
    print("parent", flush=True)
    print("parent", file=sys.stderr)
    child = os.fork()
    if not child:
        print("child", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert sorted(done.stdout.split()) == ["child", "parent"]
    assert recorded()["out"] == "parent\n"


def test_a_stream_that_is_a_file_is_read_from_outside_and_left_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        done = run(
            """
with diagnose(hangs=True):
    assert "write" not in vars(sys.stdout)
    assert "write" in vars(sys.stderr)
""",
            capture_output=False,
            stdout=log,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 0, done.stderr


def test_under_run_nothing_is_wrapped() -> None:
    done = run("with diagnose(hangs=True): print('write' in vars(sys.stdout), 'write' in vars(sys.stderr))", *_RUN)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("how", ["variable", "option"])
def test_nothing_is_kept_if_the_user_does_not_want_it(how: str) -> None:
    program = """
with diagnose(hangs=True):
    assert "write" not in vars(sys.stdout)
    print("private")
    sys.exit(5)
"""
    if how == "variable":
        done = run(program, env={**os.environ, "ML_DIAGNOSTICS_CONSOLE": "off"})
    else:
        done = run(program, *_RUN[:-1], "--no-console", "--")
    assert (done.returncode, done.stdout) == (5, "private\n"), done.stderr
    wait_until(lambda: bool(of_kind("left_block") or of_kind("job_ended")))
    assert of_kind(CONSOLE) == []


def test_a_program_without_streams_or_with_its_own_goes_on() -> None:
    done = run(
        """
class Slots:
    __slots__ = ()
    def write(self, text): os.write(1, text.encode())
    def flush(self): pass
class Bytes:
    def write(self, data, extra): return len(data)
for stdout, stderr in ((None, None), (Slots(), Slots()), (Bytes(), Slots())):
    sys.stdout, sys.stderr = stdout, stderr
    with diagnose(hangs=True):
        if isinstance(stdout, Slots): print("slots")
        if isinstance(stdout, Bytes): assert stdout.write(b"abc", None) == 3
os._exit(0)
"""
    )
    assert (done.returncode, done.stdout) == (0, "slots\n"), done.stderr


def test_both_streams_in_one_object_have_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Notebook(io.StringIO):
        pass

    notebook = Notebook()
    monkeypatch.setattr(sys, "stdout", notebook)
    monkeypatch.setattr(sys, "stderr", notebook)
    printed = PrintedLines()
    print("out")
    print("err", file=sys.stderr)
    assert {name: read_ring(ring.descriptor)[0] for name, ring in printed.rings.items()} == {"out+err": b"out\nerr\n"}
    printed.undo()
    print("after")
    assert notebook.getvalue() == "out\nerr\nafter\n"


def test_a_stream_takes_its_text_by_any_keyword_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Widget(io.StringIO):
        def write(self, string: str, *, color: str = "") -> int:
            return super().write(f"{color}{string}")

    monkeypatch.setattr("sys.stdout", widget := Widget())
    printed = PrintedLines()
    assert sys.stdout.write(string="loss\n") == 5  # type: ignore[call-arg]
    sys.stdout.write("step\n", color="red ")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="string"):
        sys.stdout.write()  # type: ignore[call-arg]
    kept, _ = read_ring(printed.rings["out"].descriptor)
    printed.undo()
    assert widget.getvalue() == "loss\nred step\n"
    assert kept == b"loss\nstep\n"


def test_a_stream_that_refuses_to_be_restored_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sealed(io.StringIO):
        def __delattr__(self, name: str) -> None:
            raise AttributeError(name)

    monkeypatch.setattr("sys.stdout", sealed := Sealed())
    printed = PrintedLines()
    printed.undo()
    sys.stdout.write("later\n")
    assert sealed.getvalue() == "later\n"


_LONG = st.integers(0, 3 * TAIL_BYTES // 256).map(lambda times: bytes(range(256)) * times)


@given(st.lists(st.binary(max_size=300) | _LONG, max_size=12))
def test_a_ring_has_the_last_bytes_whatever_was_written(written: list[bytes]) -> None:
    ring = Ring()
    for data in written:
        ring.add(data)
    everything = b"".join(written)
    assert read_ring(ring.descriptor) == (everything[-TAIL_BYTES:], max(0, len(everything) - TAIL_BYTES))
    assert written_bytes(ring.descriptor) == len(everything)
    ring.release()


def test_lines_of_many_threads_are_whole() -> None:
    ring = Ring()
    lines = 100  # Fewer than may wait for a thread that is interrupted.

    def add(name: int) -> None:
        for number in range(lines):
            ring.add(f"{name} {number}\n".encode())

    threads = [threading.Thread(target=add, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [line.split() for line in read_ring(ring.descriptor)[0].decode().splitlines()]
    for name in range(8):
        assert [int(number) for each, number in found if each == str(name)] == list(range(lines))
    ring.release()


def test_a_signal_handler_may_print_while_its_thread_prints() -> None:
    done = run(
        """
import json
from cloud_tpu_diagnostics._console.ring import Ring, read_ring
ring, handled = Ring(), 0
def handler(number, frame):
    global handled
    handled += 1
    ring.add(b"handler\\n")
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while handled < 200:
    ring.add(b"main\\n")
signal.setitimer(signal.ITIMER_REAL, 0)
ring.add(b"main\\n")
print(json.dumps(sorted(set(read_ring(ring.descriptor)[0].decode().splitlines()[1:]))))
"""
    )
    assert json.loads(done.stdout) == ["handler", "main"], done.stderr


def test_the_memory_of_a_ring_is_read_after_its_release() -> None:
    ring = Ring()
    reader = os.dup(ring.descriptor)
    ring.add(b"last")
    ring.release()
    assert read_ring(reader) == (b"last", 0)
    os.close(reader)
    with pytest.raises(ValueError, match="closed"):
        ring.add(b"later")
