"""The text of a summary for the terminal, fitted to its width, and the colours of its charts."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from ml_diagnostics_common.command.formats import format_table
from ml_diagnostics_common.texts import format_bytes, format_count, format_duration, format_percent

from xprofiler.summary.summary import ActivityKind, Compilations, Summary, mean_parts, step_times

__all__ = [
    "ACTIVITY_KINDS",
    "PART_COLOURS",
    "about",
    "as_dict",
    "as_json",
    "compiled",
    "format_summary",
    "headline",
    "identity",
    "time_shares",
]

# Based on Okabe and Ito's palette for colour-blind people, https://jfly.uni-koeln.de/color/, for light and dark pages.
PART_COLOURS: Final = MappingProxyType(
    {
        "Device compute": "#3b82c4",
        "Device to device": "#7c6fd0",
        "Device collective communication": "#d9822b",
        "Host compute": "#2f9e83",
        "Kernel launch": "#c2679f",
        "Input": "#d64550",
        "Output": "#b59a2b",
        "Compilation": "#8c6d52",
        "XLA operations": "#3b82c4",
        "Transfers": "#b59a2b",
        "Annotated regions": "#d64550",
        "Calls of JAX and XLA": "#2f9e83",
        "All others": "#aab2bd",
    }
)
"""Colours by XProf's names of the parts of a device's step, and by our names for a host's."""

_LABEL_WIDTH = 11
_OPERATIONS = 15
_ACTIVITIES = 12
_LEAST_IMPORTANT = ("Called by", "Bound by", "Category", "Operation", "On the host")
ACTIVITY_KINDS: Final = MappingProxyType(
    {
        ActivityKind.ANNOTATION: "annotation",
        ActivityKind.COMPILATION: "compilation",
        ActivityKind.TRANSFER: "transfer",
        ActivityKind.RUNTIME: "JAX or XLA",
        ActivityKind.PYTHON: "Python, not annotated",
    }
)
_KINDS: Final = {
    **{kind.value: name for kind, name in ACTIVITY_KINDS.items()},
    ActivityKind.COMPUTATION.value: "waiting for computation or beside it",
    ActivityKind.NONE.value: "no annotated region",
}


def format_summary(summary: Summary, width: int) -> str:
    """Return the text of a summary.

    Args:
        summary: The summary.
        width: The width in columns; long names are cut to fit.
    """
    blocks = [textwrap.fill(headline(summary), width), identity(summary), _measurements(summary, width)]
    tables = (_parts(summary, width), _activities(summary, width), _operations(summary, width), _hosts(summary))
    blocks += [block for block in tables if block]
    blocks += ["\n".join(textwrap.fill(f"Note: {note}", width) for note in summary.notes)] if summary.notes else []
    return "\n\n".join(blocks)


def headline(summary: Summary) -> str:
    """Return a sentence with the cause that limits the job, or that the profile does not show it."""
    if summary.cause is not None:
        return summary.cause.text
    return "the profile does not show what limits this job: it has no steps and no thread that calls JAX"


def identity(summary: Summary) -> str:
    """Return a line with the session, hosts, devices and steps."""
    return f"{summary.session}: {about(summary)}"


def about(summary: Summary) -> str:
    """Return the number of hosts, devices and steps."""
    cores = f"{format_count(summary.device_count, 'core')} of " if summary.device_count else ""
    hosts, steps = format_count(len(summary.hosts), "host"), format_count(len(summary.steps), "step")
    return f"{hosts}, {cores}{summary.device}, {steps}"


def _measurements(summary: Summary, width: int) -> str:
    lines = [*_labelled("Step time", _step_time(summary), width), *_labelled("Busy", _busy(summary), width)]
    for name, percent in summary.utilization.items():
        lines += _labelled("", f"{name}: {format_percent(percent)}", width)
    waiting = summary.input.waiting_percent
    if waiting is not None:
        lines += _labelled("Input", f"{format_percent(waiting)} of a step waits for input", width)
    if summary.input.conclusion:
        lines += _labelled("" if waiting is not None else "Input", summary.input.conclusion, width)
    for name, spent in summary.input.parts_us.items():
        lines += _labelled("", f"{name}: {format_duration(spent / 1e6)}", width)
    if summary.compilations is not None:
        lines += _labelled("Compiled", compiled(summary.compilations), width)
    if summary.device_count and summary.time_percent:
        lines += _labelled("Host", time_shares(summary), width)
    return "\n".join(lines)


def as_dict(summary: Summary) -> dict[str, Any]:
    """Return the summary in the types of JSON, with what is derived from it: its sentences, step times, mean step."""
    import msgspec

    times = step_times(summary.steps)
    return {
        **msgspec.to_builtins(summary),
        "headline": headline(summary),
        "about": about(summary),
        "time_shares": time_shares(summary),
        "mean_parts_us": mean_parts(summary.steps),
        "idle_percent": summary.idle_percent,
        "step_times": None if times is None else dataclasses.asdict(times),
    }


def as_json(summary: Summary) -> str:
    """Return the summary as JSON for a page; a number that is not finite is null."""
    plain = json.loads(json.dumps(as_dict(summary)), parse_constant=lambda _: None)
    return json.dumps(plain, separators=(",", ":"))


def compiled(found: Compilations) -> str:
    """Return a text about compilations during steps."""
    programs, spent = format_count(found.count, "program"), format_duration(found.seconds)
    return f"{programs} in {spent}, {format_percent(found.percent)} of the steps' time"


def time_shares(summary: Summary) -> str:
    """Return the shares of the steps' time by category."""
    return ", ".join(f"{_KINDS[kind]} {format_percent(share)}" for kind, share in summary.time_percent.items())


def _step_time(summary: Summary) -> str:
    times = step_times(summary.steps)
    if times is None:
        return "not known: the program marks no steps (jax.profiler.StepTraceAnnotation), or none was whole"
    return (
        f"{format_duration(times.mean_us / 1e6)} mean, {format_duration(times.median_us / 1e6)} median, "
        f"{format_duration(times.minimum_us / 1e6)} to {format_duration(times.maximum_us / 1e6)}, "
        f"deviation {format_duration(times.deviation_us / 1e6)}"
    )


def _busy(summary: Summary) -> str:
    if summary.busy_percent is None or summary.idle_percent is None:
        return "not known: the profile has no device, and no XLA operation that ran on the CPU"
    what = "devices" if summary.busy_on == "device" else "hosts, in which XLA's operations ran on the CPU"
    return f"{format_percent(summary.busy_percent)} busy, {format_percent(summary.idle_percent)} idle: {what}"


def _labelled(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=label.ljust(_LABEL_WIDTH), subsequent_indent=" " * _LABEL_WIDTH
    ) or [label]


def _parts(summary: Summary, width: int) -> str:
    means = mean_parts(summary.steps)
    total = sum(means.values())
    if not total:
        return ""
    longest = max(10, min(40, width - 52))
    rows = [
        (part, format_duration(spent / 1e6), format_percent(100 * spent / total), "#" * round(longest * spent / total))
        for part, spent in means.items()
    ]
    return _table(("The mean step's time", "Spent", "Share", ""), rows, "<>><")


def _activities(summary: Summary, width: int) -> str:
    shown = summary.activities[:_ACTIVITIES]
    if not shown:
        return ""
    rows = [
        (
            each.name,
            ACTIVITY_KINDS[each.kind],
            f"{each.runs:,}" if each.runs else "",
            format_duration(each.spent_us / 1e6),
            format_percent(each.percent),
        )
        for each in shown
    ]
    table = _table(("On the host", "Kind", "Runs", "Time", "Share"), rows, "<<>>>", width)
    more = len(summary.activities) - len(shown)
    return table + (f"\n... and {more} more" if more else "")


def _operations(summary: Summary, width: int) -> str:
    shown = summary.operations[:_OPERATIONS]
    if not shown:
        return ""
    rows = [
        (
            operation.name,
            operation.category,
            operation.framework_name,
            operation.bound_by,
            f"{operation.runs:,}",
            format_duration(operation.self_us / 1e6),
            format_percent(operation.percent),
        )
        for operation in shown
    ]
    headers = ("Operation", "Category", "Called by", "Bound by", "Runs", "Self time", "Share")
    more = len(summary.operations) - len(shown)
    return _table(headers, rows, "<<<<>>>", width) + (
        f"\n... and {format_count(more, 'operation')} more" if more else ""
    )


def _hosts(summary: Summary) -> str:
    several = len(summary.hosts) > 1
    rows = [
        (
            host.name,
            format_bytes(host.size_bytes),
            "" if host.start_offset_us is None or not several else f"+{format_duration(host.start_offset_us / 1e6)}",
            "" if host.step_us is None else format_duration(host.step_us / 1e6),
            "" if host.waiting_percent is None else format_percent(host.waiting_percent),
            format_count(host.slowest_steps, "step") if host.slowest_steps and several else "",
        )
        for host in summary.hosts
    ]
    headers = ("Host", "Size", "Start", "Mean step", "All others", "Slowest in")
    return _table(headers, rows, "<>>>>>") if rows else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None) -> str:
    """Return a table without empty columns."""
    columns = [
        (header, side, cells)
        for header, side, cells in zip(headers, align, zip(*rows, strict=True), strict=True)
        if any(cells)
    ]
    shown_headers, sides, cells = zip(*columns, strict=True)
    shown = zip(*cells, strict=True)
    return "\n".join(format_table(shown_headers, shown, "".join(sides), width=width, cut=_LEAST_IMPORTANT))
