"""A job that hangs is stuck on the page while its host goes on sending values without steps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics.entries import HANG_SUSPECTED, SNAPSHOT, entry
from google_cloud_mldiagnostics.reading import LOG_ID
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.journal import Journal, encode_own_fields

from .made_runs import MadeAttempt, MadeRun
from .recorded import Page, page_of

_SECOND_NS = 10**9
_GROUP = {"threads": 1, "main": True, "names": ["MainThread"], "frames": ["read (/job/data.py:40)"]}


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """A job that made its last step 100 s ago, and its last value a second ago."""
    now_ns = time.time_ns()
    start_ns = now_ns - 170 * _SECOND_NS
    MadeRun("hangs", start_ns, [MadeAttempt(0, 99, "ACTIVE")], has_goodput=False).write(tmp_path)
    labels = {"job": "hangs", "run": "hangs", "attempt": "1", "host": "vm-0", "process_index": "0", "pid": "4001"}
    clock_ns = [now_ns - 60 * _SECOND_NS]
    companion = Journal(
        COMPANION_LOG_ID, root=tmp_path, labels=labels, clock_ns=lambda: clock_ns[0], about_pid=4001, shippable=False
    )
    companion.append(entry(SNAPSHOT, "", groups=[_GROUP], threads=1, time_ns=0, step=99, interval_seconds=600))
    companion.append(entry(HANG_SUSPECTED, "stuck", stuck_seconds=40.0, step=99, phase="step", timeout_seconds=30))
    companion.close(5)
    node = {"location": "us-central1", "namespace": "mlrun_losses", "node_id": "hangs"}
    resource = {"type": "generic_node", "labels": node}
    run = Journal(LOG_ID, root=tmp_path, labels=labels, resource=resource, about_pid=4001, shippable=False)
    own = encode_own_fields(None, {"namespace": "host_memory"})
    for seconds in range(170):
        text = '{"values":[1.5],"unit":"%"}' + own
        run.append_text(str(now_ns), text, str(start_ns + seconds * _SECOND_NS))
    run.close(5)
    return page_of(tmp_path, monkeypatch)


def test_values_without_steps_are_no_progress(stuck: Page) -> None:
    answer = stuck.json()
    assert answer["state"] == "stuck"
    assert "step 99" in answer["reason"]
    assert answer["attempts"] == "h"


def test_a_stack_that_was_taken_at_the_hang_has_been_there_until_now(stuck: Page) -> None:
    (group,) = stuck.json("/stacks")["groups"]
    assert 90 < group["unchanged_seconds"] < 130
    at = stuck.json("/stacks")["at"]
    (then,) = stuck.json("/stacks", at=at)["groups"]
    assert 35 < then["unchanged_seconds"] < 50
