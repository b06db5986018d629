"""The filters of Google's APIs and the selectors of Kubernetes: one tokenizer and one parser.

They are comparisons joined by AND, OR, NOT and parentheses; OR binds tighter than AND. A dialect is a subclass of
`Parser` that sets what differs and parses a single comparison.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_diagnostics_testing.http_server import ApiError

MAX_DEPTH = 50
ORDERINGS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_STRING = re.compile(r"(['\"])(?:\\.|(?!\1)[^\\])*\1", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

Test = Callable[[Any], bool]


class Token(NamedTuple):
    """A part of a filter; its kind is "operator", "punctuation", "text" or "end"."""

    kind: str
    text: str
    position: int


class Parser:
    """A recursive descent parser that compiles one filter to a test.

    Attributes:
        operators: The signs of comparisons.
        punctuation: Characters that are a token each.
        quotes: The quotation marks of strings.
        comment: A regular expression of comments; empty if there are none.
        conjunctions: The texts that mean AND; "" if it can be left out.
        disjunctions: The texts that mean OR.
        negations: The texts that mean NOT.
        has_groups: True if comparisons can be in parentheses.
    """

    operators: Sequence[str] = tuple(ORDERINGS)
    punctuation = "()"
    quotes = '"'
    comment = ""
    conjunctions: Sequence[str] = ("AND", "")
    disjunctions: Sequence[str] = ("OR",)
    negations: Sequence[str] = ("NOT",)
    has_groups = True

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize()
        self._next = 0
        self._depth = 0

    def parse(self) -> Test:
        """Parse the whole filter; an empty one passes everything.

        Raises:
            ApiError: The filter is invalid.
        """
        parsed = self.all_of([]) if self.peek().kind == "end" else self.conjunction(self.comparison)
        if self.peek().kind != "end":
            raise self.error("unexpected text")
        return parsed

    def comparison(self) -> Test:
        """Parse one comparison."""
        raise NotImplementedError

    def all_of(self, parts: Sequence[Test]) -> Test:
        """Return a test that passes if all parts pass."""
        return lambda tested: all(part(tested) for part in parts)

    def any_of(self, parts: Sequence[Test]) -> Test:
        """Return a test that passes if one of the parts passes."""
        return lambda tested: any(part(tested) for part in parts)

    def negation(self, part: Test) -> Test:
        """Return a test that passes if the part does not."""
        return lambda tested: not part(tested)

    def error(self, message: str, position: int | None = None) -> ApiError:
        """Return the error for an invalid filter, by default at the next token."""
        start = self.peek().position if position is None else position
        return ApiError(400, f"Unparseable filter: {message} at position {start}: {self._text[start : start + 30]!r}")

    def conjunction(self, leaf: Callable[[], Test]) -> Test:
        """Parse leaves up to a closing parenthesis: comparisons, or the values of `field = (a OR b)`."""
        parts = [self._disjunction(leaf)]
        while self.peek().kind != "end" and self.peek().text != ")":
            if not self.take(*self.conjunctions) and "" not in self.conjunctions:
                break
            parts.append(self._disjunction(leaf))
        return self.all_of(parts) if len(parts) > 1 else parts[0]

    def peek(self) -> Token:
        """Return the next token without taking it."""
        return self._tokens[self._next]

    def take(self, *texts: str) -> str:
        """Take the next token if it is one of these; otherwise return ""."""
        token = self.peek()
        if token.kind == "end" or token.text not in texts:
            return ""
        self._next += 1
        return token.text

    def expect(self, *texts: str) -> str:
        """Take the next token, which must be one of these."""
        if self.peek().text not in texts:
            raise self.error(f"{' or '.join(map(repr, texts))} is missing")
        return self.take(*texts)

    def text(self) -> Token:
        """Take a field or a value, as it is written."""
        token = self.peek()
        if token.kind != "text" or token.text in (*self.conjunctions, *self.disjunctions, *self.negations):
            raise self.error("a field or a value is missing")
        self._next += 1
        return token

    def unquoted(self, token: Token) -> str:
        """Return a token's text without quotation marks and escapes."""
        if not any(quote in token.text for quote in self.quotes):
            return token.text
        if token.text[0] not in self.quotes or not _STRING.fullmatch(token.text):
            raise self.error("text beside quotation marks", token.position)
        return unescape(token.text[1:-1])

    def _disjunction(self, leaf: Callable[[], Test]) -> Test:
        parts = [self.term(leaf)]
        while self.take(*self.disjunctions):
            parts.append(self.term(leaf))
        return self.any_of(parts) if len(parts) > 1 else parts[0]

    def term(self, leaf: Callable[[], Test]) -> Test:
        """Parse a leaf, with any NOT and parentheses around it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error("nested too deeply")
        if self.take(*self.negations):
            parsed = self.negation(self.term(leaf))
        elif self.has_groups and self.take("("):
            parsed = self.conjunction(leaf)
            self.expect(")")
        else:
            parsed = leaf()
        self._depth -= 1
        return parsed

    def _tokenize(self) -> list[Token]:
        pattern = _token_pattern(tuple(self.operators), self.punctuation, self.quotes, self.comment)
        tokens, position = [], 0
        while position < len(self._text):
            match = pattern.match(self._text, position)
            if match is None:
                raise self.error("unexpected character or unbalanced quotation mark", position)
            if match.lastgroup != "space":
                tokens.append(Token(str(match.lastgroup), match[0], position))
            position = match.end()
        return [*tokens, Token("end", "", position)]


def unescape(text: str) -> str:
    """Resolve the escapes of a string."""
    return _ESCAPE.sub(_resolve, text)


def _resolve(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


@functools.cache
def _token_pattern(operators: tuple[str, ...], punctuation: str, quotes: str, comment: str) -> re.Pattern[str]:
    signs = "|".join(map(re.escape, sorted(operators, key=len, reverse=True)))
    strings = "".join(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}|" for quote in quotes)
    marks = re.escape("".join([*operators, punctuation, quotes]))
    text = rf"(?:{strings}[^\s{marks}])+"
    space = rf"\s+|{comment}" if comment else r"\s+"
    mark = f"[{re.escape(punctuation)}]"
    return re.compile(f"(?P<space>{space})|(?P<operator>{signs})|(?P<punctuation>{mark})|(?P<text>{text})", re.DOTALL)
