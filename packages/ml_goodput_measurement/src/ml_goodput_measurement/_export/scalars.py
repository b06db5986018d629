"""Scalars by tag: the part of a job's whole life that TensorBoard shows."""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from ml_goodput_measurement.metric_details import UnproductiveTimeDict
from ml_goodput_measurement.snapshot import Cumulative

__all__ = ["STEP_DEVIATION", "Scalar", "cumulative_scalars", "custom_event_tags", "single_precision"]

STEP_DEVIATION = "step_deviation"

_GOODPUT = "goodput/goodput"
_BADPUT = "badput"
_UNUSUAL = re.compile(r"[^-/\w.]")  # What tensorboardX takes out of a tag.
_LONGEST_NAME = 100  # characters


class Scalar(NamedTuple):
    """One value of a job."""

    tag: str
    display_name: str
    value: float
    """Percent, in single precision as event files keep it."""


def cumulative_scalars(cumulative: Cumulative, *, include_badput_breakdown: bool) -> list[Scalar]:
    """Return goodput, and each kind of badput if included, in percent; without values that are not finite."""
    shares = [(_GOODPUT, "goodput", cumulative.goodput_percent)]
    if include_badput_breakdown:
        shares += _badput_shares(cumulative.badput_percent)
    values = [(tag, display_name, single_precision(share)) for tag, display_name, share in shares]
    return [Scalar(tag, display_name, value) for tag, display_name, value in values if value is not None]


def custom_event_tags(names: Iterable[str]) -> dict[str, str]:
    """Return a tag for each custom event, in the spelling of tensorboardX.

    Letters, digits and `._-/` stay, other characters become `_`. If two tags would be equal, an event with that name
    keeps it, and a digest of the name is appended to the other. Long names are cut, and get a digest, too.

    Args:
        names: The events' names, of any length and content.

    Returns:
        Tags by name, lower case.
    """
    spelled = {name: _spelled(name) for name in names}
    tags: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(spelled, key=lambda name: (spelled[name] != name.lower(), name)):
        tags[name] = next(tag for tag in _candidates(spelled[name], name) if tag not in taken)
        taken.add(tags[name])
    return tags


def single_precision(value: float) -> float | None:
    """Return the value in the precision of event files; None if it is not finite there."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except (OverflowError, struct.error):
        return None
    return float(single) if abs(single) < float("inf") else None


def _badput_shares(badput: UnproductiveTimeDict) -> list[tuple[str, str, float]]:
    shares = []
    for kind, share in badput.items():
        name = kind.name.lower()
        if isinstance(share, dict):
            tags = custom_event_tags(share)
            shares += [(f"{_BADPUT}/{name}/{tags[event]}", _shown(event), share[event]) for event in share]
        else:
            shares.append((f"{_BADPUT}/{name}", name, share))
    return shares


def _spelled(name: str) -> str:
    tag = _UNUSUAL.sub("_", name.lower()) or "_"
    return tag if len(tag) <= _LONGEST_NAME else f"{tag[: _LONGEST_NAME - 9]}.{_digest(name)}"


def _candidates(tag: str, name: str) -> Iterable[str]:
    yield tag
    for number in itertools.count():
        yield f"{tag[: _LONGEST_NAME - 9]}.{_digest(name, number)}"


def _digest(name: str, number: int = 0) -> str:
    return hashlib.sha256(f"{number} {name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _shown(name: str) -> str:
    """Return the name for people: one line, of limited length."""
    line = "".join(character if character.isprintable() else " " for character in name.lower())
    return line if len(line) <= _LONGEST_NAME else line[: _LONGEST_NAME - 1] + "…"
