"""Routes of the page: a table of paths, and the function that answers each. Pure: no socket."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from ml_diagnostics_console._web.answers import Answer, BadQueryError, NotThereError, json_answer
from ml_diagnostics_console._web.config_view import compare, configs
from ml_diagnostics_console._web.explain_view import explain
from ml_diagnostics_console._web.heat_view import heat
from ml_diagnostics_console._web.ledger_view import ledger
from ml_diagnostics_console._web.log_view import logs
from ml_diagnostics_console._web.overview import overview
from ml_diagnostics_console._web.points_view import points
from ml_diagnostics_console._web.profile_view import profile
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.runs_view import runs
from ml_diagnostics_console._web.stack_view import stacks
from ml_diagnostics_console._web.verdicts import verdict

if TYPE_CHECKING:
    from ml_diagnostics_console._web.store import Store

__all__ = ["handle"]

_LOG = logging.getLogger(__name__)


class _Route(NamedTuple):
    """One route.

    Attributes:
        pattern: The path; `{run}` and `{session}` stand for a part of it.
        view: The function that answers it.
        gets_store: True if it also takes the store as its last argument.
        is_locked: False for functions that work long, and take the store's lock themselves where they need it.
    """

    pattern: str
    view: Callable[..., Answer]
    gets_store: bool = False
    is_locked: bool = True


_TABLE: Final = (
    _Route("/api/runs", runs),
    _Route("/api/runs/{run}", overview, gets_store=True),
    _Route("/api/runs/{run}/verdict", verdict, gets_store=True, is_locked=False),
    _Route("/api/runs/{run}/ledger", ledger),
    _Route("/api/runs/{run}/points", points),
    _Route("/api/runs/{run}/heat", heat),
    _Route("/api/runs/{run}/stacks", stacks),
    _Route("/api/runs/{run}/profiles/{session}", profile, gets_store=True, is_locked=False),
    _Route("/api/runs/{run}/logs", logs, gets_store=True, is_locked=False),
    _Route("/api/runs/{run}/configs", configs, gets_store=True),
    _Route("/api/runs/{run}/explain", explain, gets_store=True, is_locked=False),
    _Route("/api/compare", compare),
)


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(pattern)))


_PATTERNS: Final = tuple((_compiled(route.pattern), route) for route in _TABLE)


def handle(store: Store, path: str, query: Mapping[str, str]) -> Answer:
    """Answer a request; an error becomes an answer with a sentence, too.

    Args:
        store: The runs.
        path: The path of the URL, with its escapes.
        query: The parameters of the URL, without their escapes.
    """
    try:
        for pattern, route in _PATTERNS:
            match = pattern.fullmatch(path)
            if match is not None:
                store.wait_for_rows()
                return _call(route, store, {name: unquote(part) for name, part in match.groupdict().items()}, query)
        raise NotThereError("There is nothing at this address.")
    except BadQueryError as error:
        return json_answer({"error": str(error)}, 400)
    except NotThereError as error:
        return json_answer({"error": str(error)}, 404)
    except Exception as error:  # The page must stand, whatever one of its parts meets.
        _LOG.warning("%s cannot be answered", path[:200], exc_info=True)
        return json_answer({"error": f"This could not be worked out: {type(error).__name__}: {error}"[:500]}, 500)


def _call(route: _Route, store: Store, parts: Mapping[str, str], parameters: Mapping[str, str]) -> Answer:
    query = Query(parameters)
    if not route.is_locked:
        with store.lock:
            arguments = _arguments(route, store, parts, query)
        return route.view(*arguments)
    with store.lock:
        return route.view(*_arguments(route, store, parts, query))


def _arguments(route: _Route, store: Store, parts: Mapping[str, str], query: Query) -> list[Any]:
    if "run" not in parts:
        return [store, query]
    arguments: list[Any] = [store.run(parts["run"])]
    if "session" in parts:
        arguments.append(parts["session"])
    arguments.append(query)
    return [*arguments, store] if route.gets_store else arguments
