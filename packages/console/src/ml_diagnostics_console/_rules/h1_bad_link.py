"""H1: a link between chips is unusable, or persistently bad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.devices import STATE_SECONDS, State, began_before_failure, class_of, state_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stuck import stuck_job
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, NotChecked, Part, Verdict, VerdictClass

__all__ = ["RULE"]

_ICI: Final = "tpu_ici_link_health"
_NVLINK: Final = "gpu_nvlink_active_links"
_UNUSABLE: Final = 10
_PERSISTENT: Final = 6


class _Link(NamedTuple):
    """A link in a bad state."""

    curve: Curve
    name: str
    is_unusable: bool
    text: str
    state: State


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    if not metrics_of(facts).names() & {_ICI, _NVLINK}:
        return NotChecked(
            "H1", "the health of links between chips is not recorded: a run records it on hosts with TPUs or GPUs"
        )
    links = sorted([*_ici(facts), *_nvlink(facts)], key=lambda link: not link.is_unusable)
    if not links:
        return None
    first = links[0]
    hosts = tuple(dict.fromkeys(link.curve.key.host for link in links))
    others = len(links) - 1
    more = "" if not others else f" (and {others} {'other link' if others == 1 else 'other links'})"
    kind, since = class_of(facts), clock(first.state.since_ns)
    # A link that works with errors does not end a job by itself.
    is_first = first.is_unusable and began_before_failure(facts, first.curve.key.host, first.state.since_ns)
    part = Part.INITIATING if is_first or kind is VerdictClass.SLOW else Part.CONTRIBUTING
    is_stuck = stuck_job(facts) is not None
    effect = "; all processes that use it wait for ever" if is_stuck and is_first else ""
    return Verdict(
        rule="H1",
        verdict_class=kind,
        sentence=f"{first.name} of {first.curve.key.host} {first.text} since {since}{more}{effect}",
        blame=Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        part=part,
        hosts=hosts,
        process_indices=tuple(
            process.index for process in facts.processes if process.host in hosts and process.index is not None
        ),
        since_ns=first.state.since_ns,
        evidence=tuple(
            link.curve.ref("last" if link.state.is_last else "highest", f"{link.name}: {link.state.value:.0f}")
            for link in links[:3]
        ),
        next=(
            NextCommand(
                "", f"replace {first.curve.key.host}, or start the job on other hosts: a link is repaired by a person"
            ),
            NextCommand(
                command_line("mldiagnostics", "metrics", facts.name, first.curve.key.name),
                "all links of all hosts, and since when",
            ),
        ),
    )


def _ici(facts: Facts) -> Iterable[_Link]:
    for curve in metrics_of(facts).of(_ICI):
        state = state_of(facts, curve, _PERSISTENT)
        if state is None:
            continue
        labels = curve.labels
        tray, chip, port = (labels.get(name) for name in ("tray", "chip", "port"))
        name = f"the ICI link {labels.get('link', '')}".rstrip()
        if tray is not None and chip is not None and port is not None:
            name = f"the ICI link of tray {tray}, chip {chip}, port {port}"
        is_unusable = state.value >= _UNUSABLE
        is_or_was = "is" if state.is_last else "was"
        text = f"{is_or_was} unusable" if is_unusable else f"has persistent errors (state {state.value:.0f} of 10)"
        yield _Link(curve, name, is_unusable, text, state)


def _nvlink(facts: Facts) -> Iterable[_Link]:
    for curve in metrics_of(facts).of(_NVLINK):
        inactive = curve.detail("inactive_links")
        total = curve.detail("links")
        if not isinstance(inactive, list) or not inactive or not total:
            continue
        if curve.last == curve.lowest == curve.highest == 0:
            continue  # It has none that was ever up: links are not connected in this machine.
        chip = curve.labels.get("chip") or "a GPU"
        shown = ", ".join(str(each) for each in inactive[:4])
        yield _Link(curve, f"NVLink {shown} of {chip}", True, "is down", State(curve.last, _since_ns(curve), True))


def _since_ns(curve: Curve) -> int:
    """Return since when as many links of a GPU are up."""
    since_ns = curve.last_ns
    for time_ns, value in reversed(curve.points()):
        if value != curve.last:
            break
        since_ns = time_ns
    return since_ns


RULE = Rule(
    id="H1",
    title="a link between chips is unusable or persistently bad",
    needs=(f"the metric {_ICI} of TPUs, or {_NVLINK} of GPUs",),
    judge=_judge,
    thresholds=(
        Threshold("unusable", _UNUSABLE, "libtpu's ici_link_health: 10"),
        Threshold("persistent", _PERSISTENT, "libtpu's ici_link_health: 6 to 9; 1 to 5 pass by themselves"),
        Threshold("record after a job got stuck, at most (s)", STATE_SECONDS, "a state is recorded each minute"),
        Threshold("NVLinks that are down", 1, "NVML: the link's state"),
    ),
    example="the ICI link of tray 1, chip 3, port ici0.int of host-3 is unusable since 16:02:11 UTC",
    replaces=("K2",),
)
