"""The command `mldiagnostics` on runs of this machine: data on standard output, the rest on standard error."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics.cli import main
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal

from ..terminals import run_in_terminal

Captured = pytest.CaptureFixture[str]

JOB = """
import os, sys
from google_cloud_mldiagnostics import machinelearning_run, metrics
run = machinelearning_run(name="trained", run_group="sweep", configs={"layers": 2}, run_workload_id="job-7")
for step in range(5):
    metrics.record("loss", 5.0 - step, step=step)
print(run.name, flush=True)
exec(sys.argv[1])
"""


def recorded(name: str = "trained", steps: int = 5, group: str = "sweep") -> str:
    """Record and finish a run in this process; return its id."""
    run = machinelearning_run(name=name, run_group=group, configs={"layers": 2})
    for step in range(steps):
        metrics.record("loss", 5.0 - step, step=step)
        metrics.record("step_time", 0.1, step=step)
    run.finish()
    return run.name


def job(ending: str) -> tuple[str, int]:
    """Run another process that ends as requested; return its run's id and its exit code."""
    done = subprocess.run([sys.executable, "-c", JOB, ending], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split()[0], done.returncode


def shown(capsys: Captured, *arguments: str, code: int = 0) -> str:
    """Run a command; return its standard output."""
    capsys.readouterr()
    assert main(arguments) == code
    return capsys.readouterr().out


def test_runs_are_listed_the_newest_first(capsys: Captured) -> None:
    first, second = recorded("one"), recorded("two", group="other")
    lines = shown(capsys, "runs").splitlines()
    assert [line.split()[0] for line in (lines[0], *lines[2:])] == ["run", second, first]
    assert [line.split()[1] for line in lines[2:]] == ["COMPLETED", "COMPLETED"]
    of_group = shown(capsys, "runs", "--group", "sweep").splitlines()
    assert [line.split() for line in of_group[2:]] == [line.split() for line in lines[3:]]
    assert [run["run"] for run in json.loads(shown(capsys, "runs", "--limit", "1", "--format", "json"))] == [second]


def test_a_folder_without_runs_is_reported_and_is_not_an_error(capsys: Captured) -> None:
    assert main(["runs"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(diagnostics_directory()) in printed.err
    assert json.loads(shown(capsys, "runs", "--format", "json")) == []


def test_a_run_is_shown_with_its_metrics_and_configs(capsys: Captured) -> None:
    run_id = recorded()
    page = shown(capsys, "show", run_id)
    assert page.startswith(f"{run_id}: COMPLETED\n")
    for text in ("sweep", "loss", "step_time", "layers", str(diagnostics_directory() / "runs" / run_id)):
        assert text in page
    printed = json.loads(shown(capsys, "show", run_id, "--format", "json"))
    assert (printed["state"], printed["configs"]["user"], printed["group"]) == ("COMPLETED", {"layers": "2"}, "sweep")
    loss = next(metric for metric in printed["metrics"] if metric["metric"] == "loss")
    assert (loss["count"], loss["mean"], loss["last"], loss["last_step"]) == (5, 3, 1, 4)
    assert "points" not in loss


def test_a_run_is_selected_by_a_prefix_of_its_id_or_as_the_last(capsys: Captured) -> None:
    first, second = recorded("one"), recorded("two")
    assert shown(capsys, "show", "one").startswith(first)
    assert shown(capsys, "show", "last").startswith(second)


def test_an_ambiguous_prefix_of_an_id_is_an_error_that_names_all_matches(capsys: Captured) -> None:
    first, second = recorded("ones"), recorded("one-two")
    assert main(["show", "one"]) == 3
    printed = capsys.readouterr().err
    assert first in printed
    assert second in printed


@pytest.mark.parametrize("command", ["show", "metrics", "profile", "sync"])
def test_a_missing_run_is_one_error(command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "1")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    assert main([command, "nothing"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "there is no run nothing" in printed.err


def test_the_last_run_of_a_folder_without_runs_is_one_error(capsys: Captured) -> None:
    assert main(["show", "last"]) == 3
    assert capsys.readouterr().err == (
        f"mldiagnostics: there is no last run: {diagnostics_directory() / 'runs'} has no runs\n"
    )


@pytest.mark.parametrize("arguments", [["runs"], *([name, "last"] for name in ("show", "metrics", "profile", "sync"))])
def test_an_invalid_backend_is_a_usage_error(
    arguments: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded()
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "foo")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "ML_DIAGNOSTICS_BACKEND is 'foo'" in printed.err


@pytest.mark.parametrize("run_id", ["../../etc", "", ".", "a/b", "\0"])
def test_a_run_id_is_never_a_path_out_of_the_folder(run_id: str, capsys: Captured) -> None:
    assert main(["show", run_id]) == 1
    assert capsys.readouterr().out == ""


def test_a_run_of_a_killed_process_is_failed_at_once(capsys: Captured) -> None:
    run_id, code = job("os.kill(os.getpid(), 9)")
    assert code == -9
    state, reason = shown(capsys, "show", run_id).splitlines()[:2]
    assert state == f"{run_id}: FAILED"
    assert re.fullmatch(r"  no events since \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \(process gone\)", reason)
    assert "FAILED" in shown(capsys, "runs").splitlines()[2]


def test_the_exit_reason_comes_from_the_companion(capsys: Captured) -> None:
    run_id, _ = job("os.kill(os.getpid(), 9)")
    shown_before = json.loads(shown(capsys, "show", run_id, "--format", "json"))
    (known,) = shown_before["attempts"][0]["processes"]
    labels = {"host": known["host"], "pid": str(known["pid"]), "job": "", "run": ""}
    companion = Journal(COMPANION_LOG_ID, root=diagnostics_directory(), labels=labels, about_pid=known["pid"])
    companion.append({"kind": "job_ended", "how": "signal", "message": "The job was ended by SIGKILL"})
    companion.close()
    assert shown(capsys, "show", run_id).splitlines()[1] == "  The job was ended by SIGKILL"
    assert "The job was ended by SIGKILL" in shown(capsys, "runs")


def test_a_failure_and_its_restart_are_two_attempts(capsys: Captured) -> None:
    run_id, _ = job("raise RuntimeError('no data')")
    again, _ = job("")
    assert again == run_id
    printed = json.loads(shown(capsys, "show", run_id, "--format", "json"))
    assert printed["state"] == "COMPLETED"
    assert [(attempt["number"], attempt["state"]) for attempt in printed["attempts"]] == [
        (1, "FAILED"),
        (2, "COMPLETED"),
    ]
    assert "no data" in printed["attempts"][0]["reason"]
    assert "2 attempts" in shown(capsys, "show", run_id)
    argv = [sys.executable, "-m", "google_cloud_mldiagnostics", "show", run_id, "--no-color"]
    page = run_in_terminal(argv, columns=60).output
    table = page.partition("2 attempts\n\n")[2].partition("\n\n")[0].splitlines()
    assert table[0].split() == ["attempt", "started", "state", "why"]
    assert max(map(len, table)) <= 60


def test_values_are_csv_json_or_a_table(capsys: Captured) -> None:
    run_id = recorded()
    rows = list(csv.DictReader(io.StringIO(shown(capsys, "metrics", run_id, "loss", "--format", "csv"))))
    assert [(row["metric"], int(row["step"]), float(row["value"])) for row in rows] == [
        ("loss", step, 5.0 - step) for step in range(5)
    ]
    (loss,) = json.loads(shown(capsys, "metrics", run_id, "loss", "--format", "json"))["metrics"]
    assert [point["value"] for point in loss["points"]] == [5, 4, 3, 2, 1]
    table = shown(capsys, "metrics", run_id)
    assert "step_time" in table
    assert "step_time" not in shown(capsys, "metrics", run_id, "loss")


def test_a_metric_that_was_not_recorded_is_an_error_that_names_those_that_were(capsys: Captured) -> None:
    assert main(["metrics", recorded(), "los"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "'los'" in printed.err
    assert "loss, step_time" in printed.err


def test_curves_are_drawn(capsys: Captured, tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    shown(capsys, "metrics", recorded(), "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_curves_without_a_name_are_drawn_in_the_current_folder(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown(capsys, "metrics", recorded(), "loss", "--plot")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_reported_with_its_extra_before_any_work(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["metrics", recorded(), "--plot", str(tmp_path / "curves.png")]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "pip install 'google-cloud-mldiagnostics[plot]'" in output.err


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_read(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["metrics", "whatever", "--plot", "curves.gif"])
    assert refused.value.code == 2
    assert ".png" in capsys.readouterr().err


def test_names_of_metrics_are_optional(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["metrics"])
    assert refused.value.code == 2
    assert capsys.readouterr().err.endswith("the following arguments are required: RUN\n")


def test_control_characters_of_names_do_not_reach_the_terminal(capsys: Captured) -> None:
    run = machinelearning_run(name="named", run_group="\x1b[2Jgroup", configs={"\x1b]0;x": "\x07"})
    metrics.record("lo\x1b[31mss", 1.0)
    run.finish()
    for arguments in (["runs"], ["show", "last"], ["metrics", "last"], ["metrics", "last", "--format", "csv"]):
        assert not set(shown(capsys, *arguments)) & set("\x1b\x07")


def test_a_reader_of_the_output_may_stop_early() -> None:
    recorded(steps=2000)
    command = [sys.executable, "-m", "google_cloud_mldiagnostics.cli", "metrics", "last", "--format", "csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.readline()
        reader.stdout.close()
        assert reader.stderr.read() == b""
    assert reader.returncode == 0


def test_help_loads_nothing_that_takes_time() -> None:
    code = (
        "import sys\nfrom google_cloud_mldiagnostics.cli import main\n"
        "try: main(['show', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'google.auth', 'jax', 'numpy', 'psutil', 'grpc', 'requests', 'matplotlib', 'msgspec'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_an_active_run_is_shown_in_its_current_state(capsys: Captured) -> None:
    run = machinelearning_run(name="going", configs={})
    metrics.record("loss", 0.5, step=1)
    page = shown(capsys, "show", run.name)
    assert page.startswith(f"{run.name}: ACTIVE\n")
    assert re.search(r"^  last event +\S", page, re.MULTILINE)
    (record,) = json.loads(shown(capsys, "show", run.name, "--format", "json"))["attempts"][0]["processes"]
    assert "last_sign" in record
    (loss,) = json.loads(shown(capsys, "metrics", run.name, "loss", "--format", "json"))["metrics"]
    assert loss["last"] == 0.5
    run.finish("FAILED")
    assert shown(capsys, "show", run.name).startswith(f"{run.name}: FAILED\n")


def test_the_command_is_installed() -> None:
    program = Path(sys.executable).with_name("mldiagnostics")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("mldiagnostics ")
    assert os.access(program, os.X_OK)


RAISING = """
import sys
def load(shard, credential="value-of-a-variable"):
    raise KeyError(f"shard {shard} token=abcdefgh12345678")
def train():
    try:
        load(7)
    except KeyError as missing:
        raise ValueError("batch 5 is empty") from missing
train()
"""


def test_an_uncaught_exception_is_shown_with_its_stack_and_step(capsys: Captured) -> None:
    run_id, code = job(RAISING)
    assert code == 1
    text = shown(capsys, "show", run_id)
    assert ": FAILED\n  ValueError: batch 5 is empty\n" in text
    title = "  ValueError: batch 5 is empty\n    train (<string>:9)"
    assert f"(last step recorded: 4), innermost call first\n\n{title}" in text
    assert "\n  caused by KeyError: 'shard 7 token=[REDACTED]'\n    load (<string>:4)\n    train (<string>:7)" in text
    assert "value-of-a-variable" not in text
    assert "abcdefgh12345678" not in text
    (process,) = json.loads(shown(capsys, "show", run_id, "--format", "json"))["attempts"][0]["processes"]
    assert process["step"] == 4
    assert process["traceback"][0]["exception"] == "ValueError: batch 5 is empty"
    assert process["traceback"][0]["frames"][0] == "train (<string>:9)"
    assert process["traceback"][1]["relation"] == "caused by"


def test_an_exception_that_leaves_the_block_of_a_run_is_shown_with_its_stack(capsys: Captured) -> None:
    run_id, _ = job("def fail(): raise OSError('disk')\nwith run: fail()")
    assert "\n  OSError: disk\n    fail (<string>:1)\n    <module> (<string>:2)\n" in shown(capsys, "show", run_id)


def test_the_stack_of_an_endless_recursion_is_short_and_one_that_is_caught_is_not_shown(capsys: Captured) -> None:
    run_id, _ = job("def down(): down()\ndown()")
    text = shown(capsys, "show", run_id)
    assert "  RecursionError: maximum recursion depth exceeded" in text
    assert text.count("    down (<string>:1)") < 100
    assert "frames left out ...\n" in text
    caught, _ = job("try: int('x')\nexcept ValueError: pass")
    assert "innermost call first" not in shown(capsys, "show", caught)


def test_a_full_disk_is_shown_with_its_free_space(capsys: Captured, tmp_path: Path) -> None:
    patience = (
        "from ml_diagnostics_common.file_systems import FileSystemProbes as p; p.answers.__defaults__ = (30.0,)\n"
    )
    run_id, code = job(
        patience + RAISING.replace("train()\n", f"raise OSError(28, 'No space left on device', '{tmp_path}/40')\n")
    )
    assert code == 1
    text = shown(capsys, "show", run_id)
    assert re.search(rf"  {tmp_path}/40: [\d.]+ \w+ of [\d.]+ \w+ free", text)
    (process,) = json.loads(shown(capsys, "show", run_id, "--format", "json"))["attempts"][0]["processes"]
    assert (process["traceback"][0]["errno"], process["traceback"][0]["filename"]) == (28, f"{tmp_path}/40")
    assert process["file_systems"][0]["free_bytes"] > 0


def test_control_characters_of_a_traceback_do_not_reach_the_terminal(capsys: Captured) -> None:
    run_id, _ = job("raise ValueError('x')")
    (segment,) = (diagnostics_directory() / "journal" / "ml_diagnostics_metric").glob("*.jsonl")
    forged = '[{"exception":"E\\u001b[2J","frames":["f\\u001b[2J (a:1)",3,null]},5,{"frames":7}]'
    text = segment.read_text().replace('"traceback":[', f'"traceback":{forged},"x":[')
    assert forged in text
    segment.write_text(text)
    assert "\x1b" not in shown(capsys, "show", run_id)


@pytest.mark.parametrize(
    "command", [["show"], ["show", "--format", "json"], ["metrics"], ["metrics", "--format", "csv"]]
)
def test_entries_that_cannot_be_read_are_counted_in_one_note(command: list[str], capsys: Captured) -> None:
    run_id = recorded()
    for segment in (diagnostics_directory() / "journal").glob("*/*.jsonl"):
        with segment.open("a") as file:
            file.write('\n{"t": 1, "s":\n{"x": 1}\n')
    capsys.readouterr()
    assert main([command[0], run_id, *command[1:]]) == 0
    found = capsys.readouterr()
    assert found.err == "mldiagnostics: 2 entries could not be read\n"
    assert "loss" in found.out
