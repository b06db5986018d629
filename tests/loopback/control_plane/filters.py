"""The filters and sort orders of runs: comparisons, parentheses, AND, and OR, which binds tighter than AND.

    run_set = "sweep-7" AND (state = "STATE_ACTIVE" OR create_time > "2026-05-26T10:00:00Z")

Language: https://google.aip.dev/160, with the fields that `ListMachineLearningRunsRequest` names.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ml_diagnostics_testing._filter_language import ORDERINGS, Parser, Test
from ml_diagnostics_testing.http_server import ApiError

from .resources import Resource, parse_time

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
    return _Parser(text).parse()


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


class _Parser(Parser):
    conjunctions = ("AND",)
    negations = ()

    def comparison(self) -> Test:
        token = self.text()
        value = _FIELDS.get(token.text)
        if value is None:
            raise self.error(f"runs cannot be filtered by {token.text!r}", token.position)
        compare = ORDERINGS[self.expect(*self.operators)]
        wanted: Any = self.unquoted(self.text())
        if token.text.endswith("_time"):
            try:
                wanted = parse_time(wanted)
            except ValueError as error:
                raise self.error(str(error), token.position) from None
        elif token.text == "orchestrator":
            wanted = wanted.removeprefix("ORCHESTRATOR_")
        return lambda run: compare(value(run), wanted)
