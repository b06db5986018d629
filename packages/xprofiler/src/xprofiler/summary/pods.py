"""Steps and hosts from XProf's pod viewer, which has each step on each core of each host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from xprofiler.summary.host_operations import ProfileWindow
from xprofiler.summary.host_time import HostTime
from xprofiler.summary.summary import HOST_PARTS, OTHERS, Host, Step

__all__ = ["CoreStep", "core_steps", "host_steps", "hosts_of", "numbered", "steps_of"]

_CORES_OF_A_HOST: Final = 1000  # XProf 2.24 numbers cores by 1000 * index of the host's file + device.


class CoreStep(NamedTuple):
    """One step on one core.

    Attributes:
        step: The number of the step.
        core: XProf's number of the core.
        host: The name of the host's file.
        duration_us: The duration in microseconds.
        parts_us: The breakdown of the duration in microseconds, by XProf's names.
    """

    step: str
    core: str
    host: str
    duration_us: float
    parts_us: Mapping[str, float]


def core_steps(pods: Mapping[str, Any], hosts: Sequence[str]) -> list[list[CoreStep]]:
    """Return the steps, each with all its cores.

    XProf's name of a host is the machine's host name, which several processes may share, so the files' names are used.

    Args:
        pods: The data of XProf's pod viewer.
        hosts: The hosts, in the order of the files that were passed to XProf.
    """
    names = {str(event["id"]): str(event["name"]) for event in pods.get("stepBreakdownEvents", ())}
    steps = []
    for entry in pods.get("podStatsSequence", {}).get("podStatsMap", ()):
        of_step = []
        for core, values in entry["podStatsPerCore"].items():
            spent_us = values["stepBreakdownUs"].items()
            parts = {names.get(number, OTHERS): float(spent) for number, spent in spent_us if spent > 0}
            index = int(core) // _CORES_OF_A_HOST
            host = hosts[index] if index < len(hosts) else str(values["hostName"])
            of_step.append(CoreStep(str(entry["stepNum"]), core, host, float(values["totalDurationUs"]), parts))
        if of_step:
            steps.append(of_step)
    return steps


def host_steps(times: Mapping[str, HostTime]) -> list[list[CoreStep]]:
    """Return the steps that programs marked on the hosts, in order, each with all hosts that have it.

    XProf's own table lacks their numbers, and reports all time of a host as "Host compute".
    """
    steps: dict[int, list[CoreStep]] = {}
    for host, time in times.items():
        for step in time.steps:
            parts: dict[str, float] = {}
            for kind, spent_ns in step.spent_ns.items():
                part = HOST_PARTS.get(kind, OTHERS)
                parts[part] = parts.get(part, 0.0) + spent_ns / 1e3
            duration_us = (step.end_ns - step.start_ns) / 1e3
            steps.setdefault(step.number, []).append(CoreStep(str(step.number), host, host, duration_us, parts))
    return [steps[number] for number in sorted(steps)]


def numbered(rounds: Sequence[Sequence[CoreStep]], times: Iterable[HostTime]) -> list[list[CoreStep]]:
    """Return XProf's steps with the program's numbers.

    XProf numbers the marked steps of a host from 0, in the order of their starts.
    """
    roots = next((time.roots for time in times if time.roots), [])
    indices = [int(step) if (step := of_step[0].step).isdigit() else len(roots) for of_step in rounds]
    if any(index >= len(roots) for index in indices):
        return [list(of_step) for of_step in rounds]
    return [
        [core._replace(step=str(roots[index])) for core in of_step]
        for index, of_step in zip(indices, rounds, strict=True)
    ]


def steps_of(rounds: Sequence[Sequence[CoreStep]]) -> list[Step]:
    """Return each step on its slowest core."""
    steps = []
    for of_step in rounds:
        slowest = max(of_step, key=lambda core: (core.duration_us, core.host, core.core))
        hosts = {core.host for core in of_step if core.duration_us == slowest.duration_us}
        is_alone = len(hosts) == 1 and len({core.host for core in of_step}) > 1
        alone = slowest.host if is_alone else ""
        steps.append(Step(slowest.step, slowest.duration_us, slowest.parts_us, alone))
    return steps


def hosts_of(
    sizes: Mapping[str, int],
    windows: Mapping[str, ProfileWindow],
    rounds: Sequence[Sequence[CoreStep]],
    steps: Sequence[Step],
) -> list[Host]:
    """Return the hosts.

    Args:
        sizes: The size of each host's file in bytes.
        windows: The profiled time of each host.
        rounds: The steps on all cores.
        steps: The steps on their slowest cores.
    """
    first_ns = min((window.start_ns for window in windows.values() if window.start_ns), default=0)
    hosts = []
    for host in sorted(sizes):
        start_ns = windows.get(host, ProfileWindow()).start_ns
        own = [core for of_step in rounds for core in of_step if core.host == host]
        spent_us = sum(core.duration_us for core in own)
        others_us = sum(core.parts_us.get(OTHERS, 0.0) for core in own)
        hosts.append(
            Host(
                name=host,
                size_bytes=sizes[host],
                cores=len({core.core for core in own}),
                start_offset_us=(start_ns - first_ns) / 1e3 if start_ns else None,
                step_us=spent_us / len(own) if own else None,
                waiting_percent=100 * others_us / spent_us if spent_us else None,
                slowest_steps=sum(step.slowest_host == host for step in steps),
            )
        )
    return hosts
