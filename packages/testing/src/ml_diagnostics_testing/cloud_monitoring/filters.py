"""The common part of Cloud Monitoring's filter language: comparisons, joined by AND.

    metric.type = "compute.googleapis.com/workload/goodput_time" AND resource.labels.workload_id = "run-1"

Language: https://cloud.google.com/monitoring/api/v3/filters
"""

import re
from collections.abc import Callable
from typing import Any

from ml_diagnostics_testing.filter_language import Parser, Test

_SUBJECT = re.compile(r"metric\.type|resource\.type|(?:metric|resource)\.labels?\.\w+")
_FUNCTIONS: dict[str, Callable[[str, str], bool]] = {
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "has_substring": str.__contains__,
}


def compile_filter(text: str) -> Test:
    """Return a test of TimeSeries messages.

    Raises:
        ApiError: The filter is invalid or not supported by this server.
    """
    return _Parser(text).parse()


class _Parser(Parser):
    operators = ("=", "!=")
    disjunctions = ()
    negations = ()
    has_groups = False

    def comparison(self) -> Test:
        subject = self.text()
        if not _SUBJECT.fullmatch(subject.text):
            raise self.error("the loopback server does not support this field", subject.position)
        equal = self.expect(*self.operators) == "="
        function = self.take(*_FUNCTIONS)
        if function:
            self.expect("(")
        if not self.peek().text.startswith('"'):
            raise self.error("expected a value in quotation marks")
        wanted = self.unquoted(self.text())
        if function:
            self.expect(")")
        compare = _FUNCTIONS.get(function, str.__eq__)
        return lambda series: compare(_value(series, subject.text), wanted) is equal


def _value(series: Any, subject: str) -> str:
    owner, _, name = subject.partition(".")
    message = getattr(series, owner)
    return str(message.type if name == "type" else message.labels.get(name.partition(".")[2], ""))
