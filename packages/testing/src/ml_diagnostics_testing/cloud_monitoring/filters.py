"""The common part of Cloud Monitoring's filter language: comparisons, joined by AND.

    metric.type = "compute.googleapis.com/workload/goodput_time" AND resource.labels.workload_id = "run-1"

Language: https://cloud.google.com/monitoring/api/v3/filters
"""

import json
import re
from collections.abc import Callable
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

Test = Callable[[Any], bool]
"""Takes a TimeSeries message."""

_COMPARISON = re.compile(
    r"""\s*(?P<subject>metric\.type|resource\.type|(?:metric|resource)\.labels?\.\w+)
        \s*(?P<operator>!?=)
        \s*(?:(?P<function>starts_with|ends_with|has_substring)\(\s*(?P<argument>"(?:[^"\\]|\\.)*")\s*\)
             |(?P<value>"(?:[^"\\]|\\.)*"))
        \s*(?:AND\b|(?=$)|(?=(?:metric|resource)\.))""",
    re.VERBOSE,
)
_FUNCTIONS: dict[str, Callable[[str, str], bool]] = {
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "has_substring": str.__contains__,
}


def compile_filter(text: str) -> Test:
    """Return a test of time series.

    Raises:
        ApiError: The filter is invalid or not supported by this server.
    """
    tests, position = [], 0
    while position < len(text):
        found = _COMPARISON.match(text, position)
        if not found:
            raise ApiError(400, f"the loopback Cloud Monitoring cannot read the filter from {text[position:]!r} on")
        tests.append(_test(found))
        position = found.end()
    return lambda series: all(test(series) for test in tests)


def _test(found: re.Match[str]) -> Test:
    wanted = json.loads(found["argument"] or found["value"])
    compare = _FUNCTIONS.get(found["function"] or "", str.__eq__)
    equal = found["operator"] == "="
    return lambda series: compare(_value(series, found["subject"]), wanted) is equal


def _value(series: Any, subject: str) -> str:
    owner, _, name = subject.partition(".")
    message = getattr(series, owner)
    return str(message.type if name == "type" else message.labels.get(name.partition(".")[2], ""))
