"""Rows of events lose nothing: from payloads to rows and back, the events are those of the payloads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger.events import EventBatch, read_events
from ml_goodput_measurement.reading import KINDS, EventRow, batch_from_rows, rows_from_payloads

from .histories import BASE, JOB, History, Payload
from .lives import lives

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(BASE),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_one_of_each = History().start(0).step(0, 1).step_end(0, 2).end(3).load(4, 5).load_after(0, 4, 5).custom(6, 7)
_one_of_each.wait(8, 9).wait(8, 9, "my_SCALE_up").reinitialize(1, 2).init(1, 2).prepare(1, 2)
_one_of_each.save(1, 2, 3).restore(1, 2, 3)
_one_of_each.add(elastic_slice_counts_timestamp=BASE, active_slices=1, total_slices=2, available_slices=3)
_one_of_each.add(elastic_slice_counts_timestamp=BASE, active_slices=1, total_slices=2**40, available_slices=3)
_one_of_each.add(checkpoint_progress_step=4, checkpoint_progress_started=BASE)
_one_of_each.add(job_end_time=BASE, job_end_exception="ValueError")
_one_of_each.add(job_end_time=BASE, process_outcome="returned", process_began=BASE - 5, process_ended=BASE)
_one_of_each.add(lost_entries={"disk full": 3}, lost_by="x").add(lost_entries={"disk full": 4})
_one_of_each.add(inferred_activity="eval", inferred_from="calls of f", inferred_certainty="low")
_one_of_each.add(
    compiled_functions=3, compiled_seconds=1.5, compilation_cache_hits=1, compilation_cache_misses=2, compiled_by="p"
)
_one_of_each.add(event_type="save", step=3, checkpoint_manager_blocking_duration_secs=1.5, logged_at=BASE)
_one_of_each.add(event_type="emergency_restore", step=3, checkpoint_manager_duration_secs=1.5, logged_after=BASE)
_one_of_each.add(anything="else")
keys = st.sampled_from(sorted({key for entry in _one_of_each.payloads for key in entry}))
changed = st.builds(
    lambda entry, more: {**entry, **more},
    st.sampled_from(_one_of_each.payloads),
    st.dictionaries(keys, junk, max_size=2),
)
any_payload = st.dictionaries(keys | st.text(max_size=3), junk, max_size=4) | junk | changed


def assert_nothing_is_lost(payloads: list[Any]) -> list[EventRow]:
    skipped: Counter[str] = Counter()
    expected = read_events(payloads, JOB, skipped)
    rows = list(rows_from_payloads(payloads, JOB))
    found: Counter[str] = Counter()
    batch = batch_from_rows(rows, JOB, found)
    for name in EventBatch.__dataclass_fields__:
        assert repr(getattr(batch, name)) == repr(getattr(expected, name)), name  # repr, since NaN is not NaN
    assert found == skipped
    return rows


@settings(max_examples=300, deadline=None)
@given(st.lists(any_payload, max_size=8))
def test_any_payloads_come_back_as_the_same_events(payloads: list[Any]) -> None:
    for row in assert_nothing_is_lost(payloads):
        assert row.kind in KINDS
        assert -(2**63) <= row.at_ns < 2**63
        assert row.payload is None or row.payload.isascii()


@settings(max_examples=100, deadline=None)
@given(lives())
def test_lives_come_back_as_the_same_events(life: tuple[list[Payload], float]) -> None:
    rows = assert_nothing_is_lost(life[0])
    assert len(rows) == len(life[0])


def test_each_kind_has_its_own_columns_but_what_is_rare() -> None:
    rows = assert_nothing_is_lost(_one_of_each.payloads)
    assert {row.kind for row in rows} == set(KINDS)
    kept = {key for row in rows if row.payload for key in json.loads(row.payload)}
    assert "step_start_time" not in kept
    assert {"process_outcome", "lost_entries", "inferred_activity", "compiled_functions", "anything"} <= kept


def test_a_payload_that_cannot_be_json_counts_all_the_same() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert_nothing_is_lost([{"job_name": JOB, "step_start_time": deep, "step_count": 1}, {"job_name": JOB, "x": deep}])


def test_a_kind_of_a_newer_version_is_named() -> None:
    for kind in ("hold", "hold_start", "init_middle"):
        with pytest.raises(ValueError, match=f"kind '{kind}', which this version does not know: update it"):
            batch_from_rows([EventRow(kind, 5)], JOB, Counter())


def test_rows_need_no_table_library() -> None:
    code = "import sys, ml_goodput_measurement.reading; print({'pyarrow', 'numpy', 'duckdb'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
