"""The page of a run has its attempts, what each restart cost, where its time went, and what happened."""

from __future__ import annotations

import json

import pytest

from .recorded import Page


def test_a_real_failed_job_is_shown_whole(failed: Page) -> None:
    answer = failed.json()
    assert answer["state"] == "failed"
    assert "ValueError: batch 30 is empty" in answer["reason"]
    assert answer["attempts"] == "x"
    (attempt,) = answer["attempt_list"]
    assert (attempt["number"], attempt["end"], attempt["first_step"], attempt["last_step"]) == (1, "x", 0, 30)
    assert attempt["ended"] == pytest.approx(answer["ended"], abs=20)
    assert [metric["points"] for metric in answer["metrics_list"] if metric["name"] == "loss"] in ([30], [31])
    (process,) = answer["processes"]
    assert process["state"] == "failed"
    assert process["is_first_cause"]
    assert [event["kind"] for event in answer["events"]] == ["failed"]
    assert {"text": "ValueError", "kind": "code"} in answer["verdict_parts"]
    assert "".join(part["text"] for part in answer["verdict_parts"]) == answer["verdict"]


def test_the_buckets_are_all_of_the_time(failed: Page) -> None:
    answer = failed.json()
    assert sum(row["seconds"] for row in answer["ledger"]) == pytest.approx(answer["totals"]["wall_seconds"])
    assert sum(row["percent"] for row in answer["ledger"]) == pytest.approx(100)
    assert answer["ledger"][0]["bucket"] == "productive"
    assert answer["goodput"] == pytest.approx(answer["ledger"][0]["percent"], abs=0.1)
    assert answer["ledger"][0]["title"] == "Productive"
    assert answer["totals"]["steps"] in (30, 31)
    assert answer["totals"]["began"] <= answer["started"]
    assert answer["attempt_list"][-1]["last_step"] == answer["step"]


def test_each_restart_has_its_cause_and_its_cost(restarted: Page) -> None:
    answer = restarted.json()
    assert answer["attempts"] == "pxc"
    first, second = answer["disruptions"]
    assert (first["attempt"], first["by"], first["steps_lost"]) == (1, "preemption", 100)
    assert (second["attempt"], second["by"], second["steps_lost"]) == (2, "user", 100)
    assert "loss is nan" in second["what"]
    for each in (first, second):
        assert each["cost_seconds"] == pytest.approx(sum(each["parts"].values()))
        assert each["cost_seconds"] > 120  # The pause between the attempts.
    assert answer["totals"]["disruption_seconds"] == pytest.approx(first["cost_seconds"] + second["cost_seconds"])
    spans = [(attempt["first_step"], attempt["last_step"]) for attempt in answer["attempt_list"]]
    assert spans == [(0, 399), (300, 599), (500, 999)]


def test_many_hosts_that_hang_are_one_event(hung: Page) -> None:
    events = [event for event in hung.json()["events"] if event["kind"] == "hung"]
    assert any("other host" in event["text"] for event in events)
    assert len(events) < 16


def test_what_is_not_known_is_null_or_empty_and_says_what_would_fill_it(empty: Page) -> None:
    answer = empty.json()
    assert answer["goodput"] is None
    assert answer["ledger"] == answer["disruptions"] == answer["metrics_list"] == answer["sessions"] == []
    assert "instrument" in answer["ledger_help"]
    assert answer["totals"]["productive_seconds"] is None
    assert answer["chips"] == "4 chips tpu-v5p"


def test_an_unknown_run_is_not_there(failed: Page) -> None:
    assert "no run 'nope'" in failed.error(404, "/api/runs/nope")


def test_no_secret_is_sent(failed: Page) -> None:
    assert "hunter2secret" not in json.dumps(failed.json())
