"""The Logging query language: compile a filter to a test of entries.

Language: https://cloud.google.com/logging/docs/view/logging-query-language. Of its functions, only `log_id` is
supported. As in the real service, OR binds tighter than AND, comparisons of strings ignore case, and a comparison with
a field that the payload or the labels lack is false, even with `!=`.
"""

import functools
import operator
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_testing._filter_language import ORDERINGS, Parser, Test, Token, unescape
from ml_diagnostics_testing.cloud_logging._entries import FIELDS, Entry, parse_severity, parse_timestamp
from ml_diagnostics_testing.http_server import ApiError

MAX_FILTER_CHARACTERS = 20_000
_EARLIEST_NS, _LATEST_NS = -(2**63), 2**63 - 1

_PATH_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)', re.DOTALL)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {**ORDERINGS, ":": operator.eq}
_MISSING = object()


@dataclass(frozen=True)
class Filter:
    """A compiled filter.

    Attributes:
        matches: Returns True if an entry passes.
        earliest_ns: No entry before this timestamp passes.
        latest_ns: No entry after this timestamp passes.
        log_names: No entry of another log passes. The names are folded by `fold`; None means any log.
        left: The remaining tests for entries of those logs and that time span; None means `matches`.
    """

    matches: Test
    earliest_ns: int = _EARLIEST_NS
    latest_ns: int = _LATEST_NS
    log_names: frozenset[str] | None = None
    left: tuple[Test, ...] | None = None

    def __call__(self, entry: Entry) -> bool:
        """Return True if an entry passes."""
        return self.matches(entry)

    @property
    def tests_within(self) -> tuple[Test, ...]:
        """The remaining tests for entries that are known to be of those logs and that time span."""
        return (self.matches,) if self.left is None else self.left


@functools.lru_cache(maxsize=256)
def compile_filter(text: str) -> Filter:
    """Compile a filter; an empty one passes everything.

    Raises:
        ApiError: INVALID_ARGUMENT, with the position of the error.
    """
    if len(text) > MAX_FILTER_CHARACTERS:
        raise ApiError(400, f"expected a filter of at most {MAX_FILTER_CHARACTERS} characters, got {len(text)}")
    return _as_filter(_Parser(text).parse())


def fold(text: str) -> str:
    """Normalise a string for comparison (nearly Unicode's NFKC_CF)."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def conjunction(tests: Sequence[Test]) -> Test:
    """Return a test that passes if all of the tests pass.

    A listing calls it for each entry, so one and two tests are special cases, for speed.
    """
    if not tests:
        return lambda entry: True
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda entry: first(entry) and second(entry)

    def passes(entry: Entry) -> bool:
        for test in tests:  # noqa: SIM110 - all() with a generator takes twice as long
            if not test(entry):
                return False
        return True

    return passes


class _Parser(Parser):
    operators = ("=", "!=", "<", "<=", ">", ">=", ":", "=~", "!~")
    punctuation = "(),"
    comment = r"--[^\n]*"
    negations = ("NOT", "-")

    def comparison(self) -> Test:
        token = self.text()
        if token.text[0] == "-":
            return self.negation(self._restriction(Token("text", token.text[1:], token.position + 1)))
        return self._restriction(token)

    def all_of(self, parts: Sequence[Test]) -> Filter:
        filters = [_as_filter(part) for part in parts]
        named = [part.log_names for part in filters if part.log_names is not None]
        return Filter(
            conjunction([part.matches for part in filters]),
            max((part.earliest_ns for part in filters), default=_EARLIEST_NS),
            min((part.latest_ns for part in filters), default=_LATEST_NS),
            frozenset.intersection(*named) if named else None,
            tuple(test for part in filters for test in part.tests_within),
        )

    def any_of(self, parts: Sequence[Test]) -> Filter:
        filters = [_as_filter(part) for part in parts]
        named = [part.log_names for part in filters if part.log_names is not None]
        return Filter(
            super().any_of([part.matches for part in filters]),
            min(part.earliest_ns for part in filters),
            max(part.latest_ns for part in filters),
            frozenset.union(*named) if len(named) == len(filters) else None,
        )

    def _restriction(self, token: Token) -> Test:
        if self.take("("):
            return self._function(token)
        name = self.take(*self.operators)
        if not name:
            return _global_restriction(self.unquoted(token))
        path = _path(token)

        def value() -> Test:
            token = self.text()
            return _exists(path) if (name, token.text) == (":", "*") else _compare(path, name, self.unquoted(token))

        if self.peek().text == "(":
            return self.term(value)
        return value()

    def _function(self, token: Token) -> Test:
        if token.text.lower() != "log_id":
            raise self.error(f"the loopback server does not support the function {token.text}()", token.position)
        log_id = fold(self.unquoted(self.text()))
        self.expect(")")
        return lambda entry: fold(urllib.parse.unquote(entry.log_name.rpartition("/")[2])) == log_id


def _as_filter(test: Test) -> Filter:
    return test if isinstance(test, Filter) else Filter(test)


def _path(token: Token) -> tuple[str, ...]:
    parts = [plain or unescape(quoted) for quoted, plain in _PATH_PART.findall(token.text)]
    if not parts or parts[0] not in FIELDS:
        raise ApiError(400, f"Field not found: '{token.text}'; a field starts with one of {sorted(FIELDS)}")
    return tuple(parts)


def _compare(path: tuple[str, ...], name: str, value: str) -> Test:
    if path == ("timestamp",) and name in _COMPARE:
        return _compare_timestamp(name, parse_timestamp(value))
    if path == ("severity",) and name in _COMPARE:
        compare, severity = _COMPARE[name], parse_severity(value)
        return lambda entry: compare(entry.severity, severity)
    test = _value_test(name, value)
    if path == ("logName",):
        log_names = frozenset([fold(value)]) if name == "=" else None
        return Filter(lambda entry: test(entry.log_name), log_names=log_names, left=() if name == "=" else None)
    get = _getter(path)

    def matches(entry: Entry) -> bool:
        actual = get(entry)
        return actual is not _MISSING and test(actual)

    return matches


def _compare_timestamp(name: str, moment_ns: int) -> Test:
    compare = _COMPARE[name]

    def matches(entry: Entry) -> bool:
        return compare(entry.timestamp_ns, moment_ns)

    if name == "!=":
        return matches
    earliest = {"<": _EARLIEST_NS, "<=": _EARLIEST_NS, ">": moment_ns + 1}.get(name, moment_ns)
    latest = {">": _LATEST_NS, ">=": _LATEST_NS, "<": moment_ns - 1}.get(name, moment_ns)
    return Filter(matches, earliest, latest, left=())


def _getter(path: tuple[str, ...]) -> Callable[[Entry], Any]:
    """Return a function that reads a field. Fields outside payloads and labels have the default ""."""
    may_lack = path[0] in ("jsonPayload", "protoPayload", "labels") or path[:2] == ("resource", "labels")
    default = _MISSING if may_lack else ""

    def get(entry: Entry) -> Any:
        value: Any = entry.fields
        for part in path:
            if isinstance(value, dict):
                value = value.get(part, _MISSING)
            elif isinstance(value, list):  # a comparison with a list tests each item
                value = [item[part] for item in value if isinstance(item, dict) and part in item]
            else:
                return default
        return default if value is _MISSING else value

    return get


def _exists(path: tuple[str, ...]) -> Callable[[Entry], bool]:
    get = _getter(path)
    return lambda entry: get(entry) not in (_MISSING, "")


def _value_test(name: str, value: str) -> Callable[[Any], bool]:
    """Return a test of a field's value, of any JSON type, against the value in a filter."""
    if name in ("=~", "!~"):
        return _pattern_test(value, wanted=name == "=~")
    folded, number = fold(value), _number(value)
    compare, has = _COMPARE[name], name == ":"

    def test(actual: Any) -> bool:
        if isinstance(actual, str):
            if name == "=" and actual == value:
                return True
            return folded in fold(actual) if has else compare(fold(actual), folded)
        if isinstance(actual, bool):
            return folded in ("true", "false") and compare(actual, folded == "true")
        if isinstance(actual, int | float):
            return number is not None and compare(actual, number)
        if isinstance(actual, list):
            return any(map(test, actual))
        if isinstance(actual, dict):
            return has and any(test(item) for pair in actual.items() for item in pair)
        return value == "NULL_VALUE" and name in ("=", ":")

    return test


def _pattern_test(value: str, *, wanted: bool) -> Callable[[Any], bool]:
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise ApiError(400, f"Unparseable filter: {value!r} is not a regular expression: {error}") from None

    def test(actual: Any) -> bool:
        if isinstance(actual, list):
            return any(map(test, actual))
        return isinstance(actual, str) and (pattern.search(actual) is not None) is wanted

    return test


def _global_restriction(value: str) -> Callable[[Entry], bool]:
    test = _value_test(":", value)
    return lambda entry: test(entry.fields)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
