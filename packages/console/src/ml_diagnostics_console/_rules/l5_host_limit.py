"""L5: a host is at the limit of one of its resources."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_bytes, format_percent

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import part_of, share_of_data, steady
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    NextCommand,
    NotChecked,
    Part,
    Ref,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_CPU: Final = "host_cpu_share"
_MEMORY: Final = ("container_memory_utilization", "host_memory_utilization")
_THROUGHPUT: Final = {
    "host_disk_read_throughput": "reading from disk",
    "host_network_receive_throughput": "receiving from the network",
}
_BANDWIDTH: Final = ("tpu_hbm_util", "tpu_runtime_hbm_utilization")
_DUTY: Final = ("tpu_duty_cycle", "gpu_duty_cycle")
_LEAST_CPU: Final = 90.0
_LEAST_MEMORY: Final = 95.0
_LEAST_BANDWIDTH: Final = 80.0
_BUSY_DUTY: Final = 80.0
_LEAST_SAMPLES: Final = 6
_RECENT: Final = 30
_FLAT: Final = 0.9
_FLAT_SAMPLES: Final = 30
_LEAST_THROUGHPUT: Final = 50e6
_LEAST_DATA_SHARE: Final = 0.10


class _Limit(NamedTuple):
    """A resource at its limit on one host."""

    host: str
    resource: str
    text: str
    metric: str
    refs: tuple[Ref, ...]
    is_sure: bool
    is_of_device: bool = False


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    known = (_CPU, *_MEMORY, *_THROUGHPUT, *_BANDWIDTH)
    if not metrics_of(facts).names().intersection(known):
        return NotChecked("L5", "the run has no system metrics of its hosts: they are recorded each 10 s by a run")
    limits = [*_memory(facts), *_cpu(facts), *_throughput(facts), *_bandwidth(facts)]
    if not limits:
        return None
    first = limits[0]
    same = [limit for limit in limits if limit.resource == first.resource]
    hosts = tuple(dict.fromkeys(limit.host for limit in same))
    others = "" if len(hosts) == 1 else f", as {len(hosts) - 1} other {'host' if len(hosts) == 2 else 'hosts'}"
    possibly = "" if first.is_sure else "possibly "
    return Verdict(
        rule="L5",
        verdict_class=VerdictClass.SLOW,
        sentence=f"{possibly}bound by {first.resource} on {first.host}{others}: {first.text}",
        blame=Blame.USER,
        confidence=Confidence.LIKELY if first.is_sure else Confidence.POSSIBLE,
        part=Part.CONTRIBUTING if first.is_of_device else part_of(facts),
        hosts=hosts,
        process_indices=tuple(
            process.index for process in facts.processes if process.host in hosts and process.index is not None
        ),
        evidence=first.refs,
        next=(
            NextCommand(
                command_line("mldiagnostics", "metrics", facts.name, first.metric, "--plot"),
                "shows since when, and on which hosts",
            ),
        ),
    )


def _memory(facts: Facts) -> Iterable[_Limit]:
    for name in _MEMORY:
        for curve in metrics_of(facts).of(name):
            level = _level(curve)
            if level is not None and level >= _LEAST_MEMORY:
                of = "its container's limit" if name.startswith("container") else "the host's memory"
                total = curve.beside("total_bytes")
                size = f" of {format_bytes(round(total))}" if total else ""
                text = f"{format_percent(level)} of {of}{size} is in use, so the kernel frees pages all the time"
                yield _Limit(curve.key.host, "memory", text, name, (curve.ref("last"),), True)


def _cpu(facts: Facts) -> Iterable[_Limit]:
    """Yield hosts without free cores, if their accelerators have time to spare: only then is the host the limit."""
    for curve in metrics_of(facts).of(_CPU):
        level = _level(curve)
        duty = _duty(facts, curve.key.host)
        if level is None or level < _LEAST_CPU or duty is None or median(map(_last_level, duty)) >= _BUSY_DUTY:
            continue
        text = (
            f"all cores are busy for {format_percent(level)} of the time, and the accelerators for "
            f"{format_percent(median(map(_last_level, duty)))}"
        )
        yield _Limit(curve.key.host, "CPU", text, _CPU, (curve.ref("last"), duty[0].ref("last")), True)


def _duty(facts: Facts, host: str) -> list[Curve] | None:
    curves = [curve for name in _DUTY for curve in metrics_of(facts).of(name, host=host) if _level(curve) is not None]
    return curves or None


def _throughput(facts: Facts) -> Iterable[_Limit]:
    """Yield hosts that load data for long at a rate that is always about the highest: no other limit is known."""
    shares = {process.host: share_of_data(steady(process)) or 0.0 for process in facts.processes}
    for name, what in _THROUGHPUT.items():
        for curve in metrics_of(facts).of(name):
            values = list(curve.values[-_FLAT_SAMPLES:])
            share = shares.get(curve.key.host, 0.0)
            if len(values) < _FLAT_SAMPLES or share <= _LEAST_DATA_SHARE:
                continue
            level = median(values)
            if level < _LEAST_THROUGHPUT or level < _FLAT * curve.highest:
                continue
            resource = "disk" if "disk" in name else "network"
            text = (
                f"{what} at {format_bytes(round(level))}/s, always about its highest rate, while data loading takes "
                f"{format_percent(100 * share)} of each step"
            )
            yield _Limit(curve.key.host, resource, text, name, (curve.ref("last"), curve.ref("highest")), False)


def _bandwidth(facts: Facts) -> Iterable[_Limit]:
    for name in _BANDWIDTH:
        for curve in metrics_of(facts).of(name):
            level = _level(curve)
            if level is not None and level >= _LEAST_BANDWIDTH:
                chip = curve.labels.get("chip", "")
                of = f" of {chip}" if chip else ""
                text = (
                    f"{format_percent(level)} of the memory bandwidth{of} is in use: faster arithmetic would not help"
                )
                yield _Limit(curve.key.host, "memory bandwidth", text, name, (curve.ref("last"),), True, True)


def _level(curve: Curve) -> float | None:
    """Return the median of the last minutes; None with too few samples."""
    values = curve.values[-_RECENT:]
    return median(values) if len(values) >= _LEAST_SAMPLES else None


def _last_level(curve: Curve) -> float:
    return _level(curve) or 0.0


RULE = Rule(
    id="L5",
    title="a host, or its devices, is at the limit of a resource",
    needs=("system metrics of the hosts, which a run records each 10 s; data loading marked, for disk and network",),
    judge=_judge,
    thresholds=(
        Threshold("CPU of all cores (%)", _LEAST_CPU, "what remains is lost to scheduling"),
        Threshold("duty cycle below (%)", _BUSY_DUTY, "busy accelerators do not wait for the host"),
        Threshold("memory (%)", _LEAST_MEMORY, "the kernel reclaims pages below 5 % of free memory"),
        Threshold("memory bandwidth (%)", _LEAST_BANDWIDTH, "the rooflines of TPUs are reached to 80 to 90 %"),
        Threshold("throughput of its highest", _FLAT, "a load that is not limited varies by more"),
        Threshold("throughput (bytes/s)", _LEAST_THROUGHPUT, "less does not limit a disk or a network"),
        Threshold("share of data loading", _LEAST_DATA_SHARE, "as of L1"),
        Threshold("samples", _LEAST_SAMPLES, "a minute"),
        Threshold("last samples that count", _RECENT, "five minutes"),
        Threshold("samples of a throughput", _FLAT_SAMPLES, "five minutes: a load varies within some of them"),
    ),
    example="bound by CPU on host-3: all cores are busy for 97.0 % of the time, and the accelerators for 41.0 %",
)
