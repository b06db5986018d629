"""The page of runs: what its server answers, what a headless Chromium draws of it, and what both cost.

Runs are written by the public writers (`tests/console/web/made_runs.py`), served by the real command, and shown by a
real browser without a graphics card.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import page_browser as browsing
from benchmarks import process
from benchmarks.results import Row, Table, seconds

if TYPE_CHECKING:
    from tests.console.web.browser import Browser
    from tests.console.web.served import Served

_SECOND_NS = 10**9
_WIDE = "llama3-8b-pretrain-7"
_MILLION = "million"
_PAGES = ("overview", "metrics", "stacks", "profiles", "logs", "configs")
_SETTLE_SECONDS = 8.0
_GIVEN_BACK_SECONDS = 25.0  # The server gives free memory back to the system every 20 s.
_MOST_CASE_BYTES = 3_000_000


class Size(NamedTuple):
    """How much is measured.

    Attributes:
        runs: Runs in the list.
        steps: Steps of the wide run, with five metrics each.
        hosts: Its hosts.
        entries: Entries of the run that is read alone.
        times: Repetitions.
        idle_seconds: How long the idle page is watched.
        is_full: False where the sizes are not those of the targets.
    """

    runs: int
    steps: int
    hosts: int
    entries: int
    times: int
    idle_seconds: float
    is_full: bool


_FULL = Size(1_000, 1_060_000, 64, 1_000_000, 7, 60.0, True)
_QUICK = Size(200, 40_000, 16, 50_000, 2, 12.0, False)


def measure(*, quick: bool) -> list[Table]:
    """Measure everything that has a target."""
    from tests.console.web.browser import CHROMIUM

    size = _QUICK if quick else _FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows_of_reading = _reading(folder / "million", size)
        rows_of_case = _make_case(folder / "case", size)
        if CHROMIUM is None:
            note = "Chromium is not installed: only what needs no browser was measured."
            return [Table("The page: reading and case file", note, [*rows_of_reading, *rows_of_case])]
        with _browser(folder / "chromium") as browser:
            listed = _list(browser, folder / "many", size)
            drawn = _curves(browser, folder / "wide", size)
            costs = _costs(browser, folder, size)
            rows_of_case.append(_open_case(browser, folder / "case" / "case.html", size))
    note = (
        "Medians, on a machine without a graphics card; the page comes from the real command in a process of its own."
    )
    return [
        Table("The page: list of runs", note, listed),
        Table("The page: curves and tracks", f"{note} Compared with uPlot that is given all points in memory.", drawn),
        Table("The page: what it costs", "A small journal unless another is named; CPU in percent of one core.", costs),
        Table("The page: reading and case file", "Each in a new process.", [*rows_of_reading, *rows_of_case]),
    ]


def _row(size: Size, work: str, ours: float, most: float, rest: str = "", raw: float | None = None) -> Row:
    """Return a row of a duration with a target, and perhaps with that of raw uPlot beside it."""
    has_target = size.is_full
    return Row(
        work,
        f"{seconds(ours)}{rest}",
        seconds(raw) if raw else "",
        f"{ours / raw:.2f} times raw uPlot" if raw else "",
        f"<= {seconds(most)}" if has_target else "",
        ours <= most if has_target else None,
    )


def _number(size: Size, work: str, ours: float, most: float, unit: str) -> Row:
    is_met = ours <= most if size.is_full else None
    return Row(work, f"{ours:,.4g}{unit}", target=f"<= {most:g}{unit}" if size.is_full else "", met=is_met)


def _list(browser: Browser, root: Path, size: Size) -> list[Row]:
    from tests.console.web.made_runs import many

    many(root, size.runs)
    with _served(root) as server:
        url = f"http://{server.host}/"
        browsing.visit(browser, url, "runs")
        visits = [browsing.visit(browser, url, "runs") for _ in range(size.times)]
        _, took, length = browsing.timed(server, "/api/runs", 2 * size.times)
        packed = len(server.get("/api/runs", headers={"Accept-Encoding": "gzip"}).body)
    drawn = browsing.middle(each.ready - each.request("/api/runs")[0] for each in visits)
    paint = browsing.middle(each.paint for each in visits)
    ready = browsing.middle(each.ready for each in visits)
    sizes = f", {length / 1024:.0f} KiB, {packed / 1024:.0f} KiB compressed"
    return [
        _row(size, f"list of {size.runs:,} runs: the answer", took, 0.05, sizes),
        _row(size, "the same: from the request to the drawn list", drawn, 0.15),
        _row(size, "the same: from the navigation to the first paint", paint, 0.2),
        Row("the same: from the navigation to the complete page", seconds(ready)),
    ]


def _curves(browser: Browser, root: Path, size: Size) -> list[Row]:
    from tests.console.web.made_runs import wide

    wide(root, size.steps, size.hosts)
    with _served(root) as server:
        _wait_read(server, f"/api/runs/{_WIDE}/points?metric=loss", size.steps)
        base = f"http://{server.host}/runs/{_WIDE}"
        points = f"/api/runs/{_WIDE}/points?metric=loss&width=560"
        by_step = browsing.timed(server, f"{points}&x=step", 2 * size.times)
        by_time = browsing.timed(server, f"{points}&x=time", 2 * size.times)
        browsing.visit(browser, f"{base}/metrics", "metrics")
        metrics = [browsing.visit(browser, f"{base}/metrics", "metrics") for _ in range(size.times)]
        _wait_judged(server, f"/api/runs/{_WIDE}/verdict")
        zooms = browsing.zooms(browser, size.times)
        browsing.visit(browser, base, "overview")
        overview = [browsing.visit(browser, base, "overview") for _ in range(size.times)]
        for page in _PAGES[2:]:
            browsing.visit(browser, f"{base}/{page}", page)
        peak = browsing.resident_mib(server.process.pid)
        time.sleep(_GIVEN_BACK_SECONDS if size.is_full else 0)
        memory = browsing.resident_mib(server.process.pid)
    first, raw_zoom = browsing.raw_uplot(browser, size.steps, size.times)
    curve = browsing.middle(each.marks["drawn:loss"] for each in metrics)
    tracks = browsing.middle(each.marks.get("tracks-settled", each.ready) for each in overview)
    count = f"{size.steps:,}"
    zoom = browsing.middle(each.first for each in zooms)
    stretched, all_charts = (
        seconds(browsing.middle(getattr(each, name) for each in zooms)) for name in ("stretched", "all")
    )
    return [
        _row(size, f"{count} points: from the navigation to the curve", curve, 0.3, raw=first),
        _row(size, "the same: request by step", by_step[1], 0.03, f", first {seconds(by_step[0])}"),
        _row(size, "the same: request by time", by_time[1], 0.03, f", first {seconds(by_time[0])}"),
        _number(size, "the same: bytes of the answer", max(by_step[2], by_time[2]) / 1000, 80, " kB"),
        _row(size, "the same: zoom, from the key to the frame with the new curve", zoom, 0.06, raw=raw_zoom),
        Row("the same: to the stretched curve; to the new curves of all charts in view", f"{stretched}; {all_charts}"),
        _row(size, f"overview of {size.hosts} hosts, five metrics of {count}: all tracks", tracks, 0.5),
        _number(size, f"memory of the server with this run ({5 * size.steps:,} values)", memory, 210, " MiB"),
        Row("the same: before free memory is given back", f"{peak:.4g} MiB"),
    ]


def _costs(browser: Browser, folder: Path, size: Size) -> list[Row]:
    from tests.console.web.made_runs import MadeAttempt, MadeRun

    root = folder / "live"
    MadeRun("small", time.time_ns() - 3600 * _SECOND_NS, [MadeAttempt(0, 400)]).write(root)
    cold = []
    for _ in range(size.times):
        with _served(root) as server:
            server.get("/")
            answered = time.monotonic() - server.started
            browsing.visit(browser, f"http://{server.host}/", "runs")
            cold.append((answered, time.monotonic() - server.started))
    with _served(root) as server, _writing_job(root, 2 * size.idle_seconds + 4 * _SETTLE_SECONDS):
        _wait_runs(server, 2)
        browser.forget()
        browser.call("Network.setCacheDisabled", {"cacheDisabled": True})
        urls: list[str] = []
        weights = []
        for page in ("runs", "compare", *_PAGES):
            path = {"runs": "", "compare": "compare?runs=small,last"}.get(page, f"runs/small/{page}")
            browser.events.clear()
            browsing.visit(browser, f"http://{server.host}/{path.replace('/overview', '')}", page)
            urls += browser.requests()
            weights.append(browsing.weight(server, urls) if page in ("runs", _PAGES[-1]) else (0, 0))
        browser.call("Network.setCacheDisabled", {"cacheDisabled": False})
        browser.forget()
        [blank] = browsing.shares([browsing.Cpu(browser.process.pid)], size.idle_seconds / 4)
        browsing.visit(browser, f"http://{server.host}/runs/last", "overview")
        time.sleep(_SETTLE_SECONDS)
        since = len(browser.events)
        counters: list[Callable[[], float]] = [
            browsing.Cpu(server.process.pid),
            browsing.Cpu(browser.process.pid),
            lambda: browsing.received(browser, since),
            lambda: browsing.received(browser, since, "/api/events"),
        ]
        of_server, of_page, arrived, streamed = browsing.shares(counters, size.idle_seconds)
        memory = browsing.resident_mib(server.process.pid)
    return [
        _row(size, "cold start, to the first page", browsing.middle(each[0] for each in cold), 1.0),
        _row(size, "cold start, to the drawn list", browsing.middle(each[1] for each in cold), 1.2),
        _number(size, "idle, a job writes 10 values/s: CPU of the server", 100 * of_server, 0.5, " %"),
        _number(size, "the same: CPU of the page", 100 * max(0.0, of_page - blank), 1.0, " %"),
        Row(
            "the same: CPU of the browser, with the page and without one", f"{100 * of_page:.2g} %, {100 * blank:.2g} %"
        ),
        _number(size, "the same: bytes of the stream of events in a second", streamed, 200, ""),
        Row("the same: bytes of all answers in a second", f"{arrived:,.0f}"),
        _number(size, "files of all pages", weights[-1][0] / 1000, 300, " kB"),
        _number(size, "the same, compressed", weights[-1][1] / 1000, 160, " kB"),
        Row("files of the list of runs", f"{weights[0][0] / 1000:.0f} kB, {weights[0][1] / 1000:.0f} kB compressed"),
        _number(size, "memory of the server", memory, 70e6 / 2**20, " MiB"),
    ]


def _reading(root: Path, size: Size) -> list[Row]:
    from tests.console.web.made_runs import MadeAttempt, MadeRun

    run = MadeRun(_MILLION, time.time_ns() - 3600 * _SECOND_NS, [MadeAttempt(0, size.entries - 1)], step_seconds=0.002)
    run.metrics, run.has_goodput = {"loss": "1"}, False
    run.write(root)
    environment = {"ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"}
    alone, cold, warm = [], [], []
    for turn in range(size.times):  # by turns, since the load of a machine changes
        cache = str(root.with_name(f"cache-{turn}"))
        alone.append(process.ours(read_alone, environment=environment))
        cold.append(process.ours(read_to_curve, environment=environment, cache=cache))
        warm.append(process.ours(read_to_curve, environment=environment, cache=cache))
    took, read = browsing.middle(cold), browsing.middle(alone)
    count = f"{size.entries:,} entries"
    return [
        Row(
            f"{count}, from a cold journal to the curve",
            seconds(took),
            f"{seconds(read)} (JournalReader alone)",
            f"{took / read:.1f} times",
            "<= 4 s" if size.is_full else "",
            took <= 4 if size.is_full else None,
        ),
        _row(size, "the same from the saved state", browsing.middle(warm), 0.3),
    ]


def read_alone() -> float:
    """Return how long it takes to read all entries of the journal, in seconds."""
    from google_cloud_mldiagnostics.reading import LOG_ID
    from ml_diagnostics_common.reader import JournalReader

    started = time.perf_counter()
    reader = JournalReader(LOG_ID, root=Path(os.environ["ML_DIAGNOSTICS_DIR"]))
    sum(map(len, reader.read_new()))
    return time.perf_counter() - started


def read_to_curve(cache: str) -> float:
    """Return how long a new store takes until it has answered a curve, in seconds."""
    from google_cloud_mldiagnostics.reading import LocalSource
    from ml_diagnostics_console._web.routes import handle
    from ml_diagnostics_console._web.store import Store

    started = time.perf_counter()
    store = Store(LocalSource(lambda note: None), cache=Path(cache))
    store.refresh()
    answer = handle(store, f"/api/runs/{_MILLION}/points", {"metric": "loss"})
    took = time.perf_counter() - started
    assert answer.status == 200
    assert browsing.total_points(answer.body)
    return took


def _make_case(root: Path, size: Size) -> list[Row]:
    from tests.console.web.made_runs import wide

    hosts = 128 if size.is_full else size.hosts
    wide(root, 200_000 if size.is_full else size.steps // 5, hosts)
    path = root / "case.html"
    environment = process.environment_of_a_job({"ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"})
    started = time.perf_counter()
    command = [str(Path(sys.executable).with_name("mldiagnostics")), "export", _WIDE, str(path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    took = time.perf_counter() - started
    work = f"case file of {'1,000,000' if size.is_full else f'{size.steps:,}'} points and the stacks of {hosts} hosts"
    return [
        _number(size, f"{work}: its size", path.stat().st_size / 1e6, _MOST_CASE_BYTES / 1e6, " MB"),
        Row("the same: export", seconds(took)),
    ]


def _open_case(browser: Browser, path: Path, size: Size) -> Row:
    opened, requests = [], []
    for _ in range(size.times):
        browser.forget()
        opened.append(browsing.visit(browser, path.as_uri(), "overview").ready)
        requests += [url for url in browser.requests() if not url.startswith((path.as_uri(), "blob:", "about:"))]
    assert not requests, requests
    return _row(size, "the same: opened from a file, without a request", browsing.middle(opened), 1.0)


@contextlib.contextmanager
def _browser(folder: Path) -> Iterator[Browser]:
    from tests.console.web.browser import opened_browser

    with opened_browser(folder) as browser:
        browsing.note_ready(browser)
        yield browser


@contextlib.contextmanager
def _served(root: Path) -> Iterator[Served]:
    from tests.console.web.served import served

    with served(root) as server:
        yield server


def _wait_read(server: Served, path: str, points: int, longest: float = 300.0) -> None:
    """Wait until the server has read all values of a run."""
    deadline = time.monotonic() + longest
    while True:
        reply = server.get(path)
        if reply.status == 200 and browsing.total_points(reply.body) >= points:
            return
        assert time.monotonic() < deadline, "the journal is not read"
        time.sleep(0.5)


def _wait_judged(server: Served, path: str, longest: float = 300.0) -> None:
    """Wait until the doctor has judged a run: it does so once, and needs a core meanwhile."""
    deadline = time.monotonic() + longest
    while server.json(path).get("state") == "working":
        assert time.monotonic() < deadline, "the run is not judged"
        time.sleep(0.5)


def _wait_runs(server: Served, count: int, longest: float = 60.0) -> None:
    """Wait until the list has so many runs."""
    deadline = time.monotonic() + longest
    while len(server.json("/api/runs")["rows"]) < count:
        assert time.monotonic() < deadline, "the run of the job does not appear"
        time.sleep(0.2)


@contextlib.contextmanager
def _writing_job(root: Path, length: float) -> Iterator[None]:
    """Run a job that writes 10 values a second for so many seconds, or until it is not needed any more."""
    settings = process.environment_of_a_job({"ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"})
    command = [sys.executable, "-m", "benchmarks.process", "benchmarks.page", "write_values"]
    with subprocess.Popen(
        [*command, json.dumps({"length": length})], env=settings, cwd=process.REPOSITORY, stdout=subprocess.DEVNULL
    ) as job:
        try:
            yield
        finally:
            job.terminate()


def write_values(length: float) -> int:
    """Write 10 values a second for so many seconds, as a training loop with one step a second does."""
    from google_cloud_mldiagnostics import machinelearning_run, metrics

    run = machinelearning_run("writing", log_system_metrics=False)
    started = time.monotonic()
    count = 0
    while time.monotonic() - started < length:
        metrics.record(
            ("loss", "learning_rate", "gradient_norm", "step_time", "mfu")[count % 5], 1 / (count + 1), count // 5
        )
        count += 1
        time.sleep(max(0.0, started + count / 10 - time.monotonic()))
    run.finish()
    return count
