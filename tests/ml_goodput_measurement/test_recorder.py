from __future__ import annotations

import datetime
import inspect
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.clock import now_ns
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.reader import JournalReader
from ml_goodput_measurement.goodput import GoodputRecorder

from .loaded_modules import loaded_by

JOB, LOG = "run7", "goodput_run7"
AT = datetime.datetime(2025, 11, 21, 7, 31, 50, 250_000, tzinfo=datetime.timezone.utc)
AT_SECONDS = 1763710310.25


def folder() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"])


def entries(log_id: str = LOG) -> list[LogEntry]:
    return [entry for batch in JournalReader(log_id, root=folder()).read_new() for entry in batch]


def payloads(log_id: str = LOG) -> list[dict[str, Any]]:
    return [entry.payload for entry in entries(log_id)]


CALLS: list[tuple[Callable[[GoodputRecorder], None], dict[str, Any]]] = [
    (lambda r: r.record_job_start_time(AT), {"job_start_time": AT_SECONDS}),
    (lambda r: r.record_job_end_time(AT), {"job_end_time": AT_SECONDS}),
    (lambda r: r.record_step_start_time(5, AT), {"step_count": 5, "step_start_time": AT_SECONDS}),
    (lambda r: r.record_step_end_time(5, AT), {"step_end_count": 5, "step_ended": AT_SECONDS}),
    (lambda r: r.record_tpu_init_start_time(AT), {"tpu_init_start_time": AT_SECONDS}),
    (lambda r: r.record_tpu_init_end_time(AT), {"tpu_init_end_time": AT_SECONDS}),
    (lambda r: r.record_training_preparation_start_time(AT), {"training_prep_start_time": AT_SECONDS}),
    (lambda r: r.record_training_preparation_end_time(AT), {"training_prep_end_time": AT_SECONDS}),
    (lambda r: r.record_data_loading_start_time(AT), {"data_loading_start_time": AT_SECONDS}),
    (
        lambda r: r.record_data_loading_start_time(AT, ended_step=5),
        {"step_end_count": 5, "data_loading_start_time": AT_SECONDS},
    ),
    (lambda r: r.record_data_loading_end_time(AT), {"data_loading_end_time": AT_SECONDS}),
    (
        lambda r: r.record_custom_badput_event_start_time(AT, "eval"),
        {"custom_badput_event_type": "eval", "custom_badput_event_start_time": AT_SECONDS},
    ),
    (
        lambda r: r.record_custom_badput_event_end_time(AT, custom_badput_event_type="eval"),
        {"custom_badput_event_type": "eval", "custom_badput_event_end_time": AT_SECONDS},
    ),
    (
        lambda r: r.record_checkpoint_progress(5, AT),
        {"checkpoint_progress_step": 5, "checkpoint_progress_started": AT_SECONDS},
    ),
]


@pytest.mark.parametrize(("call", "event"), CALLS)
def test_each_call_writes_the_entry_of_the_contract(
    call: Callable[[GoodputRecorder], None], event: dict[str, Any]
) -> None:
    call(GoodputRecorder(JOB, LOG, True))
    [payload] = payloads()
    assert payload == {"job_name": JOB, **event}
    assert [type(value) for value in payload.values()] == [str, *map(type, event.values())]
    assert list(payload)[-1] == list(event)[-1]


def test_the_public_library_takes_no_key_of_ours_for_a_time() -> None:
    for call, _ in CALLS:
        call(GoodputRecorder(JOB, LOG, True))
    ours = {"step_end_count", "step_ended", "checkpoint_progress_step", "checkpoint_progress_started", "lost_entries"}
    keys = {key for payload in payloads() for key in payload}
    assert not [key for key in keys & ours if "time" in key]
    assert keys & ours == ours - {"lost_entries"}


def test_a_call_without_a_time_means_now_to_the_nanosecond() -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    before = now_ns()  # Not the machine's clock, which may have been set since this process started.
    recorder.record_step_start_time(5)
    after = now_ns()
    [entry] = entries()
    assert before <= entry.timestamp_ns <= after
    seconds = f"{str(entry.timestamp_ns)[:10]}.{str(entry.timestamp_ns)[10:]}"
    assert entry.payload == {"job_name": JOB, "step_count": 5, "step_start_time": float(seconds)}
    [segment] = folder().glob("journal/*/*.jsonl")
    assert segment.read_text().endswith(f'"step_count":5,"step_start_time":{seconds}}}}}')


def test_entries_name_their_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    GoodputRecorder(JOB, LOG, True).record_job_start_time()
    [entry] = entries()
    labels = entry.context.labels
    assert (labels["job"], labels["process_index"], labels["pid"]) == (JOB, "3", str(os.getpid()))
    assert entry.severity == "INFO"


@pytest.mark.parametrize("step", [7, np.int64(7), np.float32(7.0), np.array(7), 7.0, "7", True * 7])
def test_a_step_is_whatever_is_a_number(step: Any) -> None:
    GoodputRecorder(JOB, LOG, True).record_step_start_time(step)
    assert payloads()[0]["step_count"] == 7


@pytest.mark.parametrize("moment", [AT, AT_SECONDS, np.float64(AT_SECONDS), AT.astimezone(), AT.replace(fold=1)])
def test_a_moment_is_a_datetime_or_a_number_of_seconds(moment: Any) -> None:
    GoodputRecorder(JOB, LOG, True).record_step_start_time(1, moment)
    assert payloads()[0]["step_start_time"] == AT_SECONDS


def test_a_naive_datetime_is_local_time_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ml_diagnostics")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        recorder = GoodputRecorder(JOB, LOG, True)
        for _ in range(2):
            recorder.record_step_start_time(1, datetime.datetime(2025, 11, 21, 2, 31, 50, 250_000))
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert [payload["step_start_time"] for payload in payloads()] == [AT_SECONDS, AT_SECONDS]
    [message] = caplog.messages
    assert "local time" in message


def test_trainers_may_pass_more_than_a_step_end_needs() -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    recorder.record_step_end_time(3, None, "loss", 0.5)
    assert payloads()[0]["step_end_count"] == 3


@pytest.mark.usefixtures("in_production")
@pytest.mark.parametrize("moment", ["2025-11-21", float("nan"), float("inf"), True, b"1", object(), [1], AT.date()])
def test_a_moment_that_is_none_is_counted_and_the_job_goes_on(moment: Any, caplog: pytest.LogCaptureFixture) -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    for step in range(3):
        recorder.record_step_start_time(step, moment)
    recorder.record_tpu_init_start_time(moment)
    recorder.record_step_start_time(3)
    assert [payload["step_count"] for payload in payloads()] == [3]
    assert LOSSES.total() == 4
    assert len(caplog.messages) == 2
    assert "record_step_start_time could not record" in caplog.messages[0]


_junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(blacklist_categories=()))
    | st.binary()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.dates()
    | st.sampled_from([np.float64("nan"), np.int8(3), np.array([1, 2]), 10**400, -(10**400), object, AT]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(_junk, min_size=2, max_size=2), st.sampled_from(["step", "step_end", "checkpoint", "custom", "payload"])
)
def test_no_argument_makes_a_call_raise_and_what_is_written_can_be_read(
    in_production: None, junk: Any, call: str
) -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    method = {
        "step": recorder.record_step_start_time,
        "step_end": recorder.record_step_end_time,
        "checkpoint": recorder.record_checkpoint_progress,
        "custom": recorder.record_custom_badput_event_start_time,
        "payload": lambda *values: recorder.record_payload({"values": values}),
    }[call]
    losses = LOSSES.total()
    method(*junk)  # type: ignore[operator]
    assert recorder._journal.statistics().written + LOSSES.total() - losses == 1
    reader = JournalReader(LOG, root=folder())
    list(reader.read_new())
    assert reader.skipped == {}


def test_a_secret_in_the_name_of_an_event_is_redacted() -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    for name in ("load https://hunter2@host/data", "eval_step", "eval-2"):
        recorder.record_custom_badput_event_start_time(None, name)
        recorder.record_custom_badput_event_end_time(None, name)
    names = [payload["custom_badput_event_type"] for payload in payloads()]
    assert names[::2] == names[1::2] == ["load https://[REDACTED]@host/data", "eval_step", "eval-2"]


HARD_NAMES = [
    'q"uo\\te',
    "a/b/../c",
    "..",
    "ünï—日本😀",
    "x" * 10_000,
    "a\nb\tc",
    "\x00",
    "\udc80lone",
    "%2E",
    "{}",
    "-rf",
]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_any_name_works(name: str) -> None:
    recorder = GoodputRecorder(name, name, True)
    recorder.record_step_start_time(1)
    recorder.record_custom_badput_event_start_time(None, name)
    [step, custom] = entries(name)
    printable = name.replace("\udc80", "\\udc80")
    assert step.payload["job_name"] == custom.payload["custom_badput_event_type"] == recorder.job_name == printable
    assert step.context.log_id == printable
    assert step.context.labels["job"] == printable
    [segment] = folder().rglob("*.jsonl")
    assert segment.parent.parent == folder() / "journal"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job_name": ""}, "expected job_name to be text that is not empty, such as the run's name; got ''"),
        ({"job_name": None}, r"expected job_name to be text .*; got None"),
        ({"logger_name": 5}, "expected logger_name to be text that is not empty, such as the run's name; got 5"),
        ({"logger_name": "  "}, r"expected logger_name to be text .*; got '  '"),
        ({"cloud_logger": object()}, r"expected cloud_logger to have a method write_cloud_logging_entry\(entry\)"),
        ({"background_grace_period_s": -1}, "expected background_grace_period_s to be a number of at least 0, got -1"),
        ({"background_batch_size": 0}, "expected background_batch_size to be a number of at least 1, got 0"),
        ({"planned_steps": 0}, "expected planned_steps to be a number of at least 1, got 0"),
        ({"expected_processes": "2"}, "expected expected_processes to be a number of at least 1, got '2'"),
        ({"background_max_latency_s": "2"}, "expected background_max_latency_s to be a number of at least 0, got '2'"),
        (
            {"background_max_latency_s": float("nan")},
            "expected background_max_latency_s to be a number of at least 0, got nan",
        ),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_wrong_argument_raises_at_construction(arguments: dict[str, Any], message: str, enabled: bool) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GoodputRecorder(**{"job_name": JOB, "logger_name": LOG, "logging_enabled": enabled, **arguments})


def test_a_wrong_backend_raises_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "gcp")
    with pytest.raises(ConfigurationError, match="'gcp'"):
        GoodputRecorder(JOB, LOG, True)


def test_a_disabled_recorder_opens_nothing_and_calls_nothing() -> None:
    recorder = GoodputRecorder(JOB, LOG, cloud_logger=Sink())
    for call, _ in CALLS:
        call(recorder)
    recorder.flush()
    recorder.sync()
    recorder.record_payload({"a": 1})
    assert list(folder().iterdir()) == []
    assert recorder._cloud_logger.entries == []


class Sink:
    """An object that a user passes as `cloud_logger`; it has no flush."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.entries: list[dict[str, Any]] = []
        self.error = error

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.entries.append(entry)


def test_a_sink_of_the_users_own_gets_every_payload_and_so_does_the_journal() -> None:
    sink = Sink()
    recorder = GoodputRecorder(JOB, LOG, True, sink)
    for call, _ in CALLS:
        call(recorder)
    recorder.record_step_start_time(6)
    recorder.record_payload({"event_type": "save"})
    recorder.flush()
    assert sink.entries == payloads()
    assert len(sink.entries) == len(CALLS) + 2
    [segment] = folder().glob("journal/*/*.jsonl")
    # They are not shipped a second time.
    assert json.loads(segment.read_text().split("\n")[0])["ship"] is False


@pytest.mark.usefixtures("in_production")
def test_a_sink_that_raises_costs_the_job_nothing() -> None:
    recorder = GoodputRecorder(JOB, LOG, True, Sink(OSError("no cloud")))
    for step in range(3):
        recorder.record_step_start_time(step)
    recorder.record_job_end_time()
    assert len(payloads()) == 4
    assert LOSSES.as_dict() == {
        "GoodputRecorder.record_step_start_time: OSError": 3,
        "GoodputRecorder.record_job_end_time: OSError": 1,
    }


@pytest.mark.usefixtures("in_production")
def test_an_interruption_of_the_user_passes_through() -> None:
    interruption = KeyboardInterrupt()
    recorder = GoodputRecorder(JOB, LOG, True, Sink(interruption))
    with pytest.raises(KeyboardInterrupt) as caught:
        recorder.record_step_start_time(1)
    assert caught.value is interruption
    assert len(payloads()) == 1


def test_a_payload_of_another_library_gets_the_jobs_name() -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    recorder.record_payload({"event_type": "save", "job_name": "another", "preemption_received_at": None})
    recorder.record_payload({})
    assert payloads() == [{"job_name": JOB, "event_type": "save", "preemption_received_at": None}, {"job_name": JOB}]


def test_a_payload_of_another_library_is_recorded_without_its_secrets() -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    options = {"password": "Zq7Secr3t2"}
    recorder.record_payload(
        {"event_type": "save", "directory": "https://ghp_x1@host/ckpt", "options": options, "step": 3}
    )
    recorder.record_payload({"text": "x" * 100_000})
    assert payloads() == [
        {
            "job_name": JOB,
            "event_type": "save",
            "directory": "https://[REDACTED]@host/ckpt",
            "options": {"password": "[REDACTED]"},
            "step": 3,
        },
        {"job_name": JOB, "text": "x" * 100_000},
    ]


def test_only_the_start_the_end_and_checkpoints_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = GoodputRecorder(JOB, LOG, True)
    synced: list[float] = []
    monkeypatch.setattr(recorder._journal, "sync", lambda timeout_seconds: synced.append(timeout_seconds))
    for call, event in CALLS:
        before = len(synced)
        call(recorder)
        name = next(iter(event))
        assert len(synced) - before == (name in ("job_start_time", "job_end_time", "checkpoint_progress_step"))
    assert synced == [0, 1.0, 0]  # Only the end of the job waits, for a second at most.


def test_the_signatures_are_those_of_the_contract() -> None:
    signature = inspect.signature(GoodputRecorder)
    assert list(signature.parameters)[:4] == ["job_name", "logger_name", "logging_enabled", "cloud_logger"]
    keywords = {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    background = {"background_grace_period_s": 5.0, "background_batch_size": 100, "background_max_latency_s": 2.0}
    ours = {"expected_processes": None, "planned_steps": None}
    assert keywords == background | ours
    assert signature.parameters["logging_enabled"].default is False


def test_cloud_without_credentials_raises_at_construction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ml_diagnostics_common.shipper")
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialsError):
        GoodputRecorder(JOB, LOG, True)


@pytest.mark.timing
def test_nothing_waits_for_a_cloud_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as metadata:  # It accepts, and never answers.
        monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{metadata.getsockname()[1]}")
        monkeypatch.setenv("HOME", str(tmp_path))
        start = time.monotonic()
        recorder = GoodputRecorder(JOB, LOG, True, background_grace_period_s=0.2)
        recorder.record_step_start_time(1)
        assert time.monotonic() - start < 0.5
        recorder.flush()
        assert time.monotonic() - start < 1.5
        recorder._shipper.close(0.0)
    assert len(payloads()) == 1


def test_with_backend_local_nothing_of_a_cloud_is_even_imported() -> None:
    program = """
from ml_goodput_measurement.goodput import GoodputRecorder
recorder = GoodputRecorder("j", "l", True)
recorder.record_job_start_time(); recorder.record_step_start_time(1); recorder.record_job_end_time(); recorder.flush()
"""
    heavy = {
        "google",
        "grpc",
        "requests",
        "msgspec",
        "numpy",
        "jax",
        "asyncio",
        "ssl",
        "http",
        "multiprocessing",
        "importlib.metadata",
        "urllib.request",
        "ml_diagnostics_common.shipper",
    }
    assert not heavy & loaded_by(program)


@pytest.mark.parametrize(
    "ending",
    ["pass", "sys.exit(3)", "raise RuntimeError", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)", "os._exit(1)"],
)
def test_a_job_that_dies_has_recorded_every_step_before(ending: str) -> None:
    script = f"""
import os, sys
from ml_goodput_measurement.goodput import GoodputRecorder
recorder = GoodputRecorder({JOB!r}, {LOG!r}, True)
recorder.record_job_start_time()
for step in range(1_000):
    recorder.record_step_start_time(step)
{ending}
"""
    subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False, timeout=60)
    recorded = [payload.get("step_count") for payload in payloads() if "process_outcome" not in payload]
    assert recorded == [None, *range(1_000)]
