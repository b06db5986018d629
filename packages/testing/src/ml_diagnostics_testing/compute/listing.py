"""Compute's lists: filtered, ordered, page by page, of one scope or of all at once.

Form: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ml_diagnostics_testing.compute.filters import compile_filter
from ml_diagnostics_testing.http_server import ApiError

Resource = dict[str, Any]

_MAX_PAGE = 500


def page_of(
    resources: Iterable[Resource], query: Mapping[str, str], known: frozenset[str]
) -> tuple[list[Resource], str]:
    """Return one page of what a query asks for, and the token of the next; empty where there is none.

    Args:
        resources: All there are, in their order.
        query: `filter`, `orderBy`, `maxResults` (500 without it), `pageToken`.
        known: The fields that they may have.

    Raises:
        ApiError: One of these cannot be read.
    """
    test = compile_filter(query.get("filter", ""), known)
    candidates = _ordered(list(resources), query.get("orderBy", ""))
    asked = [query.get("filter", ""), query.get("orderBy", "")]
    try:
        size = int(query.get("maxResults") or _MAX_PAGE)
        first, *before = json.loads(query.get("pageToken") or json.dumps([0, *asked]))
        position = int(first)
    except (TypeError, ValueError):
        raise _invalid("pageToken or maxResults", query.get("pageToken", "")) from None
    if not 0 < size <= _MAX_PAGE:
        raise _invalid("maxResults", str(size), "Must be greater than 0 and at most 500.")
    if before != asked:
        raise _invalid("pageToken", query["pageToken"], "It is that of another list.")
    page: list[Resource] = []
    for index in range(position, len(candidates)):
        if not test(candidates[index]):
            continue
        if len(page) == size:
            return page, json.dumps([index, *asked])
        page.append(candidates[index])
    return page, ""


def show_list(kind: str, url: str, page: list[Resource], token: str) -> Resource:
    """Return the answer that is one page of a list."""
    return {
        "kind": kind,
        "id": url.partition("/compute/v1/")[2],
        **({"items": page} if page else {}),
        "selfLink": url,
        **({"nextPageToken": token} if token else {}),
    }


def show_aggregated(name: str, url: str, page: list[Resource], token: str, scopes: Iterable[str]) -> Resource:
    """Return the answer that is one page of a list of all scopes.

    Args:
        name: What is listed: "instances".
        url: Of the list.
        page: What is on this page.
        token: Of the next.
        scopes: The scopes to show, each with its own or a warning that it has none: "zones/us-central1-a".
    """
    by_scope: dict[str, list[Resource]] = {scope: [] for scope in scopes}
    for resource in page:
        by_scope["zones/" + str(resource["zone"]).rpartition("/")[2]].append(resource)
    return {
        "kind": f"compute#{name[:-1]}AggregatedList",
        "id": url.partition("/compute/v1/")[2],
        "items": {scope: {name: found} if found else _nothing_in(scope) for scope, found in by_scope.items()},
        "selfLink": url,
        **({"nextPageToken": token} if token else {}),
    }


def _nothing_in(scope: str) -> Resource:
    message = f"There are no results for scope '{scope}' on this page."
    data = [{"key": "scope", "value": scope}]
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}}


def _ordered(resources: list[Resource], order_by: str) -> list[Resource]:
    if not order_by:
        return resources
    if order_by == "name":
        return sorted(resources, key=lambda resource: str(resource["name"]))
    if order_by == "creationTimestamp desc":
        return sorted(resources, key=lambda resource: str(resource["creationTimestamp"]), reverse=True)
    raise _invalid("orderBy", order_by)


def _invalid(field: str, value: str, why: str = "") -> ApiError:
    return ApiError(400, f"Invalid value for field '{field}': '{value}'. {why}".strip(), reason="invalid")
