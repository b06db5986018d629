"""H3: the latencies of one host's network, or of its own computation, stand apart from those of all others."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.robust import LEAST_SCORE, LEAST_SPREAD, LEAST_VALUES, Outlier, high_outliers
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import part_of
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, NotChecked, Verdict, VerdictClass

__all__ = ["RULE"]

_NETWORK: Final = {
    "tpu_buffer_transfer_latency": "sending over the data-centre network",
    "tpu_inbound_buffer_transfer_latency": "receiving over the data-centre network",
    "tpu_tcp_min_rtt": "the shortest round trip of TCP",
    "tpu_collective_e2e_latency": "collectives between slices",
}
_HOST: Final = {
    "tpu_host_compute_latency": "a reduction on the host",
    "tpu_host_to_device_transfer_latency": "transfers to the devices",
    "tpu_device_to_host_transfer_latency": "transfers from the devices",
}
_ALL: Final = {**_NETWORK, **_HOST}
_LEAST_RATIO: Final = 1.5
_LEAST_HOSTS: Final = 4
_MICROSECONDS: Final = 1e6


class _Apart(NamedTuple):
    """A latency of a host that stands apart."""

    name: str
    labels: tuple[tuple[str, str], ...]
    outlier: Outlier
    curve: Curve


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    hosts = {curve.key.host for name in _ALL for curve in metrics_of(facts).of(name)}
    if not hosts:
        return NotChecked("H3", "no latencies of network and host are recorded: a run records them on hosts with TPUs")
    if len(hosts) < _LEAST_HOSTS:
        return NotChecked(
            "H3", f"latencies of {len(hosts)} hosts are known: one stands apart only among {_LEAST_HOSTS} or more"
        )
    apart = [each for name in _ALL for each in _outliers(metrics_of(facts).of(name))]
    if not apart:
        return None
    scores: dict[str, float] = {}
    for each in apart:
        scores[each.outlier.name] = scores.get(each.outlier.name, 0.0) + each.outlier.value / each.outlier.median
    host = max(scores, key=lambda name: scores[name])
    return _verdict(facts, host, [each for each in apart if each.outlier.name == host])


def _verdict(facts: Facts, host: str, apart: Sequence[_Apart]) -> Verdict:
    worst = max(apart, key=lambda each: each.outlier.value / each.outlier.median)
    metrics = {each.name for each in apart}
    is_sure = len(metrics) > 1
    part = "network" if worst.name in _NETWORK else "processor or memory"
    possibly = "" if is_sure else "possibly "
    of = f" ({', '.join(value for _, value in worst.labels)})" if worst.labels else ""
    usual = format_duration(worst.outlier.median / _MICROSECONDS)
    also = f", and {len(metrics) - 1} other {'latency' if len(metrics) == 2 else 'latencies'}" if is_sure else ""
    return Verdict(
        rule="H3",
        verdict_class=VerdictClass.SLOW,
        sentence=f"{possibly}the {part} of {host} is slow: {_ALL[worst.name]}{of} takes "
        f"{format_duration(worst.outlier.value / _MICROSECONDS)} there, {usual} on the median host{also}",
        blame=Blame.SYSTEM,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        part=part_of(facts),
        hosts=(host,),
        process_indices=tuple(
            process.index for process in facts.processes if process.host == host and process.index is not None
        ),
        evidence=tuple(each.curve.ref("last") for each in apart[:3]),
        next=(
            NextCommand(command_line("mldiagnostics", "metrics", facts.name, worst.name), "this latency on all hosts"),
            NextCommand("", f"replace {host} if its latencies stay apart in the next attempt"),
        ),
    )


def _outliers(curves: Sequence[Curve]) -> list[_Apart]:
    """Return the hosts that stand apart in one metric, each size of a transfer by itself."""
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, Curve]] = {}
    for curve in curves:
        labels = tuple(pair for pair in curve.key.labels if pair[0] in ("size", "operation"))
        by_labels.setdefault(labels, {})[curve.key.host] = curve
    found = []
    for labels, of_host in by_labels.items():
        values = {host: median(curve.values) for host, curve in of_host.items() if len(curve.values)}
        for outlier in high_outliers(values, least_ratio=_LEAST_RATIO):
            found.append(_Apart(of_host[outlier.name].key.name, labels, outlier, of_host[outlier.name]))
    return found


RULE = Rule(
    id="H3",
    title="the network or the processor of one host is slower than the others'",
    needs=("the latencies that libtpu reports, of four hosts at least",),
    judge=_judge,
    thresholds=(
        Threshold("modified z-score", LEAST_SCORE, "Iglewicz and Hoaglin, 1993"),
        Threshold("spread of the hosts, at least", LEAST_SPREAD, "equal hosts may have equal values, and no deviation"),
        Threshold("hosts with a value of one latency", LEAST_VALUES, "as above"),
        Threshold("ratio to the median", _LEAST_RATIO, "hosts of one rack and of two differ by less"),
        Threshold("hosts", _LEAST_HOSTS, "of three, the median of the others is one of two"),
    ),
    example="the network of host-3 is slow: sending over the data-centre network (8MB+) takes 41.0 ms there, 9.10 ms "
    "on the median host, and 2 other latencies",
)
