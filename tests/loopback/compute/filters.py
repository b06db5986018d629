"""The filters of Compute's lists: comparisons with AND, OR (binds tighter), NOT and parentheses, or `eq` and `ne`.

    (name : xprof*) OR (labels.xprofiler_version : *)
    name eq xprof-.*

Language: https://cloud.google.com/compute/docs/reference/rest/v1/instances/list, parameter `filter`.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

Resource = dict[str, Any]
Test = Callable[[Resource], bool]

_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
             | (?P<mark> <= | >= | != | [():=<>] )
             | (?P<word> [^\s()"'<>=!:]+ ) )""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"""\(?\s*(?P<field>[\w.-]+)\s+(?P<verb>eq|ne)\s+(?P<value>'[^']*'|"[^"]*"|.+?)\s*\)?""", re.DOTALL)
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


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


class _Parser:
    """A recursive descent parser of one filter."""

    def __init__(self, text: str, known: frozenset[str]) -> None:
        self._text = text
        self._known = known
        self._tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if not found:
                raise _refused(text)
            self._tokens.append(found.group().strip())
            position = found.end()

    def parse(self) -> Test:
        test = self._conjunction()
        if self._tokens:
            raise _refused(self._text)
        return test

    def _conjunction(self) -> Test:
        parts = [self._disjunction()]
        while self._tokens and self._tokens[0] != ")":
            if self._tokens[0] == "AND":
                self._tokens.pop(0)
            parts.append(self._disjunction())
        return lambda resource: all(part(resource) for part in parts)

    def _disjunction(self) -> Test:
        parts = [self._term()]
        while self._tokens[:1] == ["OR"]:
            self._tokens.pop(0)
            parts.append(self._term())
        return lambda resource: any(part(resource) for part in parts)

    def _term(self) -> Test:
        if self._tokens[:1] == ["NOT"]:
            self._tokens.pop(0)
            inner = self._term()
            return lambda resource: not inner(resource)
        if self._tokens[:1] == ["("]:
            self._tokens.pop(0)
            inner = self._conjunction()
            if self._tokens[:1] != [")"]:
                raise _refused(self._text)
            self._tokens.pop(0)
            return inner
        if len(self._tokens) < 3 or self._tokens[1] not in (":", "=", "!=", *_ORDERS):
            raise _refused(self._text)
        name, sign, value = (self._tokens.pop(0) for _ in range(3))
        if value[0] in "():=<>!":
            raise _refused(self._text)
        return _comparison(_path(self._text, name, self._known), sign, value)


def _comparison(path: list[str], sign: str, value: str) -> Test:
    if sign == ":" and value == "*":
        return lambda resource: bool(values_at(resource, path))
    is_quoted = value[0] in "'\""
    wanted = re.sub(r"\\(.)", r"\1", value[1:-1]) if is_quoted else value
    if sign in _ORDERS:
        return lambda resource: any(_compare(sign, at, wanted) for at in values_at(resource, path))
    pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("*")), re.DOTALL)
    match = pattern.search if sign == ":" and "*" not in wanted else pattern.fullmatch

    def is_there(resource: Resource) -> bool:
        return any(match(_shown(at)) for at in values_at(resource, path))

    return (lambda resource: not is_there(resource)) if sign == "!=" else is_there


def _compare(sign: str, value: Any, wanted: str) -> bool:
    compare = _ORDERS[sign]
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
