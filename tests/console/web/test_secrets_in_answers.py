"""Secrets in whatever a job may record: none of them is in an answer of the page."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from ml_diagnostics_common.journal import Journal

from .made_runs import SECOND_NS, MadeAttempt, MadeRun
from .recorded import Page, page_of

_START_NS = 1_795_000_000 * SECOND_NS
_COMPANION = "tpu.googleapis.com/runtime_monitor"


class Planted:
    """Makes secrets, and knows where each is.

    Attributes:
        places: The place of each secret.
    """

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        """Return a new secret, as a text that is known by its form."""
        number = len(self.places) + 1
        letters = string.ascii_letters + string.digits
        secret = "hf_" + "".join(letters[(number * 7919 + place * place * 31) % 62] for place in range(34))
        self.places[secret] = place
        return secret


@pytest.fixture
def planted() -> Planted:
    return Planted()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Planted) -> Page:
    """The page of a run with a secret in each of its texts."""
    run = MadeRun("leaking", _START_NS, [MadeAttempt(0, 20, "FAILED", planted("the reason of the attempt"))])
    run.group, run.planned_steps = planted("group"), 20
    run.metrics = {"loss": planted("unit"), f"m {planted('metric')}": "1"}
    run.configs = {"note": planted("config"), planted("key of a config"): "1", "password": "hunter2secret"}
    run.configs["nested"] = json.dumps({"api_key": planted("config in JSON")})
    planted.places["hunter2secret"] = "config behind its key"
    run.write(tmp_path)

    def change(resource: dict[str, object]) -> dict[str, object]:
        software = {"command_line": f"train.py --hf-token={planted('argument')} {planted('word of the command line')}"}
        resource["configs"] = {"userConfigs": run.configs, "softwareConfigs": software}
        resource["displayName"] = f"run {planted('display name')}"
        resource["errorDetails"] = f"ValueError: {planted('exception')}"
        resource["labels"] = {"attempt": "1", "note": planted("label")}
        return resource

    LocalControlPlane(tmp_path, clock_ns=lambda: _START_NS).update_run("leaking", change)
    write_companion(tmp_path, planted)
    return page_of(tmp_path, monkeypatch)


def write_companion(root: Path, planted: Planted) -> None:
    """Write what a companion records, with secrets."""
    labels = {"job": "leaking", "run": "leaking", "attempt": "1", "host": "vm-0", "process_index": "0", "pid": "4001"}
    journal = Journal(_COMPANION, root=root, labels=labels, about_pid=4001, clock_ns=lambda: _START_NS)
    frames = [f"call_{planted('function')} (/job/{planted('file')}.py:1)"]
    groups: list[dict[str, Any]] = [
        {"threads": 1, "main": True, "names": ["MainThread"], "frames": frames},
        {
            "threads": 1,
            "main": False,
            "names": [planted("thread")],
            "frames": [f"g {planted('other frame')} (/a.py:1)"],
        },
    ]
    snapshot = {"kind": "snapshot", "groups": groups, "threads": 2, "phase": planted("phase"), "step": 3}
    printed = {"kind": "console", "stream": "out", "message": f"hello {planted('line')}\n", "path": planted("path")}
    stuck = {"kind": "hang_suspected", "stuck_seconds": 9.0, "phase": planted("phase of a hang"), "step": 3}
    stuck["stuck_frame"] = f"h {planted('frame of a hang')} (/a.py:1)"
    ended = {"kind": "job_ended", "how": "exit", "exit_code": 1, "exception": planted("exception of the end")}
    payloads: tuple[dict[str, Any], ...] = (snapshot, printed, stuck, ended)
    for number, payload in enumerate(payloads, 30):
        message = payload.get("message") or f"text {planted('message')}"
        entry = {"verb": "stacktraceanalyzer", **payload, "message": message}
        journal.append(entry, timestamp_ns=_START_NS + number * SECOND_NS)
    journal.close(5)


def answers(page: Page) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each answer that pages ask for."""
    assert page.run is not None
    page.store.doctor.wait(page.run, 60)
    names = [quote(name, safe="") for name in page.run.columns.names()]
    paths = ["/api/runs", "", "/verdict", "/ledger", "/stacks", "/configs", "/logs", "/logs?level=all", "/logs?q=e"]
    paths += ["/api/compare?runs=leaking", "/logs?around=step:3"]
    paths += [f"/logs?stream={each['stream']}" for each in page.json("/logs")["sources"]]
    paths += [f"/explain?of={of}" for of in ("proof:1", "attempt:1", "process:vm-0/4001", "metric:loss", "stacks:1e10")]
    for name, axis in itertools.product(names, ("step", "time", "elapsed&hosts=spread")):
        paths.append(f"/points?metric={name}&x={axis}")
    paths += [f"/heat?metric={name}" for name in names]
    for path in paths:
        address, _, query = path.partition("?")
        parameters = dict(pair.split("=", 1) for pair in query.split("&") if pair)
        answer = page.ask(address, {key: value.replace("%20", " ") for key, value in parameters.items()})
        yield path, answer.body.decode("utf-8", "replace")
    yield "/api/events", json.dumps(page.store.changes_since(page.store.cursor), default=str)


def test_no_planted_secret_is_in_an_answer(page: Page, planted: Planted) -> None:
    assert len(planted.places) > 20
    found = {
        (place, path) for path, text in answers(page) for secret, place in planted.places.items() if secret in text
    }
    assert found == set()


def test_a_metric_with_a_secret_in_its_name_is_drawn(page: Page) -> None:
    (name,) = (metric["name"] for metric in page.json()["metrics_list"] if metric["name"] != "loss")
    assert name == "m [REDACTED]"
    assert page.columns("/points", {"metric": name})[0]["total"] == 21
