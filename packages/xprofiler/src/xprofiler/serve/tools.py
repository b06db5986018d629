"""XProf's tools: their titles, links, and which of them work without the internet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

from xprofiler.serve.markup import Markup, element

__all__ = ["TRACE_VIEWERS", "XPROF_PREFIX", "tool_link", "tools_section"]

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


def tools_section(session: str, tools: Iterable[str], hosts: Sequence[str]) -> Markup:
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
