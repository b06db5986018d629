"""Each page in headless Chromium: it is complete, asks no other host, and breaks no rule of its policy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from ml_diagnostics_common.journal import Journal

from tests.console.web.browser import Browser, needs_browser, opened_browser
from tests.console.web.made_runs import MadeAttempt, MadeRun, hang
from tests.console.web.served import Served, served
from tests.waiting import free_port

pytestmark = needs_browser

HANG = "llama3-8b-pretrain-7"
HOSTILE = "hostile-1"
EVIL = (
    '<img src=x onerror="window.evil=1">"\'&</script><script>window.evil=2</script>\u202etxt\u2066\n\x1b[31m'
    + "x" * 300
)
_START_NS = 1_795_000_000_000_000_000
PAGES = {
    "/": "runs",
    f"/runs/{HANG}": "overview",
    f"/runs/{HANG}/metrics": "metrics",
    f"/runs/{HANG}/stacks": "stacks",
    f"/runs/{HANG}/profiles": "profiles",
    f"/runs/{HANG}/logs": "logs",
    f"/runs/{HANG}/configs": "configs",
    f"/compare?runs={HANG},digits-1,digits-2": "compare",
}


def make_hostile(root: Path) -> None:
    """Write a run in which all texts that a program may choose are hostile."""
    run = MadeRun(HOSTILE, _START_NS, [MadeAttempt(0, 30, "FAILED", EVIL)], hosts=[EVIL, "b" + EVIL], group=EVIL)
    run.metrics = {"loss": "1", EVIL: EVIL}
    run.configs = {EVIL: EVIL, "note": EVIL}
    run.host_metrics = {"host_" + EVIL: "%"}
    run.has_goodput = False
    plane = LocalControlPlane(root, clock_ns=lambda: _START_NS)
    plane.create_run(HOSTILE, {"displayName": EVIL, "runSet": EVIL, "runPhase": "FAILED", "errorDetails": EVIL,
        "configs": {"userConfigs": run.configs, "softwareConfigs": {EVIL: EVIL}}, "labels": {EVIL: EVIL}})  # fmt: skip
    labels = {"job": HOSTILE, "run": HOSTILE, "attempt": "1", "host": EVIL, "process_index": "0", "pid": "7"}
    node = {"location": "us-central1", "namespace": "mlrun_process", "node_id": HOSTILE}
    resource = {"type": "generic_node", "labels": node}
    journal = Journal(
        "ml_diagnostics_metric", root=root, labels=labels, resource=resource, about_pid=7, clock_ns=lambda: _START_NS
    )
    process = {"attempt": 1, "hostname": EVIL, "process_index": "0", "process_count": 1, "pid": 7}
    journal.append({"phase": "ACTIVE", **process}, timestamp_ns=_START_NS)
    for step in range(30):
        for name in ("loss", EVIL):
            payload = {"values": [1.0 / (step + 1)], "step_index": step, "unit": EVIL}
            at = _START_NS + step * 10**9
            journal.append(payload, resource_labels={"namespace": name}, timestamp_ns=at)
    journal.append({"phase": "FAILED", "reason": EVIL, **process}, timestamp_ns=_START_NS + 40 * 10**9)
    journal.close(5)
    companion = Journal(
        "tpu.googleapis.com/runtime_monitor", root=root, labels=labels, about_pid=7, clock_ns=lambda: _START_NS
    )
    group = {"threads": 1, "main": True, "names": [EVIL], "frames": [f"{EVIL} (/{EVIL}.py:1)"]}
    fields = {"verb": "stacktraceanalyzer", "message": EVIL}
    snapshot = {**fields, "kind": "snapshot", "groups": [group], "threads": 1, "time_ns": _START_NS, "step": 1}
    companion.append(snapshot, timestamp_ns=_START_NS + 10**9)
    companion.append({**fields, "kind": "console", "message": EVIL * 3}, timestamp_ns=_START_NS + 2 * 10**9)
    companion.close(5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "runs"
    hang(folder, 16)
    for number in (1, 2):
        MadeRun(f"digits-{number}", _START_NS + number * 10**12, [MadeAttempt(0, 200)], configs={"lr": f"1e-{number}"},
            group="digits", seed=number).write(folder)  # fmt: skip
    make_hostile(folder)
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Served]:
    with served(root) as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.forget()
    return chromium


def _check(browser: Browser, *hosts: str) -> None:
    assert browser.complaints() == []
    assert browser.foreign_requests(*hosts) == []
    assert browser.value("window.evil === undefined && document.images.length === 0")


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_complete_and_asks_no_other_host(server: Served, browser: Browser, path: str) -> None:
    browser.open(f"http://{server.host}{path}")
    browser.wait_ready(PAGES[path])
    assert len(browser.value("document.querySelector('main').innerText")) > 20
    _check(browser, server.host)


@pytest.mark.parametrize("tab", ["", "/metrics", "/stacks", "/profiles", "/logs", "/configs"])
def test_hostile_texts_are_shown_as_text(server: Served, browser: Browser, tab: str) -> None:
    browser.open(f"http://{server.host}/runs/{HOSTILE}{tab}")
    browser.wait_ready()
    assert "img src=x" in browser.value("document.body.innerText") + browser.value("document.body.innerHTML")
    _check(browser, server.host)
    # Only the shell has scripts, and no element has a handler.
    assert browser.value("[...document.scripts].every((each) => each.src.startsWith(location.origin))")
    assert browser.value("[...document.querySelectorAll('*')].every((e) => !e.hasAttribute('onerror'))")


def test_hostile_texts_in_the_list_are_shown_as_text(server: Served, browser: Browser) -> None:
    browser.open(f"http://{server.host}/?q={quote(EVIL)}")
    browser.wait_ready("runs")
    _check(browser, server.host)


def test_a_long_unit_does_not_widen_the_page(tmp_path: Path, browser: Browser) -> None:
    run = MadeRun("long", _START_NS, [MadeAttempt(0, 100)], hosts=["vm-0", "vm-1"], metrics={"loss": "u" * 300})
    run.host_metrics = {"host_step_time": "<b>" + "u" * 300}
    run.write(tmp_path)
    with served(tmp_path) as server:
        for tab, page in (("", "overview"), ("/metrics", "metrics")):
            browser.open(f"http://{server.host}/runs/long{tab}")
            browser.wait_ready(page)
            assert browser.value("document.documentElement.scrollWidth <= window.innerWidth"), page
        _check(browser, server.host)


def test_the_token_opens_the_page_and_leaves_the_address(root: Path, browser: Browser) -> None:
    with served(root, "--token") as running:
        browser.open(running.url)
        browser.wait_ready("runs")
        assert browser.value("location.hash") == ""
        assert browser.value("document.cookie") == ""
        assert browser.foreign_requests(running.host) == []


@pytest.mark.timing
def test_a_live_run_is_seen_within_seconds(root: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(root))
    with served(root) as running:
        browser.open(running.url)
        browser.wait_ready("runs")
        time.sleep(1)  # The page opens its stream after it is drawn.
        run = machinelearning_run(name="seen-live", gcs_path=str(root / "profiles"))
        metrics.record("loss", 0.5, 1)
        browser.wait_for("document.body.innerText.includes('seen-live')", 10)
        run.finish()
        browser.wait_for("document.body.innerText.match(/seen-live[^]*Completed/)", 15)
        _check(browser, running.host)


def test_the_page_finds_a_server_that_is_back(root: Path, browser: Browser) -> None:
    port = str(free_port())
    with served(root, "--port", port) as running:
        browser.open(running.url)
        browser.wait_ready("runs")
        running.process.kill()
        running.process.wait(30)
    with served(root, "--port", port) as again:
        browser.wait_for("performance.now() > 0 && document.body.innerText.includes('digits-1')")
        browser.open(f"http://{again.host}/runs/digits-1")
        browser.wait_ready("overview")


def test_speedscope_runs_under_its_policy(server: Served, browser: Browser) -> None:
    stacks = quote(f"http://{server.host}/api/runs/{HANG}/stacks?format=folded", safe="")
    browser.open(f"http://{server.host}/static/vendor/speedscope/index.html#profileURL={stacks}")
    browser.wait_for("document.body.innerText.includes('Left Heavy')")
    browser.wait_for("!document.body.innerText.includes('Hi there')")
    # It tries eval and works without it; WebGL has no hardware here.
    assert [text for text in browser.complaints() if "GL" not in text and "script-src: eval" not in text] == []
    assert browser.foreign_requests(server.host) == []


@pytest.mark.parametrize("run", [HANG, HOSTILE])
def test_a_case_file_has_every_page_and_asks_for_nothing(
    server: Served, browser: Browser, tmp_path: Path, run: str
) -> None:
    reply = server.get(f"/api/runs/{run}/case.html")
    assert reply.status == 200
    assert reply.headers["content-disposition"] == f"attachment; filename*=UTF-8''{run}.html"
    path = tmp_path / "case.html"
    path.write_bytes(reply.body)
    browser.open(path.as_uri())
    browser.wait_ready("overview")
    for tab in ("metrics", "stacks", "profiles", "logs", "configs"):
        browser.open(f"{path.as_uri()}#/runs/{run}/{tab}")
        browser.wait_ready(tab)
        assert "does not contain" not in browser.value("document.body.innerText"), tab
    assert browser.complaints() == []
    assert {urlsplit(url).scheme for url in browser.requests()} <= {"file", "blob"}
    assert browser.value("window.evil === undefined")
    about = json.loads(browser.value("document.querySelector('script[data-about]').textContent"))
    assert about["run"] == run
    assert about["cursor"]
    assert about["inside"]
    assert about["left_out"]
    assert browser.value(
        "document.scripts[0].hasAttribute('data-about') || document.scripts[1].hasAttribute('data-about')"
    )
