"""Entries are sent until Cloud Logging accepts or refuses each; the refusal of one does not affect the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._cli.run_sync import EntriesSent, profile_files, send_entries, send_profiles
from google_cloud_mldiagnostics._recording.run_log import RunLog
from ml_diagnostics_common.cloud_logging import Page, TransportError
from ml_diagnostics_common.environment import diagnostics_directory

Answer = Callable[[Sequence[Mapping[str, Any]]], TransportError | None]


class Scripted:
    """A transport that gives prepared answers, and then accepts everything."""

    project = "p"
    principal = None

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.taken: list[int] = []

    def write(self, entries: Sequence[Mapping[str, Any]], *, timeout_seconds: float) -> None:
        error = self.answers.pop(0)(entries) if self.answers else None
        refused = set(error.entry_errors) if error is not None else set()
        if error is None or refused:
            self.taken += [entry["jsonPayload"]["n"] for index, entry in enumerate(entries) if index not in refused]
        if error is not None:
            raise error

    def list_page(self, *_: Any, **__: Any) -> Page:
        raise NotImplementedError

    def close(self) -> None:
        pass


def failing(code: str) -> Answer:
    return lambda entries: TransportError(code, "no")


def refusing(code: str, *numbers: int) -> Answer:
    """Return an answer that refuses the entries of these numbers."""

    def answer(entries: Sequence[Mapping[str, Any]]) -> TransportError | None:
        found = [index for index, entry in enumerate(entries) if entry["jsonPayload"]["n"] in numbers]
        return TransportError(code, "no", entry_errors={index: TransportError(code, f"not {index}") for index in found})

    return answer


def sent_by(transport: Scripted, count: int = 10) -> tuple[EntriesSent, list[float]]:
    """Record entries and send them; return the result and the waits."""
    log = RunLog("run-1", location="here", project="", labels={"job": "run-1"}, is_shipped=False)
    for number in range(count):
        log.write("n", {"n": number})
    log.close(5)
    slept: list[float] = []
    root = diagnostics_directory()
    return send_entries("run-1", transport, root=root, location="there", sleep=slept.append), slept  # type: ignore[arg-type]


def test_a_failure_that_passes_is_waited_for() -> None:
    transport = Scripted(failing("UNAVAILABLE"), failing("RESOURCE_EXHAUSTED"))
    sent, slept = sent_by(transport)
    assert (sent.sent, transport.taken, len(slept)) == (10, list(range(10)), 2)


def test_an_entry_that_is_refused_temporarily_is_sent_again_alone() -> None:
    transport = Scripted(refusing("RESOURCE_EXHAUSTED", 3, 4))
    sent, slept = sent_by(transport)
    assert (sent.sent, sent.refused, sorted(transport.taken), len(slept)) == (10, 0, list(range(10)), 1)
    assert transport.taken[-2:] == [3, 4]


def test_a_refused_entry_is_counted_and_does_not_delay_the_others() -> None:
    sent, slept = sent_by(Scripted(refusing("INVALID_ARGUMENT", 3, 4)))
    assert (sent.sent, sent.refused, sent.why_refused, slept) == (8, 2, "not 3", [])


def test_a_batch_that_is_refused_as_a_whole_is_halved_until_the_refused_entry_is_found() -> None:
    def answer(entries: Sequence[Mapping[str, Any]]) -> TransportError | None:
        is_bad = any(entry["jsonPayload"]["n"] == 7 for entry in entries)
        return TransportError("INVALID_ARGUMENT", "no") if is_bad else None

    sent, _ = sent_by(Scripted(*[answer] * 30))
    assert (sent.sent, sent.refused) == (9, 1)


@pytest.mark.parametrize("index", [-1, 5000])
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INVALID_ARGUMENT"])
def test_a_refusal_of_an_entry_that_was_not_sent_is_retried_and_refuses_no_entry(code: str, index: int) -> None:
    transport = Scripted(lambda _: TransportError(code, "no", entry_errors={index: TransportError(code, "not it")}))
    sent, slept = sent_by(transport)
    assert (sent.sent, sent.refused, transport.taken[-10:], len(slept)) == (10, 0, list(range(10)), 1)


def test_a_log_that_refuses_each_entry_is_an_error_and_no_entry_is_marked_as_sent() -> None:
    with pytest.raises(TransportError, match="not 9"):
        sent_by(Scripted(refusing("INVALID_ARGUMENT", *range(10))))
    sent, _ = sent_by(Scripted(), count=0)
    assert sent.sent == 10


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "INVALID_ARGUMENT"])
def test_a_refusal_of_every_entry_is_an_error_and_no_entry_is_marked_as_sent(code: str) -> None:
    transport = Scripted(*[failing(code)] * 30)
    with pytest.raises(TransportError, match=code):
        sent_by(transport)
    transport.answers = []
    sent, _ = sent_by(transport, count=0)
    assert sent.sent == 10


def test_entries_carry_their_log_and_resource_labels() -> None:
    seen: list[Mapping[str, Any]] = []
    sent_by(Scripted(lambda entries: seen.extend(entries)))
    assert {entry["logName"] for entry in seen} == {"projects/p/logs/ml_diagnostics_metric"}
    labels = seen[0]["resource"]["labels"]
    assert labels == {"project_id": "p", "location": "there", "namespace": "n", "node_id": "run-1"}


def test_files_that_xprof_writes_beside_a_profile_are_not_profiles(tmp_path: Path) -> None:
    session = tmp_path / "plugins" / "profile" / "s1"
    session.mkdir(parents=True)
    left = [
        "ALL_HOSTS.op_stats_v2.pb",
        ".cached_tools.json",
        "cache_version.txt",
        "jit_step(7).hlo_proto.pb",
        "h.SSTABLE",
    ]
    for name in ["host-0.xplane.pb", "host-0.trace.json.gz", ".host-1.xplane.pb.77.tmp", *left]:
        (session / name).touch()
    assert sorted(profile_files([tmp_path])) == ["s1/host-0.trace.json.gz", "s1/host-0.xplane.pb"]


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_profile_that_is_not_a_regular_file_is_neither_waited_for_nor_read(tmp_path: Path, kind: str) -> None:
    session = tmp_path / "run" / "plugins" / "profile" / "s1"
    session.mkdir(parents=True)
    (session / "host-0.xplane.pb").write_bytes(b"profile")
    found = profile_files([tmp_path / "run"])
    # Replaced after it was found.
    path = session / "host-0.xplane.pb"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    outcome: list[Any] = []

    def send() -> None:
        try:
            outcome.append(send_profiles(found, str(tmp_path / "there"), staging=tmp_path / "staged"))
        except OSError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(30)
    [message] = outcome
    assert "it is not a regular file" in message
    assert str(path) in message
    assert profile_files([tmp_path / "run"]) == {}
    assert path.exists()
