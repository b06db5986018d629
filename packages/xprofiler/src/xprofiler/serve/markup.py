"""HTML and SVG from Python: elements, and charts without scripts. All text is escaped, except `Markup`.

The page's style sets the colours, so that they suit light and dark mode.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Final

from ml_diagnostics_common.texts import format_duration, format_percent

from xprofiler.summary.summary import Step

__all__ = [
    "MOST_BARS",
    "Markup",
    "element",
    "joined",
    "legend",
    "meter",
    "part_class",
    "share_bar",
    "slowest_of_each",
    "step_chart",
    "ticks",
]

_WIDTH, _HEIGHT = 960.0, 220.0
_LEFT, _BOTTOM, _TOP = 58.0, 24.0, 8.0
_MOST_LABELS = 24
MOST_BARS: Final = 300
"""More bars would be narrower than two pixels."""


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        name: The tag.
        children: Text, which is escaped, or `Markup`, which is not; None is left out.
        attributes: The attributes; None is left out. A trailing underscore of a name is removed, others become dashes:
            `class_`, `text_anchor`.
    """
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value_text(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in ("meta", "link", "br", "rect", "line"):
        return Markup(f"<{name}{rendered}/>")
    return Markup(f"<{name}{rendered}>{joined(*children)}</{name}>")


def joined(*parts: str | None) -> Markup:
    """Join parts; escape those that are text."""
    return Markup("".join(_escaped(part) for part in parts if part is not None))


def _escaped(part: str) -> str:
    return part if isinstance(part, Markup) else html.escape(part, quote=False)


def _value_text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def part_class(part: str) -> str:
    """Return the CSS class of a part of a step's time, by XProf's name of the part."""
    return "part-" + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in part.lower())


def slowest_of_each(steps: Sequence[Step], most: int = MOST_BARS) -> list[Step]:
    """Return at most `most` steps: the slowest of each group of consecutive steps."""
    group = math.ceil(len(steps) / most)
    groups = (steps[first : first + group] for first in range(0, len(steps), group or 1))
    return [max(each, key=lambda step: step.duration_us) for each in groups]


def step_chart(steps: Sequence[Step], parts: Sequence[str]) -> Markup:
    """Return a chart with a bar for each step, divided into the parts of its time.

    Args:
        steps: The steps in order; at least one.
        parts: The parts from the bottom up.
    """
    longest = max(step.duration_us for step in steps)
    marks = ticks(longest)
    top = max(marks[-1], longest)
    floor, height = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    slot = (_WIDTH - _LEFT) / len(steps)
    every = math.ceil(len(steps) / _MOST_LABELS)
    drawn = [_grid_line(mark, floor - height * mark / top) for mark in marks]
    for index, step in enumerate(steps):
        left = _LEFT + index * slot
        drawn.append(_bar(step, parts, left, slot, floor, height / top))
        if index % every == 0:
            centre = left + slot / 2
            drawn.append(element("text", step.name, x=centre, y=_HEIGHT - 8, text_anchor="middle"))
    drawn.append(element("line", x1=_LEFT, x2=_WIDTH, y1=floor, y2=floor, class_="axis"))
    label = f"The time of {len(steps)} steps"
    return element("svg", *drawn, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=label, class_="chart")


def ticks(longest: float) -> list[float]:
    """Return three to six round numbers for an axis from 0; the last is not below the longest."""
    if longest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(longest))
    step = next(power * factor for factor in (0.2, 0.5, 1.0, 2.0) if longest / (power * factor) <= 5)
    return [step * number for number in range(math.ceil(longest / step - 1e-9) + 1)]


def _grid_line(mark: float, height: float) -> Markup:
    return joined(
        element("line", x1=_LEFT, x2=_WIDTH, y1=height, y2=height, class_="grid"),
        element("text", format_duration(mark / 1e6) if mark else "0", x=_LEFT - 8, y=height + 4, text_anchor="end"),
    )


def _bar(step: Step, parts: Sequence[str], left: float, slot: float, floor: float, scale: float) -> Markup:
    gap = min(slot * 0.18, 6)
    inner = left + gap / 2
    lines, pieces, bottom = [f"Step {step.name}: {format_duration(step.duration_us / 1e6)}"], [], floor
    for part in parts:
        spent = step.parts_us.get(part, 0.0)
        if spent:
            height = spent * scale
            bottom -= height
            pieces.append(element("rect", x=inner, y=bottom, width=slot - gap, height=height, class_=part_class(part)))
            lines.append(f"{part}: {format_duration(spent / 1e6)}")
    if step.slowest_host:
        lines.append(f"slowest on {step.slowest_host}")
    return element("g", element("title", "\n".join(lines)), *pieces)


def legend(parts_us: Mapping[str, float]) -> Markup:
    """Return a table with a row for each part of a time: colour, name, duration and share.

    Args:
        parts_us: The parts in microseconds, in the order of the rows.
    """
    total = sum(parts_us.values()) or 1.0
    return element(
        "table",
        *(
            element(
                "tr",
                element("td", element("span", class_=f"swatch {part_class(part)}"), part),
                element("td", format_duration(spent / 1e6), class_="number"),
                element("td", format_percent(100 * spent / total), class_="number"),
                element("td", share_bar(100 * spent / total, part_class(part)), class_="bar"),
            )
            for part, spent in parts_us.items()
        ),
        class_="legend",
    )


def share_bar(percent: float, class_: str = "share") -> Markup:
    """Return a bar with the length of a percentage."""
    return _bar_of(percent, class_, "bar")


def meter(percent: float) -> Markup:
    """Return a meter for a percentage."""
    return _bar_of(percent, "share", "meter")


def _bar_of(percent: float, class_: str, kind: str) -> Markup:
    width = min(100.0, max(0.0, percent))
    rect = element("rect", width=width, height=10, class_=class_)
    return element("svg", rect, viewBox="0 0 100 10", preserveAspectRatio="none", class_=kind, aria_hidden="true")
