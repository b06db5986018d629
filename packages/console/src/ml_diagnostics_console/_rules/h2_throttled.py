"""H2: a chip is throttled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration, format_percent

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.devices import held_seconds
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import part_of
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_TPU: Final = "tpu_throttle_score"
_GPU: Final = "gpu_throttle_reasons"
_PERCENT_A_POINT: Final = 10.0
_LEAST_SECONDS: Final = 60.0
_LEAST_PERCENT: Final = 10.0
_OF_HARDWARE: Final = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "hw_slowdown", "sw_thermal_slowdown")
"""Not `sw_power_cap`: a GPU at full load is often at the power that its owner allows."""


class _Throttled(NamedTuple):
    """A chip that is slowed down."""

    curve: Curve
    percent: float
    seconds: float
    why: str


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    if not metrics_of(facts).names() & {_TPU, _GPU}:
        return NotChecked("H2", "the throttling of chips is not recorded: a run records it on hosts with TPUs or GPUs")
    found = sorted([*_tpus(facts), *_gpus(facts)], key=lambda each: -each.percent)
    if not found:
        return None
    first = found[0]
    hosts = tuple(dict.fromkeys(each.curve.key.host for each in found))
    chip = first.curve.labels.get("chip") or "a chip"
    others = len(found) - 1
    more = "" if not others else f"; so {'is 1 other chip' if others == 1 else f'are {others} other chips'}"
    lasts = format_duration(first.seconds)
    host = "" if first.curve.key.host in chip else f" of {first.curve.key.host}"
    return Verdict(
        rule="H2",
        verdict_class=VerdictClass.SLOW,
        sentence=f"{chip}{host} is throttled by {format_percent(first.percent, 0)}{first.why} for {lasts}{more}",
        blame=Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        part=part_of(facts),
        hosts=hosts,
        process_indices=tuple(
            process.index for process in facts.processes if process.host in hosts and process.index is not None
        ),
        since_ns=max(first.curve.last_ns, _until_ns(facts)) - round(first.seconds * 1e9),
        cost=Cost(
            first.seconds * min(1.0, first.percent / 100), CostBasis.LOWER_BOUND, shows="if all chips wait for it"
        ),
        evidence=tuple(each.curve.ref("last") for each in found[:3]),
        next=(
            NextCommand(
                command_line("mldiagnostics", "metrics", facts.name, first.curve.key.name, "--plot"),
                "since when, and on which chips",
            ),
            NextCommand(
                "", f"report {first.curve.key.host} to its operator: cooling or power; replace it if it stays so"
            ),
        ),
    )


def _tpus(facts: Facts) -> Iterable[_Throttled]:
    for curve in metrics_of(facts).of(_TPU):
        percent = _PERCENT_A_POINT * curve.last
        seconds = held_seconds(curve, 1.0, _until_ns(facts))
        if percent >= _LEAST_PERCENT and seconds >= _LEAST_SECONDS:
            yield _Throttled(curve, percent, seconds, "")


def _gpus(facts: Facts) -> Iterable[_Throttled]:
    for curve in metrics_of(facts).of(_GPU):
        reasons = curve.detail("reasons")
        known = [reason for reason in _OF_HARDWARE if isinstance(reasons, list) and reason in reasons]
        now, most = _number(curve.detail("sm_clock_mhz")), _number(curve.detail("max_sm_clock_mhz"))
        if not known or not now or not most or most <= 0:
            continue
        percent = 100 * (1 - now / most)
        seconds = held_seconds(curve, 1.0, _until_ns(facts))
        if percent >= _LEAST_PERCENT and seconds >= _LEAST_SECONDS:
            yield _Throttled(curve, percent, seconds, f" ({known[0]})")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _until_ns(facts: Facts) -> int:
    if facts.is_live:
        return facts.now_ns
    attempt = facts.attempt
    return (attempt.ended_ns if attempt is not None else None) or facts.now_ns


RULE = Rule(
    id="H2",
    title="a chip is throttled",
    needs=(f"the metric {_TPU} of TPUs, or {_GPU} of GPUs",),
    judge=_judge,
    thresholds=(
        Threshold("throttled by (%)", _LEAST_PERCENT, "libtpu's tpu_throttle_score 1 is 10 %"),
        Threshold("for (s)", _LEAST_SECONDS, "a state is recorded each minute: two records in a row"),
        Threshold("reasons of a GPU", ", ".join(_OF_HARDWARE), "NVML; a power cap is the owner's choice"),
    ),
    example="host-3-tpu1 is throttled by 30 % for 12 min 0 s",
)
