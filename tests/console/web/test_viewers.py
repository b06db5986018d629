"""A running `xprofiler serve` is found by its log directory, also one above it, and by the name of the run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from ml_diagnostics_console._web import viewers
from ml_diagnostics_console._web.viewers import Viewers

from ...waiting import Child

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc", allow_module_level=True)


def test_a_viewer_that_runs_is_found_and_one_that_has_ended_is_not(tmp_path: Path) -> None:
    if importlib.util.find_spec("xprof") is None:
        pytest.skip("needs xprof")
    (tmp_path / "logs" / "run-1").mkdir(parents=True)
    serve = [sys.executable, "-m", "xprofiler", "serve", "-l", str(tmp_path / "logs"), "-p", "0", "--no-browser"]
    child = Child(serve)
    url = child.line().rstrip("/")
    found = Viewers()
    assert found.url(str(tmp_path / "logs"), "run-1") == f"{url}/"
    assert found.url(str(tmp_path / "logs" / "run-1"), "run-1") == f"{url}/"
    assert found.url(str(tmp_path / "logs-2"), "run-2") is None
    child.process.terminate()
    child.process.wait(60)
    assert Viewers().url(str(tmp_path / "logs"), "run-1") is None


@pytest.mark.parametrize("log_directory", ["/nowhere", "gs://bucket/logs", "relative", "/a\0b"])
def test_without_a_viewer_there_is_no_url(log_directory: str) -> None:
    assert Viewers().url(log_directory, "run") is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "-m", "xprofiler", "serve", "-l", "/a"], "/a"),
        (["xprofiler", "serve", "--log-directory=/a"], "/a"),
        (["xprofiler", "serve", "-l/a"], "/a"),
        (["xprofiler", "serve", "-l"], ""),
        ([], ""),
    ],
)
def test_the_log_directory_of_a_command(words: list[str], expected: str) -> None:
    assert viewers._log_directory(words) == expected
