"""The rule on the loss finds where it went wrong, and is silent about noise and about what has passed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.story import Confidence
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.verdict import Blame, NotChecked, Part, Verdict, VerdictClass

from tests.console.made_facts import after, facts, metric_of_steps, process

N1 = next(rule for rule in all_rules() if rule.id == "N1")


def judged(curves: Curves, **fields: object) -> Verdict | NotChecked | None:
    return N1.judge(job(curves, **fields))


def job(curves: Curves, **fields: object) -> Facts:
    return facts([process(index, step=100) for index in range(2)], metrics=curves, **fields)


def verdict(curves: Curves) -> Verdict:
    found = judged(curves)
    assert isinstance(found, Verdict), found
    return found


def add(curves: Curves, name: str, values: Sequence[float | str], *, host: str = "host-0", pid: str = "4000") -> Curves:
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": host, "pid": pid}, writer=f"{host}-{pid}-1")
    for number, value in enumerate(values):
        payload = {"values": [value], "step_index": number, "unit": "1"}
        curves.add(name, LogEntry(after(number), 100_000_000_000 + number, payload, context))
    return curves


def noisy(count: int, level: float = 2.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level * math.exp(-number / 500) + draw.gauss(0, 0.02) for number in range(count)]


def test_the_first_loss_that_is_not_finite_is_named_with_its_step() -> None:
    curves = metric_of_steps("loss", [1.0] * 40 + ["NaN", "NaN"])
    add(curves, "gradient_norm", [1.2] * 39 + [8.1e4])
    add(curves, "learning_rate", [1e-3] * 40)
    found = verdict(curves)
    assert found.sentence == (
        "loss is not finite (NaN) from step 40 (04:40:40 UTC); before: gradient norm 8.1e+04 (usually 1.2), rate 0.001"
    )
    assert (found.step, found.since_ns) == (40, after(40))
    assert found.confidence is Confidence.PROVEN
    assert found.verdict_class is VerdictClass.NUMBERS
    assert found.blame is Blame.USER
    assert found.hosts == ("host-0",)
    assert len(found.evidence) == 3
    assert found.next[0].command == "mldiagnostics metrics run-1 loss --plot"
    assert "step 40" in found.next[1].why
    assert judge(job(curves)).exit_code == 15


@pytest.mark.parametrize(
    "name", ["loss", "train_loss", "train/loss", "loss/train", "Loss", "valloss", "total-loss", "losses"]
)
def test_losses_are_found_by_their_names(name: str) -> None:
    assert verdict(metric_of_steps(name, [1.0, "Infinity"])).sentence.startswith(f"{name} is not finite (infinite)")


@pytest.mark.parametrize("name", ["loss_scale", "gradient_norm", "glossary", "perplexity", "packet_loss"])
def test_other_metrics_may_be_infinite(name: str) -> None:
    found = judged(metric_of_steps(name, [1.0, "Infinity"]))
    assert isinstance(found, NotChecked)
    assert "metrics.record" in found.why


def test_a_value_that_passed_only_contributes() -> None:
    found = verdict(metric_of_steps("loss", [1.0, "NaN", *([1.0] * 40)]))
    assert found.part is Part.CONTRIBUTING
    assert found.confidence is Confidence.POSSIBLE
    assert "finite again since" in found.sentence


def test_one_replica_alone_points_to_its_host() -> None:
    curves = metric_of_steps("loss", [1.0] * 5 + ["NaN"])
    add(curves, "loss", [1.0] * 6, host="host-1", pid="4001")
    found = verdict(curves)
    assert found.blame is Blame.SYSTEM
    assert "on host host-0 alone" in found.sentence
    add(both := metric_of_steps("loss", [1.0, "NaN"]), "loss", [1.0, "NaN"], host="host-1", pid="4001")
    assert verdict(both).blame is Blame.USER


def test_the_loss_of_another_attempt_does_not_count() -> None:
    curves = add(Curves(), "loss", [1.0, "NaN"], pid="3999")
    add(curves, "loss", [1.0, 1.0])
    assert judged(curves) is None


def test_a_loss_that_diverges_is_found_at_its_step() -> None:
    found = verdict(metric_of_steps("loss", [*noisy(500), *(2.0 + number / 2 for number in range(60))]))
    assert found.confidence is Confidence.LIKELY
    assert found.step == pytest.approx(500, abs=2)
    assert "loss diverges since step" in found.sentence
    assert "times its usual deviation" in found.sentence


@pytest.mark.parametrize(
    "values",
    [
        noisy(2000),
        [*noisy(500), 40.0, *noisy(100, 0.7)],
        [*noisy(500), 40.0, 40.0],
        [*noisy(500), *(0.8 for _ in range(50))],
        [1.0] * 300,
        [0.0] * 300,
        [3.0, 9.0, 9.0, 9.0],
        noisy(500)[::-1],
    ],
    ids=["noise", "a spike that passed", "two points", "a rise below 20 %", "constant", "zero", "too short", "slow"],
)
def test_noise_spikes_and_slow_changes_are_not_a_divergence(values: list[float]) -> None:
    assert judged(metric_of_steps("loss", values)) is None


def test_a_rise_of_less_than_a_factor_of_two_is_only_possible() -> None:
    found = verdict(metric_of_steps("loss", [*noisy(500), *(1.3 for _ in range(50))]))
    assert found.confidence is Confidence.POSSIBLE
    assert "possibly diverges" in found.sentence


def test_a_long_curve_is_judged_in_a_fraction_of_a_second() -> None:
    import time

    known = job(metric_of_steps("loss", noisy(100_000)))
    started = time.process_time()
    assert N1.judge(known) is None
    assert time.process_time() - started < 1.0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["NaN", "-Infinity", "x", None, True])
        ),
        max_size=80,
    )
)
def test_no_curve_breaks_the_rule(values: list[float | str]) -> None:
    for name in ("loss", "gradient_norm"):
        found = judged(metric_of_steps(name, values))
        assert found is None or isinstance(found, (Verdict, NotChecked))
