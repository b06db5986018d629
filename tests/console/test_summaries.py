"""Step summaries of any number take bounded memory, and the first and the newest ones stay as they are."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry
from ml_diagnostics_console._facts.entries import Life, Lives
from ml_diagnostics_console._facts.summaries import returns_of, with_pauses
from ml_diagnostics_console._rules.step_times import steady, step_seconds

from .made_facts import after, process

_CONTEXT = EntryContext(COMPANION_LOG_ID, "", {}, {"host": "host-0", "pid": "41", "run": "run-1"}, writer="w-1-2-3")


def times(seconds: float, steps: int = 15) -> dict[str, float]:
    return {"sum": seconds * steps, "p50": seconds, "p95": 1.1 * seconds, "max": 1.2 * seconds}


def payload(number: int, seconds: float = 0.5, **fields: Any) -> dict[str, Any]:
    return {
        "verb": "stacktraceanalyzer",
        "kind": "step_summary",
        "message": f"15 steps, {15 * number} to {15 * number + 14}, of {seconds:.3g} s",
        "first_step": 15 * number,
        "last_step": 15 * number + 14,
        "count": 15,
        "wall_seconds": times(seconds),
        **fields,
    }


def life_of(payloads: list[dict[str, Any]], context: EntryContext = _CONTEXT, foreign_id: str = "") -> Life:
    lives = Lives()
    lives.add(
        LogEntry(after(10.0 * number), 100_000_000_000 + number, each, context, foreign_id=foreign_id)
        for number, each in enumerate(payloads)
    )
    (life,) = lives.labelled(["run-1"])
    return life


def test_a_day_of_summaries_takes_less_than_half_a_megabyte() -> None:
    lives = Lives()
    tracemalloc.start()
    try:
        lives.add(
            LogEntry(after(10.0 * number), number, payload(number, own_seconds=times(0.1)), _CONTEXT)
            for number in range(9_000)
        )
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000
    (life,) = lives.labelled(["run-1"])
    assert len(life.summaries) < 1_500


def test_the_first_and_the_newest_ones_are_as_they_were_recorded() -> None:
    count = 10_000
    found = life_of(
        [payload(number, 0.1 + number / count, own_seconds=times(0.05)) for number in range(count)]
    ).summaries
    for kept, number in ((found[0], 0), *zip(found[-512:], range(count - 512, count), strict=True)):
        assert (kept.first_step, kept.last_step, kept.steps) == (15 * number, 15 * number + 14, 15)
        assert kept.wall == tuple(times(0.1 + number / count).values())
        assert kept.own == tuple(times(0.05).values())
        assert (kept.data, kept.wait, kept.return_step, kept.returns) == (None, None, None, ())
        assert (kept.ref.id, kept.ref.time_ns) == (f"w-1-2-3.{100_000_000_000 + number}", after(10.0 * number))
        assert kept.ref.shows == payload(number, 0.1 + number / count)["message"]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6_000), st.integers(1, 7))
def test_merged_summaries_have_all_steps_once_and_bounds_of_their_durations(count: int, worst: int) -> None:
    pauses = {"checkpoint": {"count": 1, "sum": 2.0, "max": 2.0}}
    made = [
        payload(
            number,
            2.0 if number == count // worst else 0.5,
            data_seconds=times(0.1),
            **({"pauses": pauses} if number % 3 == 0 else {}),
        )
        for number in range(count)
    ]
    found = life_of(made).summaries
    everything = list(found)
    assert everything == list(found[:])
    assert (everything[0], everything[-1]) == (found[0], found[-1])
    assert [each.first_step for each in everything[1:]] == [each.last_step + 1 for each in everything[:-1]]
    assert sum(each.steps for each in everything) == 15 * count
    assert sum(each.wall.sum for each in everything) == pytest.approx(sum(each["wall_seconds"]["sum"] for each in made))
    assert sum(each.data.sum for each in everything if each.data) == pytest.approx(1.5 * count)
    assert max(each.wall.max for each in everything) == max(each["wall_seconds"]["max"] for each in made)
    assert all(each.wall.p50 <= each.wall.p95 <= each.wall.max for each in everything)
    assert sum(pause.times for each in everything for pause in each.pauses) == len(range(0, count, 3))
    assert all(pause.max == 2.0 and pause.sum == 2.0 * pause.times for each in everything for pause in each.pauses)


def test_merged_summaries_of_two_hosts_keep_the_returns_of_the_same_steps() -> None:
    kept = []
    for offset in (0, 7):
        made = []
        for number in range(4_000):
            steps = sorted(
                range(15 * number + offset, 15 * number + offset + 15), key=lambda step: f"{step:032b}"[::-1]
            )
            others = [[step, after(step)] for step in steps[1:3]]
            made.append(payload(number, return_step=steps[0], return_ns=after(steps[0]), returns=others))
        old = life_of(made).summaries[1:-800]
        kept.append({step for each in old for step in (each.return_step, *(step for step, _ in each.returns))})
    assert len(kept[0] & kept[1]) > len(kept[0]) // 2


@pytest.mark.parametrize("count", [1, 700, 5_000])
def test_returns_and_pauses_are_the_same_of_rows_and_of_objects(count: int) -> None:
    pauses = {"checkpoint": {"count": 1, "sum": 2.0, "max": 2.0}}
    made = []
    for number in range(count):
        others = [[15 * number + other, after(number + other)] for other in range(1, 1 + number % 3)]
        fields: dict[str, Any] = {} if number % 5 else {"pauses": pauses}
        if number % 4:
            fields |= {"return_step": 15 * number, "return_ns": after(number), "returns": others}
        made.append(payload(number, **fields))
    found = life_of(made).summaries
    assert list(returns_of(found)) == list(returns_of(tuple(found)))
    assert list(with_pauses(found)) == list(with_pauses(tuple(found))) != []


def test_the_change_of_a_whole_life_is_seen_in_its_baseline() -> None:
    found = life_of([payload(number, 0.5 if number < 6_000 else 0.6) for number in range(9_000)]).summaries
    judged = process(0, summaries=found)
    assert step_seconds(steady(judged)) == pytest.approx(0.6)
    assert len(steady(judged)) == 512
    before = [each for each in found if each.last_step < 15 * 6_000]
    assert len(before) > 100
    assert step_seconds(before) == pytest.approx(0.5)


def test_the_id_of_an_entry_of_another_program_is_kept() -> None:
    life = life_of([payload(0), payload(1)], _CONTEXT._replace(writer=None), "abc-1")
    assert [each.ref.id for each in life.summaries] == ["abc-1", "abc-1"]


@pytest.mark.parametrize(
    "fields",
    [
        {"last_step": 2**63},
        {"wall_seconds": {**times(0.5), "p50": 10**400}},
        {"wall_seconds": {**times(0.5), "p50": "0.5"}},
        {"count": 0},
    ],
)
def test_a_summary_with_damaged_numbers_is_left_out(fields: dict[str, Any]) -> None:
    life = life_of([payload(0), payload(1, **fields), payload(2)])
    assert [each.first_step for each in life.summaries] == [0, 30]


@pytest.mark.parametrize("returns", [None, 5, [[1]], [[1, "b"]], [[-1, 2]], [[9, 2**63]], {"a": 1}])
def test_damaged_returns_are_left_out(returns: Any) -> None:
    (found,) = life_of([payload(0, return_step=8, return_ns=after(1), returns=returns)]).summaries
    assert (found.return_step, found.return_ns, found.returns) == (8, after(1), ())
