"""The list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ml_diagnostics_console._web.answers import Answer, json_answer
from ml_diagnostics_console._web.queries import Query

if TYPE_CHECKING:
    from ml_diagnostics_console._web.store import Store

__all__ = ["runs"]

_MOST_ROWS: Final = 2_000


def runs(store: Store, query: Query) -> Answer:
    """Answer the list of runs, the newest first; `next` of an answer is the parameter that gets the following ones."""
    shown = store.runs()
    first = 0
    after = query.text("next")
    if after:
        first = next((number for number, run in enumerate(shown, 1) if run.id == after), len(shown))
    part = shown[first : first + _MOST_ROWS]
    following = part[-1].id if first + _MOST_ROWS < len(shown) else None
    return json_answer(
        {
            "cursor": store.cursor,
            "now": store.now_s,
            "place": store.place,
            "notes": store.notes,
            "next": following,
            "rows": [msgspec.Raw(store.encoded_row(run.id)) for run in part],
        }
    )
