"""An exception that leaves a block leaves its stack: file, line and function, the step, and no values."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._dumps.parser import Trigger, parse_dumps
from cloud_tpu_diagnostics._dumps.text import exception_text
from cloud_tpu_diagnostics.entries import DUMP, JOB_ENDED, LOG_ID
from ml_diagnostics_common.reader import JournalReader

from ..waiting import wait_until
from .diagnosed_jobs import HEADER, run

Show = Callable[..., tuple[int, str, str]]

TRAIN = """
def train_step(batch, credential="abcdef-value-of-a-variable"):
    raise ValueError(f"batch {batch} is empty, password=hunter2hunter2")

def train():
    try:
        {}["learning_rate"]
    except KeyError as missing:
        diagnostic.heartbeat(12)
        raise RuntimeError("no configuration") from missing

with diagnostic.diagnose(config(%s)):
    diagnostic.heartbeat(11)
    diagnostic.heartbeat(12)
    %s
"""


def _kinds() -> list[str]:
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    return [entry.payload["kind"] for batch in JournalReader(LOG_ID, root=root).read_new() for entry in batch]


def test_an_exception_is_shown_with_its_location_and_step_from_the_folder(show: Show, tmp_path: Path) -> None:
    code, _, err = run(TRAIN % ("cloud=True", "train_step(7)"), tmp_path)
    assert code == 1
    assert "Traceback" in err
    code, out, _ = show(str(tmp_path))
    assert code == 0
    assert "raised ValueError: batch 7 is empty, password=[REDACTED] in train_step (<string>:" in out.splitlines()[0]
    assert out.splitlines()[0].endswith(" at step 12")
    assert "    train_step (<string>:" in out
    assert "    <module> (<string>:" in out
    assert "no Python frame known" not in out
    assert "abcdef-value" not in out
    (file,) = tmp_path.glob("stack_trace_*")
    assert "hunter2" not in file.read_text()
    assert "abcdef-value" not in file.read_text()


@pytest.mark.parametrize("where", ["the file", "the console, and hangs are watched for"])
def test_an_exception_is_shown_from_the_journal_with_any_output_of_stacks(
    show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_JOB", "llama")
    program = TRAIN % ("cloud=True" if where == "the file" else "", "train()")
    if where != "the file":
        watched = "from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig\nwatched = config()\n"
        watched += "watched.debug_config.hang_config = HangConfig(enabled=True)\n"
        program = watched + program.replace("config()", "watched")
    assert run(program, tmp_path)[0] == 1
    wait_until(lambda: JOB_ENDED in _kinds())
    assert DUMP in _kinds()
    code, out, _ = show("--job", "llama")
    assert code == 0
    assert "raised RuntimeError: no configuration in train (<string>:" in out.splitlines()[0]
    assert out.splitlines()[0].endswith(" at step 12")
    assert "  Caused by KeyError: 'learning_rate'\n    train (<string>:" in out
    assert "The job ended with an exception: RuntimeError" in out
    picture = json.loads(show("--job", "llama", "--format", "json")[1])
    (ended,) = picture["ended"]
    assert ended["step"] == 12
    assert ended["headline"].startswith("Exception left diagnose() at step 12: RuntimeError: no configuration")


def test_a_job_that_enters_another_block_after_an_exception_has_not_ended(show: Show, tmp_path: Path) -> None:
    program = """
for number in range(2):
    try:
        with diagnostic.diagnose(config(0.05, cloud=True)):
            if not number:
                raise KeyError("first")
            time.sleep(1)
            os._exit(0)
    except KeyError:
        pass
"""
    run(program, tmp_path)
    assert "raised" not in show(str(tmp_path))[1]


@pytest.mark.parametrize("error", ["SystemExit", "SystemExit(0)"])
def test_an_exit_without_an_error_leaves_no_stack(tmp_path: Path, error: str) -> None:
    assert run(f"with diagnostic.diagnose(config(cloud=True)): raise {error}", tmp_path)[0] == 0
    (file,) = tmp_path.glob("stack_trace_*")
    assert "Exception left" not in file.read_text()


def test_ctrl_c_leaves_no_stack_and_loads_nothing_that_describes_it(tmp_path: Path) -> None:
    program = """
try:
    with diagnostic.diagnose(config(cloud=True)):
        raise KeyboardInterrupt
except KeyboardInterrupt:
    describing = "ml_diagnostics_common.raised_exception", "ml_diagnostics_common.redaction"
    output([name in sys.modules for name in describing])
"""
    assert run(program, tmp_path)[1].strip() == "[False, False]"
    (file,) = tmp_path.glob("stack_trace_*")
    assert "Exception left" not in file.read_text()


def test_an_exception_loads_no_parser_and_the_redactor_only_for_a_message(tmp_path: Path) -> None:
    program = """
for error in (AssertionError(), ValueError("batch 12 is empty")):
    try:
        with diagnostic.diagnose(config(cloud=True)):
            raise error
    except Exception:
        output([f"{package}.{name}" in sys.modules for package, name in (
            ("ml_diagnostics_common", "raised_exception"),
            ("cloud_tpu_diagnostics", "_dumps.parser"),
            ("ml_diagnostics_common", "redaction"),
        )])
"""
    assert run(program, tmp_path)[1].splitlines() == ["[True, False, False]", "[True, False, True]"]
    (file,) = tmp_path.glob("stack_trace_*")
    assert "Exception left diagnose(): AssertionError\n" in file.read_text()
    assert "Exception left diagnose(): ValueError: batch 12 is empty\n" in file.read_text()


def _raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_deep_recursion_is_cut_in_the_middle_and_read_again() -> None:
    def descend(depth: int) -> None:
        descend(depth + 1)

    text = exception_text(_raised(lambda: descend(0)), 4)
    assert len(text) < 40_000
    (dump,) = parse_dumps(text)
    assert dump.trigger is Trigger.EXCEPTION
    assert dump.step == 4
    assert dump.headline.startswith("Exception left diagnose() at step 4: RecursionError: maximum recursion depth")
    (stack,) = dump.threads
    functions = [frame.function for frame in stack.frames]
    assert functions[:50] == ["descend"] * 50
    assert functions[50].startswith("... ")
    assert functions[50].endswith(" frames left out ...")
    assert "_raised" in functions[51:]
    assert len(functions) == 101


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are of Python 3.11")
def test_the_members_of_a_group_and_the_context_are_shown_with_their_locations() -> None:
    def first() -> None:
        raise OSError(2, "no such file", "/data/shard-7")

    def second() -> None:
        try:
            first()
        except OSError:
            raise ExceptionGroup("two loaders failed", [_raised(first), KeyError("x")])  # type: ignore[name-defined] # noqa: B904, F821

    (dump,) = parse_dumps(exception_text(_raised(second), None))
    assert dump.step is None
    assert dump.headline.endswith("ExceptionGroup: two loaders failed (2 sub-exceptions)")
    assert [stack.thread for stack in dump.threads] == [
        "",
        "While handling FileNotFoundError: [Errno 2] no such file: '/data/shard-7'",
        "In the group FileNotFoundError: [Errno 2] no such file: '/data/shard-7'",
        "In the group KeyError: 'x'",
    ]
    assert [stack.is_current for stack in dump.threads] == [True, False, False, False]
    assert [stack.frames[0].function for stack in dump.threads[:3]] == ["second", "first", "first"]


def test_an_exception_between_other_dumps_is_read_in_pieces_of_any_size() -> None:
    def fail() -> None:
        raise RuntimeError("line one\nThread 0x1 (most recent call first):\nFatal Python error: none")

    timer = f'{HEADER} 60 seconds.\nTimeout (0:01:00)!\nThread 0x1 (most recent call first):\n  File "a", line 1 in f\n'
    text = timer + exception_text(_raised(fail), None) + timer
    dumps = parse_dumps(text)
    assert [dump.trigger for dump in dumps] == [Trigger.TIMER, Trigger.EXCEPTION, Trigger.TIMER]
    assert dumps[1].threads[0].frames[0].function == "fail"


@pytest.mark.timing
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a companion is needed")
def test_leaving_with_an_exception_does_not_wait(tmp_path: Path) -> None:
    program = """
def descend(): descend()
start = time.monotonic()
try:
    with diagnostic.diagnose(config(cloud=True)):
        start = time.monotonic()
        descend()
except RecursionError:
    output(time.monotonic() - start)
"""
    started = time.monotonic()
    assert float(run(program, tmp_path)[1]) < 2.0
    assert time.monotonic() - started < 30
