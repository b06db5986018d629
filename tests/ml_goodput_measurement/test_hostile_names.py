"""Names of jobs, teams and custom events come from outside: they never control a terminal, a line or a cell."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from pathlib import Path

import pytest
from ml_goodput_measurement import cli
from ml_goodput_measurement.goodput import CheckpointLogger, GoodputRecorder

from ..terminals import run_in_terminal
from .histories import orbax_save

GOODPUT = str(Path(sys.executable).parent / "goodput")
COLORS = re.compile(r"\x1b\[\d*m")
OVER_EACH_OTHER = re.compile(r"\x1b\[\d+A\x1b\[J")
NAMES = [
    "team a/run 7",
    "../../etc/passwd",
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "two\nlines\r\nand \x9b31m",
    "[bold]markup[/bold] <script> %s {0} $(id)",
    "=HYPERLINK(1)",
    "\u202egnp.exe \u2066 \u200b",
    "\udcff\ud800",
    "a" * 300,
]
COMMANDS = [
    ["report", "NAME"],
    ["report", "NAME", "--since", "1h", "--cost", "3.22/chip-hour", "--chips", "256"],
    ["report", "NAME", "--cost", "3.22/chip-hour", "--chips", "256"],
    ["watch", "NAME", "--count", "1"],
    ["compare", "NAME", "NAME", "--cost", "3.22/chip-hour", "--chips", "256"],
    ["advise", "NAME"],
    ["what-if", "NAME", "--interval", "60s"],
]


def record_job(name: str) -> None:
    """Record a job of 100 s, which is over, with saves and a custom event of its name."""
    now = time.time()
    recorder = GoodputRecorder(name, f"goodput_{name}", logging_enabled=True)
    recorder.record_job_start_time(now - 100)
    checkpoints = CheckpointLogger(recorder)
    for step in range(8):
        recorder.record_step_start_time(step, now - 90 + 10 * step)
        if step % 2:
            save = orbax_save(step, 0, 1, "gs://bucket/run")
            save["checkpoint_manager_blocking_start_time"] = now - 81 + 10 * step
            checkpoints.log_entry(save)
    recorder.record_custom_badput_event_start_time(now - 40, name)
    recorder.record_custom_badput_event_end_time(now - 38, name)
    recorder.record_job_end_time(now)
    recorder.flush()


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("arguments", [["list"], *COMMANDS], ids=" ".join)
def test_a_name_does_not_control_the_output(
    name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record_job(name)
    argv = [name if argument == "NAME" else argument for argument in arguments]
    assert cli.main(argv) == 0
    output = capsys.readouterr()
    assert_harmless(output.out)
    assert_harmless(output.err)
    assert "\n" not in name or "lines\r" not in output.out
    for line in output.out.splitlines():
        assert not line.startswith("lines")
    formats = ["json"] if arguments[0] == "watch" else ["json", "yaml", "csv"]
    for style in formats:
        assert cli.main([*argv, "--format", style]) == 0
        data = capsys.readouterr().out
        assert_harmless(data)
        if style == "json":
            json.loads(data)
        if style == "csv":
            rows = list(csv.DictReader(io.StringIO(data)))
            assert rows
            assert not any(str(cell).startswith("=") for row in rows for cell in row.values())


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_an_unknown_name_is_an_error_of_harmless_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in COMMANDS:
        argv = [name if argument == "NAME" else argument for argument in arguments]
        assert cli.main(argv) == 3
        output = capsys.readouterr()
        assert output.out == ""
        assert_harmless(output.err)


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_a_terminal_receives_no_escape_sequence_but_our_own_colors(columns: int) -> None:
    for name in NAMES:
        record_job(name)
    name = NAMES[2]
    for arguments in (["list"], *COMMANDS):
        argv = [GOODPUT, *(name if argument == "NAME" else argument for argument in arguments)]
        shown = run_in_terminal(argv, columns)
        assert shown.code == 0, shown
        for text in (shown.output, shown.errors):
            assert_harmless(OVER_EACH_OTHER.sub("", COLORS.sub("", text)))
            assert "\x1b[31mred" not in text


def assert_harmless(text: str) -> None:
    """No control character but line breaks, and no lone surrogate."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text), ascii(text)
