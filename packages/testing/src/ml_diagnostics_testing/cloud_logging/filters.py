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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_testing.cloud_logging.entries import FIELDS, Entry, parse_severity, parse_timestamp
from ml_diagnostics_testing.http_server import ApiError

MAX_FILTER_CHARACTERS = 20_000
_MAX_DEPTH = 50
_EARLIEST_NS, _LATEST_NS = -(2**63), 2**63 - 1

_TOKEN = re.compile(
    r"""(?P<space> \s+ | --[^\n]* )
      | (?P<operator> <= | >= | != | =~ | !~ | [=<>:] )
      | (?P<punctuation> [(),] )
      | (?P<text> (?: "(?:[^"\\]|\\.)*" | [^\s"()<>=!~:,] )+ )""",
    re.VERBOSE | re.DOTALL,
)
_PATH_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)', re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    ":": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MISSING = object()

Test = Callable[[Entry], bool]


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
    return _Parser(text).parse()


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


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


class _Parser:
    """A recursive descent parser. `leaf` parses one comparison, or within `field = (...)` one value."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), _Token("end", "", len(text))]
        self._next = 0
        self._depth = 0

    def parse(self) -> Filter:
        if self._peek().kind == "end":
            return Filter(lambda entry: True)
        parsed = self._and(self._comparison)
        if self._peek().kind != "end":
            raise self._error("unexpected text")
        return parsed

    def _and(self, leaf: Callable[[], Filter]) -> Filter:
        parts = [self._or(leaf)]
        while self._peek().kind != "end" and self._peek().text not in (")", ","):
            self._take("AND")  # AND is optional between two comparisons
            parts.append(self._or(leaf))
        return _all_of(parts)

    def _or(self, leaf: Callable[[], Filter]) -> Filter:
        parts = [self._not(leaf)]
        while self._take("OR"):
            parts.append(self._not(leaf))
        return _any_of(parts)

    def _not(self, leaf: Callable[[], Filter]) -> Filter:
        token = self._peek()
        if self._take("NOT") or self._take("-"):
            return self._deeper(lambda: _negation(self._not(leaf)))
        if leaf == self._comparison and token.kind == "text" and token.text[0] == "-":
            self._tokens[self._next] = _Token("text", token.text[1:], token.position + 1)
            return _negation(leaf())
        if self._take("("):
            inner = self._deeper(lambda: self._and(leaf))
            self._expect(")")
            return inner
        return leaf()

    def _comparison(self) -> Filter:
        token = self._expect_text()
        if self._take("("):
            return self._function(token)
        if self._peek().kind != "operator":
            return Filter(_global_restriction(_unquote(token.text)))
        name = self._pop().text
        path = _path(token)

        def value() -> Filter:
            return _compare(path, name, self._expect_text().text)

        if self._take("("):
            inner = self._deeper(lambda: self._and(value))
            self._expect(")")
            return inner
        return value()

    def _function(self, token: _Token) -> Filter:
        if token.text.lower() != "log_id":
            raise self._error(f"the loopback server does not support the function {token.text}()", token)
        log_id = fold(_unquote(self._expect_text().text))
        self._expect(")")
        return Filter(lambda entry: fold(urllib.parse.unquote(entry.log_name.rpartition("/")[2])) == log_id)

    def _deeper(self, parse: Callable[[], Filter]) -> Filter:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        parsed = parse()
        self._depth -= 1
        return parsed

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _pop(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _take(self, text: str) -> bool:
        taken = self._peek().text == text
        self._next += taken
        return taken

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"{text!r} is missing")

    def _expect_text(self) -> _Token:
        if self._peek().kind != "text" or self._peek().text in ("AND", "OR", "NOT"):
            raise self._error("a field or a value is missing")
        return self._pop()

    def _error(self, message: str, token: _Token | None = None) -> ApiError:
        return _unparseable(self._text, (token or self._peek()).position, message)


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unparseable(text, position, "unexpected character or unbalanced quotation mark")
        if match.lastgroup != "space":
            tokens.append(_Token(str(match.lastgroup), match[0], position))
        position = match.end()
    return tokens


def _unparseable(text: str, position: int, message: str) -> ApiError:
    return ApiError(400, f"Unparseable filter: {message} at position {position}: {text[position : position + 30]!r}")


def _unquote(text: str) -> str:
    """Remove quotation marks and resolve escapes; return unquoted text unchanged."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPE.sub(_unescape, text[1:-1])
    return text


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _path(token: _Token) -> tuple[str, ...]:
    parts = [plain or _ESCAPE.sub(_unescape, quoted) for quoted, plain in _PATH_PART.findall(token.text)]
    if not parts or parts[0] not in FIELDS:
        raise ApiError(400, f"Field not found: '{token.text}'; a field starts with one of {sorted(FIELDS)}")
    return tuple(parts)


def _all_of(parts: list[Filter]) -> Filter:
    if len(parts) == 1:
        return parts[0]
    named = [part.log_names for part in parts if part.log_names is not None]
    return Filter(
        conjunction([part.matches for part in parts]),
        max(part.earliest_ns for part in parts),
        min(part.latest_ns for part in parts),
        frozenset.intersection(*named) if named else None,
        tuple(test for part in parts for test in part.tests_within),
    )


def _any_of(parts: list[Filter]) -> Filter:
    if len(parts) == 1:
        return parts[0]
    tests = tuple(part.matches for part in parts)
    named = [part.log_names for part in parts if part.log_names is not None]
    return Filter(
        lambda entry: any(test(entry) for test in tests),
        min(part.earliest_ns for part in parts),
        max(part.latest_ns for part in parts),
        frozenset.union(*named) if len(named) == len(parts) else None,
    )


def _negation(inner: Filter) -> Filter:
    matches = inner.matches
    return Filter(lambda entry: not matches(entry))


def _compare(path: tuple[str, ...], name: str, text: str) -> Filter:
    value = _unquote(text)
    if text == "*" and name == ":":
        return Filter(_exists(path))
    if path == ("timestamp",) and name in _ORDERINGS:
        return _compare_timestamp(name, parse_timestamp(value))
    if path == ("severity",) and name in _ORDERINGS:
        compare, severity = _ORDERINGS[name], parse_severity(value)
        return Filter(lambda entry: compare(entry.severity, severity))
    test = _value_test(name, value)
    if path == ("logName",):
        if name == "=":
            return Filter(lambda entry: test(entry.log_name), log_names=frozenset([fold(value)]), left=())
        return Filter(lambda entry: test(entry.log_name))
    get = _getter(path)

    def matches(entry: Entry) -> bool:
        actual = get(entry)
        return actual is not _MISSING and test(actual)

    return Filter(matches)


def _compare_timestamp(name: str, moment_ns: int) -> Filter:
    compare = _ORDERINGS[name]

    def matches(entry: Entry) -> bool:
        return compare(entry.timestamp_ns, moment_ns)

    if name == "!=":
        return Filter(matches)
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
    compare, has = _ORDERINGS[name], name == ":"

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
