"""The summary page: self-contained, without scripts, usable without the internet, with links to XProf's tools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from ml_diagnostics_common.texts import format_bytes, format_count, format_duration, format_percent, format_three_digits

from xprofiler.serve.markup import (
    Markup,
    element,
    joined,
    legend,
    meter,
    part_class,
    share_bar,
    slowest_of_each,
    step_chart,
)
from xprofiler.summary.profiles import Profile
from xprofiler.summary.summary import OTHERS, Operation, Summary, mean_parts, step_times
from xprofiler.summary.text import ACTIVITY_KINDS, PART_COLOURS, about, compiled, headline, time_shares

__all__ = ["POLICY", "TRACE_VIEWERS", "XPROF_PREFIX", "empty_page", "failure_page", "summary_page", "tool_link"]

XPROF_PREFIX: Final = "/data/plugin/profile"
"""The path at which XProf's page expects its data."""

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
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
"""The Content-Security-Policy of the page, which loads nothing."""

_OPERATIONS = 25
_ACTIVITIES = 25

_Column: TypeAlias = tuple[str, str, Sequence[str]]
"""A column: its title, the class of the cells, and the cells."""


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
    return element(
        "section",
        element("h2", "This session in XProf"),
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
    main = [
        element("h1", summary.session),
        element("p", element("span", about(summary)), *_xprof_links(summary), class_="about"),
        element("p", element("strong", headline(summary)), class_="cause"),
        *(element("p", note, class_="note") for note in summary.notes),
        _tiles(summary),
        _steps(summary),
        element("div", _hosts(summary), _input(summary), class_="pair"),
        _activities(summary),
        _operations(summary.operations),
        _tools_section(summary.session, summary.tools, [host.name for host in summary.hosts]),
    ]
    return _page(summary.session, profiles, path, joined(*main))


def empty_page(path: str) -> bytes:
    """Return the page of a log directory without a profile."""
    command = f"xprofiler capture -o local -n localhost:9012 -l {path}"
    main = [
        element("h1", "No profile yet"),
        element("p", "This log directory has no profile. Reload the page after a capture."),
        element("section", element("h2", "Capture one"), element("p", element("code", command))),
    ]
    return _page("No profile yet", [], path, joined(*main))


def failure_page(name: str, message: str, profiles: Sequence[Profile], path: str) -> bytes:
    """Return the page of a profile that cannot be shown, with the reason."""
    return _page(name, profiles, path, joined(element("h1", name), element("p", message, class_="note")))


def _page(title: str, profiles: Sequence[Profile], path: str, main: Markup) -> bytes:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - xprofiler"),
        element("link", rel="icon", href="data:,"),
        element("style", _style()),
    )
    frame = element("div", _navigation(title, profiles, path), element("main", main), class_="frame")
    return f"<!doctype html>\n{element('html', head, element('body', frame), lang='en')}\n".encode()


def _style() -> Markup:
    parts = "".join(
        f".{part_class(part)}{{fill:{colour};background:{colour}}}" for part, colour in PART_COLOURS.items()
    )
    return Markup(files("xprofiler.serve").joinpath("page.css").read_text("utf-8") + parts)


def _navigation(chosen: str, profiles: Sequence[Profile], path: str) -> Markup:
    listed = [
        element(
            "li",
            element(
                "a",
                profile.session,
                element("small", _below(profile)),
                href=f"/?session={quote(profile.name)}",
                aria_current="page" if profile.name == chosen else None,
            ),
        )
        for profile in profiles
    ]
    return element(
        "nav",
        element("p", "xprofiler", class_="brand"),
        element("p", path, class_="path"),
        element("h2", "Sessions"),
        element("ul", *listed),
    )


def _below(profile: Profile) -> str:
    run, hosts = profile.name.rpartition("/")[0], format_count(len(profile.xplanes), "host")
    return f"{run}, {hosts}" if run else hosts


def _xprof_links(summary: Summary) -> list[Markup]:
    hosts = [host.name for host in summary.hosts]
    tools = {"Trace viewer": "trace_viewer@", "All of XProf": "overview_page"}
    return [
        element("a", f"{title} \N{RIGHTWARDS ARROW}", href=tool_link(tool, summary.session, hosts))
        for title, tool in tools.items()
        if tool in summary.tools
    ]


def _tiles(summary: Summary) -> Markup:
    return element(
        "div", _step_tile(summary), _busy_tile(summary), *_input_tile(summary), *_slowest_tile(summary), class_="tiles"
    )


def _tile(title: str, value: str, *details: str | None, kind: str = "value") -> Markup:
    return element("div", element("h2", title), element("div", value, class_=kind), *details, class_="tile")


def _step_tile(summary: Summary) -> Markup:
    times = step_times(summary.steps)
    if times is None:
        return _tile("Step time", "not known", element("p", "the program marks no steps, or none was whole"))
    low, high = format_duration(times.minimum_us / 1e6), format_duration(times.maximum_us / 1e6)
    return _tile(
        "Step time, mean",
        format_duration(times.mean_us / 1e6),
        element("p", f"median {format_duration(times.median_us / 1e6)}"),
        element("p", f"{low} to {high}"),
    )


def _busy_tile(summary: Summary) -> Markup:
    title = "Devices busy" if summary.busy_on == "device" else "Hosts busy"
    if summary.busy_percent is None or summary.idle_percent is None:
        return _tile(title, "not known", element("p", "no device, and no XLA operation on the CPU"))
    details = [f"idle {format_percent(summary.idle_percent)}"]
    details += [f"{name} {format_percent(percent)}" for name, percent in summary.utilization.items()]
    if summary.busy_on == "host":
        details.append("XLA's operations on the CPU")
    paragraphs = [element("p", ", ".join(details[:2])), *(element("p", detail) for detail in details[2:])]
    return _tile(title, format_percent(summary.busy_percent), meter(summary.busy_percent), *paragraphs)


def _input_tile(summary: Summary) -> list[Markup]:
    waiting = summary.input.waiting_percent
    if waiting is None:
        return []
    return [_tile("Waiting for input", format_percent(waiting), meter(waiting), element("p", "of the mean step"))]


def _slowest_tile(summary: Summary) -> list[Markup]:
    if not summary.operations:
        return []
    slowest = summary.operations[0]
    share = f"{format_percent(slowest.percent)} of all operations' time, {slowest.runs:,} runs"
    return [_tile("Slowest operation", slowest.name, element("p", share), kind="value name")]


def _steps(summary: Summary) -> Markup | None:
    if not summary.steps:
        return None
    means, shown = mean_parts(summary.steps), slowest_of_each(summary.steps)
    group = math.ceil(len(summary.steps) / len(shown))
    title = "Steps, on the slowest core" if group == 1 else f"The slowest of each {group} steps, on its slowest core"
    return element(
        "section",
        element("h2", title),
        step_chart(shown, list(means)),
        element("h2", "The mean step", style="margin-top:.9rem"),
        legend(means),
    )


def _operations(operations: Sequence[Operation]) -> Markup:
    if not operations:
        return element(
            "section",
            element("h2", "Operations"),
            element(
                "p", "None were profiled: the profile has no device, and no XLA operation on the CPU.", class_="soft"
            ),
        )
    shown = operations[:_OPERATIONS]
    columns: list[_Column] = [
        ("Operation", "name", [operation.name for operation in shown]),
        ("Category", "short", [operation.category for operation in shown]),
        ("Called by", "name soft", [operation.framework_name for operation in shown]),
        ("Runs", "number", [f"{operation.runs:,}" for operation in shown]),
        ("Self time", "number", [format_duration(operation.self_us / 1e6) for operation in shown]),
        ("Share", "number", [format_percent(operation.percent) for operation in shown]),
        ("", "bar", [share_bar(100 * operation.self_us / (shown[0].self_us or 1)) for operation in shown]),
        ("Compute", "number", [_rate(operation.gflops_per_second, "FLOP") for operation in shown]),
        ("Memory", "number", [_rate(operation.gib_per_second, "iB") for operation in shown]),
        ("Bound by", "short", [operation.bound_by for operation in shown]),
    ]
    more = len(operations) - len(shown)
    return element(
        "section",
        element("h2", f"Operations, the slowest of {len(operations):,}" if more else "Operations, the slowest first"),
        _table(columns),
    )


def _rate(giga_per_second: float | None, unit: str) -> str:
    return "" if giga_per_second is None else _format_rate(giga_per_second, unit)


def _format_rate(giga_per_second: float, unit: str) -> str:
    """Format a rate given in billions of a unit, such as "95.2 TFLOP/s"."""
    if giga_per_second >= 1_000:
        return f"{format_three_digits(giga_per_second / 1_000)} T{unit}/s"
    return f"{format_three_digits(giga_per_second)} G{unit}/s"


def _hosts(summary: Summary) -> Markup:
    hosts, several = summary.hosts, len(summary.hosts) > 1
    columns: list[_Column] = [
        ("Host", "name", [host.name for host in hosts]),
        ("Size", "number", [format_bytes(host.size_bytes) for host in hosts]),
        ("Started", "number", [_offset(host.start_offset_us) if several else "" for host in hosts]),
        ("Mean step", "number", [_duration(host.step_us) for host in hosts]),
        (OTHERS, "number", [_percent(host.waiting_percent) for host in hosts]),
        ("Slowest in", "number", [_steps_of(host.slowest_steps) if several else "" for host in hosts]),
    ]
    return element(
        "section", element("h2", format_count(len(hosts), "host")), element("div", _table(columns), class_="tall")
    )


def _offset(offset_us: float | None) -> str:
    return "" if offset_us is None else f"+{format_duration(offset_us / 1e6)}"


def _duration(spent_us: float | None) -> str:
    return "" if spent_us is None else format_duration(spent_us / 1e6)


def _percent(percent: float | None) -> str:
    return "" if percent is None else format_percent(percent)


def _steps_of(count: int) -> str:
    return format_count(count, "step") if count else ""


def _activities(summary: Summary) -> Markup | None:
    shown = summary.activities[:_ACTIVITIES]
    if not shown:
        return None
    columns: list[_Column] = [
        ("Region or function", "name", [each.name for each in shown]),
        ("Kind", "short", [ACTIVITY_KINDS[each.kind] for each in shown]),
        ("Runs", "number", [f"{each.runs:,}" if each.runs else "" for each in shown]),
        ("Time", "number", [format_duration(each.spent_us / 1e6) for each in shown]),
        ("Share of the steps", "number", [format_percent(each.percent) for each in shown]),
        ("", "bar", [share_bar(each.percent) for each in shown]),
    ]
    return element(
        "section",
        element("h2", "On the hosts, in the thread of the steps"),
        element("p", time_shares(summary), class_="soft"),
        element("p", f"Compiled: {compiled(summary.compilations)}.") if summary.compilations is not None else None,
        _table(columns),
    )


def _input(summary: Summary) -> Markup | None:
    parts = summary.input.parts_us
    if not parts and not summary.input.conclusion:
        return None
    return element(
        "section",
        element("h2", "Input pipeline"),
        element("p", summary.input.conclusion or "XProf measured no wait for input."),
        _table(
            [
                ("On the hosts", "", list(parts)),
                ("Spent", "number", [format_duration(spent / 1e6) for spent in parts.values()]),
            ]
        )
        if parts
        else element("p", "The hosts did nothing that XProf knows as input, such as tf.data.", class_="soft"),
    )


def _table(columns: Sequence[_Column]) -> Markup:
    """Return a table without its empty columns."""
    filled = [column for column in columns if any(column[2])]
    head = element("tr", *(element("th", title, class_=kind or None) for title, kind, _ in filled))
    rows = zip(*(cells for _, _, cells in filled), strict=True)
    kinds = [kind or None for _, kind, _ in filled]
    body = [
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    return element("div", element("table", head, *body), class_="wide")
