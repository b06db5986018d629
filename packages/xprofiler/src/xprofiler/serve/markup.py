"""HTML from Python: elements. All text is escaped, except `Markup`."""

from __future__ import annotations

import html

__all__ = ["Markup", "element", "joined", "json_block"]


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: str | None) -> Markup:
    """Return an element.

    Args:
        name: The tag.
        children: Text, which is escaped, or `Markup`, which is not; None is left out.
        attributes: The attributes; None is left out. A trailing underscore of a name is removed, others become dashes:
            `class_`, `aria_current`.
    """
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in ("meta", "link", "br"):
        return Markup(f"<{name}{rendered}/>")
    return Markup(f"<{name}{rendered}>{joined(*children)}</{name}>")


def joined(*parts: str | None) -> Markup:
    """Join parts; escape those that are text."""
    return Markup("".join(_escaped(part) for part in parts if part is not None))


def json_block(name: str, text: str) -> Markup:
    """Return an element with data, which no browser runs.

    Args:
        name: Its id.
        text: JSON. Its "<" are written as escapes, so that nothing in it ends the element.
    """
    return element("script", Markup(text.replace("<", "\\u003c")), type="application/json", id=name)


def _escaped(part: str) -> str:
    return part if isinstance(part, Markup) else html.escape(part, quote=False)
