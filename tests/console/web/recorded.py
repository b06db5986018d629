"""Stores of real jobs that were recorded by all libraries, for tests of what the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.reading import LocalSource
from ml_diagnostics_console._web import wire
from ml_diagnostics_console._web.answers import Answer
from ml_diagnostics_console._web.routes import handle
from ml_diagnostics_console._web.store import Store

from ..real_jobs import run_job

__all__ = ["DOCTOR_SECONDS", "FAILS", "Page", "close_stores", "page_of", "record"]

DOCTOR_SECONDS = 100.0
"""Longer than a verdict takes: the doctor works at low priority, so beside other tests it waits for its turn."""

_STORES: list[Store] = []

FAILS = """
print('batch 30 is loaded with password=hunter2secret', flush=True)
print('WARNING: retrying the read of shard 7', file=sys.stderr, flush=True)
raise ValueError('batch 30 is empty')
"""


def record(folder: Path, action: str) -> Path:
    """Run an instrumented job of one process; it does `action` at step 30. Return its diagnostics folder."""
    run_job(folder, action)
    return folder


class Page:
    """Asks for what the page would ask for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.run = store.runs()[0] if store.runs() else None

    def ask(self, path: str = "", query: Mapping[str, str] | None = None, /, **parameters: object) -> Answer:
        """Return the answer to a path below that of the newest run, or to a whole path."""
        if not path.startswith("/api/"):
            assert self.run is not None
            path = f"/api/runs/{self.run.id}{path}"
        return handle(self.store, path, {**(query or {}), **{key: str(value) for key, value in parameters.items()}})

    def json(self, path: str = "", query: Mapping[str, str] | None = None, /, **parameters: object) -> Any:
        """Return an answer in JSON."""
        answer = self.ask(path, query, **parameters)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def columns(self, path: str, query: Mapping[str, str] | None = None, /, **parameters: object) -> Any:
        """Return the header and the columns of a binary answer."""
        answer = self.ask(path, query, **parameters)
        assert answer.status == 200, answer.body
        return wire.decode(answer.body)

    def error(self, status: int, path: str, query: Mapping[str, str] | None = None, /, **parameters: object) -> str:
        """Return the sentence of an answer that refuses."""
        answer = self.ask(path, query, **parameters)
        assert answer.status == status, (answer.status, answer.body[:200])
        return str(json.loads(answer.body)["error"])


def page_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Return the page of a diagnostics folder."""
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(folder))
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
    store = Store(LocalSource(lambda note: None))
    _STORES.append(store)
    store.refresh()
    return Page(store)


def close_stores() -> None:
    """End the processes of the doctors of all pages."""
    while _STORES:
        _STORES.pop().close()
