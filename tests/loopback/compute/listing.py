"""Compute's lists of one scope or of all scopes: filters, orders and pages.

Format: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

from .filters import compile_filter

Resource = dict[str, Any]

_MAX_PAGE = 500


def page_of(
    resources: Iterable[Resource], query: Mapping[str, str], known: frozenset[str]
) -> tuple[list[Resource], str]:
    """Return one page of the resources that a query selects, and the token of the next page, empty for the last.

    Args:
        resources: All resources, in their default order.
        query: The parameters `filter`, `orderBy`, `maxResults` (default 500), `pageToken`.
        known: The fields that the resources may have.

    Raises:
        ApiError: A parameter is invalid.
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
        raise _invalid("pageToken", query["pageToken"], "It is from another list.")
    page: list[Resource] = []
    for index in range(position, len(candidates)):
        if not test(candidates[index]):
            continue
        if len(page) == size:
            return page, json.dumps([index, *asked])
        page.append(candidates[index])
    return page, ""


def show_list(kind: str, url: str, page: list[Resource], token: str) -> Resource:
    """Return the response with one page of a list."""
    return {
        "kind": kind,
        "id": url.partition("/compute/v1/")[2],
        **({"items": page} if page else {}),
        "selfLink": url,
        **({"nextPageToken": token} if token else {}),
    }


def show_aggregated(name: str, url: str, page: list[Resource], token: str, scopes: Iterable[str]) -> Resource:
    """Return the response with one page of a list of all scopes.

    Args:
        name: The plural of the resources: "instances".
        url: The URL of the list.
        page: The resources on this page.
        token: The token of the next page.
        scopes: All scopes, such as "zones/us-central1-a". A scope without resources gets a warning.
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
