"""The doctor's verdict is worked out beside the requests, kept, and marked as data."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web import judging
from ml_diagnostics_console._web.sentences import marked, safe_line
from ml_diagnostics_console._web.verdict_answer import Judged, answer_of
from ml_diagnostics_console.doctor import examine
from ml_diagnostics_console.verdict import VerdictClass

from ...waiting import wait_until
from .recorded import DOCTOR_SECONDS, Page


def known(page: Page) -> dict[str, object]:
    """Ask until the verdict is known."""
    answers = []

    def is_ready() -> bool:
        answers.append(page.json("/verdict"))
        return answers[-1]["state"] == "ready"

    wait_until(is_ready, DOCTOR_SECONDS)
    return dict(answers[-1])


def test_the_verdict_on_a_real_failed_job_is_that_of_the_command(failed: Page) -> None:
    answer = known(failed)
    assert failed.run is not None
    report = examine(failed.run.id, kubernetes="off")
    assert str(answer["sentence"]).startswith("Failed: ")
    assert report.headline.sentence in str(answer["sentence"])
    assert (answer["rule"], answer["confidence"]) == (report.headline.rule, report.headline.confidence.value)
    assert answer["explain"] == f"mldiagnostics doctor explain {failed.run.id}/1"
    assert answer["blame"] == "the program or its configuration"
    assert "hunter2secret" not in json.dumps(answer)


def test_the_parts_are_the_sentence_and_a_hang_names_its_host_as_code(hung: Page) -> None:
    answer = known(hung)
    parts = answer["parts"]
    assert isinstance(parts, list)
    assert "".join(part["text"] for part in parts) == answer["sentence"]
    assert answer["class"] == "stuck"
    hosts = answer["hosts"]
    assert isinstance(hosts, list)
    assert {"text": hosts[0], "kind": "code"} in parts
    assert any(part["kind"] == "bold" for part in parts)


def test_the_first_answer_does_not_wait(failed_folder: object, restarted: Page) -> None:
    assert restarted.json("/verdict") == {"state": "working"}
    assert known(restarted)["state"] == "ready"


def test_a_new_version_is_judged_again_and_the_old_verdict_shown_until_then(failed: Page) -> None:
    first = known(failed)
    assert failed.run is not None
    failed.run.version += 1
    assert failed.json("/verdict") == first
    assert failed.store.doctor.wait(failed.run, DOCTOR_SECONDS) == first


def test_durations_steps_frames_signals_and_hosts_are_marked() -> None:
    text = (
        "Stuck for 12 min 22 s at step 1,060,789: 63 of 64 wait for vm-1 (not vm-10), in __next__ (data.py:40), SIGKILL"
    )
    kinds = {(part["text"], part["kind"]) for part in marked(text, ["vm-1"]) if part["kind"] != "text"}
    assert kinds == {
        ("12 min 22 s", "bold"),
        ("1,060,789", "bold"),
        ("vm-1", "code"),
        ("__next__ (data.py:40)", "code"),
        ("SIGKILL", "code"),
    }


@given(text=st.text(), names=st.lists(st.text(max_size=5), max_size=3))
def test_no_text_is_lost_by_marks(text: str, names: list[str]) -> None:
    shown = "".join(part["text"] for part in marked(text, names))
    assert shown == text or "`" in text


@given(text=st.text())
def test_a_safe_line_is_one_line_of_valid_text(text: str) -> None:
    line = safe_line(text)
    assert line.isprintable()
    line.encode()


def test_the_overview_has_the_sentence_once_it_is_known(hung: Page) -> None:
    verdict = known(hung)
    overview = hung.json()
    assert (overview["verdict"], overview["verdict_parts"]) == (verdict["sentence"], verdict["parts"])


def test_the_list_has_the_sentence_once_it_is_known_and_judges_no_run_by_itself(hung: Page) -> None:
    assert hung.run is not None
    rows = hung.json("/api/runs")["rows"]
    assert rows[0]["verdict"].startswith("Stuck for ")
    assert hung.store.doctor.known(hung.run) is None
    cursor = hung.store.cursor
    verdict = known(hung)
    hung.store.refresh()
    row = hung.json("/api/runs")["rows"][0]
    assert row["verdict"] == str(verdict["sentence"])[: len(row["verdict"])]
    changes = hung.store.changes_since(cursor)
    assert changes is not None
    assert changes["changed"]["rows"][0]["verdict"] == row["verdict"]


def test_the_list_keeps_the_sentence_of_a_run_of_which_nothing_is_wrong(restarted: Page) -> None:
    before = restarted.json("/api/runs")["rows"][0]["verdict"]
    assert restarted.run is not None
    judged = Judged({"state": "ready", "sentence": "Nothing is wrong: it ended well.", "class": "healthy"})
    restarted.store.doctor.take(restarted.run, judged)
    restarted.store.refresh()
    assert restarted.json("/api/runs")["rows"][0]["verdict"] == before


def test_the_list_does_not_keep_what_was_wrong_with_a_live_run_long_ago(
    hung: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hung.run is not None
    hung.store.doctor.take(hung.run, Judged({"state": "ready", "sentence": "Slow: since step 3.", "class": "slow"}))
    assert hung.store.doctor.finding(hung.run) == "Slow: since step 3."
    monkeypatch.setattr(judging, "_MOST_PAUSES", 0.0)
    assert hung.store.doctor.finding(hung.run) == ""


def test_the_verdict_on_a_live_run_is_kept_until_its_state_changes(failed: Page) -> None:
    first = known(failed)
    run = failed.run
    assert run is not None
    state, run.state = run.state, "running"
    run.version += 1
    failed.store.doctor.wait(run, DOCTOR_SECONDS)
    before = failed.store.doctor.known(run)
    run.version += 1
    assert failed.json("/verdict") == first
    assert failed.store.doctor.known(run) == before
    run.state = state
    assert failed.store.doctor.ask(run) == {"state": "working"}
    wait_until(lambda: failed.store.doctor.known(run) != before, DOCTOR_SECONDS)


def test_a_verdict_of_long_ago_is_not_shown_while_a_new_one_is_worked_out(
    failed: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(failed)
    assert failed.run is not None
    failed.run.version += 1
    with monkeypatch.context() as patch:
        patch.setattr(judging, "_MOST_PAUSES", 0.0)
        assert failed.json("/verdict") == {"state": "working"}
    assert known(failed)["class"] == "crash"


def test_a_job_that_has_made_steps_has_not_failed_before_the_first_one(failed: Page) -> None:
    assert failed.run is not None
    report = examine(failed.run.id, kubernetes="off")
    headline = dataclasses.replace(
        report.headline, verdict_class=VerdictClass.BEFORE_START, sentence="the hosts differ: vm-1 runs another config"
    )
    answer = answer_of(dataclasses.replace(report, shown=(headline,)))
    assert answer["sentence"] == "The hosts differ: vm-1 runs another config."
    *earlier, attempt = report.facts.attempts
    facts = dataclasses.replace(report.facts, attempts=(*earlier, dataclasses.replace(attempt, best_step=0)))
    answer = answer_of(dataclasses.replace(report, shown=(headline,), facts=facts))
    assert answer["sentence"].startswith("Failed before the first step: the hosts differ")


def test_a_duration_at_the_end_of_a_sentence_is_marked_whole() -> None:
    parts = marked("no progress for 1 min 14 s.")
    assert [part["text"] for part in parts if part["kind"] == "bold"] == ["1 min 14 s"]
