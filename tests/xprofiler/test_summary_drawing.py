"""The drawing of a summary by modules: for the page of `xprofiler serve` and the page of `mldiagnostics ui`."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from ml_diagnostics_common.texts import format_duration
from xprofiler.serve.application import Application, Catalog
from xprofiler.serve.static_files import FOLDERS
from xprofiler.summary.summary import Host, Operation, SlowHost, Step, Summary
from xprofiler.summary.text import ACTIVITY_KINDS, PART_COLOURS

from ..console.web.browser import Browser, needs_browser, opened_browser
from ..console.web.node import needs_node, run_script
from .made_profiles import tpu_session
from .test_summary_page import made_summary

_EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e\n"
_MOST_BARS = 300
_SHOWN = "document.getElementById('profile').innerText"


class Shown:
    """A browser beside a server of summaries.

    Attributes:
        browser: The browser.
        summary: The next answer of the server.
    """

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.summary = browser, Summary("s")
        self._folder, self._count = folder, 0
        self.url = ""

    def application(self) -> Application:
        """Return the application, with a session."""

        def no_xprof(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
            start_response("404 Not Found", [])
            return []

        clock = itertools.count(0, 60).__next__  # each request lists the sessions again
        catalog = Catalog(str(self._folder / "logs"), self._folder / "copy", lambda name, files: self.summary, clock)
        return Application(catalog, no_xprof)

    def open(self, summary: Summary, *, width: int = 1400) -> str:
        """Show a summary, and return the text that is drawn."""
        self.summary = summary
        session = tpu_session(self._folder / "logs", f"s-{self._count}").name
        self._count += 1
        self.browser.forget()
        self.browser.resize(width, 900)
        self.browser.open(f"{self.url}/?session=tensorboard/{session}")
        self.browser.wait_ready("profile")
        # The steps are drawn in the next frame, when their width is known.
        self.browser.wait_for("!document.querySelector('.step-chart') || document.querySelector('.step-chart g')")
        text: str = self.browser.value(_SHOWN)
        return " ".join(text.split())


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("shown")
    with opened_browser(folder) as browser:
        page = Shown(browser, folder)
        application = page.application()
        server = make_server("127.0.0.1", 0, application, handler_class=_Quiet)
        page.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield page
        server.shutdown()
        thread.join()
        with contextlib.suppress(OSError):
            server.server_close()


def steps(script: str, given: Any = None) -> Any:
    """Run a script with what steps.js exports."""
    return run_script(f"const steps = await load('../xprofiler/steps.js'); {script}", given)


def rgb(colour: str) -> str:
    """Return a colour such as #1f5fb4 as browsers write it."""
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def press_button(page: Shown, text: str) -> None:
    """Press the button with a text."""
    page.browser.value(
        f"[...document.querySelectorAll('button')].find((each) => each.textContent === '{text}').click()"
    )


@needs_browser
def test_the_page_shows_the_summary(shown: Shown) -> None:
    text = shown.open(made_summary())
    for words in (
        "2 hosts, 8 cores of fusion.1",
        "85.2 %",
        "idle 14.8 %",
        "1.35 ms",
        "6.6 %",
        "95.2 TFLOP/s",
        "+350 us",
        "usion.1 takes 97.1 % of the step",
        "annotation 1,234 5.00 ms 97.1 %",
        "7 programs in 250 ms, 1.5 % of the steps' time",
    ):
        assert words in text, (words, text)
    assert shown.browser.complaints() == []
    assert shown.browser.foreign_requests(shown.url.removeprefix("http://")) == []


@needs_browser
def test_text_is_never_markup_in_the_document(shown: Shown) -> None:
    text = shown.open(made_summary(_EVIL))
    assert "<img src=x onerror=alert(2)>\\u202e\\n" in text
    found = shown.browser.value("[...document.querySelectorAll('img, iframe, script')].map((each) => each.src)")
    assert found == [f"{shown.url}/static/xprofiler/page.js", ""]
    assert shown.browser.complaints() == []


@needs_browser
def test_a_profile_without_steps_and_devices_says_so(shown: Shown) -> None:
    text = shown.open(Summary("s", "CPU"))
    assert "Mean step not known" in text
    assert "no XLA operation on the CPU" in text
    assert "null" not in text
    assert "undefined" not in text
    assert "NaN" not in text
    assert shown.browser.complaints() == []


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bars_are_as_long_as_the_steps_and_in_the_colours_of_their_parts(shown: Shown, theme: str) -> None:
    shown.browser.use_theme(theme)
    first = Step("1", 1_000.0, {"Device compute": 1_000.0}, "")
    second = Step("2", 4_000.0, {"Device compute": 1_000.0, "Input": 3_000.0}, "b")
    shown.open(Summary("s", "TPU", 8, [Host("a", 1)], [first, second]))
    bars = shown.browser.value(
        "[...document.querySelectorAll('.step-chart g')].map((bar) => [...bar.querySelectorAll('rect')].map((piece) =>"
        " [piece.getBoundingClientRect().height, getComputedStyle(piece).fill]))"
    )
    compute, waiting = rgb(PART_COLOURS["Device compute"]), rgb(PART_COLOURS["Input"])
    first_bar, second_bar = ({colour: height for height, colour in pieces} for pieces in bars)
    assert second_bar == {waiting: pytest.approx(3 * first_bar[compute], rel=0.01), compute: first_bar[compute]}
    ground = shown.browser.value("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (theme == "dark"), ground
    shown.browser.use_theme("light")


@needs_browser
def test_a_step_is_chosen_by_the_keyboard_and_all_are_in_a_table(shown: Shown) -> None:
    shown.open(made_summary())
    chart = "document.querySelector('.step-chart')"
    shown.browser.value(f"{chart}.focus()")
    shown.browser.press("End")
    assert shown.browser.value(f"{chart}.getAttribute('aria-valuetext')") == "step 2: 1.50 ms"
    assert "step 2: 1.50 ms" in shown.browser.value(_SHOWN)
    shown.browser.press("ArrowLeft")
    assert shown.browser.value(f"{chart}.getAttribute('aria-valuenow')") == "1"
    press_button(shown, "As table")
    cells = shown.browser.value("[...document.querySelectorAll('.table-twin td')].map((cell) => cell.textContent)")
    assert cells[:2] == ["fusion.1", "1.20 ms"]
    assert "1.00 ms" in cells


@needs_browser
def test_of_many_steps_the_slow_ones_are_drawn(shown: Shown) -> None:
    many = [Step(str(number), 900.0 if number == 4_321 else 1.0, {}, "") for number in range(8_000)]
    assert "The slowest of each 27 steps, on its slowest core" in shown.open(Summary("s", steps=many))
    assert shown.browser.value("document.querySelectorAll('.step-chart g').length") <= _MOST_BARS


@needs_browser
def test_a_slow_host_is_first_and_red_and_said_in_words(shown: Shown) -> None:
    hosts = [Host(f"h{number}", 1, 4, 10.0 * number, 1_500.0 if number == 7 else 1_000.0) for number in range(20)]
    text = shown.open(Summary("s", hosts=hosts, slow_host=SlowHost("h7", 1.5, 12.5)))
    assert "H7 is slower" not in text
    assert "h7 is slower than the others: 1.5 times their median; it holds them up for 12.5 % of a step." in text
    rows = shown.browser.value("[...document.querySelectorAll('.profile-table tbody tr')].map((row) => row.innerText)")
    assert "h7" in rows[0]
    assert "slower than the others" in rows[0]
    assert "+70.0 us" in rows[0]
    assert not any("slower" in row for row in rows[1:])
    fills = shown.browser.value(
        "[...document.querySelectorAll('.profile-table .share-bar span')].map((each) =>"
        " getComputedStyle(each).backgroundColor)"
    )
    assert fills[0] not in fills[1:]


@needs_browser
def test_all_operations_are_shown_on_demand(shown: Shown) -> None:
    operations = [Operation(f"op.{number}", "c", 1, 100.0 - number, 1.0) for number in range(40)]
    shown.open(Summary("s", operations=operations))
    rows = "document.querySelectorAll('.profile-table tbody tr').length"
    assert shown.browser.value(rows) == 15
    press_button(shown, "All 40")
    assert shown.browser.value(rows) == 40
    heads = shown.browser.value("[...document.querySelectorAll('.profile-table th')].map((cell) => cell.textContent)")
    assert heads == ["Operation", "Runs", "Self time", "Share", "Bar"], "columns without a value are left out"


@needs_browser
@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window_and_no_heading_in_capitals(shown: Shown, width: int) -> None:
    summary = made_summary("a_very_long_name_" * 30)
    shown.open(summary, width=width)
    assert shown.browser.value("document.documentElement.scrollWidth") <= width
    spaced = "getComputedStyle(each).textTransform !== 'none' || parseFloat(getComputedStyle(each).letterSpacing) > 0"
    assert shown.browser.value(f"[...document.querySelectorAll('*')].filter((each) => {spaced}).length") == 0


@needs_browser
def test_a_broken_summary_names_the_command(shown: Shown) -> None:
    shown.open(made_summary())
    shown.browser.value(
        "document.getElementById('profile').replaceChildren();"
        "document.getElementById('summary').textContent = 'null';"
        "import('/static/xprofiler/page.js?again').then(() => 0)"
    )
    assert "xprofiler summary" in shown.browser.value(_SHOWN)


@needs_node
def test_of_each_group_the_slowest_step_is_kept() -> None:
    many = [{"name": str(number), "duration_us": 900.0 if number == 4_321 else 1.0} for number in range(8_000)]
    names = steps("answer(steps.slowestOfEach(given).map((step) => step.name));", many)
    assert len(names) <= _MOST_BARS
    assert "4321" in names
    few = steps("answer(steps.slowestOfEach(given));", many[:_MOST_BARS])
    assert few == many[:_MOST_BARS]
    assert steps("answer(steps.slowestOfEach([]));") == []


@needs_node
@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (0.0, [0, 1]),
        (0.3, [0, 0.1, 0.2, 0.3]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1_500.0, [0, 500, 1_000, 1_500]),
        (1_501.0, [0, 500, 1_000, 1_500, 2_000]),
        (9_999.0, [0, 2_000, 4_000, 6_000, 8_000, 10_000]),
    ],
)
def test_an_axis_has_round_marks_that_reach_over_the_longest(longest: float, expected: list[float]) -> None:
    assert steps("answer(steps.ticks(given));", longest) == pytest.approx(expected)


@needs_node
def test_the_rest_of_a_step_is_a_piece_without_a_part() -> None:
    step = {"duration_us": 100.0, "parts_us": {"a": 30.0, "b": 20.0}}
    assert steps("answer(steps.piecesOf(given, ['b', 'a', 'c'], 2));", step) == [
        {"part": "b", "bottom": 0, "height": 40},
        {"part": "a", "bottom": 40, "height": 60},
        {"part": None, "bottom": 100, "height": 100},
    ]


@needs_node
def test_the_tokens_are_the_colours_of_the_pictures_of_the_command() -> None:
    text = (FOLDERS["xprofiler/"] / "tokens.css").read_text(encoding="utf-8")
    tokens = dict(re.findall(r"--(part-[\w-]+): (#[0-9a-f]{6});", text))
    names = steps("answer(given.map((part) => steps.partColour(part, 0)));", list(PART_COLOURS))
    used = {name.removeprefix("var(--").partition(",")[0] for name in names}
    assert tokens == {
        name.removeprefix("var(--").partition(",")[0]: colour
        for name, colour in zip(names, PART_COLOURS.values(), strict=True)
    }
    assert used == set(tokens)


@needs_node
def test_kinds_and_rates_have_the_words_of_the_command() -> None:
    text = (FOLDERS["xprofiler/"] / "profile_tables.js").read_text(encoding="utf-8")
    block = text.partition("const KINDS = {")[2].partition("};")[0]
    assert dict(re.findall(r'(\w+): "([^"]+)"', block)) == {kind.value: name for kind, name in ACTIVITY_KINDS.items()}
    script = "const { rate, duration } = await load('../xprofiler/profile_tables.js'); answer(given.map(({f, a}) => "
    script += "({ rate, duration })[f](...a)));"
    given = [{"f": "rate", "a": [95_238.0, "FLOP"]}, {"f": "rate", "a": [66.5, "iB"]}, {"f": "rate", "a": [None, "iB"]}]
    given += [{"f": "duration", "a": [1_350.0]}, {"f": "duration", "a": [None]}]
    expected = ["95.2 TFLOP/s", "66.5 GiB/s", "", format_duration(1_350e-6), ""]
    assert run_script(script, given) == expected
