"""HTML and SVG from Python. All text is escaped, except `Markup`."""

from __future__ import annotations

import html

__all__ = ["Markup", "element", "joined"]


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
