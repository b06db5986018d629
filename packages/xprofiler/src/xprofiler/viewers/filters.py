"""The simple part of gcloud's `--filter`: terms such as `labels.owner=ann` or `-name:xprof*`, all of which must match.

Language: `gcloud topic filters`. A term has the same meaning as in gcloud, including case and missing fields. Other
filters (functions, numbers, quotes, OR with AND) are evaluated by gcloud.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Term", "parse_filters"]

_VALUE: Final = r"[A-Za-z_][\w.-]*"
_TERM: Final = re.compile(
    rf"""\s* (?P<minus> - | NOT\s+ )?
    (?P<key> name | zone | status | machineType | labels\.[a-z][a-z0-9_-]* ) \s*
    (?: (?P<sign> != | = | : ) \s*
        (?: (?P<value> {_VALUE}\*? | \* ) | \( (?P<values> [\s,]* {_VALUE} (?: [\s,]+ {_VALUE} )* [\s,]* ) \) )
      | (?P<search> !?~ ) \s* (?P<pattern> [^\s()"']+ ) )
    (?= \s | $ )""",
    re.VERBOSE | re.ASCII,
)
_BETWEEN: Final = re.compile(r"\s+ (?: AND \s+ )?", re.VERBOSE)
_OPERATORS: Final = frozenset({"AND", "OR", "NOT"})
_CONSTANTS: Final = frozenset({"true", "false", "inf", "infinity", "nan"})  # gcloud compares these as numbers.


@dataclass(frozen=True)
class Term:
    """One comparison of a VM's field.

    Attributes:
        key: name, zone, status, machineType, or `labels.KEY`.
        sign: =, !=, :, ~ or !~.
        values: The values, any of which may match.
        is_negated: True if the comparison must fail.
    """

    key: str
    sign: str
    values: tuple[str, ...]
    is_negated: bool = False

    def holds(self, instance: Mapping[str, Any]) -> bool:
        """Return whether a VM, as a resource of Compute, matches."""
        found = _field(instance, self.key)
        if self.sign in ("~", "!~"):
            passes = (re.search(self.values[0], found or "") is not None) is (self.sign == "~")
        else:
            texts = [found, found.rpartition("/")[2]] if found and self.key == "zone" else [found]
            passes = any(self._matches(text, value) for text in texts for value in self.values)
            passes = passes is not (self.sign == "!=")
        return passes is not self.is_negated

    @property
    def for_compute(self) -> str | None:
        """A filter for Compute that matches every matching VM, and maybe more; None if there is none."""
        if self.sign != "=" or self.is_negated or self.key in ("zone", "machineType"):
            return None
        exact = [value.upper() if self.key == "status" else value.lower() for value in self.values]
        return " OR ".join(f'({self.key} = "{value}")' for value in exact)

    def _matches(self, text: str | None, value: str) -> bool:
        if value == "*":
            return bool(text) if self.sign == ":" else text == "*"
        is_prefix = self.sign == ":" and value.endswith("*")
        text, value = (
            _normal("null" if text is None else text),
            _normal(value.removesuffix("*") if is_prefix else value),
        )
        if is_prefix:
            return text.startswith(value)
        return value in text if self.sign == ":" else text == value


def parse_filters(filters: Collection[str]) -> list[Term] | None:
    """Parse filters, all of which must match.

    Args:
        filters: The filters in gcloud's language.

    Returns:
        Their terms; None if one is not simple, or not valid.
    """
    terms: list[Term] = []
    for text in filters:
        position, text = 0, text.strip()
        while position < len(text):
            found = _TERM.match(text, position)
            term = _term(found) if found else None
            if found is None or term is None:
                return None
            terms.append(term)
            position = found.end()
            between = _BETWEEN.match(text, position)
            position = between.end() if between else position
    return terms


def _term(found: re.Match[str]) -> Term | None:
    is_negated = bool(found["minus"])
    if found["search"]:
        try:
            re.compile(found["pattern"])
        except re.error:
            return None
        return Term(found["key"], found["search"], (found["pattern"],), is_negated)
    values = tuple(re.findall(_VALUE, found["values"])) if found["values"] else (found["value"],)
    if found["values"] and found["sign"] == "!=":
        return None
    if any(value in _OPERATORS or value.lower() in _CONSTANTS for value in values):
        return None
    if any(value.endswith("*") for value in values) and found["sign"] != ":":
        return None
    return Term(found["key"], found["sign"], values, is_negated)


def _field(instance: Mapping[str, Any], key: str) -> str | None:
    if key.startswith("labels."):
        value = instance.get("labels", {}).get(key.removeprefix("labels."))
    else:
        value = instance.get(key)
    return None if value is None else str(value)


def _normal(text: str) -> str:
    """Return the text in lower case without accents, as gcloud compares."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return "".join(character for character in decomposed if not unicodedata.combining(character))
