"""The filters and sort orders of runs: comparisons, parentheses, AND, and OR, which binds tighter than AND.

    run_set = "sweep-7" AND (state = "STATE_ACTIVE" OR create_time > "2026-05-26T10:00:00Z")

Language: https://google.aip.dev/160, with the fields that `ListMachineLearningRunsRequest` names.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

from .resources import Resource, parse_time

Test = Callable[[Resource], bool]

_TOKEN = re.compile(r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[()]|<=|>=|!=|=|<|>)|(?P<word>[^\s()<>=!"]+))')
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FIELDS: Mapping[str, Callable[[Resource], Any]] = {
    "run_id": lambda run: run["name"].rpartition("/")[2],
    "run_set": lambda run: run.get("runSet", ""),
    "display_name": lambda run: run.get("displayName", ""),
    "state": lambda run: run.get("state", ""),
    "region": lambda run: run["name"].split("/")[3],
    "orchestrator": lambda run: run.get("orchestrator", ""),
    "create_time": lambda run: parse_time(run["createTime"]),
    "update_time": lambda run: parse_time(run["updateTime"]),
    "etag": lambda run: run["etag"],
}
_UNORDERED = ("etag",)


def compile_filter(text: str) -> Test:
    """Return a test of runs.

    Raises:
        ApiError: The filter is invalid, or uses a field that the API does not filter by.
    """
    if not text.strip():
        return lambda run: True
    tokens = _tokens(text)
    test = _conjunction(tokens)
    if tokens:
        raise ApiError(400, f"invalid filter: {tokens[0]} is not expected")
    return test


def sorted_by(runs: list[Resource], order_by: str) -> list[Resource]:
    """Return runs in an order such as `update_time desc, create_time`; by default, unchanged.

    Raises:
        ApiError: The order is invalid, or uses a field that the API does not sort by.
    """
    found = list(runs)
    for part in reversed([part.split() for part in order_by.split(",") if part.strip()]):
        name, *direction = part
        if name not in _FIELDS or name in _UNORDERED or direction not in ([], ["asc"], ["desc"]):
            raise ApiError(400, f"invalid order_by: {' '.join(part)!r}")
        found.sort(key=_FIELDS[name], reverse=direction == ["desc"])
    return found


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise ApiError(400, f"invalid filter from {text[position:]!r} on")
        tokens.append(found.group().strip())
        position = found.end()
    return tokens


def _conjunction(tokens: list[str]) -> Test:
    parts = [_disjunction(tokens)]
    while tokens[:1] == ["AND"]:
        tokens.pop(0)
        parts.append(_disjunction(tokens))
    return lambda run: all(part(run) for part in parts)


def _disjunction(tokens: list[str]) -> Test:
    parts = [_term(tokens)]
    while tokens[:1] == ["OR"]:
        tokens.pop(0)
        parts.append(_term(tokens))
    return lambda run: any(part(run) for part in parts)


def _term(tokens: list[str]) -> Test:
    if tokens[:1] == ["("]:
        tokens.pop(0)
        inner = _conjunction(tokens)
        if tokens[:1] != [")"]:
            raise ApiError(400, "invalid filter: a parenthesis is not closed")
        tokens.pop(0)
        return inner
    if len(tokens) < 3 or tokens[0] not in _FIELDS or tokens[1] not in _OPERATORS:
        raise ApiError(400, f"invalid filter: no comparison of a known field at {' '.join(tokens[:3])!r}")
    name, compare, wanted = tokens.pop(0), _OPERATORS[tokens.pop(0)], _wanted(tokens.pop(0))
    value = _FIELDS[name]
    if name.endswith("_time"):
        try:
            moment = parse_time(wanted)
        except ValueError as error:
            raise ApiError(400, f"invalid filter: {error}") from None
        return lambda run: compare(value(run), moment)
    if name == "orchestrator":
        wanted = wanted.removeprefix("ORCHESTRATOR_")
    return lambda run: compare(value(run), wanted)


def _wanted(token: str) -> str:
    return str(json.loads(token)) if token.startswith('"') else token
