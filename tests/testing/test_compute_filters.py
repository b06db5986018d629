"""The loopback Compute's filters and partial responses."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_testing.http_server import ApiError

from ..loopback.compute.checks import FIELDS
from ..loopback.compute.fields import parse_fields, select
from ..loopback.compute.filters import compile_filter

VM = {
    "id": "7",
    "name": "xprof-1",
    "status": "RUNNING",
    "zone": "https://h/compute/v1/projects/p/zones/us-east5-a",
    "canIpForward": False,
    "labels": {"xprofiler_version": "1-0-0", "owner": "me"},
    "disks": [{"diskSizeGb": "10"}, {"diskSizeGb": "200"}],
    "metadata": {"items": [{"key": "xprofiler_log_directory", "value": "gs://b/r"}]},
}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("name = xprof-1", True),
        ('name="xprof-1"', True),
        ("name = 'xprof-2'", False),
        ("name != xprof-2", True),
        ("name : xprof*", True),
        ("name = *-1", True),
        ("name : prof", True),
        ("name = prof", False),
        ("labels.owner : *", True),
        ("labels.missing : *", False),
        ("labels.owner != you", True),
        ("NOT labels.owner = me", False),
        ("canIpForward = false", True),
        ("id > 6", True),
        ("id >= 7.5", False),
        ("disks.diskSizeGb > 100", True),
        ("disks.diskSizeGb = 50", False),
        ('metadata.items.value = "gs://b/r"', True),
        ("(name = xprof-1) (status = RUNNING)", True),
        ("(name = xprof-1) AND (status = STOPPING)", False),
        ("(name = other) OR (labels.xprofiler_version : *)", True),
        # OR binds tighter than AND.
        ("status = STOPPING AND name = a OR name = xprof-1", False),
        ("(status = STOPPING AND name = a) OR name = xprof-1", True),
        ("name eq xprof-.*", True),
        ("name eq prof", False),
        ("name ne 'xprof-.*'", False),
        ('(status eq "RUN+ING")', True),
    ],
)
def test_a_filter_passes_its_matches(text: str, passes: bool) -> None:
    assert compile_filter(text, FIELDS)(VM) is passes


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name =",
        "= a",
        "(name = a",
        "name = a)",
        "name = a OR",
        "colour = red",
        "name eq (",
        "name == a",
        '"name',
        'name = "a"b',
        "NOT " * 100 + "name = a",
    ],
)
def test_a_filter_that_cannot_be_read_is_refused(text: Any) -> None:
    with pytest.raises(ApiError, match="Invalid list filter expression"):
        compile_filter(text, FIELDS)


@given(st.text(alphabet="name labels=:!<>()*\"'\\ANDORT.-", max_size=40))
@settings(max_examples=300, database=None)
def test_any_filter_is_read_or_refused(text: Any) -> None:
    with contextlib.suppress(ApiError):
        assert compile_filter(text, FIELDS)(VM) in (True, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name", {"name": "xprof-1"}),
        ("name,labels/owner", {"name": "xprof-1", "labels": {"owner": "me"}}),
        ("labels(owner)", {"labels": {"owner": "me"}}),
        ("labels,labels/owner", {"labels": VM["labels"]}),
        ("disks/diskSizeGb", {"disks": VM["disks"]}),
        ("metadata/items(value)", {"metadata": {"items": [{"value": "gs://b/r"}]}}),
        ("metadata/*/key", {"metadata": {"items": [{"key": "xprofiler_log_directory"}]}}),
        ("metadata(items/key,items/value)", {"metadata": VM["metadata"]}),
        ("nothing", {}),
    ],
)
def test_a_partial_response_has_the_fields_asked_for(text: Any, expected: Any) -> None:
    assert select(VM, parse_fields(text)) == expected


def test_without_fields_all_is_returned() -> None:
    assert select(VM, parse_fields("")) == VM


@pytest.mark.parametrize("text", ["name,", "(name)", "labels(owner", "labels/", "a)b", ","])
def test_a_selection_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="Invalid field selection"):
        parse_fields(text)
