"""The list of runs, comparison, configs and logs in a real browser: by keyboard, by URL, on a phone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from .browser import Browser, needs_browser, opened_browser
from .made_runs import hang, many
from .served import Served, served

pytestmark = needs_browser

RUNS = 300
_MOST_NODES = 1200  # of a list of any length
_FILTER_MS = 150.0  # three times the bound of the contract, for slow machines
_CURRENT = "document.querySelector('.run-row.is-current')?.dataset.id"


class Pages:
    """A browser with the page of a folder of many runs."""

    def __init__(self, browser: Browser, server: Served) -> None:
        self.browser, self._base = browser, server.url.rstrip("/")
        rows = server.json("/api/runs")["rows"]
        self.ids = [row["id"] for row in rows]
        self.states = {row["id"]: row["state"] for row in rows}

    def open(self, path: str, ready: str) -> None:
        """Open a path from scratch, and wait until its page is complete."""
        self.browser.open(self._base + path)
        self.browser.wait_ready(ready)

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.browser.press(key)

    def value(self, expression: str) -> Any:
        """Return the value of an expression."""
        return self.browser.value(expression)

    def type_filter(self, text: str) -> None:
        """Replace the text of the page's filter, as typing does."""
        self.value(
            f"(() => {{ const field = document.querySelector('[data-filter]'); field.value = {text!r};"
            " field.dispatchEvent(new Event('input')); })()"
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the URL."""
        query = parse_qs(urlsplit(self.value("location.href")).query)
        return {name: values[0] for name, values in query.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    many(folder, RUNS)
    hang(folder, 4)
    return folder


@pytest.fixture(scope="module")
def pages(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    with served(folder) as server, opened_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield Pages(browser, server)
        assert browser.complaints() == []


def test_only_rows_in_view_are_in_the_document(pages: Pages) -> None:
    pages.open("/", "runs")
    assert pages.value("document.querySelector('[role=grid]').getAttribute('aria-rowcount')") == str(len(pages.ids) + 1)
    assert 10 < pages.value("document.querySelectorAll('.run-row').length") < 40
    assert pages.value("document.querySelectorAll('*').length") < _MOST_NODES
    pages.value("window.scrollTo(0, 5000)")
    pages.browser.wait_for("[...document.querySelectorAll('.run-row')].some((row) => row.ariaRowIndex > 100)")
    indices = pages.value("[...document.querySelectorAll('.run-row')].map((row) => Number(row.ariaRowIndex))")
    assert indices == list(range(indices[0], indices[0] + len(indices)))  # also in the order of reading
    assert len(indices) < 60


def test_a_filter_is_in_the_url_and_its_result_is_counted(pages: Pages) -> None:
    pages.open("/", "runs")
    pages.type_filter("state:failed lr<=1e-3")
    failed = sum(state == "failed" for state in pages.states.values())
    pages.browser.wait_for("new URLSearchParams(location.search).get('q') === 'state:failed lr<=1e-3'")
    shown = int(pages.value("document.querySelector('[role=grid]').getAttribute('aria-rowcount')")) - 1
    assert 0 < shown <= failed
    assert pages.value("document.querySelector('.runs-count').textContent") == f"{shown} of {len(pages.ids)}"
    assert pages.value("[...document.querySelectorAll('.col-status')].slice(1).every((e) => e.innerText === 'Failed')")
    pages.open("/?q=state:failed&sort=duration.asc", "runs")  # the URL is the state
    assert pages.value("document.querySelector('[data-filter]').value") == "state:failed"
    assert pages.value("document.querySelector('[aria-sort]').innerText").startswith("Duration")
    pages.type_filter("nothing-has-this")
    assert pages.value("document.querySelector('.runs-none').innerText").startswith("No run passes the filter.")
    pages.type_filter("leanring_rate>1")
    assert pages.value("document.querySelector('.field-note').innerText") == "no run has leanring_rate"


@pytest.mark.timing
@pytest.mark.skipif(os.environ.get("CI") == "true", reason="the machines of the continuous tests are too uneven")
def test_a_filter_is_quick(pages: Pages) -> None:
    pages.open("/", "runs")
    pages.value("window.times = []")
    for text in ["digits", "loss<2", "", "goodput>=90%", ""] * 4:
        pages.value("window.before = performance.now()")
        pages.type_filter(text)
        pages.value("document.body.offsetHeight, times.push(performance.now() - before)")
    assert sorted(pages.value("times"))[10] < _FILTER_MS


def test_runs_are_chosen_and_compared_by_keyboard(pages: Pages) -> None:
    pages.open("/?q=digits", "runs")
    pages.press("j", "j", "k", "j")
    second = pages.value(_CURRENT)
    assert pages.value("document.activeElement.closest('.run-row').dataset.id") == second
    pages.press("x", "j", "x")
    third = pages.value(_CURRENT)
    assert third != second
    assert pages.parameters()["sel"] == f"{second},{third}"
    assert "2 runs selected" in pages.value("document.querySelector('.foot').innerText")
    pages.press("c")
    pages.browser.wait_ready("compare")
    assert pages.parameters() == {"runs": f"{second},{third}"}
    assert pages.value("document.querySelector('h1').innerText") == "Compare 2 runs"
    assert pages.value("[...document.querySelectorAll('.diff thead a')].map((link) => link.innerText)") == [
        second,
        third,
    ]
    pages.value("history.back()")
    pages.browser.wait_ready("runs")
    assert pages.parameters()["sel"] == f"{second},{third}"
    pages.press("Escape")
    assert "sel" not in pages.parameters()


def test_a_run_is_opened_and_its_pages_are_walked_by_keyboard(pages: Pages) -> None:
    pages.open("/", "runs")
    pages.press("j")
    run = pages.value(_CURRENT)
    pages.press("Enter")
    pages.browser.wait_ready("overview")
    for key, tab in {"2": "metrics", "3": "stacks", "4": "profiles", "5": "logs", "6": "configs"}.items():
        pages.press(key)
        pages.browser.wait_ready(tab)
        assert pages.value("location.pathname") == f"/runs/{run}/{tab}"
        assert pages.value("document.querySelector('.tabs [aria-current]').innerText").lower().startswith(tab)
    pages.press("?")
    assert pages.value("document.querySelector('dialog[open] h2').innerText") == "Keys"
    pages.press("1")  # belongs to the dialog
    assert pages.value("location.pathname") == f"/runs/{run}/configs"


def test_a_failed_run_is_compared_with_the_last_that_completed_by_one_click(pages: Pages) -> None:
    run = next(run for run, state in pages.states.items() if state == "failed")
    pages.open(f"/runs/{run}", "overview")
    pages.value(
        "[...document.querySelectorAll('.run-actions a')].find((a) => a.textContent === 'What differs').click()"
    )
    pages.browser.wait_ready("configs")
    against = pages.parameters()["against"]
    assert pages.states[against] == "completed"
    assert pages.value("document.querySelector('.diff thead').innerText").split() == [run, against]


def test_the_back_button_returns_to_the_row_that_was_opened(pages: Pages) -> None:
    pages.open("/", "runs")
    pages.value("window.scrollTo(0, 6000)")
    row = "[...document.querySelectorAll('.run-row')].find((row) => row.getBoundingClientRect().top > 200)"
    pages.browser.wait_for(f"scrollY === 6000 && {row}")
    run = pages.value(f"{row}.dataset.id")
    pages.value(f"{row}.querySelector('.col-step').click()")
    pages.browser.wait_ready("overview")
    assert pages.value("scrollY") == 0
    pages.value("history.back()")
    pages.browser.wait_ready("runs")
    assert pages.value("scrollY") == 6000
    assert run in pages.value("[...document.querySelectorAll('.run-row')].map((row) => row.dataset.id)")


def test_the_focus_stays_on_the_tab_that_was_opened(pages: Pages) -> None:
    pages.open(f"/runs/{pages.ids[0]}", "overview")
    pages.value("document.querySelector('.tab[href$=configs]').focus()")
    pages.press("Enter")
    pages.browser.wait_ready("configs")
    assert pages.value("document.activeElement.textContent") == "Configs"
    pages.value("document.querySelector('.crumbs a').focus()")
    pages.press("Enter")
    pages.browser.wait_ready("runs")
    assert pages.value("document.activeElement.id") == "main"


def test_a_button_above_the_charts_keeps_the_focus(pages: Pages) -> None:
    pages.open(f"/runs/{pages.ids[0]}/metrics", "metrics")
    pages.value("[...document.querySelectorAll('.segments button')].find((each) => each.innerText === 'Log').focus()")
    pages.press("Enter")
    pages.browser.wait_for("location.search === '?log=1'")
    assert pages.value("document.activeElement.innerText") == "Log"
    assert pages.value("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert pages.value("document.querySelectorAll('[aria-label=Scale] [aria-pressed=true]').length") == 1


def test_nothing_is_left_behind_when_pages_are_left(pages: Pages) -> None:
    paths = [f"/runs/{pages.ids[0]}{tab}" for tab in ("", "/metrics", "/stacks", "/logs", "/configs")]
    pages.open("/", "runs")
    pages.browser.call("Performance.enable")

    def walk() -> None:
        for path in (*paths, f"/compare?runs={pages.ids[0]},{pages.ids[1]}", "/"):
            pages.value(
                "(() => { delete document.documentElement.dataset.ready;"
                f" history.pushState(null, '', '{path}'); dispatchEvent(new PopStateEvent('popstate')); }})()"
            )
            pages.browser.wait_ready()

    def kept() -> tuple[float, float]:
        pages.browser.call("HeapProfiler.collectGarbage")
        found = {each["name"]: each["value"] for each in pages.browser.call("Performance.getMetrics")["metrics"]}
        return found["Nodes"], found["JSEventListeners"]

    def settled() -> tuple[float, float]:
        """Wait for what a page adds after it is ready."""
        last = kept()
        for _ in range(100):
            time.sleep(0.3)
            before, last = last, kept()
            if before == last:
                break
        return last

    def has_not_grown(before: tuple[float, float]) -> bool:
        for _ in range(100):  # What is no longer referenced is collected in several steps.
            if all(found <= 1.05 * least for found, least in zip(kept(), before, strict=True)):
                return True
            time.sleep(0.1)
        return False

    walk()
    walk()
    for _ in range(3):  # A page that was counted before it was complete grows once; what is left behind, at each walk.
        before = settled()
        for _ in range(3):
            walk()
        if has_not_grown(before):
            return
    raise AssertionError(f"nodes and listeners, before three walks and after them: {before}, {kept()}")


def test_the_theme_is_kept_and_not_in_the_url(pages: Pages) -> None:
    pages.browser.use_theme("light")
    pages.open("/", "runs")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = pages.value(ground)
    pages.press("t")
    dark = pages.value(ground)
    assert dark != light
    assert pages.parameters() == {}
    pages.open("/compare", "compare")
    assert pages.value(ground) == dark
    pages.press("t", "t")
    assert pages.value(ground) == light
    assert pages.value("document.documentElement.dataset.theme") is None


def test_a_field_keeps_its_keys(pages: Pages) -> None:
    pages.open("/", "runs")
    pages.press("/")
    assert pages.value("document.activeElement.dataset.filter") == ""
    pages.press("j", "?", "t")
    assert pages.value("document.querySelector('.is-current, dialog')") is None
    pages.press("Escape")
    assert pages.value("document.activeElement === document.body")


def test_configs_show_a_run_or_what_differs(pages: Pages) -> None:
    one, other = next(
        (one, other)
        for one, other in zip(pages.ids, pages.ids[1:], strict=False)
        if one[-4:].isdigit() and other[-4:].isdigit()
    )
    pages.open(f"/runs/{one}/configs", "configs")
    text = pages.value("document.querySelector('main').innerText")
    assert "batch_size" in text
    assert "lr" in text
    pages.open(f"/runs/{one}/configs?against={other}&all=1", "configs")
    heads = pages.value("[...document.querySelectorAll('.diff thead a')].map((link) => link.innerText)")
    assert heads == [one, other]
    keys = "[...document.querySelectorAll('.diff tbody th')].map((head) => head.innerText)"
    all_keys = pages.value(keys)
    pages.value("document.querySelector('.card-right input').click()")
    assert len(pages.value(keys)) <= len(all_keys)
    assert "all" not in pages.parameters()


def test_logs_open_at_their_end_and_find_lines(pages: Pages) -> None:
    run = next(run for run in pages.ids if run.startswith("llama3-8b-pretrain"))
    pages.open(f"/runs/{run}/logs", "logs")
    text = pages.value("document.querySelector('main').innerText")
    assert "no progress" in text
    pages.value("document.querySelector('[data-view=error]').click()")
    pages.browser.wait_for("document.querySelectorAll('.log-line.is-error').length > 0")
    assert pages.parameters()["level"] == "error"
    pages.open(f"/runs/{run}/logs?q=nothing-says-this", "logs")
    assert "No line matches." in pages.value("document.querySelector('main').innerText")


def test_a_deleted_run_is_left_out_of_a_comparison(pages: Pages) -> None:
    pages.open(f"/compare?runs={pages.ids[0]},deleted,{pages.ids[1]}", "compare")
    assert pages.value("document.querySelector('.page-compare .problem').innerText") == (
        "Not found, and left out: deleted."
    )
    assert pages.value("document.querySelector('.diff thead').innerText").split() == pages.ids[:2]
    pages.browser.forget()


def test_a_page_that_is_not_there_says_so(pages: Pages) -> None:
    pages.open("/runs/no-such-run", "problem")
    assert "There is no run 'no-such-run'" in pages.value("document.querySelector('main').innerText")
    pages.browser.forget()  # The 404 is a complaint, and wanted.


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/compare", "/logs", "/configs"])
def test_a_phone_needs_no_sideways_scroll(pages: Pages, path: str, theme: str) -> None:
    url, ready = {"/": ("/", "runs"), "/compare": (f"/compare?runs={','.join(pages.ids[:3])}", "compare")}.get(
        path, (f"/runs/{pages.ids[0]}{path}", path.strip("/"))
    )
    pages.browser.use_theme(theme)
    pages.browser.resize(390, 844)
    try:
        pages.open(url, ready)
        assert pages.value("document.documentElement.scrollWidth") <= 390
    finally:
        pages.browser.resize(1400, 900)
