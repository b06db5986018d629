"""The size limit of an entry. A larger entry is cut, so that Cloud Logging does not refuse it.

Limits: https://cloud.google.com/logging/quotas (a LogEntry 256 KiB, a write request 10 MB).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.entry import LogEntry

__all__ = ["CUT_KEY", "MOST_PAYLOAD_BYTES", "NEVER_TOO_LARGE_BYTES", "cut_to_fit", "payload_bytes"]

MOST_PAYLOAD_BYTES = 200 * 1024
"""Less than the 256 KiB of an entry, which has labels, a resource and names, too."""

NEVER_TOO_LARGE_BYTES = 16 * 1024
"""A payload shorter than this as JSON fits: a digit and its comma become at most twelve bytes of protobuf."""

CUT_KEY = "cut_to_fit"
"""The key, in the payload of an entry that was cut, that describes what was cut."""

_KEPT_BYTES = 1024
_NEVER_CUT = ("job_name",)


def payload_bytes(value: Any) -> int:
    """Return the size of a value as google.protobuf.Value, within a few percent, rather too large."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace")) + 8
    if isinstance(value, Mapping):
        return 8 + sum(len(key.encode("utf-8", "replace")) + 12 + payload_bytes(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 8 + sum(4 + payload_bytes(item) for item in value)
    return 12


def cut_to_fit(entry: LogEntry, most_bytes: int = MOST_PAYLOAD_BYTES) -> list[str]:
    """Cut an entry's payload, largest values first, until it fits; the payload then has the key `CUT_KEY`.

    Args:
        entry: The entry; its payload is replaced if it is too large.
        most_bytes: The limit of the payload.

    Returns:
        The keys that were cut; empty if the entry fits.
    """
    sizes = {key: payload_bytes(value) + len(key.encode("utf-8", "replace")) for key, value in entry.payload.items()}
    total = payload_bytes(entry.payload)
    if total <= most_bytes:
        return []
    payload, cut = dict(entry.payload), []
    for key in sorted(sizes, key=lambda key: sizes[key], reverse=True):
        if total <= most_bytes - 2 * _KEPT_BYTES:
            break
        if key in _NEVER_CUT:
            continue
        if len(key) > _KEPT_BYTES:
            del payload[key]
            total -= sizes[key]
        else:
            payload[key] = _remainder(payload[key], sizes[key])
            total -= sizes[key] - payload_bytes(payload[key]) - len(key)
        cut.append(key[:_KEPT_BYTES])
    if total > most_bytes:  # Very many small values, or a huge job name: nothing of it can be kept.
        payload = {key: str(payload[key])[:_KEPT_BYTES] for key in _NEVER_CUT if key in payload}
        cut = ["everything"]
    payload[CUT_KEY] = {
        "entry_bytes": payload_bytes(entry.payload),
        "keys": ", ".join(cut)[:_KEPT_BYTES],
        "why": "Cloud Logging takes 256 KiB an entry; the journal has it whole",
    }
    entry.payload = payload
    return cut


def _remainder(value: Any, size_bytes: int) -> str:
    beginning = value[: _KEPT_BYTES // 4] if isinstance(value, str) else ""
    return f"{beginning}... ({size_bytes} bytes cut)"
