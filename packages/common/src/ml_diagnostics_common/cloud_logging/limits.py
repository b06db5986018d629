"""What one entry may weigh, and how a heavier one is cut, so that it does not spoil the batch that it is in.

Limits: https://cloud.google.com/logging/quotas (a LogEntry 256 KiB, a write request 10 MB).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.entry import LogEntry

__all__ = ["CUT_KEY", "MOST_PAYLOAD_BYTES", "NEVER_TOO_LARGE_BYTES", "cut_to_fit", "payload_bytes"]

MOST_PAYLOAD_BYTES = 200 * 1024
"""Leaves room for labels, resource and names below the 256 KiB of an entry."""

NEVER_TOO_LARGE_BYTES = 16 * 1024
"""A payload shorter than this as JSON fits: a digit and its comma become twelve bytes of protobuf at most."""

CUT_KEY = "cut_to_fit"
"""Names, in the payload of an entry that was cut, what was cut from it."""

_KEPT_BYTES = 1024
_NEVER_CUT = ("job_name",)


def payload_bytes(value: Any) -> int:
    """What a value weighs as google.protobuf.Value, within a few percent, and rather too much."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace")) + 8
    if isinstance(value, Mapping):
        return 8 + sum(len(key.encode("utf-8", "replace")) + 12 + payload_bytes(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 8 + sum(4 + payload_bytes(item) for item in value)
    return 12


def cut_to_fit(entry: LogEntry, most_bytes: int = MOST_PAYLOAD_BYTES) -> list[str]:
    """Cuts an entry's payload, largest values first, until it fits; the payload then says so itself.

    Args:
        entry: The entry, whose payload is replaced if it is too large.
        most_bytes: What the payload may weigh.

    Returns:
        The keys that were cut, empty if the entry fits as it is.
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
    if total > most_bytes:  # A great many small values, or a monstrous job name: nothing of it can be kept.
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
