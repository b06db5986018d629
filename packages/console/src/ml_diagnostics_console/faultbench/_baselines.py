"""Simple methods, for comparison: what people and simpler tools conclude from a stored run alone.

They are given what they would have: the console text, the exit codes, the entries of ends. None sees the label.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ml_diagnostics_console.faultbench._asking import Answer, Tool
from ml_diagnostics_console.faultbench._histories import History
from ml_diagnostics_console.verdict import VerdictClass

__all__ = ["BASELINES"]

_ERROR_LINE: Final = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*|^Fatal Python error.*|^F\d{4} .*"
)
_INFO: Final = re.compile(r"^I\d{4} .*$", re.MULTILINE)
"""INFO lines of native code."""
_PATTERNS: Final = (
    (re.compile(r"out of memory|MemoryError|oom|Unable to allocate", re.IGNORECASE), VerdictClass.CRASH),
    (re.compile(r"No space left|Input/output error|Permission denied"), VerdictClass.CRASH),
    (re.compile(r"Segmentation fault|SIGSEGV|core dumped"), VerdictClass.CRASH),
    (re.compile(r"SIGTERM|preempt", re.IGNORECASE), VerdictClass.CRASH),
    (re.compile(r"\bnan\b", re.IGNORECASE), VerdictClass.NUMBERS),
    (re.compile(r"DEADLINE_EXCEEDED|timed out|heartbeat", re.IGNORECASE), VerdictClass.STUCK),
    (re.compile(r"Traceback|\w+Error\b"), VerdictClass.CRASH),
)
"""In their order, as such lists are written: the specific ones first."""
_KUBERNETES_SIGNAL: Final = 128


def last_error_line(history: History) -> Answer:
    """The last error line of process 0, as one who opens the first log reads it."""
    if not history.outputs:
        return Answer(VerdictClass.UNKNOWN)
    lines = [line for line in history.outputs[0].splitlines() if _ERROR_LINE.match(line.strip())]
    if not lines:
        return Answer(VerdictClass.HEALTHY)
    return Answer(VerdictClass.CRASH, (0,), sentence=lines[-1].strip()[:200])


def exit_codes(history: History) -> Answer:
    """Exit codes alone: the first process with one that is not 0."""
    bad = [index for index, status in enumerate(history.exit_statuses) if status not in (0, None)]
    if bad:
        return Answer(VerdictClass.CRASH, (bad[0],), sentence=f"exit status {history.exit_statuses[bad[0]]}")
    is_over = all(status == 0 for status in history.exit_statuses)
    return Answer(VerdictClass.HEALTHY if is_over else VerdictClass.UNKNOWN)


def first_by_time(history: History) -> Answer:
    """The first entry of an end that is not clean, by its timestamp."""
    ends = [
        (entry["t"], labels, entry["p"])
        for labels, entry in _entries(history)
        if entry["p"].get("kind") in ("job_ended", "left_block") and entry["p"].get("how") not in ("clean", None)
    ]
    ends += [
        (entry["t"], labels, entry["p"])
        for labels, entry in _entries(history)
        if entry["p"].get("phase") == "FAILED" and "process_index" in entry["p"]
    ]
    if not ends:
        return Answer(VerdictClass.HEALTHY)
    _, labels, payload = min(ends, key=lambda end: end[0])
    return Answer(
        VerdictClass.CRASH, (int(labels.get("process_index") or 0),), sentence=str(payload.get("message", ""))
    )


def fixed_timeout(history: History) -> Answer:
    """A job without progress for 10 minutes is stuck, as a timer of a scheduler has it; it names no process.

    The bench ends such a job after seconds. A process that it had to end would have been there after 10 minutes.
    """
    return Answer(VerdictClass.STUCK if None in history.exit_statuses else VerdictClass.HEALTHY)


def kubernetes_reason(history: History) -> Answer:
    """The reason that a container's status would have: Error with a code, OOMKilled, or Completed; or the pod's."""
    for pod in (each for each in history.cluster if each["kind"] == "Pod"):
        index = int(pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", 0))
        phase, reason = pod["status"].get("phase"), str(pod["status"].get("reason", ""))
        if phase in ("Pending", "Failed"):
            verdict_class = VerdictClass.WAITING if phase == "Pending" else VerdictClass.CRASH
            return Answer(verdict_class, (index,), sentence=reason or phase)
    for index, status in enumerate(history.exit_statuses):
        if status is not None and status != 0:
            name = signal.Signals(-status).name if status < 0 else f"code {status}"
            code = _KUBERNETES_SIGNAL - status if status < 0 else status
            return Answer(VerdictClass.CRASH, (index,), sentence=f"Error, exit code {code} ({name})")
    return Answer(VerdictClass.HEALTHY)


def console_patterns(history: History) -> Answer:
    """A list of patterns over what all processes have printed but INFO; the first match counts, and its process."""
    outputs = [_INFO.sub("", output) for output in history.outputs]
    for pattern, verdict_class in _PATTERNS:
        for index, output in enumerate(outputs):
            if match := pattern.search(output):
                return Answer(verdict_class, (index,), sentence=match[0])
    return Answer(VerdictClass.HEALTHY)


BASELINES: Final[Mapping[str, Tool]] = {
    "last error line of process 0": last_error_line,
    "exit codes alone": exit_codes,
    "first entry by time": first_by_time,
    "fixed timeout of 10 min": fixed_timeout,
    "Kubernetes' reason alone": kubernetes_reason,
    "patterns over console text": console_patterns,
}


def _entries(history: History) -> Iterator[tuple[Mapping[str, str], dict[str, Any]]]:
    """Yield all entries of the journal, with their labels."""
    for path in sorted(history.diagnostics.rglob("*.jsonl")):
        labels: Mapping[str, str] = {}
        for line in path.read_bytes().split(b"\n"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "schema" in entry:
                labels = entry.get("labels", {})
            elif isinstance(entry.get("p"), dict):
                yield labels, entry
