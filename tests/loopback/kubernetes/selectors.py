"""Label and field selectors.

Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
"""

import re
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

_TERM = re.compile(
    r"\s*(?:(?P<absent>!)?\s*(?P<key>[^\s,!=()]+))"
    r"(?:\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s,()]*)|\s+(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?\s*(?:,|$)"
)


def labels_match(selector: str, labels: Mapping[str, str]) -> bool:
    """Return True if labels match a label selector; an empty one matches all.

    Raises:
        ApiError: The selector is invalid.
    """
    position = 0
    matches = True
    while position < len(selector):
        term = _TERM.match(selector, position)
        if term is None:
            raise ApiError(400, f"unable to parse requirement: {selector[position:]!r}")
        matches &= _label_matches(term, labels)
        position = term.end()
    return matches


def fields_match(selector: str, resource: Mapping[str, Any]) -> bool:
    """Return True if an object matches a field selector; an empty one matches all.

    Raises:
        ApiError: The selector is invalid.
    """
    for term in filter(None, selector.split(",")):
        found = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", term, re.DOTALL)
        if found is None:
            raise ApiError(400, f"invalid field selector: {term!r}")
        path, sign, wanted = found.groups()
        value: Any = resource
        for part in path.split("."):
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        if (str(value) == wanted) == (sign == "!="):
            return False
    return True


def _label_matches(term: re.Match[str], labels: Mapping[str, str]) -> bool:
    value = labels.get(term["key"])
    if term["sign"]:
        return (value == term["value"]) != (term["sign"] == "!=")
    if term["set"]:
        return (value in [one.strip() for one in term["values"].split(",")]) != (term["set"] == "notin")
    return (value is None) == bool(term["absent"])
