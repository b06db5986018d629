"""Notes of a report on hosts and on its data, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from ml_diagnostics_common.texts import format_count, one_line

from ml_diagnostics_fleet.lemons import LemonHosts
from ml_diagnostics_fleet.overview import DataQuality

__all__ = ["host_notes", "quality_notes"]

_MOST_HOSTS = 5
_MOST_GAPS = 3
_LONGEST_NAME = 60
_KINDS = {
    "failed": "could not be read",
    "no time": "without a known time",
    "gaps": "with gaps",
    "lost": "that lost entries",
    "skipped": "with entries that are not valid",
    "no end": "with processes without an end",
    "no chips": "without chips, in no chip-hours and no amount",
    "no team": "without a team",
    "no price": "without a price, in no amount",
}


def host_notes(hosts: LemonHosts) -> Iterator[str]:
    """Yield which hosts fail too often, and what the data can show."""
    if not hosts.blamed:
        yield "none can be listed, since no disruption names a host: `goodput fleet causes` asks the doctor for causes"
        return
    lemons = hosts.lemons
    if lemons:
        names = [
            f"{_name(one.host.host)} ({one.host.blamed} disruptions, {one.expected:.1f} expected)"
            for one in lemons[:_MOST_HOSTS]
        ]
        names += ["..."] if len(lemons) > _MOST_HOSTS else []
        yield f"{format_count(len(lemons), 'host fails', 'hosts fail')} too often: {', '.join(names)}"
    findable = [group.findable for group in hosts.groups]
    known = [factor for factor in findable if factor is not None]
    if len(known) == len(findable):
        yield f"these data could find a host that fails {max(known):g} x as often as the others, or more"
    elif known:
        count = format_count(len(findable) - len(known), "accelerator and zone", "accelerators and zones")
        yield f"these data could find a host that fails {max(known):g} x as often or more, but none of {count}"
    else:
        yield "these data could find no host: too few hosts or disruptions"
    if hosts.absent:
        yield f"{format_count(hosts.absent, 'disruption')} with a host that was part of no attempt are left out"


def quality_notes(quality: DataQuality) -> Iterator[str]:
    """Yield a note for each kind of problem of the data."""
    for kind, text in _KINDS.items():
        count = quality.counts.get(kind, 0)
        if count:
            names = ", ".join(map(_name, quality.examples[kind]))
            names += ", ..." if count > len(quality.examples[kind]) else ""
            missing = f": incomplete, {format_count(quality.missing, 'entry', 'entries')} missing"
            yield f"{format_count(count, 'job')} {text} ({names}){missing if kind == 'gaps' else ''}"
    for gap in quality.gaps[:_MOST_GAPS]:
        yield f"entries {gap.first:,} to {gap.last:,} of {_name(gap.writer)} are missing, in {_name(gap.log)}"
    if len(quality.gaps) > _MOST_GAPS:
        yield f"... {format_count(len(quality.gaps) - _MOST_GAPS, 'more gap')}: `goodput fleet compact` lists all"


def _name(text: str) -> str:
    return one_line(text, _LONGEST_NAME)
