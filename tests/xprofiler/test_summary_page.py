"""The summary page loads from its own server only, shows the summary, and never interprets names as markup.

What its modules draw is tested in a browser, by test_summary_drawing.
"""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.command.errors import CommandError
from xprofiler.serve.application import Application, Catalog
from xprofiler.serve.markup import Markup, element, joined, json_block
from xprofiler.serve.page import POLICY, empty_page, failure_page, summary_page, tool_link
from xprofiler.serve.static_files import read_static_files
from xprofiler.summary.profiles import Profile
from xprofiler.summary.summary import (
    Activity,
    ActivityKind,
    Cause,
    Compilations,
    Host,
    InputPipeline,
    Operation,
    Step,
    Summary,
)
from xprofiler.summary.text import as_dict

from .made_profiles import SESSION, tpu_session

_EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
_VOID = ("meta", "link", "br", "rect", "line")


class _Page(html.parser.HTMLParser):
    """Check that elements are closed in their order, and collect them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def made_summary(word: str = "fusion.1") -> Summary:
    return Summary(
        session=f"run/{word}",
        device=word,
        device_count=8,
        hosts=[Host(word, 2_000_000, 4, 0.0, 1_200.0, 15.0, 0), Host("b", 10, 4, 350.0, 1_300.0, 14.0, 2)],
        steps=[Step(word, 1_200.0, {"Device compute": 1_000.0, word: 200.0}, word), Step("2", 1_500.0, {}, "")],
        busy_percent=85.2,
        utilization={word: 12.3},
        operations=[Operation(word, word, 96, 4_000.0, 80.0, word, word, 95_238.0, 66.5)],
        input=InputPipeline(word, 6.6, {word: 5.0}),
        notes=[word],
        tools=["trace_viewer@", "overview_page", "op_profile", word],
        cause=Cause("annotation", 97.1, f"{word} takes 97.1 % of the step"),
        time_percent={"annotation": 97.1},
        activities=[Activity(ActivityKind.ANNOTATION, word, 1_234, 5_000.0, 97.1)],
        compilations=Compilations(7, 0.25, 1.5),
    )


def _page(summary: Summary, word: str = "run") -> tuple[str, _Page]:
    profiles = [Profile(f"{word}/s{number}", "/l", {"h": "/l/h.xplane.pb"}) for number in range(3)]
    page = summary_page(summary, profiles, word).decode()
    return page, _Page(page)


def test_the_page_has_the_summary_as_text_for_a_browser_without_scripts() -> None:
    page, _ = _page(made_summary())
    shown = " ".join(html.unescape(page.partition("<noscript>")[2].partition("</noscript>")[0]).split())
    for words in (
        "xprofiler summary run --session run/fusion.1",
        "2 hosts, 8 cores of fusion.1",
        "85.2 % busy, 14.8 % idle",
        "1.35 ms",
        "6.6 %",
        "+350 us",
        "fusion.1 takes 97.1 % of the step",
        "annotation 1,234 5.00 ms 97.1 %",
        "7 programs in 250 ms, 1.5 % of the steps' time",
    ):
        assert words in shown, (words, shown)


def test_the_page_has_the_summary_as_json_for_its_modules() -> None:
    page, _ = _page(made_summary())
    found = re.search(r'<script type="application/json" id="summary">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == json.loads(json.dumps(as_dict(made_summary())))


def test_a_number_that_is_not_finite_is_null_for_the_modules() -> None:
    page = summary_page(Summary("s", busy_percent=float("nan")), [], "/logs").decode()
    assert '"busy_percent":null' in page
    assert "NaN" not in page.partition('id="summary"')[2]


def test_the_page_has_links_to_the_tools_of_xprof() -> None:
    _, page = _page(made_summary())
    shown = " ".join(page.text.split())
    assert "Trace viewer" in shown.partition("Works without the internet")[2].partition("Google Charts")[0]
    assert "Overview" in shown.partition("Google Charts")[2]


def test_the_page_loads_from_its_own_server_only() -> None:
    page, parsed = _page(made_summary())
    links = [value or "" for name, value in parsed.attributes if name in ("href", "src", "action", "data", "srcset")]
    assert all(link.startswith(("/", "data:,", "#")) and not link.startswith("//") for link in links), links
    assert not {"iframe", "img", "object", "embed", "form", "style"} & set(parsed.tags)
    assert not {"style", "srcdoc"} & {name for name, _ in parsed.attributes}
    styles = [file.data.decode() for name, file in read_static_files().items() if name.endswith(".css")]
    assert len(styles) >= 5
    assert not any(re.search(r"@import|url\(", text) for text in [page, *styles])
    files = [link.removeprefix("/static/") for link in links if link.startswith("/static/")]
    assert len(files) >= 6
    assert set(files) <= set(read_static_files())


def test_the_policy_of_the_page_allows_its_own_files_alone() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert (rules["script-src"], rules["style-src"]) == ("'self'", "'self'")
    assert "unsafe" not in POLICY


def test_text_is_never_markup() -> None:
    page, parsed = _page(made_summary(_EVIL), _EVIL)
    assert parsed.tags.count("script") == 2, "the module and the data"
    assert re.findall(r"<script[^>]*>", page) == [
        '<script type="module" src="/static/xprofiler/page.js">',
        '<script type="application/json" id="summary">',
    ]
    assert "img" not in parsed.tags
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert _EVIL.split('"', 1)[0] in parsed.text
    assert "<script>" not in page


@given(st.text(), st.text())
def test_any_text_is_escaped(text: str, attribute: str) -> None:
    made = element("p", text, title=attribute)
    assert made.count("<") == made.count(">") == 2
    assert joined(made, Markup("<br>")) == f"{made}<br>"


@given(st.text(), st.text())
def test_no_text_ends_the_element_of_the_data(key: str, text: str) -> None:
    block = json_block("summary", json.dumps({key: text}))
    inside = block.removeprefix('<script type="application/json" id="summary">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == {key: text}


def test_pages_without_a_profile_have_a_remedy() -> None:
    assert "xprofiler capture -o local" in empty_page("/logs").decode()
    broken = _Page(failure_page(_EVIL, _EVIL, [], _EVIL).decode())
    assert "script" not in broken.tags
    nothing = Summary("s", "CPU")
    assert "not known" in summary_page(nothing, [], "/logs").decode()


def test_a_link_into_xprof_survives_any_name() -> None:
    link = tool_link("trace_viewer@", "run one/s&host=x#y", ["a", "b"])
    assert link == "/data/plugin/profile/?run=run+one%2Fs%26host%3Dx%23y&tag=trace_viewer@&hosts=a,b"


def _asked(application: Application, path: str, query: str = "", **environ: str) -> tuple[str, dict[str, str], bytes]:
    asked: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": query, "HTTP_HOST": "localhost:6006", **environ}
    setup_testing_defaults(asked)
    answer: list[Any] = []
    body = b"".join(application(asked, lambda *parts: answer.extend(parts)))
    return answer[0], dict(answer[1]), body


@pytest.fixture
def xprof_asked() -> list[str]:
    return []


@pytest.fixture
def application(tmp_path: Path, xprof_asked: list[str]) -> Application:
    tpu_session(tmp_path / "logs")

    def xprof(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        xprof_asked.append(environ["PATH_INFO"] + "?" + environ["QUERY_STRING"])
        start_response("200 OK", [])
        return [b"xprof"]

    def summarize(name: str, files: dict[str, Path]) -> Summary:
        if not all(file.stat().st_size for file in files.values()):
            raise CommandError(f"{name} is broken")
        return Summary(name, "TPU", hosts=[Host(host, 1) for host in files])

    return Application(Catalog(str(tmp_path / "logs"), tmp_path / "copy", summarize, clock=lambda: 0.0), xprof)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:6006", "127.0.0.1:1", "[::1]:6006"])
def test_requests_to_this_machines_names_are_answered(application: Application, host: str) -> None:
    status, headers, _ = _asked(application, "/", HTTP_HOST=host)
    assert status == "200 OK"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example:6006", "127.0.0.1.evil.example", "[::2]"])
@pytest.mark.parametrize("path", ["/", "/summary.json", "/static/common/dom.js", "/data/plugin/profile/runs"])
def test_a_name_that_is_not_this_machines_is_refused(
    application: Application, xprof_asked: list[str], host: str, path: str
) -> None:
    assert _asked(application, path, HTTP_HOST=host)[0] == "403 Forbidden"
    assert xprof_asked == []


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/data/plugin/profile/capture_profile", "service_addr=localhost:1", "403"),
        ("/data/plugin/profile/capture_profile/", "", "403"),
        ("/data/plugin/profile/generate_cache", "", "403"),
        ("/data/plugin/profile/runs", "session_path=/etc", "403"),
        ("/data/plugin/profile/data", "run_path=/etc&run=x", "403"),
        ("/data/plugin/profile/data", "run=../../etc&tag=overview_page", "404"),
        ("/data/plugin/profile/data", f"run=../../etc&run={SESSION}", "404"),
        ("/capture_profile", "", "404"),
        ("/static/", "", "404"),
        ("/static/xprofiler/../page.py", "", "404"),
        ("/static/../page.py", "", "404"),
        ("/static/common/__init__.py", "", "404"),
        ("/static//etc/passwd", "", "404"),
        ("/", "session=../../etc", "404"),
        ("/summary.json", "session=no", "404"),
    ],
)
def test_requests_that_write_or_read_elsewhere_are_refused(
    application: Application, xprof_asked: list[str], path: str, query: str, status: str
) -> None:
    assert _asked(application, path, query)[0].startswith(status)
    assert xprof_asked == []


def test_the_files_of_the_page_have_their_types(application: Application) -> None:
    for name, media_type in (
        ("common/dom.js", "text/javascript; charset=utf-8"),
        ("xprofiler/page.js", "text/javascript; charset=utf-8"),
        ("xprofiler/profile.css", "text/css; charset=utf-8"),
    ):
        status, headers, body = _asked(application, f"/static/{name}")
        assert (status, headers["Content-Type"], headers["X-Content-Type-Options"]) == ("200 OK", media_type, "nosniff")
        assert int(headers["Content-Length"]) == len(body) > 500


def test_only_reading_requests_are_answered(application: Application) -> None:
    assert _asked(application, "/", REQUEST_METHOD="POST")[0].startswith("405")
    status, headers, body = _asked(application, "/", REQUEST_METHOD="HEAD")
    assert (status, body) == ("200 OK", b"")
    assert int(headers["Content-Length"]) > 100


def test_tools_with_results_by_host_read_a_copy_of_that_host_alone(
    application: Application, xprof_asked: list[str], tmp_path: Path
) -> None:
    name = f"tensorboard%2F{SESSION}"
    _asked(application, "/data/plugin/profile/data", f"run={name}&tag=hlo_stats&host=host-b&x=")
    _asked(application, "/data/plugin/profile/data", f"run={name}&tag=hlo_stats&host=ALL_HOSTS")
    _asked(application, "/data/plugin/profile/data", f"run={name}&tag=trace_viewer%40&host=host-b")
    one, *others = xprof_asked
    assert one.endswith(f"data?run=.hosts%2Fhost-b%2F{name}&tag=hlo_stats&host=host-b&x=")
    assert all(f"?run={name}&" in other for other in others)
    folder = tmp_path / "copy" / ".hosts" / "host-b" / "tensorboard" / "plugins" / "profile" / SESSION
    assert [file.name for file in folder.iterdir()] == ["host-b.xplane.pb"]


def test_an_unreadable_profile_is_reported_on_the_page(application: Application, tmp_path: Path) -> None:
    folder = tpu_session(tmp_path / "logs", "session_2026_11_21_11_00_00")
    (folder / "host-a.xplane.pb").write_bytes(b"")
    status, _, body = _asked(application, "/")
    assert status.startswith("500")
    assert b"is broken" in body
    assert SESSION.encode() in body, "the others can be chosen still"
