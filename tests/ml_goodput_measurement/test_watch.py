"""`goodput watch`: a job while it runs; each refresh reads only what is new."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.reader import JournalReader
from ml_goodput_measurement import cli
from ml_goodput_measurement._cli.watch_command import WatchCommand
from ml_goodput_measurement.goodput import GoodputRecorder

from .simulated import JOB, SHORT_JOB, record

SECOND = 10**9


class Clock:
    """A clock that the sleeps of a command advance; each sleep calls a function."""

    def __init__(self, now: float, *actions: Callable[[], None]) -> None:
        self.now_ns = int(now * SECOND)
        self.actions = list(actions)
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += int(seconds * SECOND)
        if self.actions:
            self.actions.pop(0)()


def watch(clock: Clock, *arguments: str) -> tuple[int, str, str]:
    """Run the command with a clock; return its exit code and its output."""
    command = WatchCommand(sleep=clock.sleep, clock_ns=clock)
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    out, err = io.StringIO(), io.StringIO()
    code = command.run(parser.parse_args(arguments), Console("goodput", out=out, err=err))
    return code, out.getvalue(), err.getvalue()


def start(now: float) -> GoodputRecorder:
    """Record a job that started 100 s ago, and makes steps of 10 s since 80 s."""
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(now - 100)
    for step in range(8):
        recorder.record_step_start_time(step, now - 80 + 10 * step)
    return recorder


def test_a_job_is_shown_line_by_line_until_it_ends() -> None:
    now = time.time()
    recorder = start(now)
    clock = Clock(
        now,
        lambda: recorder.record_step_start_time(8, now + 5),
        lambda: recorder.record_job_end_time(now + 15),
    )
    code, out, err = watch(clock, "run-7")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert "   run-7   attempt 1   step 6   " in first
    assert re.search(r"   last event (9\.00|10\.0) s ago   PRODUCTIVE ", first)
    assert "   step 7   " in second
    assert "   ended   " in third
    assert clock.slept == [10.0, 10.0]


def test_a_refresh_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    recorder = start(now)
    read: list[int] = []
    read_new = JournalReader.read_new

    def counting(self: JournalReader, take: object = None) -> object:
        entries = list(read_new(self))
        read.append(sum(map(len, entries)))
        return iter(entries)

    monkeypatch.setattr(JournalReader, "read_new", counting)
    clock = Clock(now, lambda: None, lambda: recorder.record_step_start_time(8, now + 5))
    watch(clock, "run-7", "--count", "3")
    assert [count for count in read if count] == [9, 1]


def test_the_change_of_the_last_hour_is_shown() -> None:
    now = time.time()
    record(JOB, "run-7", ends_at=now, is_ended=False)
    _, out, _ = watch(Clock(now), "run-7", "--count", "1")
    assert " in 1 h   " in out
    assert "   RECOVERY " in out


def test_a_change_that_rounds_to_nothing_has_no_minus() -> None:
    """A day of steps, and 2 s in the last hour of something else."""
    now = time.time()
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(now - 86_400)
    for step in range(8_640):
        recorder.record_step_start_time(step, now - 86_400 + 10 * step)
    recorder.record_custom_badput_event_start_time(now - 8, "eval")
    recorder.record_custom_badput_event_end_time(now - 6, "eval")
    recorder.record_job_end_time(now)
    _, out, _ = watch(Clock(now), "run-7")
    assert "   100.0 %   +0.0 in 1 h   " in out


def test_data_is_a_line_of_json_each_time() -> None:
    now = time.time()
    start(now)
    _, out, _ = watch(Clock(now), "run-7", "--count", "2", "--every", "1m", "--format", "json")
    first, second = map(json.loads, out.splitlines())
    assert first["goodput_percent"] < second["goodput_percent"] or first["wall_seconds"] < second["wall_seconds"]
    assert first["change_points_in_1_h"] is None
    assert first["bucket_seconds"]["PRODUCTIVE"] > 0


def test_a_goodput_below_the_limit_is_exit_code_3() -> None:
    now = time.time()
    record(SHORT_JOB, "run-7", ends_at=now)
    code, _, err = watch(Clock(now), "run-7", "--fail-under", "99")
    assert code == 3
    assert "goodput: the goodput of 'run-7' is " in err
    assert err.endswith(" %, below 99 %\n")
    assert watch(Clock(now), "run-7", "--fail-under", "50%")[0] == 0


def test_a_young_job_is_not_checked() -> None:
    now = time.time()
    start(now)
    assert watch(Clock(now), "run-7", "--fail-under", "99", "--count", "2")[0] == 0
    assert watch(Clock(now), "run-7", "--fail-under", "99", "--count", "2", "--grace", "100s")[0] == 3


@pytest.mark.parametrize("percent", ["101", "-1", "low", "nan"])
def test_an_invalid_limit_is_a_usage_error(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["watch", "run-7", f"--fail-under={percent}"])
    assert exit_.value.code == 2
    assert "is not a percentage from 0 to 100" in capsys.readouterr().err


def test_an_unknown_job_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "run-7"]) == 3
    assert "Nothing was recorded for job 'run-7'" in capsys.readouterr().err


def test_a_terminal_shows_the_last_state_over_the_one_before() -> None:
    now = time.time()
    start(now)
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    clock = Clock(now)
    command = WatchCommand(sleep=clock.sleep, clock_ns=clock)
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    with os.fdopen(terminal, "w", encoding="utf-8") as out:
        command.run(parser.parse_args(["run-7", "--count", "2"]), Console("goodput", out=out))
        out.write("END")
        out.flush()
        text = ""
        while not text.endswith("END"):
            text += os.read(controller, 65536).decode()
    os.close(controller)
    first, second = text.split("\x1b[2A\x1b[J")
    assert "PRODUCTIVE \u2588" in first
    assert "run-7  attempt 1" in second
    assert all(len(line) < 80 for line in text.replace("\x1b[2A\x1b[J", "").splitlines())


def test_the_notes_of_a_source_are_shown(tmp_path: Path) -> None:
    from ml_diagnostics_common.environment import diagnostics_directory
    from ml_diagnostics_common.journal import log_directory

    now = time.time()
    start(now)
    folder = log_directory(diagnostics_directory(), "goodput_run-7")
    (segment,) = folder.glob("*.jsonl")
    segment.write_bytes(segment.read_bytes() + b"damaged\n")
    _, out, _ = watch(Clock(now), "run-7", "--count", "1", "--format", "json")
    assert json.loads(out)["notes"] == ["1 entry could not be read"]
