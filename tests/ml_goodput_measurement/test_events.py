"""Every key that the public library, Orbax or we write becomes the right event, and nothing else does any harm."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement._ledger.events import (
    CheckpointOperation,
    CheckpointProgress,
    Event,
    EventBatch,
    JobEnd,
    JobStart,
    Mark,
    SliceCount,
    read_events,
)
from ml_goodput_measurement.partition import Bucket, Inference

from .histories import BASE, JOB, orbax_save

AT = BASE + 0.25
AT_NS = 1_700_000_000_250_000_000

SAVE, RESTORE = Bucket.CHECKPOINT_SAVE, Bucket.CHECKPOINT_RESTORE
DOWN, UP = Bucket.ELASTIC_SLICE_DOWN, Bucket.ELASTIC_SCALE_UP

RESTORED: dict[str, Any] = {
    "event_type": "restore",
    "step": 40,
    "directory": "gs://bucket/run",
    "checkpointer_start_time": AT,
    "checkpointer_duration_secs": 2.0,
    "checkpoint_manager_start_time": AT,
    "checkpoint_manager_duration_secs": 2.5,
}
EMERGENCY: dict[str, Any] = {
    **RESTORED,
    "event_type": "emergency_restore",
    "directory": "/local/run",
    "is_restoring_slice": True,
    "in_primary_slice": False,
    "broadcast_start_time": None,
    "broadcast_duration_secs": None,
}


def read(*payloads: Any, job: str = JOB) -> tuple[EventBatch, Counter[str]]:
    skipped: Counter[str] = Counter()
    return read_events(payloads, job, skipped), skipped


def ours(**keys: Any) -> dict[str, Any]:
    return {"job_name": JOB, **keys}


def pair(stem: str, bucket: Bucket, label: str = "", **keys: Any) -> list[tuple[dict[str, Any], Event]]:
    return [
        ({**keys, f"{stem}_start_time": AT}, Mark((bucket, label), False, AT_NS)),
        ({**keys, f"{stem}_end_time": AT}, Mark((bucket, label), True, AT_NS)),
    ]


OTHERS: list[tuple[dict[str, Any], Event]] = [
    ({"job_start_time": AT}, JobStart(AT_NS)),
    ({"job_end_time": AT}, JobEnd(AT_NS)),
    *pair("tpu_init", Bucket.TPU_INITIALIZATION),
    *pair("training_prep", Bucket.TRAINING_PREP),
    *pair("custom_badput_event", Bucket.CUSTOM, "EVAL_STEP", custom_badput_event_type="eval_Step"),
    *pair("custom_badput_event", Bucket.CUSTOM, "UNKNOWN"),
    *pair("custom_badput_event", Bucket.CUSTOM, "UNKNOWN", custom_badput_event_type=None),
    *pair("elastic_wait", DOWN, "Slice_Down", elastic_wait_event_type="Slice_Down"),
    *pair("elastic_wait", UP, "my_SCALE_UP", elastic_wait_event_type="my_SCALE_UP"),
    *pair("elastic_reinit", Bucket.ELASTIC_REINITIALIZATION),
    (
        {"active_slices": 3, "total_slices": 4, "available_slices": 4, "elastic_slice_counts_timestamp": AT},
        SliceCount(AT_NS, 3, 4, 4),
    ),
    ({"checkpoint_progress_step": 40, "checkpoint_progress_started": AT}, CheckpointProgress(40, AT_NS)),
]


@pytest.mark.parametrize(("payload", "event"), OTHERS, ids=[repr(event) for _, event in OTHERS])
def test_every_key_of_the_log_is_read_to_its_event(payload: dict[str, Any], event: Event) -> None:
    expected = EventBatch(others=[event])
    assert read(ours(**payload)) == (expected, Counter())
    # Cloud Logging keeps no order of keys.
    assert read(dict(reversed(ours(**payload).items()))) == (expected, Counter())


@pytest.mark.parametrize("number", [7, 7.0, "7"])
def test_the_number_of_a_step_may_be_an_integer_or_a_protobuf_float(number: Any) -> None:
    batch, skipped = read(ours(step_count=number, step_start_time=AT))
    assert batch == EventBatch(step_times=[AT_NS], step_numbers=[7])
    assert type(batch.step_numbers[0]) is int
    assert not skipped


def test_data_loads_are_read_as_marks() -> None:
    batch, skipped = read(ours(data_loading_start_time=AT), ours(data_loading_end_time=AT + 1))
    assert batch == EventBatch(load_marks=[2 * AT_NS + 1, 2 * (AT_NS + 10**9)])
    assert not skipped


def test_a_save_of_orbax_is_read_with_what_it_leaves_none() -> None:
    batch, skipped = read(ours(**orbax_save(40, 0.25, 3.25, "gs://bucket/run")))
    assert batch == EventBatch(checkpoints=[CheckpointOperation(SAVE, 40, "persistent", AT_NS, 3 * 10**9)])
    assert not skipped


@pytest.mark.parametrize(
    ("payload", "tier"),
    [
        (RESTORED, "persistent"),
        (EMERGENCY, "local"),
        ({**RESTORED, "directory": None}, "local"),
        ({**RESTORED, "directory": "gs/run"}, "local"),
    ],
)
def test_a_restore_of_orbax_is_read(payload: dict[str, Any], tier: str) -> None:
    batch, skipped = read(ours(**payload))
    assert batch == EventBatch(checkpoints=[CheckpointOperation(RESTORE, 40, tier, AT_NS, 2_500_000_000)])
    assert not skipped


@pytest.mark.parametrize(
    ("payload", "keys"),
    [
        (
            orbax_save(40, 0, 3, "gs://bucket/run"),
            ["step", "checkpoint_manager_blocking_duration_secs"],
        ),
        (RESTORED, ["step", "checkpoint_manager_duration_secs"]),
        (EMERGENCY, ["step", "checkpoint_manager_duration_secs"]),
    ],
    ids=["save", "restore", "emergency_restore"],
)
def test_a_checkpoint_entry_without_what_counts_is_counted_and_the_rest_is_read(
    payload: dict[str, Any], keys: list[str]
) -> None:
    for key in keys:
        without = {name: value for name, value in payload.items() if name != key}
        batch, skipped = read(ours(**{**payload, key: None}), ours(**without), ours(job_start_time=AT))
        assert batch == EventBatch(others=[JobStart(AT_NS)])
        assert skipped == {"malformed entry": 2}


@pytest.mark.parametrize("part", ["wait_for_prev", "checkpointer_blocking"])
def test_a_save_without_its_start_starts_with_its_first_part(part: str) -> None:
    saved = {key: value for key, value in orbax_save(40, 0, 3, "gs://b").items() if not key.endswith("_start_time")}
    batch, skipped = read(ours(**saved, **{f"{part}_start_time": AT}), ours(**saved))
    assert batch.checkpoints == [CheckpointOperation(SAVE, 40, "persistent", AT_NS, 3 * 10**9)]
    assert len(batch.untimed) == 1
    assert skipped == {"malformed entry": 1}  # The other one has no time at all.


def test_an_unknown_event_type_is_skipped() -> None:
    assert read(ours(event_type="delete", step=3), ours(event_type=None)) == (EventBatch(), Counter())


def test_the_end_of_a_step_is_read() -> None:
    expected = EventBatch(step_end_times=[AT_NS], step_end_numbers=[7])
    assert read(ours(step_end_count=7.0, step_ended=AT)) == (expected, Counter())


def test_what_recorders_lost_is_read() -> None:
    batch, skipped = read(ours(lost_entries={"disk_full": 3}), ours(lost_entries={"disk_full": 1, "io_error": 2}))
    assert list(batch.lost.values()) == [{"disk_full": 3}, {"disk_full": 1, "io_error": 2}]
    assert not skipped


def test_the_kinds_of_events_that_are_inferred_are_read() -> None:
    step = {"inferred_activity": "step", "inferred_from": "calls of f", "inferred_certainty": "medium"}
    batch, skipped = read(ours(**step), ours(**{**step, "inferred_activity": "evaluation"}), ours(inferred_activity=1))
    assert batch.inferred == [
        Inference(Bucket.PRODUCTIVE, "", "calls of f", "medium"),
        Inference(Bucket.CUSTOM, "EVALUATION", "calls of f", "medium"),
    ]
    assert skipped == {"malformed entry": 1}
    assert not batch.records_job()


def test_other_jobs_are_passed_over_in_silence() -> None:
    foreign: list[dict[str, Any]] = [{"job_name": "other", **payload} for payload, _ in OTHERS]
    foreign += [{"job_name": "JOB", "step_count": 1, "step_start_time": AT}, {"job_name": "other", **RESTORED}]
    foreign += [{"job_name": "other", "step_count": None, "step_start_time": "soon"}, {"step_count": 1}, {}]
    assert read(*foreign) == (EventBatch(), Counter())


def test_an_entry_with_nothing_that_is_known_is_passed_over() -> None:
    assert read(ours(), ours(message="hello"), ours(step_count=3)) == (EventBatch(), Counter())


@pytest.mark.parametrize("payload", [None, 5, "job_name", ["job_name"], b"job_name", 2.5, object()])
def test_a_value_that_is_not_a_payload_is_skipped(payload: Any) -> None:
    assert read(payload, ours(job_start_time=AT))[0] == EventBatch(others=[JobStart(AT_NS)])


@given(st.integers(0, 3_999_999_999_999_999))
def test_times_are_rounded_to_the_microsecond_that_was_recorded(microseconds: int) -> None:
    """A float of seconds carries a quarter of a microsecond; the recorded time is restored exactly."""
    seconds = microseconds / 1e6
    batch, _ = read(
        ours(step_count=0, step_start_time=seconds),
        ours(data_loading_start_time=seconds),
        ours(data_loading_end_time=seconds),
        ours(job_start_time=seconds),
    )
    time_ns = microseconds * 1000
    assert batch == EventBatch(
        step_times=[time_ns],
        step_numbers=[0],
        load_marks=[2 * time_ns + 1, 2 * time_ns],
        others=[JobStart(time_ns)],
    )


TIMES = [key for payload, _ in OTHERS for key in payload if key.endswith(("_time", "_ended", "_started", "_timestamp"))]
STEPS = [{"step_count": 1, "step_start_time": AT}, {"data_loading_start_time": AT}, {"data_loading_end_time": AT}]
WHOLE = [*(payload for payload, _ in OTHERS), *STEPS, RESTORED, EMERGENCY, orbax_save(1, 0, 1, "gs://b")]

junk = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -float("inf"), -1.0, 4e9, 1e300, 10**400, -(10**400), 2**63]),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)),
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(WHOLE), st.data())
def test_junk_under_a_known_key_is_an_event_or_counted_and_never_an_error(
    payload: dict[str, Any], data: st.DataObject
) -> None:
    spoilt = dict(payload)
    for key in data.draw(st.lists(st.sampled_from(sorted(payload)), min_size=1, unique=True)):
        spoilt[key] = data.draw(junk)
    batch, skipped = read(ours(**spoilt), ours(job_start_time=AT))
    batch.others.remove(JobStart(AT_NS))
    events = len(batch.step_times) + len(batch.load_marks) + len(batch.others) + len(batch.checkpoints)
    assert len(batch.step_times) == len(batch.step_numbers)
    assert events + skipped["malformed entry"] <= 1
    assert set(skipped) <= {"malformed entry"}
    # What was read is nothing that a ledger would choke on.
    ledger = Ledger()
    ledger.add(batch)
    summary = ledger.summary(AT_NS)
    assert summary is None or sum(summary.buckets.values()) == summary.wall_ns >= 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300, 10**400, "soon", None, [AT], {"a": AT}])
@pytest.mark.parametrize("key", sorted({*TIMES, "step_start_time", "data_loading_start_time", "data_loading_end_time"}))
def test_a_time_that_is_none_is_counted(key: str, value: Any) -> None:
    [payload, *_] = [payload for payload in WHOLE if key in payload]
    assert read(ours(**{**payload, key: value})) == (EventBatch(), Counter({"malformed entry": 1}))


@pytest.mark.parametrize("lost", [None, 3, ["disk_full"], {"disk_full": "many"}, {"disk_full": float("nan")}])
def test_losses_that_cannot_be_read_are_counted(lost: Any) -> None:
    assert read(ours(lost_entries=lost)) == (EventBatch(), Counter({"malformed entry": 1}))


def test_an_endlessly_nested_value_is_not_an_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    spoilt = ours(custom_badput_event_type=deep, custom_badput_event_start_time=AT)
    batch, _ = read(spoilt, ours(**{**RESTORED, "directory": deep}), ours(lost_entries=deep), ours(job_end_time=AT))
    assert JobEnd(AT_NS) in batch.others
