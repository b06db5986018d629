"""Log directories: accepted paths, the folders of profiles below them, and their labels and metadata on VMs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.command.errors import UsageError
from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.viewer import label_value, log_directory_of, viewer_url


@pytest.mark.parametrize(
    ("text", "bucket", "key"),
    [
        ("gs://my-bucket/main_directory/sub-a/sub-b/", "my-bucket", "main_directory/sub-a/sub-b"),
        ("gs://my_other_bucket/main_directory/sub-1/sub-2", "my_other_bucket", "main_directory/sub-1/sub-2"),
        ("gs://b", "b", ""),
        ("gs://b/", "b", ""),
        ("gs://my.bucket.example/r\u00fcn 1,2", "my.bucket.example", "r\u00fcn 1,2"),
    ],
)
def test_paths_of_the_readme_are_accepted(text: str, bucket: str, key: str) -> None:
    directory = LogDirectory.parse(text)
    assert (directory.bucket, directory.key) == (bucket, key)
    assert directory.path == text.rstrip("/") == str(directory)
    assert directory.is_in_cloud


@pytest.mark.parametrize(
    "text",
    [
        "my_other_bucket/main_directory/sub-1/sub-2",
        "",
        "gs://",
        "gs:///run",
        "gs:/b/run",
        "gs:b",
        "GS://b/run",
        "s3://b/run",
        "gs://b//run",
        "gs://b/../run",
        "gs://b/.",
        "gs://b/a\nb",
        "gs://b/a\x00",
        "gs://b/a\u2028",
        "gs://b/\ud800",
        "gs://b/a\x1b[2J",
        "gs://bad bucket/run",
        "gs://$(touch x)/run",
        "gs://-b/run",
        "gs://b/" + "x" * 1000,
        "gs://" + "b" * 223,
    ],
)
def test_a_path_that_storage_does_not_accept_is_refused(text: str) -> None:
    for may_be_local in (False, True):
        if text == "" or "gs" in text.lower() or "s3" in text or not may_be_local:
            with pytest.raises(UsageError, match="log directory"):
                LogDirectory.parse(text, may_be_local=may_be_local)


def test_a_local_folder_is_accepted_if_allowed() -> None:
    directory = LogDirectory.parse("./logs/", may_be_local=True)
    assert (directory.path, directory.bucket, directory.is_in_cloud) == ("./logs", "", False)
    assert directory.capture_root == "./logs/tensorboard/plugins/profile"
    assert LogDirectory.parse("/", may_be_local=True).child("a") == "/a"
    with pytest.raises(UsageError, match=r"give gs://bucket/path$"):
        LogDirectory.parse("./logs")


def test_captures_are_written_where_tensorboard_reads() -> None:
    run = LogDirectory.parse("gs://b/run")
    assert run.tensorboard == "gs://b/run/tensorboard"
    assert run.capture_root == "gs://b/run/tensorboard/plugins/profile"
    below = LogDirectory.parse("gs://b/run/tensorboard/")
    assert below.tensorboard == "gs://b/run/tensorboard"
    assert below.capture_root == run.capture_root
    assert LogDirectory.parse("gs://b").capture_root == "gs://b/tensorboard/plugins/profile"
    assert LogDirectory.parse("gs://b/my-tensorboard").tensorboard == "gs://b/my-tensorboard/tensorboard"


def test_a_path_against_the_readmes_advice_is_accepted_with_a_note() -> None:
    long = "gs://my-bucket/main_directory/subdirectory-a/subdirectory-b/subdirectory-c"
    assert "is longer than 64 characters" in (LogDirectory.parse(long).note or "")
    assert "has upper case" in (LogDirectory.parse("gs://b/Run").note or "")
    assert LogDirectory.parse("gs://my-bucket/main_directory/sub-a").note is None
    assert LogDirectory.parse("./Logs", may_be_local=True).note is None


@given(st.text())
def test_any_text_is_accepted_unchanged_or_refused(text: str) -> None:
    try:
        directory = LogDirectory.parse(f"gs://{text}")
    except UsageError:
        return
    assert directory.path == f"gs://{text}".rstrip("/")
    assert f"gs://{directory.bucket}/{directory.key}".rstrip("/") == directory.path
    assert not re.search(r"[\x00-\x1f\x7f]", text)


@given(st.from_regex(r"[a-z][a-z0-9_-]{2,20}(/[a-z0-9_-]{1,8}){0,3}", fullmatch=True))
def test_the_label_of_old_releases_is_read_back(path: str) -> None:
    if "--slash--" in path:
        return
    vm = {"labels": {"xprofiler_log_directory": path.replace("/", "--slash--")}}
    assert log_directory_of(vm) == f"gs://{path}"


def test_metadata_take_precedence_over_the_label_and_allow_any_text() -> None:
    vm = {
        "labels": {"xprofiler_log_directory": "old"},
        "metadata": {"items": [{"key": "a"}, {"key": "xprofiler_log_directory", "value": 'gs://b/with,comma"/'}]},
    }
    assert log_directory_of(vm) == 'gs://b/with,comma"'
    assert log_directory_of({}) == ""
    assert log_directory_of({"metadata": {}, "labels": {}}) == ""


@given(st.text())
def test_any_text_makes_a_label(text: str) -> None:
    value = label_value(text)
    assert len(value) <= 63
    assert re.fullmatch(r"[\w-]*", value)
    assert value == value.lower()


def test_versions_and_links_are_as_they_were() -> None:
    assert label_value("1.0.17") == "1-0-17"
    assert viewer_url("60ea5ae6", "us-central1-a") == "https://60ea5ae6-dot-us-central1.notebooks.googleusercontent.com"
    assert viewer_url(None, "us-central1-a") is None
    assert viewer_url("", "us-central1-a") is None
