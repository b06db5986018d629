"""Numbers for people: three digits and a unit."""

from __future__ import annotations

__all__ = ["format_bytes", "format_count", "format_duration", "format_percent", "format_rate"]


def format_duration(microseconds: float, micro: str = "us") -> str:
    """Format a duration, such as "850 us" or "1.23 ms".

    Args:
        microseconds: The duration.
        micro: The unit of microseconds.
    """
    for limit, factor, unit in ((999.5, 1.0, micro), (999.5e3, 1e3, "ms")):
        if abs(microseconds) < limit:
            return f"{_three(microseconds / factor)} {unit}"
    return f"{_three(microseconds / 1e6)} s"


def format_bytes(size: int) -> str:
    """Format a size, such as "1.2 MB"."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def format_rate(giga_per_second: float, unit: str) -> str:
    """Format a rate given in billions of a unit, such as "95.2 TFLOP/s"."""
    if giga_per_second >= 1_000:
        return f"{_three(giga_per_second / 1_000)} T{unit}/s"
    return f"{_three(giga_per_second)} G{unit}/s"


def format_percent(percent: float) -> str:
    """Format a percentage, such as "14.8 %"."""
    return f"{percent:.1f} %"


def format_count(count: int, thing: str) -> str:
    """Format a count, such as "1 host" or "2 hosts"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _three(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
