"""The case file: small, without secrets, complete, and read back by the doctor with the same report."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.reading import LocalSource
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.redaction import redact_text
from ml_diagnostics_console._cli.export import write_file
from ml_diagnostics_console._facts.reading import Question
from ml_diagnostics_console._web.assets import Assets
from ml_diagnostics_console._web.case_file import judge_for_file, make_case
from ml_diagnostics_console._web.case_report import read_case
from ml_diagnostics_console._web.store import Store
from ml_diagnostics_console._web.wire import MAGIC, decode

from tests.common.secret_corpus import secrets
from tests.console.web.made_runs import MadeAttempt, MadeRun, hang, wide
from tests.console.web.served import COMMAND

MOST_BYTES = 3_000_000
_BLOCK = re.compile(r'<script type="text/plain" data-(?:answer="([^"]*)"|(report))[^>]*>([^<]*)</script>')
_START_NS = 1_795_000_000_000_000_000


def run_command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local", "TZ": "UTC"}
    argv = [*COMMAND, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=environ)


def blocks_of(text: str) -> dict[str, bytes]:
    """Return the content of each block of a case file, by the path of its answer."""
    return {
        html.unescape(path) or report: gzip.decompress(base64.b64decode(data))
        for path, report, data in _BLOCK.findall(text)
    }


def exported(root: Path, run_id: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(root))
    store = Store(LocalSource(lambda _: None))
    store.refresh()
    verdict = judge_for_file(Question(run_id, kubernetes="off"), lambda note: None)
    return make_case(store, run_id, Assets(), verdict).text


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with a run that hangs, and its case file."""
    root = tmp_path_factory.mktemp("hang")
    run_id = hang(root, 12)
    path = root / "case.html"
    done = run_command(root, "export", run_id, str(path))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return root, path


def test_the_command_prints_what_is_inside_and_what_was_left_out(hanging: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = hanging
    path = tmp_path / "again.html"
    done = run_command(root, "export", "last", str(path))
    assert done.returncode == 0
    assert re.fullmatch(r".*again\.html: [\d,]+ bytes, opens in any browser without a server\n", done.stdout)
    assert "inside: the doctor's report" in done.stderr
    assert "left out: texts that resemble secrets" in done.stderr
    again = run_command(root, "export", "last", str(path))
    assert (again.returncode, again.stdout) == (1, "")
    assert "--force replaces it" in again.stderr
    assert run_command(root, "export", "last", str(path), "--force").returncode == 0
    piped = run_command(root, "export", "last", "-")
    assert piped.stdout.startswith("<!doctype html>")


def test_a_file_that_cannot_be_written_is_named(hanging: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = hanging
    missing = tmp_path / "missing" / "case.html"
    done = run_command(root, "export", "last", str(missing))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{missing} could not be written: No such file or directory" in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_is_named_before_the_run_is_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "is not a file"), (tmp_path / "missing" / "x", "No such file or directory")):
        done = run_command(tmp_path, "export", "nope", str(path))
        assert done.returncode == 1
        assert reason in done.stderr.replace("\n", " ")
        assert "--force" not in done.stderr


def test_an_export_that_is_interrupted_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "case.html", "text", is_forced=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "case.html"
    path.write_text("another's")
    with pytest.raises(CommandError, match="--force replaces it"):
        write_file(path, "text", is_forced=False)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("case.html", "another's")]
    write_file(path, "text", is_forced=True)
    assert path.read_text() == "text"


def test_only_a_file_is_replaced(hanging: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = hanging
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        done = run_command(root, "export", "last", str(path), "--force")
        assert (done.returncode, done.stdout) == (1, "")
        assert "is not a file, and is not replaced" in done.stderr.replace("\n", " ")
    assert pipe.is_fifo()


@pytest.mark.parametrize("options", [(), ("--all",), ("--format", "json"), ("--attempt", "2"), ("--attempt", "all")])
def test_the_doctor_gives_the_same_report_of_the_file(hanging: tuple[Path, Path], options: tuple[str, ...]) -> None:
    root, path = hanging
    of_run = run_command(root, "doctor", "last", *options)
    of_file = run_command(path.parent / "nowhere", "doctor", str(path), *options)
    moving = r"(?:\d+ h )?\d+ min \d+ s|[\d.]+ chip-hours|\"(?:as_of|seconds|chip_hours)\": \S+"  # The job still runs.
    texts = [re.sub(r"\s+", " ", re.sub(moving, "N", done.stdout)) for done in (of_run, of_file)]
    assert texts[0] == texts[1]
    assert of_run.returncode == of_file.returncode
    assert of_file.returncode not in (0, 1, 2)


def test_the_doctor_explains_the_verdict_of_the_file(hanging: tuple[Path, Path]) -> None:
    root, path = hanging
    of_file = run_command(root / "nowhere", "doctor", "explain", f"{path}/1")
    of_run = run_command(root, "doctor", "explain", "last/1")
    assert of_file.returncode == 0
    assert of_file.stdout.splitlines()[0].startswith("Stuck")
    entries = re.compile(r"^ +\S+-\d+-\d+-\d+\.\d{12}$", re.MULTILINE)
    assert entries.findall(of_file.stdout) == entries.findall(of_run.stdout) != []
    assert run_command(root, "doctor", "explain", f"{path}/99").returncode == 3
    assert run_command(root, "doctor", str(path), "--attempt", "99").returncode == 3
    assert run_command(root, "doctor", str(path), "--live").returncode == 2


def test_it_has_each_answer_that_its_pages_ask_for(hanging: tuple[Path, Path]) -> None:
    _, path = hanging
    blocks = blocks_of(path.read_text())
    base = "/api/runs/llama3-8b-pretrain-7"
    for wanted in ("", "/verdict", "/stacks", "/configs", "/logs", "/ledger?width=800"):
        assert f"{base}{wanted}" in blocks
    drawings = [name for name in blocks if name.startswith(f"{base}/points?metric=loss&x=step")]
    windows = [name for name in drawings if "&replaced=" not in name]
    assert len(windows) == 1 + 2 + 4 + 8
    for name, data in blocks.items():
        if data.startswith(MAGIC):
            header, columns = decode(data)
            assert columns, name
            assert header["columns"]
        elif name.partition("?")[0].endswith("/logs") and "?" in name:
            data.decode()
        else:
            json.loads(data)


def test_a_damaged_or_foreign_file_is_a_sentence(hanging: tuple[Path, Path], tmp_path: Path) -> None:
    root, path = hanging
    text = path.read_text()
    bomb = base64.b64encode(gzip.compress(bytes(10**8))).decode()
    start = '<script type="text/plain" data-report>'
    other = base64.b64encode(gzip.compress(json.dumps({"schema": 99}).encode())).decode()
    damaged = {
        "other.html": "<html><p>hello</p></html>",
        "cut.html": text[: text.index(start) + 200],
        "empty.html": "",
        "block.html": f"{start}####</script>",
        "bomb.html": f"{start}{bomb}</script>",
        "schema.html": f"{start}{other}</script>",
        "base64.html": f"{start}AAAA</script>",
        "types.html": f"{start}{base64.b64encode(gzip.compress(b'[1]')).decode()}</script>",
        "deep.html": f"{start}{base64.b64encode(gzip.compress(b'[' * 10**6 + b']' * 10**6)).decode()}</script>",
    }
    for name, content in damaged.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(CommandError):
            read_case(tmp_path / name)
    done = run_command(root, "doctor", str(tmp_path / "other.html"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a case file" in done.stderr
    assert run_command(root, "doctor", str(tmp_path / "missing.html")).returncode == 3


def test_a_file_that_was_cut_says_so_in_a_browser(hanging: tuple[Path, Path]) -> None:
    text = hanging[1].read_text()
    assert text.count("If this stays, the file was cut off") == 1
    assert text.index("If this stays, the file was cut off") < text.index("data-about")


def changed_report(path: Path, keys: Sequence[str], value: object) -> str:
    """Return the report of a case file with another value, as a block."""
    report = json.loads(blocks_of(path.read_text())["report"])
    where = report
    for key in keys[:-1]:
        where = where[key]
    where[keys[-1]] = value
    data = base64.b64encode(gzip.compress(json.dumps(report).encode())).decode()
    return f'<script type="text/plain" data-report>{data}</script>'


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("last", "shown"), [10**9]),
        (("last", "shown"), ["x"]),
        (("last", "judged"), 10**9),
        (("last", "attempts"), [None]),
        (("last", "verdicts"), []),
        (("last", "verdicts"), [{}]),
        (("last", "not_checked"), [["x"]]),
        (("last", "now_ns"), "now"),
        (("explanations",), [7]),
        (("attempts",), {"a": 1}),
    ],
)
def test_values_of_a_wrong_kind_are_a_sentence(
    hanging: tuple[Path, Path], tmp_path: Path, keys: Sequence[str], value: object
) -> None:
    changed = tmp_path / "changed.html"
    changed.write_text(changed_report(hanging[1], keys, value))
    with pytest.raises(CommandError, match="is damaged"):
        read_case(changed)


def test_an_explanation_cannot_control_the_terminal(hanging: tuple[Path, Path], tmp_path: Path) -> None:
    changed = tmp_path / "changed.html"
    evil = "first\x1b[31m\x1b]0;title\x07\u202eevil\x9b2J\nsecond"
    changed.write_text(changed_report(hanging[1], ["explanations"], [evil]))
    (text,) = read_case(changed).explanations
    assert text.replace("\n", "").isprintable()
    assert [line[:6] for line in text.splitlines()] == ["first\\", "second"]


def test_no_planted_secret_is_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    planted = []
    for sample in secrets():
        text = sample.value if isinstance(sample.value, str) else json.dumps(sample.value, default=str)
        # Those that the redactor knows as texts: here is tested that every text passes it.
        if sample.secret in text and sample.secret not in redact_text(text):
            planted.append((text, sample.secret))
    planted = (planted * 300)[:300] if len(planted) < 300 else planted[:300]
    lines = [text for text, _ in planted]
    make_leaking(root, lines)
    text = exported(root, "leaking", monkeypatch)
    data = b"\n".join([text.encode(), *blocks_of(text).values()]).decode("utf-8", "replace")
    assert "[REDACTED]" in data
    assert [secret for _, secret in planted if secret in data] == []
    assert "settings" in blocks_of(text)["report"].decode()
    assert "opensesame" not in data


def test_the_log_of_a_host_that_is_named_like_a_secret_is_found_by_its_shown_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zAbC"
    run = MadeRun("secret", _START_NS, [MadeAttempt(0, 20, "FAILED", "x")], hosts=[f"vm-{secret}"])
    run.write(tmp_path)
    labels = {"job": "secret", "run": "secret", "attempt": "1", "host": f"vm-{secret}", "pid": "4001"}
    companion = Journal(
        "tpu.googleapis.com/runtime_monitor", root=tmp_path, labels=labels, about_pid=4001, clock_ns=lambda: _START_NS
    )
    printed = {"verb": "stacktraceanalyzer", "kind": "console", "stream": "out", "message": "hello\n"}
    companion.append(printed, timestamp_ns=_START_NS + 35 * 10**9)
    companion.close(5)
    text = exported(tmp_path, "secret", monkeypatch)
    assert secret not in text
    assert "/api/runs/secret/logs?host=vm-%5BREDACTED%5D&stream=stdout&tail=4096" in blocks_of(text)


def make_leaking(root: Path, lines: list[str]) -> None:
    """Write a run with secrets in its configs, reasons, messages, frames and printed lines."""
    part = len(lines) // 6
    run = MadeRun("leaking", _START_NS, [MadeAttempt(0, 20, "FAILED", "; ".join(lines[:part]))])
    run.configs = {f"note{number}": text for number, text in enumerate(lines[part : 2 * part])}
    run.write(root)
    plane = LocalControlPlane(root, clock_ns=lambda: _START_NS)

    def change(resource: dict[str, object]) -> dict[str, object]:
        resource["configs"] = {"userConfigs": run.configs, "softwareConfigs": {"command_line": " ".join(lines[:part])}}
        resource["errorDetails"] = "\n".join(lines[2 * part : 3 * part])
        resource["labels"] = {"attempt": "1", "note": lines[0]}
        return resource

    plane.update_run("leaking", change)
    labels = {"job": "leaking", "run": "leaking", "attempt": "1", "host": "vm-0", "process_index": "0", "pid": "4001"}
    companion = Journal(
        "tpu.googleapis.com/runtime_monitor", root=root, labels=labels, about_pid=4001, clock_ns=lambda: _START_NS
    )
    at = _START_NS + 35 * 10**9
    fields: dict[str, Any] = {"verb": "stacktraceanalyzer", "message": "\n".join(lines[3 * part : 4 * part])}
    fields["settings"] = {"password": "opensesame"}
    frames = [f"call (/job/{text}.py:1)" for text in lines[4 * part : 4 * part + 20]]
    group = {"threads": 1, "main": True, "names": ["MainThread"], "frames": frames}
    companion.append({**fields, "kind": "snapshot", "groups": [group], "threads": 1, "time_ns": at}, timestamp_ns=at)
    for occasion in ("end", "hang"):
        printed = {**fields, "kind": "console", "message": "\n".join(lines[4 * part :]), "occasion": occasion}
        companion.append({**printed, "stream": "out+err"}, timestamp_ns=at)
    ended = {"kind": "job_ended", "how": "exit", "exit_code": 1, "exception": lines[-1], "ended_ns": at}
    companion.append({**fields, **ended}, timestamp_ns=at)
    companion.close(5)


def test_the_values_of_steps_that_were_done_again_are_inside(
    restarted_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = blocks_of(exported(restarted_folder, "llama-1", monkeypatch))
    replaced = {path: decode(data) for path, data in blocks.items() if "replaced=1" in path}
    names = {header["metric"] for header, _ in replaced.values()}
    assert names == {"loss", "learning_rate", "step_time"}
    header, columns = next(found for path, found in replaced.items() if "=loss&" in path)
    assert (header["curves"], header["points"]) == (2, 200)
    steps = [step for step in columns["x"].tolist() if math.isfinite(step)]
    assert 300 <= min(steps) < 303 < 597 <= max(steps) <= 599
    other = blocks_of(exported(restarted_folder, "llama-2", monkeypatch))
    assert not [path for path in other if "replaced=1" in path]


@pytest.mark.slow
def test_128_hosts_and_their_stacks_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = wide(tmp_path, 3000, 128)
    text = exported(tmp_path, run_id, monkeypatch)
    assert len(text.encode()) <= MOST_BYTES
    stacks = json.loads(blocks_of(text)[f"/api/runs/{run_id}/stacks"])
    assert len(stacks["hosts"]) == 128


@pytest.mark.slow
def test_a_million_points_and_128_hosts_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = wide(tmp_path, 1_000_000, 128)
    text = exported(tmp_path, run_id, monkeypatch)
    assert len(text.encode()) <= MOST_BYTES
    header, _ = decode(blocks_of(text)[f"/api/runs/{run_id}/points?metric=loss&x=step&width=800"])
    assert header["total"] >= 1_000_000


def test_a_long_goodput_log_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MadeRun("long", _START_NS, [MadeAttempt(0, 20_000)], metrics={}, step_seconds=1.0).write(tmp_path)
    monkeypatch.setattr("ml_diagnostics_console._web.run_goodput.RunGoodput.part_seconds", 0.0)
    overview = json.loads(blocks_of(exported(tmp_path, "long", monkeypatch))["/api/runs/long"])
    assert overview["goodput"] == pytest.approx(99.8, abs=0.2)
    assert overview["ledger"]


def test_a_run_of_many_metrics_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MadeRun("many", _START_NS, [MadeAttempt(0, 30)], metrics={f"metric_{n}": "1" for n in range(1000)})
    run.write(tmp_path)
    text = exported(tmp_path, "many", monkeypatch)
    assert len(text.encode()) <= MOST_BYTES
    about = re.search(r"data-about>([^<]*)<", text)
    assert about is not None
    assert "800 further metrics" in json.loads(about[1])["left_out"]
