"""Advice and predictions of any life: every number has a range that holds it, and none is infinite or missing."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement._cli.advice_text import (
    ADVICE_FIELDS,
    PREDICTION_FIELDS,
    Worth,
    advice_as_dict,
    advice_as_row,
    format_advice,
    format_prediction,
    prediction_as_dict,
    prediction_as_row,
)
from ml_goodput_measurement.advice import JobHistory, advise, what_if
from ml_goodput_measurement.money import Price

from .histories import BASE, JOB, History, Payload
from .lives import lives
from .simulated import history_of_payloads

WORTH = Worth(Price(3_220_000), 256)
save_seconds = st.sampled_from([0.01, 5.0, 1000.0])


def history_of_life(life: tuple[list[Payload], float]) -> JobHistory | None:
    payloads, now = life
    return history_of_payloads(payloads, BASE + now, JOB)


@given(lives(), save_seconds)
def test_advice_of_any_life_is_a_range_or_says_what_is_not_known(
    life: tuple[list[Payload], float], save: float
) -> None:
    history = history_of_life(life)
    if history is None:
        return
    advice = advise(history, save_seconds=save)
    low, high = advice.interval_seconds
    assert 0 < low <= high
    assert math.isinf(high) == (history.failures == 0)
    assert (advice.recommended_seconds is None) == (history.failures < 3)
    assert (advice.worst_regret_points is None) == (advice.recommended_seconds is None)
    for points in (advice.now_regret_points, advice.lever_points):
        assert points is None or 0 <= points[0] <= points[1] <= 100
    assert list(format_advice(history, advice, WORTH, is_verbose=True))
    document = advice_as_dict(JOB, history, advice, WORTH)
    assert all(name in advice_as_row(document) for name in ADVICE_FIELDS)
    assert_finite(document)


@given(lives(), save_seconds, st.sampled_from([None, 0.5, 60.0, 1e6]))
def test_a_prediction_of_any_life_is_in_its_range(
    life: tuple[list[Payload], float], save: float, interval: float | None
) -> None:
    history = history_of_life(life)
    if history is None or (interval is None and history.interval_steps is None):
        return
    found = what_if(history, interval_seconds=interval, save_seconds=save)
    for low, high in (found.same_failures, found.other_failures):
        assert 0 <= low <= high <= 100
    assert found.same_failures[0] <= found.percent <= found.same_failures[1]
    assert list(format_prediction(history, found))
    document = prediction_as_dict(JOB, history, found)
    assert all(name in prediction_as_row(document) for name in PREDICTION_FIELDS)
    assert_finite(document)


def test_a_job_of_one_step_an_attempt_has_no_recorded_uptime_and_is_predicted() -> None:
    """The first step of each attempt is its only moment."""
    life = History().start(0).step(0, 10).start(100).step(1, 110)
    history = history_of_life((life.payloads, 110))
    assert history is not None
    assert (history.uptime_seconds, history.failures) == (0.0, 1)
    assert advise(history, save_seconds=1.0).interval_seconds[0] > 0
    assert 0 <= what_if(history, interval_seconds=60.0, save_seconds=1.0).percent <= 100


def assert_finite(document: dict[str, Any]) -> None:
    """JSON has no infinity and no NaN."""
    json.dumps(document, allow_nan=False)
