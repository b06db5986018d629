"""N1: the loss is not a finite number, or has diverged."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.costs import cost_of_failure
from ml_diagnostics_console._rules.crashes import command
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import at
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Part, Ref, Verdict, VerdictClass

__all__ = ["RULE"]

_LOSS: Final = re.compile(r"(?:^|[^a-z])loss(?:es)?(?:$|[^a-z])|^(?:train|eval|val|valid)?loss$", re.IGNORECASE)
_NOT_LOSS: Final = re.compile(r"scale|weight|tokens|packet|lost", re.IGNORECASE)
"""The scale of the loss in mixed precision is set to infinity by some programs, on purpose."""
_EARLIER: Final = (("gradient norm", re.compile(r"grad(?:ient)?_?norm")), ("rate", re.compile(r"learning_rate|^lr$")))
_MADS: Final = 8.0
_LEAST_RISE: Final = 0.2
_LEAST_SCALE: Final = 0.01
_BASELINE_POINTS: Final = 100
_LEAST_BASELINE: Final = 20
_LEAST_POINTS: Final = 3
_SHARE: Final = 0.9


class _Divergence(NamedTuple):
    """The point at which a curve left its level for good."""

    start: int
    level: float
    mads: float


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on the loss."""
    attempt = facts.attempt
    if attempt is None:
        return None
    curves = list(_losses(facts))
    if not curves:
        return NotChecked("N1", 'the run records no loss: call metrics.record("loss", value, step)')
    broken = [curve for curve in curves if curve.first_not_finite is not None]
    if broken:
        first = min(broken, key=lambda curve: curve.first_not_finite.time_ns if curve.first_not_finite else 0)
        return _not_finite(facts, first, curves)
    found = ((curve, divergence) for curve in curves if (divergence := _divergence(curve.values)) is not None)
    diverged = min(found, key=lambda pair: pair[0].times_ns[pair[1].start], default=None)
    return None if diverged is None else _diverged(facts, *diverged)


def _losses(facts: Facts) -> Iterator[Curve]:
    """Yield the losses that processes of the attempt recorded."""
    processes = {(process.host, str(process.pid)) for process in facts.processes}
    for curve in metrics_of(facts):
        name = curve.key.name
        if not _LOSS.search(name) or _NOT_LOSS.search(name):
            continue
        if (curve.key.host, curve.key.pid) in processes or not curve.key.pid:
            yield curve


def _not_finite(facts: Facts, curve: Curve, curves: Sequence[Curve]) -> Verdict | None:
    found = curve.first_not_finite
    if found is None:
        return None
    shown = "NaN" if math.isnan(found.value) else "infinite"
    is_over = curve.last_ns > found.time_ns
    same = [
        other
        for other in curves
        if other is not curve and other.key.name == curve.key.name and other.key.labels == curve.key.labels
    ]
    others = [other for other in same if other.first_not_finite is None and found.step in other.steps]
    one_replica = bool(others) and found.step is not None
    before, refs = _before(facts, curve, found.time_ns)
    lasting = "; finite again since" if is_over else ""
    replica = f", on host {curve.key.host} alone: {len(others)} other replicas have a finite one" if one_replica else ""
    return Verdict(
        rule="N1",
        verdict_class=VerdictClass.NUMBERS,
        sentence=f"{curve.key.name} is not finite ({shown}) from {at(found.step, found.time_ns).removeprefix('at ')}"
        f"{replica}{before}{lasting}",
        blame=Blame.SYSTEM if one_replica else Blame.USER,
        confidence=Confidence.POSSIBLE if is_over else Confidence.PROVEN,
        part=Part.CONTRIBUTING if is_over else Part.INITIATING,
        hosts=(curve.key.host,) if curve.key.host else (),
        step=found.step,
        since_ns=found.time_ns,
        cost=None if is_over else cost_of_failure(facts, found.time_ns).cost,
        evidence=(found.ref, *refs, *(other.ref("last") for other in others[:1])),
        next=_commands(facts, curve, found.step),
    )


def _diverged(facts: Facts, curve: Curve, found: _Divergence) -> Verdict:
    step = curve.steps[found.start]
    shown_step = None if step < 0 else step
    time_ns = curve.times_ns[found.start]
    before, refs = _before(facts, curve, time_ns)
    is_large = curve.last >= 2 * found.level > 0
    level = f"from {found.level:.4g} to {curve.last:.4g}"
    possibly = "" if is_large else "possibly "
    return Verdict(
        rule="N1",
        verdict_class=VerdictClass.NUMBERS,
        sentence=f"{curve.key.name} {possibly}diverges since {at(shown_step, time_ns).removeprefix('at ')}: {level}, "
        f"{found.mads:,.0f} times its usual deviation{before}",
        blame=Blame.USER,
        confidence=Confidence.LIKELY if is_large else Confidence.POSSIBLE,
        hosts=(curve.key.host,) if curve.key.host else (),
        step=shown_step,
        since_ns=time_ns,
        cost=cost_of_failure(facts, time_ns).cost,
        evidence=(curve.ref("last", f"{curve.key.name} {level}"), *refs),
        next=_commands(facts, curve, shown_step),
    )


def _commands(facts: Facts, curve: Curve, step: int | None) -> tuple[NextCommand, ...]:
    plot = command(facts, f"mldiagnostics metrics RUN {shlex.quote(curve.key.name)} --plot", "see the steps before")
    where = "the steps before it" if step is None else f"step {step}"
    return plot, NextCommand("", f"restore a checkpoint before it and replay {where}: equal batches, equal result?")


def _before(facts: Facts, curve: Curve, time_ns: int) -> tuple[str, tuple[Ref, ...]]:
    """Return the norm of the gradient and the learning rate before, as far as they are recorded."""
    parts, refs = [], []
    for shown, pattern in _EARLIER:
        for other in metrics_of(facts):
            if other.key.host != curve.key.host or other.key.pid != curve.key.pid or not pattern.search(other.key.name):
                continue
            earlier = [value for moment, value in zip(other.times_ns, other.values, strict=True) if moment <= time_ns]
            if not earlier:
                continue
            text = f"{shown} {earlier[-1]:.4g}"
            usual = median(earlier[-_BASELINE_POINTS - 1 : -1]) if len(earlier) > _LEAST_BASELINE else None
            if usual and abs(earlier[-1]) >= 2 * abs(usual):
                text += f" (usually {usual:.4g})"
            parts.append(text)
            refs.append(other.ref("last", f"{other.key.name}: {text} before"))
            break
    return (f"; before: {', '.join(parts)}" if parts else ""), tuple(refs)


def _divergence(values: Sequence[float]) -> _Divergence | None:
    """Return where the last values have left the level before them; None if they have not.

    The tail is taken in lengths of powers of two, the longest that is above the level wins: a spike that has passed
    does not count, and a curve of a million points is read some times, not at each point.
    """
    found: _Divergence | None = None
    length = _LEAST_POINTS
    while len(values) - length >= _LEAST_BASELINE:
        start = len(values) - length
        baseline = list(values[max(0, start - _BASELINE_POINTS) : start])
        level = median(baseline)
        spread = median(abs(value - level) for value in baseline)
        scale = max(spread, _LEAST_SCALE * abs(level))
        limit = level + max(_MADS * scale, _LEAST_RISE * abs(level))
        tail = values[start:]
        above = sum(value > limit for value in tail)
        if scale > 0 and above >= _SHARE * length and all(value > limit for value in tail[-_LEAST_POINTS:]):
            onset = start
            while onset > 0 and values[onset - 1] > limit:
                onset -= 1
            while onset < len(values) and values[onset] <= limit:
                onset += 1
            found = _Divergence(onset, level, (values[-1] - level) / scale)
        length *= 2
    return found


RULE = Rule(
    id="N1",
    title="the loss is not finite, or has diverged",
    needs=('the loss of each step: metrics.record("loss", value, step)', "the norm of the gradient and the rate"),
    judge=_judge,
    thresholds=(
        Threshold("deviation of the loss, in median absolute deviations", _MADS, "5.4 standard deviations of noise"),
        Threshold("rise of the loss, at least", f"{_LEAST_RISE:.0%}", "a change of data moves a loss by less"),
        Threshold("points above it, at the end", _LEAST_POINTS, "one bad batch does not count"),
        Threshold(
            "deviation, at least", f"{_LEAST_SCALE:.0%} of the level", "a loss that is constant has no deviation"
        ),
        Threshold(
            "share of the last points above it", _SHARE, "a loss that diverges is above it but for single batches"
        ),
        Threshold("points of the level before", f"{_LEAST_BASELINE} to {_BASELINE_POINTS}", "a stable median"),
    ),
    example="loss is not finite (NaN) from step 1,200 (16:02:11 UTC); before: gradient norm 8.1e+04 (usually 1.2), "
    "rate 0.001",
)
