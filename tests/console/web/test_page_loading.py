"""Requests of a page: its code once, kept by the browser; its run once, for all of its parts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics

from tests.console.web.browser import Browser, needs_browser, opened_browser
from tests.console.web.served import Served, served

pytestmark = needs_browser

RUN = "llama-1"
_WATCHED_SECONDS = 20.0
_LOADS = "performance.getEntriesByType('resource').map((each) => [new URL(each.name).pathname, each.transferSize])"


@pytest.fixture(scope="module")
def server(restarted_folder: Path) -> Iterator[Served]:
    with served(restarted_folder) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def open_page(browser: Browser, server: Served, path: str, ready: str) -> list[tuple[str, int]]:
    """Open a page from scratch, and return what it loaded until it was complete, with the bytes over the network."""
    browser.forget()
    browser.open(f"http://{server.host}{path}")
    browser.wait_ready(ready)
    loads: list[Any] = browser.value(_LOADS)
    return [(path, size) for path, size in loads]


def code_of(loads: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the static files without the icon: a browser asks for that when it has time, or at a later page."""
    return [(name, size) for name, size in loads if name.startswith("/static/") and not name.endswith("/icon.svg")]


@pytest.mark.parametrize(
    ("path", "ready", "most_files"),
    [("/", "runs", 5), (f"/runs/{RUN}", "overview", 5), (f"/runs/{RUN}/metrics", "metrics", 6)],
)
def test_the_code_is_one_script_and_is_asked_for_once(
    browser: Browser, server: Served, path: str, ready: str, most_files: int
) -> None:
    loads = open_page(browser, server, path, ready)
    files = [name for name, _ in code_of(loads)]
    assert len(files) <= most_files
    assert all(name.startswith("/static/v/") for name in files)
    loaded = {name for name, _ in loads}
    again = open_page(browser, server, path, ready)
    assert code_of(again)
    assert [name for name, size in again if size and name in loaded and name.startswith("/static/")] == []
    assert [name for name, size in code_of(again) if size] == []
    assert browser.foreign_requests(server.host) == []
    assert browser.complaints() == []


def test_the_charts_library_is_on_its_way_before_the_page_asks_and_runs_once(browser: Browser, server: Served) -> None:
    loads = Counter(
        path.rpartition("/")[2] for path, _ in open_page(browser, server, f"/runs/{RUN}/metrics", "metrics")
    )
    assert loads["uPlot.iife.min.js"] == 1
    # From another page it comes when a chart is built.
    open_page(browser, server, f"/runs/{RUN}", "overview")
    browser.press("2")
    browser.wait_ready("metrics")
    browser.wait_for("document.querySelector('.u-wrap canvas')")
    names = Counter(path.rpartition("/")[2] for path, _ in browser.value(_LOADS))
    assert names["uPlot.iife.min.js"] == 1


@pytest.mark.parametrize("tab", ["", "/metrics", "/stacks", "/logs"])
def test_the_run_is_asked_for_once_and_before_the_code_is_there(browser: Browser, server: Served, tab: str) -> None:
    open_page(browser, server, f"/runs/{RUN}{tab}", tab[1:] or "overview")
    sent = [each["params"] for each in browser.events if each["method"] == "Network.requestWillBeSent"]
    [own] = [each for each in sent if urlsplit(each["request"]["url"]).path == f"/api/runs/{RUN}"]
    assert own["initiator"]["stack"]["callFrames"][-1]["url"].endswith("/early.js")


@pytest.mark.parametrize("path", ["/runs/%E0%A4%A", "/runs/a%20b%2Fc", "/runs/%3Cimg%20src=x%3E"])
def test_an_address_of_no_run_is_a_sentence(browser: Browser, server: Served, path: str) -> None:
    browser.forget()
    browser.open(f"http://{server.host}{path}")
    browser.wait_ready("problem")
    assert browser.value("document.querySelector('.page-problem').textContent")
    problems = [each for each in browser.complaints() if "404" not in each]
    assert problems == []


def test_a_run_that_goes_on_is_not_loaded_again_at_each_change(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path))
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
    run = machinelearning_run("live", log_system_metrics=False)
    is_ended = threading.Event()

    def write() -> None:
        for step in range(10**6):
            metrics.record("loss", 1 / (step + 1), step)
            if is_ended.wait(0.2):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with served(tmp_path) as server:
            browser.forget()
            browser.open(f"http://{server.host}/runs/last")
            browser.wait_ready("overview")
            step = "document.querySelector('.tiles').textContent"
            before = browser.value(step)
            browser.wait_for(f"{step} !== {before!r}")
            time.sleep(3)
            browser.events.clear()
            time.sleep(_WATCHED_SECONDS)
            sent = Counter(
                urlsplit(url).path.partition("/api/runs/")[2].partition("/")[2] for url in browser.requests()
            )
            assert sent[""] <= 1  # the run itself
            assert sent["verdict"] <= 1
            assert browser.complaints() == []
            metrics.record("accuracy", 0.5, 1)  # A new metric is seen at once.
            browser.wait_for("document.querySelector('.tab .count')?.textContent === '2'")
    finally:
        is_ended.set()
        writer.join()
        run.finish()
