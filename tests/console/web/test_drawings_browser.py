"""The drawings in a real browser, over a run of 16 hosts that is stuck: pixels, gestures, keys, tables."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from .browser import Browser, needs_browser, opened_browser
from .made_runs import hang
from .node import STATIC
from .served import Served, served

pytestmark = needs_browser

LEDGER = ".track[data-track=ledger] canvas"
_COUNT_COLOURS = """
((selector) => {
  const canvas = document.querySelector(selector);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const counts = {};
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 250) continue;
    const colour = [0, 1, 2].map((part) => data[at + part].toString(16).padStart(2, "0")).join("");
    counts[colour] = (counts[colour] ?? 0) + 1;
  }
  const [label, role] = ["aria-label", "role"].map((name) => canvas.getAttribute(name));
  return { counts, pixels: data.length / 4, label, role };
})(%s)
"""


class Pages:
    """A browser with the page of one folder.

    Attributes:
        browser: The browser.
        run: The id of its newest run.
    """

    def __init__(self, browser: Browser, server: Served) -> None:
        self.browser, self._server = browser, server
        self.run: str = server.json("/api/runs")["rows"][0]["id"]

    def open(self, tab: str = "", ready: str = "overview") -> None:
        """Open a tab of the run, and wait until it is drawn."""
        self.browser.open(f"{self._server.url.rstrip('/')}/runs/{self.run}{tab}")
        self.browser.wait_ready(ready)

    def colours(self, selector: str) -> dict[str, Any]:
        """Return how many pixels of a canvas have each opaque colour, and its label."""
        found: dict[str, Any] = self.browser.value(_COUNT_COLOURS % json.dumps(selector))
        return found

    def settled(self) -> None:
        """Wait until all tracks show the span."""
        self.browser.wait_for("document.querySelector('.tracks')?.dataset.settled")

    def parameter(self, name: str) -> float | None:
        """Return a number in the page's URL."""
        found = parse_qs(urlsplit(self.browser.value("location.href")).query).get(name)
        return float(found[0]) if found else None

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Return left, top, width and height of an element in the window, after it was moved into view."""
        left, top, width, height = self.browser.value(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({ block: 'center' }); const box = element.getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()"
        )
        return left, top, width, height


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("hung")
    hang(folder, hosts=16)
    with served(folder) as server, opened_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield Pages(browser, server)


@pytest.fixture(scope="module")
def restarted_pages(restarted_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    with served(restarted_folder) as server, opened_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield Pages(browser, server)


def bucket_colours(theme: str) -> dict[str, str]:
    """Return the colours of the buckets of a theme, from the style sheet."""
    text = (STATIC / "common" / "tokens.css").read_text("utf-8")
    part = text.split('data-theme="dark"] {')[1] if theme == "dark" else text.split("@media")[0]
    return dict(re.findall(r"--bucket-([a-z-]+): #([0-9a-f]{6})", part))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_ledger_is_in_the_colours_of_its_buckets(pages: Pages, theme: str) -> None:
    pages.browser.use_theme(theme)
    pages.open()
    found = pages.colours(LEDGER)
    names = {colour: name for name, colour in bucket_colours(theme).items()}
    shown: dict[str, int] = {}
    for colour, count in found["counts"].items():
        if colour in names:
            shown[names[colour]] = shown.get(names[colour], 0) + count
    ledger = {
        row["bucket"].replace("_", "-"): row["percent"]
        for row in pages._server.json(f"/api/runs/{pages.run}")["ledger"]
    }
    whole = sum(shown.values())
    assert whole > 0.25 * found["pixels"]
    for bucket, percent in ledger.items():
        if percent is not None and percent > 1:
            assert 100 * shown[bucket] / whole == pytest.approx(percent, abs=2.5), bucket
    assert set(shown) >= {bucket for bucket, percent in ledger.items() if percent}
    assert found["role"] == "img"
    assert "attempt 5" in found["label"]


def test_every_track_is_drawn_and_says_what_it_shows(pages: Pages) -> None:
    pages.open()
    count = pages.browser.value("document.querySelectorAll('.track').length")
    keys = pages.browser.value("[...document.querySelectorAll('.track')].map((track) => track.dataset.track)")
    assert count >= 6
    assert "heat" in keys
    for key in keys:
        found = pages.colours(f".track[data-track='{key}'] canvas")
        assert len(found["counts"]) > 1, key
        assert found["role"] == "img"
        assert len(found["label"]) > 8, key
    assert not pages.browser.complaints()


def test_a_drag_zooms_all_tracks_and_a_double_click_shows_all(pages: Pages) -> None:
    pages.open()
    left, top, width, height = pages.box(".track[data-track=heat] .track-plot")
    pages.browser.drag((left + 0.25 * width, top + height / 2), (left + 0.75 * width, top + height / 2))
    pages.browser.wait_for("location.search.includes('from=')")
    pages.settled()
    start, end = pages.parameter("from"), pages.parameter("to")
    whole = pages.browser.value("document.querySelector('.tracks').dataset.settled")
    assert start is not None
    assert end is not None
    length = (end - start) * 2
    assert start == pytest.approx(length / 4, rel=0.05)
    shown = [float(part) for part in whole.split()]
    assert shown[1] - shown[0] == pytest.approx(end - start, abs=0.01)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            point = {"x": left + width / 2, "y": top + height / 2, "button": "left", "clickCount": count}
            pages.browser.call("Input.dispatchMouseEvent", {"type": kind, **point})
    pages.browser.wait_for("location.search === ''")


def length(span: tuple[float | None, float | None]) -> float:
    start, end = span
    assert start is not None
    assert end is not None
    return end - start


def test_keys_zoom_move_and_step_by_attempt(pages: Pages) -> None:
    pages.open()
    pages.browser.press("]")
    pages.browser.wait_for("location.search.includes('from=')")
    first = pages.parameter("to")
    pages.browser.press("]")
    pages.browser.wait_for(f"!location.search.includes('to={first}')")
    second = pages.parameter("from"), pages.parameter("to")
    pages.browser.press("+")
    pages.browser.wait_for(f"!location.search.includes('to={second[1]}')")
    zoomed = pages.parameter("from"), pages.parameter("to")
    assert length(zoomed) == pytest.approx(length(second) / 2, rel=0.01)
    pages.browser.press("ArrowRight")
    pages.browser.wait_for(f"!location.search.includes('to={zoomed[1]}')")
    pages.browser.press("0")
    pages.browser.wait_for("location.search === ''")


def test_a_wheel_with_ctrl_zooms_and_a_plain_one_scrolls(pages: Pages) -> None:
    pages.browser.resize(1400, 500)
    try:
        pages.open()
        left, top, width, height = pages.box(".track[data-track=heat] .track-plot")
        wheel = {"type": "mouseWheel", "x": left + width / 2, "y": top + height / 2, "deltaX": 0, "deltaY": -240}
        pages.browser.call("Input.dispatchMouseEvent", {**wheel, "modifiers": 2})
        pages.browser.wait_for("location.search.includes('from=')")
        pages.settled()
        before = pages.browser.value("[location.search, scrollY]")
        pages.browser.call("Input.dispatchMouseEvent", {**wheel, "deltaY": 120})
        pages.browser.wait_for(f"scrollY > {before[1]}")
        assert pages.browser.value("location.search") == before[0]
    finally:
        pages.browser.resize(1400, 900)


def test_the_metric_of_the_rows_of_hosts_is_in_the_url(pages: Pages) -> None:
    pages.open()
    select = "document.querySelector('.track-select')"
    first = pages.browser.value(f"{select}.value")
    pages.browser.value(f"{select}.selectedIndex = 1, {select}.dispatchEvent(new Event('change'))")
    pages.browser.wait_for("location.search.includes('rows=')")
    pages.open(pages.browser.value("location.search"))
    assert pages.browser.value(f"{select}.value") != first


def test_the_hairline_shows_the_values_of_all_tracks(pages: Pages) -> None:
    pages.open()
    left, top, width, height = pages.box(".track[data-track='curve:loss'] .track-plot")
    rest = pages.browser.value("document.querySelector('.track[data-track=ledger] .track-value').textContent")
    pages.browser.call(
        "Input.dispatchMouseEvent", {"type": "mouseMoved", "x": left + width * 0.05, "y": top + height / 2}
    )
    pages.browser.wait_for("!document.querySelector('.hairline').hidden")
    assert pages.browser.value("document.querySelector('.track[data-track=ledger] .track-value').textContent") != rest


def test_a_number_leads_to_the_events_behind_it(pages: Pages) -> None:
    pages.open()
    pages.browser.value("document.querySelector('.disruptions .provable').click()")
    pages.browser.wait_for("document.querySelector('dialog details')")
    assert "in the journal" in pages.browser.value("document.querySelector('dialog').innerText")
    pages.browser.value("document.querySelector('dialog').close()")


def test_each_drawing_has_a_table(pages: Pages) -> None:
    pages.open()
    pages.browser.value("document.querySelector('.card-right button[aria-expanded]').click()")
    titles = pages.browser.value(
        "[...document.querySelectorAll('.table-twin option')].map((option) => option.textContent)"
    )
    assert titles[:2] == ["Where time went", "loss"]
    for index in range(len(titles)):
        rows = pages.browser.value(
            f"(() => {{ const select = document.querySelector('.table-twin select'); select.selectedIndex = {index};"
            " select.dispatchEvent(new Event('change'));"
            " return document.querySelectorAll('.table-twin tbody tr').length; })()"
        )
        assert rows > 0, titles[index]


def test_charts_are_built_when_they_come_into_view(pages: Pages) -> None:
    pages.open("/metrics", "metrics")
    cards = pages.browser.value("document.querySelectorAll('.chart-card').length")
    drawn = pages.browser.value("document.querySelectorAll('.chart-card canvas').length")
    assert 0 < drawn < cards
    pages.browser.value("scrollTo(0, document.body.scrollHeight)")
    pages.browser.wait_for("document.querySelector('.chart-card:last-child canvas')")
    assert len(pages.colours(".chart-card canvas")["counts"]) > 3
    assert not pages.browser.complaints()


def test_keys_zoom_all_charts_and_their_hairlines_are_in_step(pages: Pages) -> None:
    pages.open("/metrics", "metrics")
    pages.browser.press("+")
    pages.browser.wait_for("location.search.includes('from=')")
    first = pages.parameter("from"), pages.parameter("to")
    pages.browser.press("+")
    pages.browser.wait_for(f"!location.search.includes('from={first[0]:g}')")
    second = pages.parameter("from"), pages.parameter("to")
    assert length(second) == pytest.approx(length(first) / 2, abs=2)
    left, top, width, height = pages.box(".chart-card .u-over")
    steps: list[str] = []
    for number in range(100):  # A chart that gets its values for the new window meanwhile has no position.
        point = {"type": "mouseMoved", "x": left + (0.4 + number % 2 / 10) * width, "y": top + height / 2}
        pages.browser.call("Input.dispatchMouseEvent", point)
        time.sleep(0.1)
        steps = pages.browser.value(
            "[...document.querySelectorAll('.chart-facts')].map((each) => each.textContent)"
            ".filter((text) => text.startsWith('step'))"
        )
        if len(steps) > 1:
            break
    assert len(steps) > 1
    assert len(set(steps)) == 1
    pages.browser.press("0")
    pages.browser.wait_for("location.search === ''")


def test_the_state_of_charts_is_in_the_url(pages: Pages) -> None:
    pages.open("/metrics?x=elapsed&log=1&smooth=0.5&hide=loss", "metrics")
    pressed = "[...document.querySelectorAll('.segments [aria-pressed=true]')].map((button) => button.textContent)"
    assert pages.browser.value(pressed) == ["Elapsed", "Log", "Robust"]
    assert pages.browser.value("document.querySelector('.chart-card h2').textContent.trim()") != "loss"
    pages.browser.value("document.querySelector('.metric-row input').click()")
    pages.browser.wait_for("!location.search.includes('hide')")
    assert pages.browser.value("document.querySelector('.chart-card h2').firstChild.textContent") == "loss"


def test_replaced_values_are_drawn_on_demand_and_are_in_the_url(restarted_pages: Pages) -> None:
    pages = restarted_pages
    pages.open("/metrics", "metrics")
    card = ".chart-card:nth-child(2)"  # The time of a step, which is nothing but noise.
    before = pages.colours(f"{card} canvas")["counts"]
    asked = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('replaced=1')).length"
    assert pages.browser.value(asked) == 0
    pages.browser.value(f"document.querySelector('{card}').addEventListener('drawn', () => (window.drawn = true))")
    box = (
        "[...document.querySelectorAll('.metric-controls label')]"
        ".find((each) => each.textContent === 'Replaced values')"
    )
    pages.browser.value(f"{box}.querySelector('input').click()")
    pages.browser.wait_for("window.drawn && location.search === '?replaced=1'")
    assert pages.browser.value(asked) > 0
    with_replaced = pages.colours(f"{card} canvas")["counts"]
    pages.browser.value(f"window.drawn = false; {box}.querySelector('input').click()")
    pages.browser.wait_for("window.drawn && location.search === ''")
    after = pages.colours(f"{card} canvas")["counts"]

    def difference(found: dict[str, int]) -> int:
        return sum(abs(found.get(colour, 0) - before.get(colour, 0)) for colour in found.keys() | before.keys())

    assert difference(with_replaced) > 5 * difference(after)  # Edges are not always smoothed in the same way.
    pages.open("/metrics?x=elapsed&replaced=1", "metrics")
    assert pages.browser.value(f"{box}.hidden")  # By time all values are in the curve.


def test_an_axis_of_the_url_that_there_is_not_is_said_once(pages: Pages) -> None:
    pages.open("/metrics?x=bad", "metrics")
    notes = "[...document.querySelectorAll('.axis-problem, .chart-note')].filter((each) => !each.hidden)"
    assert pages.browser.value(f"{notes}.map((each) => each.textContent)") == [
        "\u201cbad\u201d is no axis; the charts are by step."
    ]
    assert pages.browser.value("document.querySelectorAll('.chart-card canvas').length")


def test_a_chart_out_of_view_is_zoomed_when_it_comes_into_view(pages: Pages) -> None:
    pages.open("/metrics", "metrics")
    pages.browser.value("scrollTo(0, document.body.scrollHeight)")
    pages.browser.wait_for("document.querySelector('.chart-card:last-child canvas')")
    pages.browser.value(
        "performance.clearResourceTimings(); window.drawn = 0;"
        " document.querySelector('.chart-card').addEventListener('drawn', () => (window.drawn += 1))"
    )
    pages.browser.press("+")
    pages.browser.wait_for("performance.getEntriesByType('resource').some(({ name }) => name.includes('from='))")
    assert pages.browser.value("window.drawn") == 0
    pages.browser.value("scrollTo(0, 0)")
    pages.browser.wait_for("window.drawn > 0")
    ranges = pages.browser.value(
        "performance.getEntriesByType('resource').filter(({ name }) => name.includes('from='))"
        ".map(({ name }) => new URL(name).searchParams.get('from'))"
    )
    assert len(set(ranges)) == 1


def test_stacks_name_the_odd_host_in_a_map_a_tree_and_groups(pages: Pages) -> None:
    pages.open("/stacks", "stacks")
    assert "16 hosts" in pages.colours(".host-map")["label"]
    odd = pages.browser.value("document.querySelector('.frame-odd').textContent")
    assert odd
    narrowest = pages.browser.value(
        "Math.min(...[...document.querySelectorAll('.frame')].map((frame) => frame.offsetWidth))"
    )
    assert narrowest >= 60
    assert pages.browser.value("document.querySelectorAll('.group').length") >= 2
    pages.browser.value(
        "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Folded stacks').click()"
    )
    assert ";" in pages.browser.value("document.querySelector('.folded').textContent")
    assert not pages.browser.complaints()


@pytest.mark.parametrize("tab", ["", "/metrics", "/stacks", "/profiles"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scroll(pages: Pages, tab: str, theme: str) -> None:
    pages.browser.use_theme(theme)
    pages.browser.resize(390, 844)
    try:
        pages.open(tab, tab.strip("/") or "overview")
        assert pages.browser.value("document.documentElement.scrollWidth") <= 390
    finally:
        pages.browser.resize(1400, 900)
    assert not pages.browser.complaints()
