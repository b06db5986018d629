"""The filters of Compute's lists: comparisons with AND, OR (binds tighter), NOT and parentheses, or `eq` and `ne`.

    (name : xprof*) OR (labels.xprofiler_version : *)
    name eq xprof-.*

Language: https://cloud.google.com/compute/docs/reference/rest/v1/instances/list, parameter `filter`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ml_diagnostics_testing._filter_language import ORDERINGS, Parser, Test
from ml_diagnostics_testing.http_server import ApiError

Resource = dict[str, Any]

_REGEX = re.compile(r"""\(?\s*(?P<field>[\w.-]+)\s+(?P<verb>eq|ne)\s+(?P<value>'[^']*'|"[^"]*"|.+?)\s*\)?""", re.DOTALL)


@functools.lru_cache(maxsize=64)
def compile_filter(text: str, known: frozenset[str]) -> Test:
    """Return a test of resources; an empty filter passes all.

    Args:
        text: The filter.
        known: The fields that such resources may have.

    Raises:
        ApiError: The filter is invalid, or uses an unknown field.
    """
    if not text.strip():
        return lambda resource: True
    regex = _REGEX.fullmatch(text.strip())
    if regex:
        return _matches(text, regex, known)
    return _Parser(text, known).parse()


def values_at(resource: Any, path: list[str]) -> list[Any]:
    """Return the values at a path such as ["labels", "owner"]; several if the path leads through lists."""
    if isinstance(resource, list):
        return [value for item in resource for value in values_at(item, path)]
    if not path:
        return [resource]
    if isinstance(resource, dict) and path[0] in resource:
        return values_at(resource[path[0]], path[1:])
    return []


def _matches(text: str, found: re.Match[str], known: frozenset[str]) -> Test:
    """Return the test of a single `eq` or `ne`: the whole field matches a regular expression."""
    path = _path(text, found["field"], known)
    value = found["value"]
    if value[0] in "'\"":
        value = value[1:-1]
    try:
        pattern = re.compile(value)
    except re.error:
        raise _refused(text) from None
    wanted = found["verb"] == "eq"
    return lambda resource: any(pattern.fullmatch(_shown(at)) for at in values_at(resource, path)) is wanted


class _Parser(Parser):
    operators = (*ORDERINGS, ":")
    quotes = "\"'"

    def __init__(self, text: str, known: frozenset[str]) -> None:
        self._known = known
        super().__init__(text)

    def error(self, message: str, position: int | None = None) -> ApiError:
        return _refused(self._text)

    def comparison(self) -> Test:
        path = _path(self._text, self.text().text, self._known)
        sign = self.expect(*self.operators)
        token = self.text()
        wanted = self.unquoted(token)
        if (sign, token.text) == (":", "*"):
            return lambda resource: bool(values_at(resource, path))
        if sign in ("<", "<=", ">", ">="):
            return lambda resource: any(_compare(sign, at, wanted) for at in values_at(resource, path))
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("*")), re.DOTALL)
        match = pattern.search if sign == ":" and "*" not in wanted else pattern.fullmatch

        def is_there(resource: Resource) -> bool:
            return any(match(_shown(at)) for at in values_at(resource, path))

        return self.negation(is_there) if sign == "!=" else is_there


def _compare(sign: str, value: Any, wanted: str) -> bool:
    compare = ORDERINGS[sign]
    try:
        return compare(float(value), float(wanted))
    except (TypeError, ValueError):
        return compare(_shown(value), wanted)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _path(text: str, name: str, known: frozenset[str]) -> list[str]:
    path = name.split(".")
    if path[0] not in known:
        raise _refused(text)
    return path


def _refused(text: str) -> ApiError:
    message = f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
    return ApiError(400, message, reason="invalid")
