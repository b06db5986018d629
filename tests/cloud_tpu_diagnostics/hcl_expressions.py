"""The part of HCL's expressions that our Terraform files use, since the tests have no Terraform.

The language: https://developer.hashicorp.com/terraform/language/expressions. `compile_expression` and
`compile_template` make functions of a scope: what `var`, `local` and the other names stand for.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

Scope = Mapping[str, Any]
Value = Callable[[Scope], Any]

_TOKEN = re.compile(r'\d+(?:\.\d+)?|[A-Za-z_]\w*|\|\||&&|==|!=|>=|<=|[-+*/%<>!?:{}()\[\].,="]')
_LEVELS: list[dict[str, Callable[[Any, Any], Any]]] = [
    {"||": lambda left, right: left or right},
    {"&&": lambda left, right: left and right},
    {"==": operator.eq, "!=": operator.ne},
    {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul},
]
_CONSTANTS = {"true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def compile_expression(text: str) -> Value:
    """Compile `var.a.b == null ? 1 : [for x in local.c : upper(x)]`."""
    parser = _Parser(text)
    value = parser.expression()
    assert parser.peek() == "", f"{text[parser.position :]!r} is left of {text!r}"
    return value


def compile_template(text: str) -> Value:
    """Compile a template file: text with `${...}`."""
    parser = _Parser(text)
    value = parser.template(end="")
    assert parser.position == len(text)
    return value


class _Parser:
    """Recursive descent; every method returns a function of the scope, so that `for` can call it repeatedly."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def peek(self) -> str:
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        found = _TOKEN.match(self.text, self.position)
        assert found or self.position == len(self.text), f"{self.text[self.position :]!r} cannot be read"
        return found[0] if found else ""

    def take(self, *wanted: str) -> str:
        """Return the next token if it is one of these, or any if none is given, else an empty string."""
        token = self.peek()
        if wanted and token not in wanted:
            return ""
        self.position += len(token)
        return token

    def expect(self, token: str) -> None:
        assert self.take(token), f"{token!r} is missing at {self.text[self.position :]!r}"

    def expression(self) -> Value:
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        yes = self.expression()
        self.expect(":")
        no = self.expression()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while token := self.take(*_LEVELS[level]):
            left = _apply(_LEVELS[level][token], left, self.binary(level + 1))
        return left

    def unary(self) -> Value:
        if self.take("!"):
            negated = self.unary()
            return lambda scope: not negated(scope)
        value = self.primary()
        while token := self.take(".", "["):
            if token == ".":
                value = _item(value, _constant(self.take()))
            elif self.take("*"):
                self.expect("]")
                value = self.splat(value)
            else:
                value = _item(value, self.expression())
                self.expect("]")
        return value

    def splat(self, values: Value) -> Value:
        path = []
        while self.take("."):
            path.append(self.take())

        def every(scope: Scope) -> list[Any]:
            found = values(scope)
            for name in path:
                found = [one[name] for one in found]
            return list(found)

        return every

    def primary(self) -> Value:
        token = self.take()
        if token == '"':
            return self.template(end='"')
        if token == "(":
            value = self.expression()
            self.expect(")")
            return value
        if token == "[":
            return self.loop() if self.peek() == "for" else self.sequence("]")
        if token == "{":
            return self.mapping()
        if token[:1].isdigit():
            return _constant(json.loads(token))
        if token in _CONSTANTS:
            return _constant(_CONSTANTS[token])
        assert token.isidentifier(), f"unexpected {token!r} before {self.text[self.position :]!r}"
        if self.take("("):
            arguments = self.arguments(")")
            return lambda scope: scope["functions"][token](*((lambda one=one: one(scope)) for one in arguments))
        return lambda scope: scope[token]

    def arguments(self, end: str) -> list[Value]:
        found = []
        while not self.take(end):
            found.append(self.expression())
            assert self.take(",") or self.peek() == end
        return found

    def sequence(self, end: str) -> Value:
        items = self.arguments(end)
        return lambda scope: [item(scope) for item in items]

    def mapping(self) -> Value:
        items: dict[str, Value] = {}
        while not self.take("}"):
            name = self.take()
            self.expect("=")
            items[name] = self.expression()
            self.take(",")
        return lambda scope: {name: item(scope) for name, item in items.items()}

    def loop(self) -> Value:
        self.expect("for")
        names = [self.take()]
        if self.take(","):
            names.append(self.take())
        self.expect("in")
        collection = self.expression()
        self.expect(":")
        body = self.expression()
        self.expect("]")

        def every(scope: Scope) -> list[Any]:
            values = collection(scope)
            pairs = sorted(values.items()) if isinstance(values, Mapping) else enumerate(values)
            return [body({**scope, **dict(zip(names, pair[2 - len(names) :], strict=True))}) for pair in pairs]

        return every

    def template(self, end: str) -> Value:
        """Parse text up to its end: a quotation mark within expressions, nothing in a file, which has no escapes."""
        parts: list[Value] = []
        text = ""
        while self.position < len(self.text) and self.text[self.position] != (end or None):
            character = self.text[self.position]
            assert self.text[self.position : self.position + 2] != "%{", "directives are not known here"
            if self.text.startswith("${", self.position):
                self.position += 2
                parts += [_constant(text), self.expression()]
                text = ""
                self.expect("}")
            elif end and character == "\\":
                text += _ESCAPES[self.text[self.position + 1]]
                self.position += 2
            else:
                text += character
                self.position += 1
        assert self.text.startswith(end, self.position), f"{self.text!r} has no end"
        self.position += len(end)
        parts.append(_constant(text))
        return lambda scope: "".join(_text(part(scope)) for part in parts)


def _apply(function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    return lambda scope: function(left(scope), right(scope))


def _item(value: Value, key: Value) -> Value:
    return lambda scope: value(scope)[key(scope)]


def _constant(value: Any) -> Value:
    return lambda scope: value


def _text(value: Any) -> str:
    assert isinstance(value, str | int | float), f"{value!r} cannot be part of a template"
    return value if isinstance(value, str) else json.dumps(value)
