"""diagnose() with keywords instead of four nested configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics import diagnose
from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.exceptions import ConfigurationError

from .accompanied_jobs import payloads
from .diagnosed_jobs import run

PROGRAM = """
from cloud_tpu_diagnostics import diagnose, heartbeat
with diagnose(stack_traces=True, hangs={hangs}, directory=sys.argv[2]):
    heartbeat(1)
    raise_signal(signal.SIGUSR1)
"""


@pytest.mark.parametrize("hangs", ["False", "True"])
def test_stack_traces_are_written_to_the_given_folder_which_is_made(tmp_path: Path, hangs: str) -> None:
    folder = tmp_path / "jobs" / "stacks"
    code, _, err = run(PROGRAM.format(hangs=hangs), tmp_path / "d", str(folder))
    assert code == 0
    (trace,) = folder.iterdir()
    assert "in raise_signal" in trace.read_text()
    assert err == ""
    assert not list((tmp_path / "d").glob("*"))


def test_a_link_to_a_folder_is_a_folder(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert run(PROGRAM.format(hangs="False"), tmp_path / "d", str(link))[0] == 0
    assert len(list(real.iterdir())) == 1


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    code, _, err = run(PROGRAM.format(hangs="False"), tmp_path / "d", str(file))
    assert code == 0
    assert f"No stack traces can be written in {file}" in err
    assert "Give a folder that this user can write." in err


@pytest.mark.parametrize("directory", ["", " ", "gs://bucket/stacks", 3, b"x", "a\0b"])
def test_a_directory_that_is_not_a_folder_of_this_machine_is_an_error_on_entering(directory: Any) -> None:
    block = diagnose(stack_traces=True, directory=directory)
    with pytest.raises(ConfigurationError, match="expected directory to be a folder of this machine"):
        block.__enter__()


def test_a_config_and_keywords_together_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="a config, or keywords; got both"):
        diagnose(DiagnosticConfig(), stack_traces=True)


def test_settings_of_hang_detection_are_accepted_in_place_of_true() -> None:
    with (
        pytest.raises(ConfigurationError, match="safety_factor"),
        diagnose(hangs=HangConfig(enabled=True, safety_factor=0.5)),
    ):
        pass


def test_without_an_argument_nothing_is_collected(tmp_path: Path) -> None:
    program = """
from cloud_tpu_diagnostics import diagnose, heartbeat
with diagnose():
    heartbeat(1)
    handler = signal.getsignal(signal.SIGUSR1)
    output(handler is signal.SIG_DFL, faulthandler.is_enabled(), threading.active_count())
"""
    assert run(program, tmp_path / "d") == (0, "True False 1\n", "")
    assert not list(tmp_path.rglob("stack_trace_*"))
    assert payloads() == []
