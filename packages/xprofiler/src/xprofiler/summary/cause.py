"""The cause that limits a job, from the breakdown of its hosts' time. Pure functions.

A cause is only derived from measurements. If the profile shows neither devices nor the host's thread, there is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from ml_diagnostics_common.texts import format_count, format_duration, format_percent

from xprofiler.summary.host_time import HostTime, Label
from xprofiler.summary.summary import OTHERS, Activity, ActivityKind, Cause, Compilations, Host, SlowHost

__all__ = ["activities_of", "cause_of", "compilations_of", "slow_host_of", "time_percent_of"]

_SLOW_RATIO: Final = 1.3  # Smaller differences are noise of other programs on the hosts.
_HELD_UP_PERCENT: Final = 20.0
_SHOWN_PERCENT: Final = 0.1
_NAMED_PERCENT: Final = 10.0
_MOST_ACTIVITIES: Final = 40
_UNANNOTATED: Final = frozenset({ActivityKind.NONE, ActivityKind.PYTHON})


def time_percent_of(times: Sequence[HostTime]) -> dict[str, float]:
    """Return the breakdown of the hosts' time in percent, by the values of `ActivityKind`, the largest first."""
    percent = {kind.value: sum(_percents(times, {kind}).values()) for kind in ActivityKind}
    return dict(sorted(((kind, share) for kind, share in percent.items() if share), key=lambda item: -item[1]))


def activities_of(times: Sequence[HostTime]) -> list[Activity]:
    """Return the hosts' activities by name, the longest first, without those below 0.1 percent."""
    whole_ns = sum(time.whole_ns for time in times)
    calls: dict[Label, tuple[int, int]] = {}
    for time in times:
        for label, (runs, spent_ns) in time.calls.items():
            known_runs, known_ns = calls.get(label, (0, 0))
            calls[label] = known_runs + runs, known_ns + spent_ns
        for label, spent_ns in time.spent_ns.items():
            if label.kind is ActivityKind.PYTHON:
                calls[label] = 0, calls.get(label, (0, 0))[1] + spent_ns
    found = [
        Activity(label.kind, label.name, runs, spent_ns / 1e3, min(100.0, 100 * spent_ns / whole_ns))
        for label, (runs, spent_ns) in calls.items()
        if 100 * spent_ns >= _SHOWN_PERCENT * whole_ns
    ]
    return sorted(found, key=lambda activity: (-activity.spent_us, activity.name))[:_MOST_ACTIVITIES]


def compilations_of(times: Sequence[HostTime]) -> Compilations | None:
    """Return the compilations during steps; None if there were none."""
    spent_ns = sum(
        spent for time in times for label, spent in time.spent_ns.items() if label.kind is ActivityKind.COMPILATION
    )
    count = sum(time.compilations for time in times)
    if not count:
        return None
    return Compilations(count, spent_ns / 1e9, 100 * spent_ns / sum(time.whole_ns for time in times))


def slow_host_of(hosts: Sequence[Host], times: Mapping[str, HostTime]) -> SlowHost | None:
    """Return the host that is much slower than the median of the others.

    Hosts that run one program wait for the slowest one in a collective operation, which counts as computation: then
    their steps take equally long, and the slow one is the one that computes less.

    Args:
        hosts: The hosts, with the mean time of their steps.
        times: The breakdown of each host's time.
    """
    step_us = {host.name: host.step_us for host in hosts if host.step_us}
    if len(step_us) < 2:
        return None
    slowest = max(step_us, key=lambda name: step_us[name])
    ratio = _by_the_others(step_us, slowest)
    if ratio >= _SLOW_RATIO:
        return SlowHost(slowest, ratio)
    own = {name: 100.0 - _computed_percent(time) for name, time in times.items() if name in step_us}
    if len(own) < len(step_us):
        return None
    busiest = max(own, key=lambda name: own[name])
    more = own[busiest] - statistics.median(percent for name, percent in own.items() if name != busiest)
    return SlowHost(busiest, _by_the_others(step_us, busiest), more) if more >= _HELD_UP_PERCENT else None


def _by_the_others(step_us: Mapping[str, float], host: str) -> float:
    return step_us[host] / statistics.median(spent for name, spent in step_us.items() if name != host)


def _computed_percent(time: HostTime) -> float:
    return sum(_percents([time], {ActivityKind.COMPUTATION}).values())


def cause_of(
    times: Mapping[str, HostTime], parts_us: Mapping[str, float], slow_host: SlowHost | None, devices: int
) -> Cause | None:
    """Return the cause with the largest share of the steps' time.

    Args:
        times: The breakdown of each host's time.
        parts_us: The breakdown of the mean step on the devices; empty if XProf has not measured it.
        slow_host: The slow host, if there is one; then only its time counts.
        devices: The number of device cores in the profile.
    """
    if slow_host is not None and slow_host.host in times:
        times = {slow_host.host: times[slow_host.host]}
    cause = _of_hosts(list(times.values()), devices)
    if parts_us and devices and (cause is None or cause.kind == ActivityKind.COMPUTATION):
        cause = _of_devices(parts_us)
    if slow_host is None:
        return cause
    several = f"host {slow_host.host} takes {slow_host.ratio:.1f} times as long as the others"
    if slow_host.held_up_percent:
        held_up = format_percent(slow_host.held_up_percent)
        several = f"the other hosts wait for host {slow_host.host} for up to {held_up} of the step"
    if cause is None:
        return Cause("slow host", 0.0, several)
    return Cause(cause.kind, cause.percent, f"{several}; there, {cause.text}")


def _of_devices(parts_us: Mapping[str, float]) -> Cause:
    part = max(parts_us, key=lambda name: parts_us[name])
    percent = 100 * parts_us[part] / (sum(parts_us.values()) or 1.0)
    share = f"{format_percent(percent)} of the step"
    if part == OTHERS:
        return Cause(part, percent, f"the devices were idle for {share}, and the profile does not show why")
    bound = "compute-bound: " if part == "Device compute" else ""
    return Cause(part, percent, f"{bound}{part} takes {share}")


def _of_hosts(times: Sequence[HostTime], devices: int) -> Cause | None:
    shares = {kind: sum(_percents(times, {kind}).values()) for kind in ActivityKind if kind not in _UNANNOTATED}
    shares[ActivityKind.NONE] = sum(_percents(times, _UNANNOTATED).values())
    if not any(shares.values()):
        return None
    kind = max(shares, key=lambda each: shares[each])
    whole = "the step" if any(time.steps for time in times) else "the profile"
    share = f"{format_percent(shares[kind])} of {whole}"
    named = _named(_percents(times, {kind}))
    if kind is ActivityKind.COMPUTATION:
        what = "the devices computed" if devices else "XLA operations ran"
        text = f"compute-bound: {what} for {share}"
    elif kind is ActivityKind.COMPILATION:
        found = compilations_of(times)
        how_many = f" ({format_count(found.count, 'compilation')}, {format_duration(found.seconds)})" if found else ""
        text = f"compilation takes {share}{how_many}"
    elif kind is ActivityKind.TRANSFER:
        text = f"transfers between host and device take {share}: {', '.join(named)}"
    elif kind is ActivityKind.ANNOTATION:
        names = _percents(times, {kind})
        first = max(names, key=lambda name: names[name])
        text = ", ".join([f"{first} takes {format_percent(names[first])} of {whole}", *named[1:]])
    elif kind is ActivityKind.RUNTIME:
        text = f"calls of JAX and XLA take {share}: {', '.join(named)}"
    else:
        functions = _percents(times, {ActivityKind.PYTHON})
        text = f"the host was in no annotated region for {share}"
        longest = max(functions, key=lambda name: functions[name], default="")
        if longest and functions[longest] >= shares[kind] / 2:
            text += f"; Python was in {longest} for {format_percent(functions[longest])}"
    return Cause(kind.value, shares[kind], text)


def _percents(times: Sequence[HostTime], kinds: frozenset[ActivityKind] | set[ActivityKind]) -> dict[str, float]:
    """Return the shares of the hosts' time for some kinds, in percent, by name."""
    whole_ns = sum(time.whole_ns for time in times)
    found: dict[str, float] = {}
    for time in times:
        for label, spent_ns in time.spent_ns.items():
            if label.kind in kinds:
                found[label.name] = found.get(label.name, 0.0) + 100 * spent_ns / whole_ns
    return found


def _named(percents: Mapping[str, float]) -> list[str]:
    """Return the names with the most time: the longest, and up to two others of at least 10 percent."""
    longest = sorted(percents.items(), key=lambda item: -item[1])[:3]
    return [
        f"{name} {format_percent(share)}"
        for name, share in longest
        if share >= _NAMED_PERCENT or share == longest[0][1]
    ]
