"""The causes of all attempts of a job: the rule, and the host if it is to blame."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.exceptions import ControlPlaneError
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_console._rules.rule import Rule
from ml_diagnostics_console.attempt_doctor import AttemptDoctor, cause_of
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.faultbench import _histories
from ml_diagnostics_console.verdict import Blame, Confidence, Part, Verdict, VerdictClass
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Status

from ..loopback.control_plane import ControlPlaneServer
from .made_facts import facts, process
from .real_jobs import run_job

HISTORIES = Path(__file__).parent / "histories"


def cause(*verdicts: Verdict) -> tuple[str, str | None, str]:
    known = facts([process(0, end="signal: SIGKILL"), process(1, end="exit: 1")])
    rules = [Rule(each.rule, "", (), lambda _, each=each: each) for each in verdicts]  # type: ignore[misc]
    return cause_of(judge(known, rules))


def verdict(rule: str = "C7", **fields: Any) -> Verdict:
    given: dict[str, Any] = {"verdict_class": VerdictClass.CRASH, "sentence": "it was killed", "hosts": ("tpu-1",)}
    given |= {"blame": Blame.UNKNOWN, "confidence": Confidence.PROVEN}
    return Verdict(rule=rule, **{**given, **fields})


def test_the_host_of_a_certain_verdict_is_to_blame() -> None:
    assert cause(verdict()) == ("C7", "tpu-1", "proven")
    assert cause(verdict(blame=Blame.SYSTEM, confidence=Confidence.LIKELY)) == ("C7", "tpu-1", "likely")


@pytest.mark.parametrize(
    "fields",
    [
        {"confidence": Confidence.POSSIBLE},
        {"blame": Blame.USER},
        {"blame": Blame.PREEMPTION},
        {"blame": None},
        {"hosts": ("tpu-1", "tpu-2")},
        {"hosts": ()},
    ],
    ids=str,
)
def test_else_no_host_is(fields: dict[str, Any]) -> None:
    rule, host, confidence = cause(verdict(**fields))
    assert (rule, host) == ("C7", None)
    assert confidence == fields.get("confidence", Confidence.PROVEN).value


def test_what_did_not_end_the_attempt_is_not_the_cause() -> None:
    slow = verdict("L2", verdict_class=VerdictClass.SLOW)
    assert cause(slow, verdict(confidence=Confidence.LIKELY)) == ("C7", "tpu-1", "likely")
    assert cause(slow, verdict("C4", part=Part.TEARDOWN)) == ("U0", None, "possible")
    assert cause() == ("U0", None, "possible")
    loop = verdict("R1", verdict_class=VerdictClass.RESTARTS, hosts=("tpu-0",))
    assert cause(loop, verdict("C5", part=Part.CONTRIBUTING)) == ("C5", "tpu-1", "proven")


def doctor(notes: list[str] | None = None) -> AttemptDoctor:
    return AttemptDoctor(print if notes is None else notes.append)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of a real job of two hosts that failed three times."""
    folder = tmp_path_factory.mktemp("loop")
    with _histories.read(HISTORIES / "restart-loop-0.tar.xz", folder) as history:
        return history.diagnostics


def test_each_attempt_of_a_real_job_has_its_hosts_and_its_cause(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(loop))
    found = doctor().attempts("restart-loop-0", since_ns=0)
    assert [(each.number, each.hosts) for each in found] == [(n, ("worker-0", "worker-1")) for n in (1, 2, 3)]
    assert {(each.rule, each.host, each.confidence) for each in found} == {
        ("C1", None, "proven")
    }  # The program failed.
    ends = [each.ended_ns or 0 for each in found]
    assert all(each.started_ns < end for each, end in zip(found, ends, strict=True))
    assert all(end <= each.started_ns for each, end in zip(found[1:], ends, strict=False))
    later = doctor().attempts("restart-loop-0", since_ns=ends[1])
    assert [each.rule for each in later] == ["", "C1", "C1"]


def test_without_a_question_on_causes_only_hosts_are_read(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(loop))
    judged = doctor().attempts("restart-loop-0", since_ns=0)
    listed = doctor().attempts("restart-loop-0", since_ns=None)
    assert [(each.number, each.hosts, each.rule) for each in listed] == [
        (each.number, each.hosts, "") for each in judged
    ]


def test_a_context_that_does_not_exist_is_noted_once(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on this machine")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(loop))
    monkeypatch.setenv("KUBECONFIG", str(loop / "none"))
    notes: list[str] = []
    asked = AttemptDoctor(notes.append, kubernetes="typo")
    for _ in range(2):
        assert [each.rule for each in asked.attempts("restart-loop-0", since_ns=0)] == ["C1", "C1", "C1"]
    assert len(notes) == 1
    assert "give --kubernetes CONTEXT" in notes[0]


def test_a_job_without_a_run_is_judged_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for action in ("os.kill(os.getpid(), 9)", "sys.exit(3)"):
        run_job(tmp_path, action, with_run=False, name="early")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    host = os.uname().nodename
    found = doctor().attempts("early", since_ns=0)
    assert [(each.run, each.number, each.rule, each.host) for each in found] == [
        ("early", 1, "C7", host),
        ("early", 2, "C1", None),
    ]
    assert doctor().attempts("early", since_ns=None) == []


def test_a_process_that_was_killed_is_not_taken_for_a_failure_of_the_program_by_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for action in ("os.kill(os.getpid(), 9)", "pass"):  # The second one records that the first has no end.
        run_job(tmp_path, action)
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    first, _ = doctor().attempts("digits", since_ns=0)
    assert (first.rule, first.host, first.confidence) == ("C7", os.uname().nodename, "proven")


def test_all_runs_of_a_name_are_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for workload in ("first", "second"):
        monkeypatch.setenv("RUN_WORKLOAD_ID", workload)
        run_job(tmp_path, "sys.exit(3)")
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    found = doctor().attempts("digits", since_ns=0)
    assert [(each.run, each.number, each.rule) for each in found] == [
        ("digits-first", 1, "C1"),
        ("digits-second", 1, "C1"),
    ]
    assert [each.run for each in doctor().attempts("digits-second", since_ns=None)] == ["digits-second"]


def test_a_job_that_nothing_is_known_of_has_no_attempts() -> None:
    assert doctor().attempts("no-such-job", since_ns=0) == []


def test_a_run_that_cannot_be_read_costs_itself_alone(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(loop))
    notes: list[str] = []
    asked = doctor(notes)
    assert asked.attempts("restart-loop-0", since_ns=None)
    (run,) = (diagnostics_directory() / "runs").glob("*/run.json")
    text = run.read_text()
    try:
        run.write_text("{")
        assert asked.attempts("restart-loop-0", since_ns=0) == []
    finally:
        run.write_text(text)
    assert len(notes) == 1
    assert "restart-loop-0" in notes[0]


def test_runs_that_cannot_be_listed_are_an_error_at_once(
    control_plane_server: ControlPlaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in control_plane_server.environment().items():
        monkeypatch.setenv(name, value)
    control_plane_server.faults.always(Status(403))
    with pytest.raises(ControlPlaneError):
        AttemptDoctor(pytest.fail, project="test-project")


def test_attempts_are_read_from_a_project_on_a_machine_that_has_nothing_of_the_job(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for server in (control_plane_server, cloud_logging_server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    run_job(tmp_path, "raise ValueError('batch 30 is empty')")
    asked = AttemptDoctor(pytest.fail, project="test-project")
    (listed,) = asked.attempts("digits", since_ns=None)
    (judged,) = asked.attempts("digits", since_ns=0)
    host = os.uname().nodename
    assert (listed.hosts, listed.rule) == ((host,), "")
    assert (judged.hosts, judged.rule, judged.host, judged.confidence) == ((host,), "C1", None, "proven")
    assert asked.attempts("other", since_ns=0) == []


def test_the_doctor_is_found_by_its_entry_point() -> None:
    from importlib.metadata import entry_points

    (point,) = entry_points(group="ml_diagnostics_fleet.doctors")
    found: Callable[..., AttemptDoctor] = point.load()
    assert found is AttemptDoctor
    assert AttemptDoctor.version.startswith("ml-diagnostics-console ")
