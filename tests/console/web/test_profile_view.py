"""A profile's summary is read in a process of its own, kept by its files, and each failure is a sentence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._reading.session_view import HostProfile, SessionView
from ml_diagnostics_console._web.profile_view import log_directory_of
from ml_diagnostics_console._web.summaries import Summaries

from ...waiting import LONG_SECONDS, wait_until
from .recorded import DOCTOR_SECONDS, Page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a session with one file, which is not a profile."""
    folder = tmp_path / "logs" / "plugins" / "profile" / "2026_11_27_10_00_00"
    folder.mkdir(parents=True)
    (folder / "vm-0.xplane.pb").write_bytes(b"not a profile")
    return folder


def add_session(page: Page, folder: str, phase: str = "SUCCEEDED") -> str:
    """Give the run of a page a session."""
    assert page.run is not None
    hosts = [HostProfile("vm-0", 0, phase, size_bytes=13)]
    session = SessionView("s1", "on_demand", folder, started_ns=10**18, duration_seconds=1.0, hosts=hosts)
    page.run.view.sessions = [session]
    return "/profiles/s1"


def ready(page: Page, path: str) -> Any:
    answers = []

    def is_done() -> bool:
        answers.append(page.json(path))
        return answers[-1]["state"] != "working"

    wait_until(is_done, DOCTOR_SECONDS)
    return answers[-1]


def test_a_summary_is_working_then_ready_and_read_once(restarted: Page, folder: Path) -> None:
    asked, may_end = [], threading.Event()

    def summarise(path: str) -> dict[str, Any]:
        asked.append(path)
        may_end.wait(LONG_SECONDS)
        return {"session": "s1", "steps": []}

    restarted.store.summaries = Summaries(summarise)
    path = add_session(restarted, str(folder))
    first = restarted.json(path)
    assert (first["state"], first["summary"]) == ("working", None)
    assert first["session"]["bytes"] == 13
    assert first["xprof"] == {"command": f"xprofiler serve -l {folder.parent.parent.parent}", "url": None}
    may_end.set()
    assert ready(restarted, path)["summary"] == {"session": "s1", "steps": []}
    assert restarted.json(path)["state"] == "ready"
    assert asked == [str(folder)]
    (folder / "vm-0.xplane.pb").write_bytes(b"another profile")
    assert ready(restarted, path)["state"] == "ready"
    assert len(asked) == 2


def test_a_damaged_profile_is_a_sentence(restarted: Page, folder: Path) -> None:
    answer = ready(restarted, add_session(restarted, str(folder)))
    assert answer["state"] == "failed"
    assert answer["error"].startswith("This profile cannot be read: ")
    assert "Traceback" not in answer["error"]


def test_a_reader_that_raises_is_a_sentence(restarted: Page, folder: Path) -> None:
    def summarise(path: str) -> str:
        raise OSError("token=hunter2secret")

    restarted.store.summaries = Summaries(summarise)
    answer = ready(restarted, add_session(restarted, str(folder)))
    assert answer["error"].startswith("This profile cannot be read: OSError")
    assert "hunter2secret" not in answer["error"]


@pytest.mark.parametrize(
    ("path", "phase", "error"),
    [
        ("", "SUCCEEDED", "not known where"),
        ("/nonexistent/plugins/profile/s1", "SUCCEEDED", "not on this machine"),
        ("gs://bucket/plugins/profile/s1", "SUCCEEDED", "xprofiler summary gs://bucket/plugins/profile/s1"),
        ("/tmp", "ACTIVE", "being recorded"),
        ("/tmp/\0", "SUCCEEDED", "this profile"),
    ],
)
def test_files_that_cannot_be_read_are_a_sentence(restarted: Page, path: str, phase: str, error: str) -> None:
    answer = restarted.json(add_session(restarted, path, phase))
    assert answer["state"] == "failed"
    assert error in answer["error"]


def test_an_unknown_session_is_not_there(restarted: Page) -> None:
    assert "no profile 'nope'" in restarted.error(404, "/profiles/nope")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/a/plugins/profile/s", "/a"),
        ("gs://b/c/plugins/profile/s/", "gs://b/c"),
        ("/a/other", "/a/other"),
        ("", ""),
    ],
)
def test_the_log_directory_of_a_session(folder: str, expected: str) -> None:
    assert log_directory_of(folder) == expected
