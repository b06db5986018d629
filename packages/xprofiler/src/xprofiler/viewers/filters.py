"""The plain half of gcloud's `--filter`: terms such as `labels.owner=ann` or `-name:xprof*`, all of which must hold.

Language: `gcloud topic filters`. A term means what it means to gcloud, case and missing fields included. What is not
plain (functions, numbers, quotes, OR with AND) is left to gcloud itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Term", "parse_filters"]

_WORD: Final = r"[A-Za-z_][\w.-]*"
_TERM: Final = re.compile(
    rf"""\s* (?P<minus> - | NOT\s+ )?
    (?P<key> name | zone | status | machineType | labels\.[a-z][a-z0-9_-]* ) \s*
    (?: (?P<sign> != | = | : ) \s*
        (?: (?P<word> {_WORD}\*? | \* ) | \( (?P<words> [\s,]* {_WORD} (?: [\s,]+ {_WORD} )* [\s,]* ) \) )
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
        values: Any of them will do.
        is_negated: Whether the comparison must fail.
    """

    key: str
    sign: str
    values: tuple[str, ...]
    is_negated: bool = False

    def holds(self, instance: Mapping[str, Any]) -> bool:
        """Whether a VM, as Compute shows it, passes."""
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
        """What Compute may be asked to look for: every VM that passes, and maybe more. None where it cannot be said."""
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
    """Read filters, each of which must hold.

    Args:
        filters: As gcloud takes them.

    Returns:
        Their terms; None where one is not plain, or not a filter at all.
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
    values = tuple(re.findall(_WORD, found["words"])) if found["words"] else (found["word"],)
    if found["words"] and found["sign"] == "!=":
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
    """Lower case, without accents: gcloud compares so."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return "".join(character for character in decomposed if not unicodedata.combining(character))
