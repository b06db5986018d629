"""Each number leads to the entries behind it, without their secrets."""

from __future__ import annotations

import json

import pytest
from ml_diagnostics_console._web import explain_view

from ...waiting import LONG_SECONDS
from .recorded import Page


def test_the_proofs_of_a_verdict_are_entries(failed: Page) -> None:
    assert failed.run is not None
    answer = failed.store.doctor.wait(failed.run, LONG_SECONDS)
    proofs = [proof["explain"] for proof in answer["proofs"] if proof["explain"]]
    assert proofs
    for of in proofs:
        found = failed.json("/explain", of=of)
        assert (found["of"], found["total"]) == (of, 1)
        assert found["entries"][0]["payload"]
    texts = json.dumps([failed.json("/explain", of=of) for of in proofs])
    assert "batch 30 is empty" in texts
    assert "hunter2secret" not in texts


def test_a_disruption_is_its_last_entries_and_those_up_to_the_first_step(restarted: Page) -> None:
    first = restarted.json()["disruptions"][0]
    answer = restarted.json("/explain", of=first["explain"])
    times = [entry["time"] for entry in answer["entries"]]
    assert times == sorted(times)
    assert times[0] <= first["at"] < times[-1]
    assert any("job_start_time" in entry["payload"] for entry in answer["entries"])
    assert {entry["log"] for entry in answer["entries"]} == {"goodput_llama-1"}


def test_a_metric_is_its_last_values_or_those_of_a_step(restarted: Page) -> None:
    last = restarted.json("/explain", of="metric:loss")
    assert [entry["payload"]["step_index"] for entry in last["entries"]] == [995, 996, 997, 998, 999]
    repeated = restarted.json("/explain", of="metric:loss@350")
    assert [entry["payload"]["step_index"] for entry in repeated["entries"]] == [350, 350]


def test_attempts_processes_buckets_and_stacks_have_entries(failed: Page) -> None:
    overview = failed.json()
    process = overview["processes"][0]
    at = failed.json("/stacks")["at"]
    for of in ("attempt:1", f"process:{process['host']}/{process['pid']}", "bucket:productive", f"stacks:{at}"):
        answer = failed.json("/explain", of=of)
        assert answer["total"] == len(answer["entries"]) > 0, of
    entry = failed.json("/explain", of="attempt:1")["entries"][0]
    assert failed.json("/explain", of=f"entry:{entry['insert_id']}")["entries"] == [entry]


def test_an_unknown_entry_has_none(failed: Page) -> None:
    assert failed.json("/explain", of="entry:nope") == {"of": "entry:nope", "entries": [], "total": 0}


@pytest.mark.parametrize(
    ("status", "of"),
    [
        (400, ""),
        (400, "proof"),
        (400, "lunch:1"),
        (400, "bucket:lunch"),
        (400, "disruption:x"),
        (400, "disruption:\N{ARABIC-INDIC DIGIT ONE}"),
        (404, "disruption:9"),
        (404, "attempt:9"),
        (404, "metric:nope"),
        (400, "process:nope"),
        (400, "process:vm-0/" + "9" * 5_000),
        (400, "process:vm-0/\N{ARABIC-INDIC DIGIT ONE}"),
        (400, "stacks:nan"),
    ],
)
def test_what_cannot_be_explained_is_refused(restarted: Page, status: int, of: str) -> None:
    assert restarted.error(status, "/explain", of=of)


def test_the_last_values_need_only_the_ends_of_a_long_log(restarted: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = restarted.json("/explain", of="metric:loss")
    monkeypatch.setattr(explain_view, "_END_BYTES", 2000)
    assert restarted.json("/explain", of="metric:loss") == whole
    monkeypatch.setattr(explain_view, "_END_BYTES", 10)  # Then the whole log is read.
    assert restarted.json("/explain", of="metric:loss") == whole
