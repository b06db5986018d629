"""The text of a summary for the terminal, fitted to its width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from xprofiler.summary.summary import ActivityKind, Compilations, Operation, Summary, mean_parts, step_times
from xprofiler.summary.units import format_bytes, format_count, format_duration, format_percent

__all__ = ["ACTIVITY_KINDS", "about", "compiled", "format_summary", "headline", "identity", "time_shares"]

_LABEL_WIDTH = 11
_OPERATIONS = 15
_ACTIVITIES = 12
_LEAST_IMPORTANT = ("Called by", "Bound by", "Category", "Operation")
_READABLE = 14  # The least width of a column of names.
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
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, which names from the profile must not send to the terminal."""


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
    return "\n\n".join(_printable(block) for block in blocks)


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
        lines += _labelled("", f"{name}: {format_duration(spent)}", width)
    if summary.compilations is not None:
        lines += _labelled("Compiled", compiled(summary.compilations), width)
    if summary.device_count and summary.time_percent:
        lines += _labelled("Host", time_shares(summary), width)
    return "\n".join(lines)


def compiled(found: Compilations) -> str:
    """Return a text about compilations during steps."""
    programs, spent = format_count(found.count, "program"), format_duration(found.seconds * 1e6)
    return f"{programs} in {spent}, {format_percent(found.percent)} of the steps' time"


def time_shares(summary: Summary) -> str:
    """Return the shares of the steps' time by category."""
    return ", ".join(f"{_KINDS[kind]} {format_percent(share)}" for kind, share in summary.time_percent.items())


def _step_time(summary: Summary) -> str:
    times = step_times(summary.steps)
    if times is None:
        return "not known: the program marks no steps (jax.profiler.StepTraceAnnotation), or none was whole"
    return (
        f"{format_duration(times.mean_us)} mean, {format_duration(times.median_us)} median, "
        f"{format_duration(times.minimum_us)} to {format_duration(times.maximum_us)}, "
        f"deviation {format_duration(times.deviation_us)}"
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
        (part, format_duration(spent), format_percent(100 * spent / total), "#" * round(longest * spent / total))
        for part, spent in means.items()
    ]
    return _table(("The mean step's time", "Spent", "Share", ""), rows, "<>><")


def _activities(summary: Summary, width: int) -> str:
    shown = summary.activities[:_ACTIVITIES]
    if not shown:
        return ""
    numbers = [
        (f"{each.runs:,}" if each.runs else "", format_duration(each.spent_us), format_percent(each.percent))
        for each in shown
    ]
    kinds = [ACTIVITY_KINDS[each.kind] for each in shown]
    free = width - max(map(len, kinds)) - sum(max(map(len, column)) + 2 for column in zip(*numbers, strict=True)) - 6
    names = [_cut(each.name, max(free, _READABLE)) for each in shown]
    rows = [(name, kind, *cells) for name, kind, cells in zip(names, kinds, numbers, strict=True)]
    more = len(summary.activities) - len(shown)
    return _table(("On the host", "Kind", "Runs", "Time", "Share"), rows, "<<>>>") + (
        f"\n... and {more} more" if more else ""
    )


def _operations(summary: Summary, width: int) -> str:
    if not summary.operations:
        return ""
    shown = summary.operations[:_OPERATIONS]
    texts = {
        "Operation": [operation.name for operation in shown],
        "Category": [operation.category for operation in shown],
        "Called by": [operation.framework_name for operation in shown],
        "Bound by": [operation.bound_by for operation in shown],
    }
    texts = _fitted({header: cells for header, cells in texts.items() if any(cells)}, width - _numbers_width(shown))
    numbers = {
        "Runs": [f"{operation.runs:,}" for operation in shown],
        "Self time": [format_duration(operation.self_us) for operation in shown],
        "Share": [format_percent(operation.percent) for operation in shown],
    }
    columns = {**texts, **numbers}
    table = _table(list(columns), list(zip(*columns.values(), strict=True)), "<" * len(texts) + ">" * len(numbers))
    more = len(summary.operations) - len(shown)
    return table + (f"\n... and {format_count(more, 'operation')} more" if more else "")


def _numbers_width(shown: Sequence[Operation]) -> int:
    return 2 + max(4, *(len(f"{operation.runs:,}") for operation in shown)) + 2 + len("Self time") + 2 + len("100.0 %")


def _fitted(columns: Mapping[str, list[str]], width: int) -> dict[str, list[str]]:
    """Cut columns to a width, the least important first; remove it if that is not enough."""
    for dropped in range(len(_LEAST_IMPORTANT)):
        kept = {header: cells for header, cells in columns.items() if header not in _LEAST_IMPORTANT[:dropped]}
        widths = {header: max(len(header), *map(len, cells)) for header, cells in kept.items()}
        for header in _LEAST_IMPORTANT:
            excess = sum(widths.values()) + 2 * (len(widths) - 1) - width
            if header in widths and excess > 0:
                widths[header] = max(min(widths[header], _READABLE), widths[header] - excess)
        if sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
    return {header: [_cut(cell, widths[header]) for cell in cells] for header, cells in kept.items()}


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _hosts(summary: Summary) -> str:
    several = len(summary.hosts) > 1
    rows = [
        (
            host.name,
            format_bytes(host.size_bytes),
            "" if host.start_offset_us is None or not several else f"+{format_duration(host.start_offset_us)}",
            "" if host.step_us is None else format_duration(host.step_us),
            "" if host.waiting_percent is None else format_percent(host.waiting_percent),
            format_count(host.slowest_steps, "step") if host.slowest_steps and several else "",
        )
        for host in summary.hosts
    ]
    headers = ("Host", "Size", "Start", "Mean step", "All others", "Slowest in")
    return _table(headers, rows, "<>>>>>") if rows else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a table in the style "simple" of tabulate, without empty columns."""
    columns = [
        (side, [header, *cells])
        for side, header, cells in zip(align, headers, zip(*rows, strict=True), strict=True)
        if any(cells)
    ]
    widths = [max(map(len, cells)) for _, cells in columns]
    texts = [
        [cell.ljust(width) if side == "<" else cell.rjust(width) for cell in cells]
        for (side, cells), width in zip(columns, widths, strict=True)
    ]
    head, *body = ("  ".join(line).rstrip() for line in zip(*texts, strict=True))
    return "\n".join([head, "  ".join("-" * width for width in widths), *body])


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else f"\\x{ord(found[0]):02x}", text)
