"""Each page for people who use the keyboard, a screen reader or large text: axe-core, a walk by keyboard, and zoom.

axe-core is in `vendor/`, as its vendor.json lists it; nothing of it is in a wheel.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .browser import Browser, needs_browser, opened_browser
from .fleet_mirror import make_rows
from .made_runs import hang
from .recorded import FAILS, record
from .served import Served, served

VENDOR = Path(__file__).parent / "vendor"
_GRAVE = ("serious", "critical")
_MOST_TABS = 150
_AXE = """
axe.run(document, {resultTypes: ["violations"], runOnly: %s}).then(({violations}) => violations.map((rule) => ({
  rule: rule.id, impact: rule.impact, help: rule.help,
  where: rule.nodes.slice(0, 5).map(({target, failureSummary}) => `${target.join(" ")}: ${failureSummary}`),
})))
"""
_ALL_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_FOCUS = """
(() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const style = getComputedStyle(at);
  const box = at.getBoundingClientRect();
  window.walked = (window.walked ?? new Set()).add(at);
  return {
    element: `${at.tagName.toLowerCase()}.${at.className} ${at.textContent.trim().slice(0, 30)}`,
    hasRing: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 || style.boxShadow !== "none",
    isInView: box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
})()
"""
_NOT_WALKED = """
[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((each) => !window.walked.has(each) && !each.disabled && each.tabIndex >= 0 && each.checkVisibility()
    && !(each.type === "radio" && document.querySelector(`input[name="${each.name}"]:checked`) !== each))
  .map((each) => `${each.tagName.toLowerCase()}.${each.className} ${each.textContent.trim().slice(0, 30)}`)
"""
_UNNAMED_DRAWINGS = """
[...document.querySelectorAll("canvas, svg")].filter((each) => each.checkVisibility()).filter((each) => {
  const holder = each.closest("[role=img], [aria-hidden=true]");
  return !holder || (holder.getAttribute("role") === "img" && !holder.getAttribute("aria-label"));
}).map((each) => each.parentElement.className)
"""


class Site:
    """The page of two runs, in a browser.

    Attributes:
        browser: The browser.
        paths: The path of each page, by the mark that it sets when it is complete.
    """

    def __init__(self, browser: Browser, server: Served, hung: str) -> None:
        self.browser, self._base = browser, f"http://{server.host}"
        failed = next(row["id"] for row in server.json("/api/runs")["rows"] if row["state"] == "failed")
        self.paths = {
            "runs": "/",
            "overview": f"/runs/{hung}",
            "metrics": f"/runs/{hung}/metrics",
            "stacks": f"/runs/{hung}/stacks",
            "profiles": f"/runs/{failed}/profiles",
            "logs": f"/runs/{failed}/logs",
            "configs": f"/runs/{failed}/configs?against={hung}",
            "compare": f"/compare?runs={failed},{hung}",
            "fleet": "/fleet",
        }

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Change the size of the page, in CSS pixels of so many pixels each."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.browser.call("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, page: str, width: int, height: int) -> None:
        """Open a page from scratch in a window of a size in CSS pixels, and wait until it is complete."""
        self.resize(width, height)
        self.browser.open(self._base + self.paths[page])
        self.browser.wait_ready(page)

    def wait_until_nothing_comes(self) -> None:
        """Wait for what a complete page gets later: the doctor's verdict, and who waits for whom."""
        count, before = self.browser.value(_ELEMENTS), -1
        while count != before:
            time.sleep(0.5)
            count, before = self.browser.value(_ELEMENTS), count

    def violations(self, rules: list[str], kind: str = "tag") -> list[dict[str, Any]]:
        """Return what axe-core finds on the page as it is shown."""
        if not self.browser.value("'axe' in window"):
            self.browser.value((VENDOR / "axe-core" / "axe.min.js").read_text(encoding="utf-8") + "; 0")
        only = json.dumps({"type": kind, "values": rules})
        found: list[dict[str, Any]] = self.browser.value(_AXE % only)
        return found

    def tab(self) -> dict[str, Any] | None:
        """Press the tabulator, and return what has the focus; None after the last element."""
        for kind in ("rawKeyDown", "keyUp"):
            key = {"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            self.browser.call("Input.dispatchKeyEvent", key)
        focus: dict[str, Any] | None = self.browser.value(_FOCUS)
        return focus


def _grave(violations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in violations if each["impact"] in _GRAVE]


_ELEMENTS = "document.querySelectorAll('*').length"
HAS_DUCKDB = find_spec("duckdb") is not None
PAGES = [
    *("runs", "overview", "metrics", "stacks", "profiles", "logs", "configs", "compare"),
    pytest.param("fleet", marks=pytest.mark.skipif(not HAS_DUCKDB, reason="DuckDB 2 needs Python 3.11")),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("recorded")
    record(folder, FAILS)
    hung = hang(folder, 16)
    mirror = tmp_path_factory.mktemp("mirror")
    if HAS_DUCKDB:
        make_rows(mirror, jobs=20)
    with (
        served(folder, "--mirror", str(mirror)) as server,
        opened_browser(tmp_path_factory.mktemp("browser")) as browser,
    ):
        yield Site(browser, server, hung)
        assert browser.complaints() == []


def test_the_checker_is_that_of_vendor_json() -> None:
    (package,) = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))["packages"]
    assert package["licence"] == "MPL-2.0"
    for entry in package["files"]:
        assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]
    assert f"axe v{package['version']}" in (VENDOR / "axe-core" / "axe.min.js").read_text(encoding="utf-8")[:100]


@pytest.fixture(scope="module", params=PAGES)
def wide(site: Site, request: pytest.FixtureRequest) -> Site:
    """The site with one page open in a wide window: all tests of a page follow each other."""
    site.browser.use_theme("light")
    site.open(request.param, 1400, 900)
    if request.param == "runs":
        site.browser.wait_for("document.querySelectorAll('a.attention').length === 2")
    if request.param == "overview":
        site.browser.wait_for("[...document.querySelectorAll('a')].some((a) => a.textContent.startsWith('Stacks →'))")
    site.wait_until_nothing_comes()
    return site


@pytest.fixture(scope="module", params=PAGES)
def narrow(site: Site, request: pytest.FixtureRequest) -> Site:
    """The site with one page open on a phone."""
    site.browser.use_theme("light")
    site.open(request.param, 390, 844)
    return site


def check(site: Site) -> None:
    """Check the page that is open, in both themes: dark differs by its colours alone."""
    site.browser.use_theme("light")
    assert _grave(site.violations(_ALL_RULES)) == []
    assert site.browser.value(_UNNAMED_DRAWINGS) == []
    site.browser.use_theme("dark")
    assert _grave(site.violations(["color-contrast", "link-in-text-block"], "rule")) == []


@needs_browser
def test_each_page_is_walked_with_the_tabulator(wide: Site) -> None:
    walked = []
    while (focus := wide.tab()) is not None:
        walked.append(focus)
        assert len(walked) < _MOST_TABS, "the focus does not leave the page"
    assert walked[0]["element"] == "a.skip Skip to the content"
    assert [each["element"] for each in walked if not each["hasRing"]] == []
    assert [each["element"] for each in walked if not each["isInView"]] == []
    assert wide.browser.value(_NOT_WALKED) == []


@needs_browser
def test_no_page_breaks_a_rule_that_matters(wide: Site) -> None:
    check(wide)


@needs_browser
def test_no_page_breaks_a_rule_on_a_phone(narrow: Site) -> None:
    check(narrow)


@needs_browser
def test_a_page_at_200_percent_needs_no_sideways_scroll(narrow: Site) -> None:
    too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    # 200 and 400 percent, in CSS pixels: the latter of 1,280 pixels, as WCAG 1.4.10 has it.
    for width, height, scale in ((700, 450, 2.0), (320, 256, 4.0)):
        narrow.resize(width, height, scale)
        narrow.browser.wait_for(f"innerWidth === {width} && {too_wide} <= 0")


@needs_browser
@pytest.mark.parametrize("page", ["overview", "metrics", "compare"])
def test_each_curve_has_a_table_with_its_values(site: Site, page: str) -> None:
    site.open(page, 1400, 900)
    site.browser.value("[...document.querySelectorAll('button')].find((each) => each.innerText === 'As table').click()")
    site.browser.wait_for("document.querySelectorAll('table td, table th').length > 4")
    assert _grave(site.violations(_ALL_RULES)) == []


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_list_of_keys_breaks_no_rule(site: Site, theme: str) -> None:
    site.browser.use_theme(theme)
    site.open("runs", 1400, 900)
    site.browser.press("?")
    site.browser.wait_for("document.querySelector('dialog[open]')")
    assert _grave(site.violations(_ALL_RULES)) == []
