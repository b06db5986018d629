"""The page in a browser, for its benchmark: when it is complete, what it fetched, and how long a zoom takes."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.console.web.browser import Browser
    from tests.console.web.served import Served

_NOTE_READY = """
window.readyAt = null;
new MutationObserver(() => {
  if (window.readyAt === null && document.documentElement?.dataset.ready) window.readyAt = performance.now();
}).observe(document, {attributes: true, subtree: true, attributeFilter: ["data-ready"]});
"""
_PAINTED = """
/** Return when the frame after a change has been painted, canvases included. */
window.painted = (canvas) => new Promise((resolve) => requestAnimationFrame(() => {
  canvas.getContext("2d").getImageData(0, 0, 1, 1);
  const { port1, port2 } = new MessageChannel();
  port2.onmessage = () => resolve(performance.now());
  port1.postMessage(0);
}));
"""
_WATCH_ZOOM = """
(() => {
  const cards = [...document.querySelectorAll(".chart-card")].filter((card) => card.querySelector("[data-points]")
    && card.getBoundingClientRect().top < innerHeight);
  const pressed = new Promise((resolve) => addEventListener("keydown", ({ timeStamp }) => resolve(timeStamp),
    { capture: true, once: true }));
  const drawn = cards.map((card) => new Promise((resolve) => card.addEventListener("drawn", async () => {
    resolve(await painted(card.querySelector("canvas")));
  }, { once: true })));
  window.zoomed = pressed.then(async (start) => {
    const stretched = await painted(cards[0].querySelector("canvas"));
    const times = await Promise.all(drawn);
    return [stretched, times[0], Math.max(...times)].map((time) => (time - start) / 1000);
  });
})()
"""
_RAW = """
(async () => {
  const count = %d;
  const x = new Float64Array(count).map((_, index) => index);
  const y = new Float64Array(count).map((_, index) => 2 + 9 * Math.exp(-8 * index / count) + Math.random() / 10);
  const times = {first: [], zoom: []};
  for (let turn = 0; turn < %d; turn += 1) {
    const holder = document.body.appendChild(document.createElement("div"));
    const options = {width: 640, height: 196, scales: {x: {time: false}}, series: [{}, {stroke: "#1f5fb4"}]};
    let start = performance.now();
    const plot = new uPlot(options, [x, y], holder);
    times.first.push(await painted(plot.ctx.canvas) - start);
    await new Promise((resolve) => setTimeout(resolve, 100 + 20 * Math.random()));
    start = performance.now();
    plot.setScale("x", {min: count / 4, max: count * 3 / 4});
    times.zoom.push(await painted(plot.ctx.canvas) - start);
    plot.destroy();
    holder.remove();
  }
  return times;
})()
"""
_PAUSE_SECONDS = 0.15
_TICKS = os.sysconf("SC_CLK_TCK")


class Visit(NamedTuple):
    """A page that was opened, in seconds since its navigation started.

    Attributes:
        ready: When it was complete.
        paint: When something of it was first painted.
        marks: When it set a mark, by the name of the mark; the first of each.
        fetched: Requests: the URL, when it was sent, how long it took, and its bytes as sent.
    """

    ready: float
    paint: float
    marks: dict[str, float]
    fetched: list[tuple[str, float, float, int]]

    def request(self, part: str) -> tuple[float, float, int]:
        """Return when the first request with a text in its URL was sent, how long it took, and its bytes."""
        return next(each[1:] for each in self.fetched if part in each[0])


def note_ready(browser: Browser) -> None:
    """Let each page from now on record when it is complete."""
    browser.call("Page.addScriptToEvaluateOnNewDocument", {"source": _NOTE_READY})


def visit(browser: Browser, url: str, page: str) -> Visit:
    """Open a page from scratch."""
    browser.open(url)
    browser.wait_ready(page)
    browser.wait_for("performance.getEntriesByName('first-contentful-paint').length")
    found = browser.value(
        "({ready: readyAt, paint: performance.getEntriesByName('first-contentful-paint')[0].startTime,"
        " marks: performance.getEntriesByType('mark').map((each) => [each.name, each.startTime]).reverse(),"
        " fetched: performance.getEntriesByType('resource').map("
        "(each) => [each.name, each.startTime, each.duration, each.transferSize])})"
    )
    marks = {name: at / 1e3 for name, at in found["marks"]}
    fetched = [(name, at / 1e3, took / 1e3, size) for name, at, took, size in found["fetched"]]
    return Visit(found["ready"] / 1e3, found["paint"] / 1e3, marks, fetched)


def middle(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


class Zoom(NamedTuple):
    """A zoom of the metrics page, in seconds since the key was pressed, to the frame in which each is painted.

    Attributes:
        stretched: The first chart shows the new span, of the values that it had.
        first: It shows the new curve.
        all: All charts in view do.
    """

    stretched: float
    first: float
    all: float


def zooms(browser: Browser, times: int) -> list[Zoom]:
    """Zoom the charts of the metrics page in and out by keys, as a user does who waits for each curve."""
    browser.value(_PAINTED + "0")
    found = []
    for turn in range(2 * times):
        browser.value(_WATCH_ZOOM)
        browser.press("+-"[turn % 2])
        found.append(Zoom(*browser.value("zoomed")))
        time.sleep(_PAUSE_SECONDS)
    return found


def raw_uplot(browser: Browser, points: int, times: int) -> tuple[float, float]:
    """Return how long uPlot takes for the first drawing of so many points that it is given, and for a zoom to half."""
    from ml_diagnostics_console._web.assets import STATIC

    browser.forget()
    browser.value((STATIC / "vendor" / "uplot" / "uPlot.iife.min.js").read_text(encoding="utf-8") + "; 0")
    # The file defines a variable of its script alone.
    browser.value(_PAINTED + "0")
    found = browser.value(_RAW % (points, times))
    return middle(found["first"]) / 1e3, middle(found["zoom"]) / 1e3


def weight(server: Served, urls: Iterable[str]) -> tuple[int, int]:
    """Return the bytes of static files, raw and compressed."""
    paths = {urlsplit(url).path for url in urls if urlsplit(url).netloc == server.host}
    raw = packed = 0
    for path in sorted(path for path in paths if path == "/" or path.startswith("/static/")):
        plain = server.get(path).body
        reply = server.get(path, headers={"Accept-Encoding": "gzip"})
        raw += len(plain)
        packed += len(reply.body) if "content-encoding" in reply.headers else min(len(plain), len(gzip.compress(plain)))
    return raw, packed


def timed(server: Served, path: str, times: int) -> tuple[float, float, int]:
    """Return how long an answer takes, the first one and the middle of some more, in seconds, and its bytes."""
    took = []
    for _ in range(times + 1):
        started = time.perf_counter()
        reply = server.get(path)
        took.append(time.perf_counter() - started)
        assert reply.status == 200, reply.body[:300]
    return took[0], middle(took[1:]), len(reply.body)


class Cpu:
    """The CPU time of a process and of all descendants that it has had since this was made.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: dict[int, int] = {}

    def __call__(self) -> float:
        """Return it, in seconds; a process that has ended counts as it was last seen."""
        fields = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    fields[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # It has ended.
        family = {self._pid}
        while more := {each for each, values in fields.items() if int(values[1]) in family} - family:
            family |= more
        self._ticks |= {each: int(fields[each][11]) + int(fields[each][12]) for each in family if each in fields}
        return sum(self._ticks.values()) / _TICKS


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def received(browser: Browser, since: int, part: str = "") -> int:
    """Return the bytes that arrived after so many events, for requests with a text in their URL.

    The stream of events counts, too, although it has not ended.
    """
    sent = [each["params"] for each in browser.events if each["method"] == "Network.requestWillBeSent"]
    wanted = {each["requestId"] for each in sent if part in each["request"]["url"]}
    arrived = [each["params"] for each in browser.events[since:] if each["method"] == "Network.dataReceived"]
    return sum(each["encodedDataLength"] or each["dataLength"] for each in arrived if each["requestId"] in wanted)


def shares(measure: Sequence[Callable[[], float]], seconds: float) -> list[float]:
    """Return by how much some counters grow in a second."""
    before = [each() for each in measure]
    started = time.monotonic()
    time.sleep(seconds)
    return [(each() - old) / (time.monotonic() - started) for each, old in zip(measure, before, strict=True)]


def total_points(body: bytes) -> int:
    """Return how many values a binary answer of points was made of."""
    length = int.from_bytes(body[4:8], "little")
    return int(json.loads(body[8 : 8 + length]).get("total", 0))
