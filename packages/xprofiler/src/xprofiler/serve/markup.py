"""HTML and SVG from Python: what is not made here as markup is text, and escaped."""

from __future__ import annotations

import html

__all__ = ["Markup", "element", "joined"]


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        name: Its tag.
        children: Text, which is escaped; `Markup`, which is not; None is left out.
        attributes: Escaped; None is left out. A trailing underscore goes, any other is a dash: `class_`, `text_anchor`.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_figure(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in ("meta", "link", "br", "rect", "line"):
        return Markup(f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*parts: str | None) -> Markup:
    """Return parts one after the other, those that are plain text escaped."""
    return Markup("".join(_escaped(part) for part in parts if part is not None))


def _escaped(part: str) -> str:
    return part if isinstance(part, Markup) else html.escape(part, quote=False)


def _figure(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
