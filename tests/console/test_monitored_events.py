"""Findings of Google's analyzers: read from gcloud where it has the command, and unknown otherwise."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.gcloud import read_monitored_events
from ml_diagnostics_console._facts.monitored_events import parse_event

NAME = "projects/p/locations/us-central1/machineLearningRuns/run-1/monitoredEvents/abc-1"
LISTED = {
    "analyzerInsightFound": True,
    "displayName": "performance-degradation-event",
    "name": NAME,
    "startTime": "2026-05-01T12:00:00Z",
    "type": "PERFORMANCE_DEGRADATION",
}
REPORT = {
    "analyzer": "ICI Link Analyzer",
    "detectionState": "DETECTED",
    "details": "ICI Link issues detected in i-1: networking issues between TPU processors.",
    "recommendedActions": [{"description": "Contact Google.", "documentationUrl": "https://docs.cloud.google.com/tpu"}],
}
DESCRIBED = {**LISTED, "analyzerReports": [REPORT], "endTime": "2026-05-01T12:10:00Z"}


@pytest.fixture
def gcloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder that alone is on PATH, for a program in the place of gcloud."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, text: str) -> None:
    path = folder / "gcloud"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def answering(folder: Path, listed: Any, described: Any = None) -> None:
    """Have gcloud print these answers, and keep its arguments."""
    texts = [json.dumps(each).replace("'", "") for each in (listed, described)]
    lines = f'echo "$@" >> {folder}/calls\n'
    program(folder, f"{lines}case \"$*\" in *describe*) echo '{texts[1]}';; *) echo '{texts[0]}';; esac")


def read(run: str = "run-1") -> Any:
    return read_monitored_events(run, "p", "us-central1")


def test_findings_are_read_with_the_reports_of_analyzers(gcloud: Path) -> None:
    answering(gcloud, [LISTED], DESCRIBED)
    found = read()
    assert isinstance(found, Fact)
    (event,) = found.value
    assert (event.id, event.type, event.has_insight) == ("abc-1", "PERFORMANCE_DEGRADATION", True)
    assert event.ended_ns - event.since_ns == 600 * 1_000_000_000
    (report,) = event.reports
    assert (report.analyzer, report.is_detected, report.actions) == ("ICI Link Analyzer", True, ("Contact Google.",))
    assert found.refs[0].id == "abc-1"
    calls = (gcloud / "calls").read_text().splitlines()
    options = "--location=us-central1 --machine-learning-run=run-1 --project=p --format=json --quiet"
    assert calls == [
        f"alpha mldiagnostics monitored-events list {options} --limit=50",
        f"alpha mldiagnostics monitored-events describe abc-1 {options}",
    ]


def test_an_event_without_a_finding_is_not_described(gcloud: Path) -> None:
    answering(gcloud, [{**LISTED, "analyzerInsightFound": False, "endTime": "0001-01-01T00:00:00Z"}])
    found = read()
    assert isinstance(found, Fact)
    assert (found.value[0].has_insight, found.value[0].ended_ns) == (False, None)
    assert len((gcloud / "calls").read_text().splitlines()) == 1


def test_a_run_without_events_has_none(gcloud: Path) -> None:
    answering(gcloud, [])
    found = read()
    assert isinstance(found, Fact)
    assert found.value == ()


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ("ERROR: (gcloud.alpha) Invalid choice: 'mldiagnostics'.", "components install alpha"),
        ("You do not currently have this command group installed.", "components install alpha"),
        ("ERROR: (gcloud.alpha) You do not currently have an active account selected.", "gcloud auth login"),
        ("ERROR: (gcloud.alpha) PERMISSION_DENIED: Permission denied on resource", "roles/hypercomputecluster"),
        ("ERROR: something else", "something else"),
    ],
)
def test_a_refusal_names_what_to_do(gcloud: Path, errors: str, expected: str) -> None:
    program(gcloud, f'echo "{errors}" >&2; exit 1')
    found = read()
    assert isinstance(found, Unknown)
    assert expected in found.why


def test_without_gcloud_nothing_is_known(gcloud: Path) -> None:
    found = read()
    assert isinstance(found, Unknown)
    assert "'gcloud' is not installed" in found.why


@pytest.mark.parametrize("text", ["echo '['", "echo '{}'", "echo '[3]'", "true"])
def test_an_answer_of_another_form_is_skipped(gcloud: Path, text: str) -> None:
    program(gcloud, text)
    found = read()
    assert isinstance(found, Unknown) or found.value == ()


@pytest.mark.parametrize("run", ["--impersonate-service-account=x", "a b", "", "../x"])
def test_no_name_can_be_an_option(gcloud: Path, run: str) -> None:
    answering(gcloud, [])
    assert isinstance(read(run), Unknown)
    assert not (gcloud / "calls").exists()


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_the_real_gcloud_is_asked_and_what_it_lacks_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER", "http://127.0.0.1:9/")
    found = read()
    assert isinstance(found, Unknown)
    assert "gcloud" in found.why


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda children: st.one_of(
        st.lists(children, max_size=3), st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*DESCRIBED]), JSON), st.sampled_from([*DESCRIBED]), JSON)
def test_no_event_of_another_form_raises(document: dict[str, Any], key: str, value: Any) -> None:
    parse_event(document)
    parse_event({**DESCRIBED, key: value})
    parse_event(value)
