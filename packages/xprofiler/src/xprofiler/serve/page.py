"""The summary page: a frame of sessions and links to XProf's tools, around the summary that the page's modules draw.

It loads from its own server only. The summary is in it twice: as JSON for the modules, and as text for a browser that
runs no scripts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlencode

from ml_diagnostics_common.texts import format_count

from xprofiler.serve.markup import Markup, element, joined, json_block
from xprofiler.summary.profiles import Profile
from xprofiler.summary.summary import Summary
from xprofiler.summary.text import as_json, format_summary

__all__ = [
    "POLICY",
    "STATIC_PREFIX",
    "TRACE_VIEWERS",
    "XPROF_PREFIX",
    "empty_page",
    "failure_page",
    "summary_page",
    "tool_link",
]

XPROF_PREFIX: Final = "/data/plugin/profile"
"""The path at which XProf's page expects its data."""

STATIC_PREFIX: Final = "/static/"
"""The path of the page's modules and styles."""

_TITLES: Final = MappingProxyType(
    {
        "overview_page": "Overview",
        "trace_viewer@": "Trace viewer",
        "trace_viewer": "Trace viewer",
        "graph_viewer": "Graph viewer",
        "op_profile": "HLO op profile",
        "hlo_op_profile": "HLO op profile",
        "input_pipeline_analyzer": "Input pipeline",
        "kernel_stats": "GPU kernels",
        "memory_profile": "Memory profile",
        "memory_viewer": "Memory viewer",
        "roofline_model": "Roofline model",
        "perf_counters": "Performance counters",
        "pod_viewer": "Pod viewer",
        "framework_op_stats": "Framework op statistics",
        "hlo_stats": "HLO op statistics",
        "inference_profile": "Inference profile",
        "megascale_stats": "Megascale statistics",
        "utilization_viewer": "Utilization",
        "smart_suggestion": "Smart suggestions",
    }
)
TRACE_VIEWERS: Final = frozenset({"trace_viewer@", "trace_viewer"})
_HOSTS_IN_A_TRACE = 8  # A trace of more hosts loads slowly.
# XProf 2.24 loads Google Charts from www.gstatic.com; without it, its other tools stay blank or show numbers only.
_WITHOUT_INTERNET: Final = TRACE_VIEWERS | {"op_profile", "hlo_op_profile"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page: its own modules and styles, and nothing in the page itself."""

_TEXT_WIDTH: Final = 120  # Columns of the summary without scripts.
_STYLES: Final = ("common/tokens.css", "common/elements.css", "xprofiler/tokens.css", "xprofiler/profile.css")
_STYLE_OF_PAGE: Final = "xprofiler/page.css"
_MODULE_OF_PAGE: Final = "xprofiler/page.js"


def tool_link(tool: str, session: str, hosts: Sequence[str] = ()) -> str:
    """Return the URL of a session in a tool of XProf.

    Args:
        tool: XProf's name of the tool.
        session: The session.
        hosts: All hosts. Up to eight are shown in one trace; otherwise XProf shows the first.
    """
    parameters = {"run": session, "tag": tool}
    if tool in TRACE_VIEWERS and 1 < len(hosts) <= _HOSTS_IN_A_TRACE:
        parameters["hosts"] = ",".join(hosts)
    return f"{XPROF_PREFIX}/?{urlencode(parameters, safe='@,')}"


def _tools_section(session: str, tools: Iterable[str], hosts: Sequence[str]) -> Markup:
    """Return links to XProf's tools, in separate lists for those that need the internet."""
    known = sorted(set(tools), key=lambda tool: _TITLES.get(tool, tool))
    links = {tool: _link(tool, tool_link(tool, session, hosts)) for tool in known}
    offline = [link for tool, link in links.items() if tool in _WITHOUT_INTERNET]
    online = [link for tool, link in links.items() if tool not in _WITHOUT_INTERNET]
    return _card(
        "This session in XProf",
        element("h3", "Works without the internet"),
        element("ul", *offline, class_="tools"),
        element("h3", "Draws its charts with Google Charts, from www.gstatic.com"),
        element("ul", *online, class_="tools"),
    )


def _link(tool: str, href: str) -> Markup:
    return element("li", element("a", _TITLES.get(tool, tool), href=href))


def summary_page(summary: Summary, profiles: Sequence[Profile], path: str) -> bytes:
    """Return the page of one profile.

    Args:
        summary: The profile's summary.
        profiles: All profiles, the newest first.
        path: The log directory.
    """
    hosts = [host.name for host in summary.hosts]
    command = f"xprofiler summary {shlex.quote(path)} --session {shlex.quote(summary.session)}"
    links = element("p", *_xprof_links(summary, hosts), class_="links")
    main = [
        element("div", element("h1", summary.session), links, class_="head"),
        element("div", "", class_="stack", id="profile", data_command=command),
        element(
            "noscript",
            _card(
                "Summary",
                element("p", "Charts and tables need JavaScript. This is what the command prints:", class_="second"),
                element("p", element("code", command)),
                element("pre", format_summary(summary, _TEXT_WIDTH), class_="text"),
            ),
        ),
        _tools_section(summary.session, summary.tools, hosts),
        json_block("summary", as_json(summary)),
    ]
    return _page(summary.session, profiles, path, joined(*main), module=_MODULE_OF_PAGE)


def empty_page(path: str) -> bytes:
    """Return the page of a log directory without a profile."""
    command = f"xprofiler capture -o local -n localhost:9012 -l {path}"
    main = [
        element("h1", "No profile yet"),
        element("p", "This log directory has no profile. Reload the page after a capture."),
        _card("Capture one", element("p", element("code", command))),
    ]
    return _page("No profile yet", [], path, joined(*main))


def failure_page(name: str, message: str, profiles: Sequence[Profile], path: str) -> bytes:
    """Return the page of a profile that cannot be shown, with the reason."""
    return _page(name, profiles, path, joined(element("h1", name), element("p", message, class_="problem")))


def _page(title: str, profiles: Sequence[Profile], path: str, main: Markup, *, module: str | None = None) -> bytes:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} - xprofiler"),
        element("link", rel="icon", href="data:,"),
        *(element("link", rel="stylesheet", href=_address(name)) for name in (*_STYLES, _STYLE_OF_PAGE)),
        None if module is None else element("script", "", type="module", src=_address(module)),
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#main"),
        element("header", element("b", "xprofiler"), element("span", path, class_="path second"), class_="top"),
        element(
            "div",
            _navigation(title, profiles),
            element("main", main, id="main", class_="stack", tabindex="-1"),
            class_="frame profile-body",
        ),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n".encode()


def _address(name: str) -> str:
    return f"{STATIC_PREFIX}{name}"


def _card(title: str, *content: Markup | None) -> Markup:
    """Return a card as the page's modules build it."""
    return element("section", element("div", element("h2", title), class_="card-head"), *content, class_="card")


def _navigation(chosen: str, profiles: Sequence[Profile]) -> Markup:
    listed = [
        element(
            "a",
            element("span", profile.session, class_="mono"),
            element("span", _below(profile), class_="second"),
            href=f"/?session={quote(profile.name)}",
            class_="session",
            aria_current="page" if profile.name == chosen else None,
        )
        for profile in profiles
    ]
    return _card("Sessions", element("nav", *listed, class_="profile-list", aria_label="Sessions"))


def _below(profile: Profile) -> str:
    run, hosts = profile.name.rpartition("/")[0], format_count(len(profile.xplanes), "host")
    return f"{run}, {hosts}" if run else hosts


def _xprof_links(summary: Summary, hosts: Sequence[str]) -> list[Markup]:
    tools = {"Trace viewer": "trace_viewer@", "All of XProf": "overview_page"}
    return [
        element("a", f"{title} \N{RIGHTWARDS ARROW}", href=tool_link(tool, summary.session, hosts), class_="button")
        for title, tool in tools.items()
        if tool in summary.tools
    ]
