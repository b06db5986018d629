"""`mldiagnostics doctor` on real jobs: the answer, its proof, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics.cli import main

from ..terminals import run_in_terminal
from .real_jobs import Ended, run_job

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run_job(tmp_path_factory.mktemp("failed"), "raise ValueError('batch 30 is empty')")


@pytest.fixture
def of_failed(failed: Ended, monkeypatch: pytest.MonkeyPatch) -> Ended:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(failed.folder))
    return failed


def doctor(*arguments: str) -> int:
    return main(["doctor", "--kubernetes", "off", *arguments])


def test_an_exception_is_named_with_its_step_and_the_exit_code_is_that_of_crashes(
    of_failed: Ended, capsys: Captured
) -> None:
    assert doctor("last") == 12
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Failed")
    assert "ValueError: batch 30 is empty" in out
    assert "at step 30" in out
    assert "mldiagnostics doctor explain digits" in out


def test_the_report_is_json_for_programs(of_failed: Ended, capsys: Captured) -> None:
    assert doctor("digits", "--format", "json") == 12
    report = json.loads(capsys.readouterr().out)
    headline = report["headline"]
    assert headline["class"] == "crash"
    assert headline["blame"] == "user"
    assert headline["step"] == 30
    assert headline["evidence"]
    assert {"rule", "class", "sentence", "blame", "confidence", "role", "hosts", "process_indices", "step", "began",
            "ended", "cost", "evidence", "next"} == set(headline)  # fmt: skip


def test_the_report_is_a_line_a_verdict_in_the_form_of_monitored_events(of_failed: Ended, capsys: Captured) -> None:
    assert doctor("digits", "--format", "monitored-event") == 12
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["type"] == "ML_DIAGNOSTICS_CRASH"
    assert first["details"]["rule"]


def test_a_verdict_is_explained_by_its_entries(of_failed: Ended, capsys: Captured) -> None:
    assert doctor("explain", "digits/1") == 0
    out = capsys.readouterr().out
    assert "ml_diagnostics_metric" in out or "runtime_monitor" in out
    assert "checked, and absent" in out
    assert '"phase": "FAILED"' in " ".join(out.split())


def test_a_healthy_job_has_nothing_wrong_and_its_goodput(tmp_path: Path, capsys: Captured) -> None:
    run_job(tmp_path, "pass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
        code = doctor("last")
    out = capsys.readouterr().out
    assert code == 0, out
    assert out.startswith("Nothing is wrong")
    assert "goodput" in out


def test_a_run_without_steps_or_companion_gives_an_answer(capsys: Captured) -> None:
    run = machinelearning_run("short", log_system_metrics=False)
    metrics.record("loss", 1.0, 0)
    run.finish()
    assert doctor(run.name) in (0, 19)
    assert capsys.readouterr().out


def test_each_attempt_can_be_judged(tmp_path: Path, capsys: Captured) -> None:
    run_job(tmp_path, "raise KeyError('x')")
    run_job(tmp_path, "pass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
        assert doctor("last", "--attempt", "1") == 12
        assert "KeyError" in capsys.readouterr().out
        doctor("last", "--attempt", "all", "--format", "json")
        reports = json.loads(capsys.readouterr().out)
        assert [report["attempt"] for report in reports] == [1, 2]
        doctor("last", "--attempt", "1", "--format", "json")
        assert json.loads(capsys.readouterr().out)["attempt"] == 1
        assert doctor("last", "--attempt", "3") == 3
        assert "no attempt 3" in capsys.readouterr().err


def test_unknown_runs_rules_and_options_are_errors_of_their_own(capsys: Captured) -> None:
    assert doctor("nothing") == 3
    assert doctor("explain", "Z99") == 3
    assert "the rules are" in capsys.readouterr().err
    assert doctor("a", "b") == 2
    assert doctor("a", "--attempt", "x") == 2
    assert doctor("a", "--until", "stuck") == 2


def test_a_rule_is_explained_without_a_job(capsys: Captured) -> None:
    assert doctor("explain", "c1") == 0
    out = capsys.readouterr().out
    assert out.startswith("C1: ")
    assert "needs" in out


def test_the_report_fits_a_terminal_and_is_colored_there(of_failed: Ended) -> None:
    command = [str(Path(sys.executable).with_name("mldiagnostics")), "doctor", "last", "--kubernetes", "off"]
    shown = run_in_terminal(command, 80)
    assert shown.code == 12
    assert "\x1b[1;31mFailed" in shown.output
    assert shown.output.count("\n") <= 24
    assert run_in_terminal(command, 80, {**os.environ, "NO_COLOR": "1"}).output.count("\x1b") == 0


def test_without_the_distribution_the_command_shows_how_to_install_it() -> None:
    program = (
        "import sys, importlib.metadata as m; m.entry_points = lambda **_: (); "
        "from google_cloud_mldiagnostics.cli import main; sys.exit(main(['doctor', 'last']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "pip install ml-diagnostics-console" in ended.stderr


def test_a_subcommand_that_cannot_be_loaded_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text(
        "class Command:\n"
        "    name, summary = 'broken', 'a command of another version'\n"
        "    def prepare_parser(self, parser): raise TypeError('of another version')\n"
    )
    information = tmp_path / "broken_plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[ml_diagnostics.commands]\nbroken = broken_plugin:Command\n")
    command = [str(Path(sys.executable).with_name("mldiagnostics"))]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert run("runs").returncode == 0
    broken = run("broken")
    assert (broken.returncode, "of another version" in broken.stderr) == (1, True)
