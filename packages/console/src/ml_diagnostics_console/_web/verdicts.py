"""The doctor's verdict on a run, for its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_diagnostics_console._web.answers import Answer, json_answer
from ml_diagnostics_console._web.cloud_runs import cloud_run
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.verdict_answer import without_verdict

if TYPE_CHECKING:
    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console._web.store import Store

__all__ = ["verdict"]


def verdict(run: RunData, query: Query, store: Store) -> Answer:
    """Answer the verdict if it is known, also of some seconds ago; else that it is being worked out."""
    in_cloud = cloud_run(run)
    if in_cloud is None:
        return json_answer(store.doctor.ask(run))
    command = {"command": in_cloud.doctor, "why": "the page sends no requests to Cloud Logging"}
    return json_answer(without_verdict(next=[command]))
