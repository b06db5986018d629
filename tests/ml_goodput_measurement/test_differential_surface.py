"""A program that uses the public library finds all that it uses here, and what it records is the same."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from ml_goodput_measurement import goodput_elastic
from ml_goodput_measurement._export import gcp_metadata

from .histories import BASE, MemoryLog, Payload
from .reference.process import Reference
from .reference.surface import surface

NOT_OFFERED = ("goodput_exclusion.BadputType",)  # It is in `goodput` and `goodput_utils`.
TABLES = ("goodput_utils.MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING",)  # We know more, and nothing else of theirs.
OTHER_DEFAULTS = (
    "options",  # None means the options that the reference has as its default.
    "last_updated_timestamp",  # Now, where the reference takes the time at which it was imported.
)


def test_every_public_name_is_there_and_takes_what_it_took(reference: Reference) -> None:
    theirs, ours = reference.ask("surface"), surface()
    assert len(theirs) > 150
    missing = {path for path in theirs.keys() - ours.keys() if not path.startswith(NOT_OFFERED)}
    assert not missing
    for path in theirs.keys() & ours.keys():
        if isinstance(theirs[path], list) and all(isinstance(part, list) for part in theirs[path]):
            assert_takes(path, ours[path], theirs[path])
        elif path in TABLES:
            assert ours[path].items() >= theirs[path].items(), path
        else:
            assert ours[path] == theirs[path], path


def assert_takes(path: str, ours: list[Any], theirs: list[Any]) -> None:
    """The same arguments, at the same positions; additional ones are optional."""
    for (name, kind, default), (their_name, their_kind, their_default) in zip(ours, theirs, strict=False):
        assert (name, kind) == (their_name, their_kind), path
        if their_default is not None and name not in OTHER_DEFAULTS:
            assert default == their_default, (path, name)
    assert len(ours) >= len(theirs), path
    assert all(default is not None or "VAR_" in kind for _, kind, default in ours[len(theirs) :]), path


MACHINE_TYPES = [
    *("tpu7x-standard-4t", "ct6e-standard-8t", "ct5p-hightpu-4t", "ct5lp-hightpu-8t", "ct5l-hightpu-8t"),
    *("ct4p-hightpu-4t", "ct4l-hightpu-4t", "ct3p-hightpu-4t", "ct3-hightpu-4t", "CT6E-standard-1t"),
    *("a3-edgegpu-8g", "a3-highgpu-1g", "a3-megagpu-8g", "a3-ultragpu-8g", "a2-highgpu-1g", "a2-ultragpu-8g"),
    *("a2-megagpu-16g", "a9-highgpu-8g", "n1-standard-8", "n2d-standard-2", "c4a-highmem-4", "m1-ultramem-40", ""),
    *("projects/1/machineTypes/ct5p-hightpu-4t", "tpu-v2-8", "x-tpu"),
]


@pytest.mark.parametrize("machine_type", [None, *MACHINE_TYPES])
def test_an_accelerator_has_the_name_that_alerts_filter_on(
    machine_type: str | None, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcp_metadata, "get_gcp_metadata", lambda *_, **__: machine_type)
    assert gcp_metadata.get_accelerator_type() == reference.ask("accelerator_type", machine_type=machine_type)


CALLS: list[tuple[str, list[Any]]] = [
    ("record_job_start_time", [BASE]),
    ("record_tpu_init_start_time", [BASE + 1]),
    ("record_tpu_init_end_time", [BASE + 2.5]),
    ("record_training_preparation_start_time", [BASE + 3]),
    ("record_training_preparation_end_time", [BASE + 4]),
    ("record_data_loading_start_time", [BASE + 5]),
    ("record_data_loading_end_time", [BASE + 6.125]),
    ("record_step_start_time", [0, BASE + 7]),
    ("record_step_start_time", [10**6, BASE + 8.000001]),
    ("record_custom_badput_event_start_time", [BASE + 9]),
    ("record_custom_badput_event_end_time", [BASE + 10]),
    ("record_custom_badput_event_start_time", [BASE + 9, "Eval, é"]),
    ("record_custom_badput_event_end_time", [BASE + 10, "Eval, é"]),
    ("record_elastic_slice_counts", [1, 4, 2, BASE + 11]),
    ("record_elastic_wait_start_time", ["slice_down", BASE + 12]),
    ("record_elastic_wait_end_time", ["slice_down", BASE + 13]),
    ("record_elastic_reinit_start_time", [BASE + 14]),
    ("record_elastic_reinit_end_time", [BASE + 15]),
    ("record_job_end_time", [BASE + 16]),
]


@pytest.mark.parametrize(("method", "arguments"), CALLS)
def test_what_a_recorder_writes(method: str, arguments: list[Any], reference: Reference) -> None:
    (theirs,) = reference.ask("recorded", calls=[(method, arguments)])
    (ours,) = written(method, arguments)
    assert ours == theirs
    assert list(ours) == list(theirs)
    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in theirs.items()}


def written(method: str, arguments: list[Any]) -> list[Payload]:
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    getattr(recorder, method)(*(_moment(value) if isinstance(value, float) else value for value in arguments))
    return log.payloads


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
