"""Routes: map requests to the functions that answer them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ml_diagnostics_testing.http_server import Request

Parts = Mapping[str, str]
Answer = Callable[[Request, Parts], dict[str, Any]]


@dataclass(frozen=True)
class Route:
    """One kind of request.

    Attributes:
        operation: Its name in `faults` and `requests`.
        method: The HTTP method.
        pattern: The pattern of the path; its groups are the parts passed to `answer`.
        answer: Returns the JSON of the response.
    """

    operation: str
    method: str
    pattern: re.Pattern[str]
    answer: Answer


def route(operation: str, method: str, template: str, answer: Answer) -> Route:
    """Return a route.

    Args:
        operation: Its name in `faults` and `requests`.
        method: The HTTP method.
        template: The path; `{name}` matches any part of it.
        answer: Returns the JSON of the response.
    """
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/:]+)", re.escape(template))
    return Route(operation, method, re.compile(pattern), answer)


def find(routes: Iterable[Route], method: str, path: str) -> tuple[Route, Parts] | None:
    """Return the route of a request and the decoded parts of its path; None if no route matches."""
    for found in routes:
        if found.method == method and (match := found.pattern.fullmatch(path)):
            return found, {name: unquote(value) for name, value in match.groupdict().items()}
    return None
