"""Rules judge the metrics of one attempt: what a device did in another one, or after the failure, is not its cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console.verdict import NotChecked, Part, Verdict

from .made_facts import after, attempt, facts, process

LINK = {"links": ["tray1.chip3.ici0.int"]}
GPU = {"accelerator_labels": ["g0"]}
FAILURE = "exception: ValueError: x"


def record(
    curves: Curves, name: str, points: Sequence[tuple[float, float]], beside: dict[str, Any], *, started: float = 0.0
) -> Curves:
    """Record a metric of a process of host-0 that started at some second: always with the pid of a container, 1."""
    context = EntryContext(
        "ml_diagnostics_metric", "", {}, {"host": "host-0", "pid": "1"}, writer=f"host-0-1-{after(started)}-0"
    )
    for number, (seconds, value) in enumerate(points):
        payload = {"values": [value], "unit": "1", "hostname": "host-0", **beside}
        curves.add(name, LogEntry(after(seconds), 100_000_000_000 + number, payload, context))
    return curves


def two_attempts(curves: Curves) -> Facts:
    first = attempt([_process(0, 100)], 1, started_ns=after(0), ended_ns=after(100))
    second = attempt([_process(200, 300)], 2, started_ns=after(200), ended_ns=after(300))
    return facts(first, second, metrics=curves, is_live=False)


def _process(start: float, ended: float) -> ProcessFacts:
    known: dict[str, Any] = {"started_ns": after(start), "last_event_ns": after(ended), "pid": 1}
    return process(0, end=FAILURE, ended=ended, **known)


def judged(known: Facts, rule: str) -> Verdict | NotChecked | None:
    return next(each for each in all_rules() if each.id == rule).judge(known)


@pytest.mark.parametrize(
    ("rule", "name", "beside", "good", "bad"),
    [
        ("H1", "tpu_ici_link_health", LINK, 0.0, 10.0),
        ("H2", "tpu_throttle_score", {"accelerator_labels": ["t0"]}, 0.0, 5.0),
        ("H4", "gpu_ecc_uncorrected_errors", GPU, 0.0, 3.0),
        ("L5", "container_memory_utilization", {}, 20.0, 99.0),
    ],
)
def test_what_broke_in_the_second_attempt_is_not_blamed_for_the_first(
    rule: str, name: str, beside: dict[str, Any], good: float, bad: float
) -> None:
    curves = record(Curves(), name, [(each, good) for each in range(5, 95, 10)], beside)
    record(curves, name, [(205, good), *((each, bad) for each in range(215, 295, 10))], beside, started=200)
    known = two_attempts(curves)
    assert isinstance(judged(known, rule), Verdict)
    assert judged(known.of_attempt(0), rule) is None


def test_the_evidence_of_an_earlier_attempt_is_of_its_own_entries() -> None:
    curves = record(Curves(), "tpu_ici_link_health", [(30, 0), (60, 10)], LINK)
    record(curves, "tpu_ici_link_health", [(230, 0), (260, 0)], LINK, started=200)
    verdict = judged(two_attempts(curves).of_attempt(0), "H1")
    assert isinstance(verdict, Verdict)
    assert [each.time_ns for each in verdict.evidence] == [after(60)]
    assert judged(two_attempts(curves), "H1") is None


def test_metrics_of_a_host_that_is_not_of_the_attempt_are_left_out() -> None:
    curves = record(Curves(), "loss", [(10, 1.0)], {})
    record(curves, "loss", [(210, 1.0)], {"hostname": "host-9"}, started=200)
    known = two_attempts(curves)
    assert len(metrics_of(known)) == 0
    assert len(metrics_of(known.of_attempt(0))) == 1


@pytest.mark.parametrize(("broke_at", "part"), [(60, Part.INITIATING), (130, Part.CONTRIBUTING)])
@pytest.mark.parametrize(
    ("rule", "name", "beside"),
    [("H1", "tpu_ici_link_health", LINK), ("H4", "gpu_ecc_uncorrected_errors", GPU)],
)
def test_only_a_state_from_before_the_failure_is_its_cause(
    rule: str, name: str, beside: dict[str, Any], broke_at: float, part: Part
) -> None:
    curves = record(Curves(), name, [(10, 0), (broke_at, 10)], beside)
    verdict = judged(facts([process(0), process(1, end=FAILURE, ended=100)], metrics=curves), rule)
    assert isinstance(verdict, Verdict)
    assert verdict.part is part


def test_a_short_bad_state_at_the_failure_is_found_in_a_long_curve() -> None:
    points = [(float(10 * number), 10.0 if number == 14_001 else 0.0) for number in range(15_000)]
    curves = record(Curves(), "tpu_ici_link_health", points, LINK)
    (curve,) = curves
    assert len(curve.points()) < 3_000
    failed = process(1, end=FAILURE, ended=140_012, last_event_ns=after(140_012))
    verdict = judged(facts([process(0, last_event_ns=after(150_000)), failed], metrics=curves), "H1")
    assert isinstance(verdict, Verdict)
    assert verdict.since_ns == after(140_010)
    assert verdict.part is Part.INITIATING
    assert "was unusable" in verdict.sentence
