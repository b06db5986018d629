"""Partial responses: the query's `fields`, such as `items/*/instances(name,labels/owner),nextPageToken`.

Language: https://cloud.google.com/compute/docs/api/best-practices, "Use partial responses".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

_TOKEN = re.compile(r"\s*([^\s,/()]+|[,/()])")
# Maps a field's name to the selection of its fields; an empty selection selects all.
Selection = Mapping[str, "Selection"]


@functools.lru_cache(maxsize=64)
def parse_fields(text: str) -> Selection:
    """Parse `fields`; an empty text selects all.

    Raises:
        ApiError: The text is invalid.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s", "", text):
        raise _refused(text)
    selection = _selection(tokens, text) if tokens else {}
    if tokens:
        raise _refused(text)
    return selection


def select(value: Any, selection: Selection) -> Any:
    """Return the selected part of a JSON value; in lists, of each item."""
    if not selection:
        return value
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    if "*" in selection:
        return {name: select(inner, selection["*"]) for name, inner in value.items()}
    return {name: select(value[name], inner) for name, inner in selection.items() if name in value}


def _selection(tokens: list[str], text: str) -> Selection:
    found: dict[str, Selection] = {}
    while True:
        name, inner = _path(tokens, text)
        found[name] = _merged(found[name], inner) if name in found else inner
        if tokens[:1] != [","]:
            return found
        tokens.pop(0)


def _path(tokens: list[str], text: str) -> tuple[str, Selection]:
    if not tokens or tokens[0] in ",/()":
        raise _refused(text)
    name = tokens.pop(0)
    if tokens[:1] == ["/"]:
        tokens.pop(0)
        inner_name, inner = _path(tokens, text)
        return name, {inner_name: inner}
    if tokens[:1] == ["("]:
        tokens.pop(0)
        selection = _selection(tokens, text)
        if tokens[:1] != [")"]:
            raise _refused(text)
        tokens.pop(0)
        return name, selection
    return name, {}


def _merged(one: Selection, other: Selection) -> Selection:
    """Return the union of two selections. If one is empty, it selects all, and so does the union."""
    if not one or not other:
        return {}
    return {
        name: _merged(one[name], other[name]) if name in one and name in other else one.get(name, other.get(name, {}))
        for name in {**one, **other}
    }


def _refused(text: str) -> ApiError:
    return ApiError(400, f"Invalid field selection {text}", reason="invalidParameter")
