"""The doctor's report in a case file: written when the file is made, read back by `mldiagnostics doctor case.html`.

The report is kept as it was judged, with what its texts need of the facts, and the entries of its evidence as `doctor
explain` prints them: the entries of a job themselves would be larger than the file may be.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from google_cloud_mldiagnostics.reading import State
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.files import read_regular
from ml_diagnostics_common.redaction import redact, redact_text
from ml_diagnostics_common.story import Confidence, Story

from ml_diagnostics_console._explanation import explain_verdict
from ml_diagnostics_console._facts.facts import AttemptFacts, Facts
from ml_diagnostics_console._facts.reading import JobReader
from ml_diagnostics_console._logs.lines import safe
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.report import Report
from ml_diagnostics_console.verdict import NotChecked, Verdict

__all__ = ["CaseReports", "encoded_reports", "read_case", "without_secrets", "zipped"]

_SCHEMA: Final = 1
_MOST_ATTEMPTS: Final = 20
_MOST_EXPLAINED: Final = 5
_MOST_TEXT: Final = 65_536
_MOST_FILE_BYTES: Final = 64 * 2**20
_MOST_BLOCK_BYTES: Final = 16 * 2**20
_BLOCK: Final = re.compile(rb'<script type="text/plain" data-report>([A-Za-z0-9+/=\s]*)</script>')


@dataclass(frozen=True, slots=True)
class CaseReports:
    """The doctor's part of a case file.

    Attributes:
        last: The report on the last attempt, as `doctor RUN` prints it.
        attempts: The reports on each attempt; of many, the last ones.
        explanations: The output of `doctor explain RUN/N` for the first verdicts of `last`.
        notes: Sentences on what could not be read.
    """

    last: Report
    attempts: tuple[Report, ...]
    explanations: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict_count(self) -> int:
        """The number of verdicts of the last report."""
        return max(1, len(self.last.verdicts))


def encoded_reports(reader: JobReader) -> tuple[Report, bytes]:
    """Return the doctor's report on a job, and all of its reports as JSON, without secrets.

    Args:
        reader: Reads the job.

    Raises:
        DiagnosticsError: The job cannot be read.
    """
    facts = reader.read()
    last = _safe_report(judge(facts))
    first = max(0, len(facts.attempts) - _MOST_ATTEMPTS)
    numbers = range(first, len(facts.attempts))
    is_of_last = facts.judged if not facts.is_live or facts.judged == len(facts.attempts) - 1 else None
    attempts = [last if index == is_of_last else _safe_report(judge(facts.of_attempt(index))) for index in numbers]
    verdicts = [last.headline, *(each for each in last.verdicts if each is not last.headline)][:_MOST_EXPLAINED]
    ids = {ref.id for verdict in verdicts for ref in verdict.evidence}
    entries = reader.entries(ids) if ids else {}
    for entry in entries.values():  # Before they are wrapped into lines, where a secret is no longer recognized.
        entry.payload = redact(entry.payload)
    texts = [explain_verdict(last, verdict, entries=entries)[:_MOST_TEXT] for verdict in verdicts]
    value = {
        "schema": _SCHEMA,
        "last": _as_value(last),
        "attempts": [_as_value(each) for each in attempts],
        "explanations": texts,
        "notes": [redact_text(note) for note in facts.notes],
    }
    return last, msgspec.json.encode(value)


def read_case(path: Path) -> CaseReports:
    """Return the doctor's part of a case file.

    Raises:
        CommandError: It is not a case file, or is damaged.
        OSError: It cannot be read.
    """
    found = _BLOCK.search(read_regular(path, _MOST_FILE_BYTES))
    if found is None:
        raise CommandError(f"{path} is not a case file with the doctor's report: `mldiagnostics export` makes one")
    try:
        value = msgspec.json.decode(_unzipped(found[1]))
        if value["schema"] != _SCHEMA:
            raise CommandError(f"{path} was made by another version: schema {value['schema']!r}, expected {_SCHEMA}")
        last, attempts = _report_of(value["last"]), tuple(map(_report_of, value["attempts"]))
        explanations = tuple(map(_safe_lines, msgspec.convert(value["explanations"], tuple[str, ...])))
        return CaseReports(last, attempts, explanations, msgspec.convert(value["notes"], tuple[str, ...]))
    except (ValueError, LookupError, TypeError, RecursionError, zlib.error, msgspec.MsgspecError) as error:
        raise CommandError(f"{path} is damaged: {type(error).__name__}") from error


def _safe_lines(text: str) -> str:
    """Return a text of the file for a terminal: it may be hostile."""
    return "\n".join(map(safe, text.split("\n")))


def _unzipped(base64_text: bytes) -> bytes:
    """Return the content of a block; it is bounded, since a small block may have a huge content."""
    try:
        data = base64.b64decode(base64_text)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    text = unzip.decompress(data, _MOST_BLOCK_BYTES)
    if unzip.unconsumed_tail:
        raise ValueError("too large")
    if not unzip.eof:
        raise ValueError("truncated")
    return text


def _as_value(report: Report) -> dict[str, Any]:
    facts = report.facts
    return {
        "name": facts.name,
        "display_name": redact_text(facts.display_name),
        "now_ns": facts.now_ns,
        "is_live": facts.is_live,
        "attempts": [attempt.number for attempt in facts.attempts],
        "judged": facts.judged,
        "entry_count": facts.entry_count,
        "verdicts": report.verdicts,
        "shown": [report.verdicts.index(each) for each in report.shown],
        "not_checked": [list(each) for each in report.not_checked],
        "observations": report.observations,
    }


def _report_of(value: dict[str, Any]) -> Report:
    numbers = msgspec.convert(value["attempts"], list[int])
    judged = msgspec.convert(value["judged"], int | None)
    if judged is not None and not 0 <= judged < len(numbers):
        raise ValueError("no such attempt")
    facts = Facts(
        name=msgspec.convert(value["name"], str),
        display_name=msgspec.convert(value["display_name"], str),
        now_ns=msgspec.convert(value["now_ns"], int),
        is_live=msgspec.convert(value["is_live"], bool),
        attempts=tuple(_attempt(number) for number in numbers),
        judged=judged,
        entry_count=msgspec.convert(value["entry_count"], int),
    )
    verdicts = msgspec.convert(value["verdicts"], tuple[Verdict, ...])
    shown = tuple(verdicts[index] for index in msgspec.convert(value["shown"], list[int]))
    not_checked = tuple(NotChecked(*msgspec.convert(each, tuple[str, str, bool])) for each in value["not_checked"])
    return Report(facts, verdicts, shown, not_checked, msgspec.convert(value["observations"], tuple[str, ...]))


def _safe_report(report: Report) -> Report:
    """Return a report without the secrets in its texts."""
    verdicts = msgspec.convert(without_secrets(msgspec.to_builtins(report.verdicts)), tuple[Verdict, ...])
    shown = tuple(verdicts[report.verdicts.index(each)] for each in report.shown)
    not_checked = tuple(each._replace(why=redact_text(each.why)) for each in report.not_checked)
    return replace(
        report,
        verdicts=verdicts,
        shown=shown,
        not_checked=not_checked,
        observations=tuple(map(redact_text, report.observations)),
    )


def _attempt(number: int) -> AttemptFacts:
    """Return an attempt of which the number alone is kept."""
    nothing = Story((), (), Confidence.POSSIBLE)
    return AttemptFacts(number, State.UNKNOWN, "", None, None, (), nothing)


def without_secrets(value: Any) -> Any:
    """Return a value of JSON without the secrets in its texts and keys."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact_text(key): without_secrets(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    return value


def zipped(data: bytes) -> str:
    """Return data as gzip in base64, as blocks of a case file have it."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
