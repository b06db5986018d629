"""Label and field selectors.

Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
"""

from collections.abc import Callable, Mapping
from typing import Any

from ml_diagnostics_testing._filter_language import Parser, Test


def labels_match(selector: str, labels: Mapping[str, str]) -> bool:
    """Return True if labels match a label selector; an empty one matches all.

    Raises:
        ApiError: The selector is invalid.
    """
    return _LabelParser(selector).parse()(labels)


def fields_match(selector: str, resource: Mapping[str, Any]) -> bool:
    """Return True if an object matches a field selector; an empty one matches all.

    Raises:
        ApiError: The selector is invalid.
    """
    return _FieldParser(selector).parse()(resource)


class _SelectorParser(Parser):
    operators = ("=", "==", "!=", "!")
    punctuation = "(),"
    quotes = ""
    conjunctions = (",",)
    disjunctions = ()
    has_groups = False

    def equality(self, value: Callable[[Any], str | None]) -> Test:
        """Parse the rest of a comparison: a sign, and a text that can be empty."""
        is_equal = self.expect("=", "==", "!=") != "!="
        wanted = self.text().text if self.peek().kind == "text" else ""
        return lambda tested: (value(tested) == wanted) is is_equal


class _FieldParser(_SelectorParser):
    negations = ()

    def comparison(self) -> Test:
        path = self.text().text.split(".")
        return self.equality(lambda resource: str(_value_at(resource, path)))


class _LabelParser(_SelectorParser):
    negations = ("!",)

    def comparison(self) -> Test:
        key = self.text().text
        sign = self.take("in", "notin")
        if not sign:
            return self.equality(lambda labels: labels.get(key)) if self.peek().kind == "operator" else _has(key)
        self.expect("(")
        values = [self.text().text]
        while self.expect(",", ")") == ",":
            values.append(self.text().text)
        return lambda labels: (labels.get(key) in values) == (sign == "in")


def _has(key: str) -> Test:
    return lambda labels: key in labels


def _value_at(resource: Any, path: list[str]) -> Any:
    for part in path:
        resource = resource.get(part, "") if isinstance(resource, Mapping) else ""
    return resource
