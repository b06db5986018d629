"""The ledger is a function of what happened: generated lives of jobs, judged by an oracle of the rules.

Whatever order, repetition and lateness the entries have, the answer is the same, every moment lies in exactly one
bucket, and the oracle (slow and obvious, from the contract's section 3.10 alone) agrees to the nanosecond.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement._ledger import Ledger, Summary
from ml_goodput_measurement._ledger.events import read_events
from ml_goodput_measurement._ledger.facts import Sizes
from ml_goodput_measurement.partition import Bucket

from .accounts import moment_ns
from .histories import JOB, History, Payload
from .lives import columns_of, deliver, ledger_of, lives, thorough
from .oracle import Truth, judge

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_one_of_each = History().start(0).step(0, 1).step_end(0, 2).end(3).load(4, 5).custom(6, 7).wait(8, 9)
_one_of_each.save(1, 2, 3).restore(1, 2, 3)
keys = st.sampled_from(sorted({key for entry in _one_of_each.payloads for key in entry}))


def _saved_and_restored(ledger: Ledger, sizes: Sizes) -> Ledger:
    """The ledger as another process reads it: from JSON and raw columns."""
    state, columns = ledger.to_state()
    return Ledger.from_state(json.loads(json.dumps(state)), columns_of(state["columns"], columns), sizes)


@thorough(100)
@given(lives())
def test_the_ledger_follows_the_rules(sizes: Sizes, life: tuple[list[Payload], float]) -> None:
    payloads, now = life
    summary = ledger_of(payloads, sizes).summary(moment_ns(now))
    assert comparable(summary) == comparable(judge(payloads, moment_ns(now)))


@thorough(100)
@given(lives(), st.data())
def test_order_repetition_and_lateness_change_nothing(
    sizes: Sizes, life: tuple[list[Payload], float], data: st.DataObject
) -> None:
    """Nor does it change anything that the ledger was asked on the way, or saved and restored."""
    payloads, now = life
    delivered = data.draw(st.permutations(payloads))
    again = data.draw(st.lists(st.sampled_from(payloads), max_size=10)) if payloads else []
    delivered = data.draw(st.permutations(delivered + again))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(delivered)), max_size=5)))

    ledger = Ledger(sizes)
    asked: list[Callable[[Ledger, int], object]] = [Ledger.attempts, Ledger.timeline]
    for start, end in zip([0, *cuts], [*cuts, len(delivered)], strict=True):
        deliver(ledger, delivered[start:end])
        if data.draw(st.booleans()):
            ledger = _saved_and_restored(ledger, sizes)
        expected = ledger_of(delivered[:end], sizes)
        for ask in data.draw(st.lists(st.sampled_from(asked), max_size=2)):
            assert ask(ledger, moment_ns(now)) == ask(expected, moment_ns(now))
        assert ledger.summary(moment_ns(now)) == expected.summary(moment_ns(now))
    in_order = ledger_of(payloads, sizes)
    assert ledger.summary(moment_ns(now)) == in_order.summary(moment_ns(now))
    assert ledger.timeline(moment_ns(now)) == in_order.timeline(moment_ns(now))
    assert ledger.attempts(moment_ns(now)) == in_order.attempts(moment_ns(now))
    attempts = in_order.attempts(moment_ns(now))
    assert ledger.disruptions(attempts) == in_order.disruptions(attempts)


@thorough(100)
@given(lives())
def test_every_moment_lies_in_exactly_one_bucket(sizes: Sizes, life: tuple[list[Payload], float]) -> None:
    payloads, now = life
    ledger = ledger_of(payloads, sizes)
    summary = ledger.summary(moment_ns(now))
    if summary is None:
        assert not payloads
        return
    assert sum(summary.buckets.values()) == summary.wall_ns
    assert min(summary.buckets.values()) >= 0
    assert sum(summary.custom.values()) == summary.buckets[Bucket.CUSTOM]

    at, painted, estimated = summary.start_ns, dict.fromkeys(Bucket, 0), 0
    for piece in ledger.timeline(moment_ns(now)):
        assert piece.start_ns == at < piece.end_ns
        at = piece.end_ns
        painted[piece.bucket] += piece.end_ns - piece.start_ns
        estimated += (piece.end_ns - piece.start_ns) * piece.estimated
    assert at == summary.end_ns
    assert painted == summary.buckets
    assert estimated == summary.estimated_ns


@thorough(100)
@given(lives())
def test_the_attempts_sum_to_the_job(sizes: Sizes, life: tuple[list[Payload], float]) -> None:
    payloads, now = life
    ledger = ledger_of(payloads, sizes)
    summary = ledger.summary(moment_ns(now))
    if summary is None:
        return
    attempts = ledger.attempts(moment_ns(now))
    for bucket in Bucket:
        assert sum(attempt.buckets.get(bucket, 0) for attempt in attempts) == summary.buckets[bucket]
    assert sum(attempt.steps_kept for attempt in attempts) == summary.steps_kept
    assert len(ledger.disruptions(ledger.attempts(moment_ns(now)))) == summary.disruptions


@thorough(100)
@given(lives(), st.lists(st.sampled_from([0.25, 1, 10, 1000]), min_size=1, max_size=4))
def test_asking_changes_nothing(sizes: Sizes, life: tuple[list[Payload], float], waits: list[float]) -> None:
    """A ledger that was asked at other times answers like one that was not."""
    payloads, now = life
    ledger = ledger_of(payloads, sizes)
    for wait in [*waits, 0]:
        asked_at = moment_ns(now + wait)
        assert ledger.summary(asked_at) == ledger_of(payloads, sizes).summary(asked_at)


@thorough(100)
@given(lives(), st.lists(st.dictionaries(keys, junk | st.floats(0, 2e9)) | junk, max_size=8))
def test_junk_in_the_log_spoils_nothing(sizes: Sizes, life: tuple[list[Payload], float], rubbish: list[Any]) -> None:
    """Unreadable entries are counted; the time of readable ones, even senseless ones, is in exactly one bucket."""
    payloads, now = life
    skipped: Counter[str] = Counter()
    ledger = Ledger(sizes)
    named = [{**one, "job_name": JOB} if isinstance(one, dict) else one for one in rubbish]
    ledger.add(read_events([*named, *payloads], JOB, skipped))
    summary = ledger.summary(moment_ns(now))
    if summary is not None:
        assert sum(summary.buckets.values()) == summary.wall_ns
        assert sum(piece.end_ns - piece.start_ns for piece in ledger.timeline(moment_ns(now))) == summary.wall_ns
        assert min(summary.buckets.values()) >= 0


def comparable(answer: Summary | Truth | None) -> dict[str, Any] | None:
    """The values that a summary and the oracle have in common, by the same names."""
    if answer is None:
        return None
    if isinstance(answer, Truth):
        buckets, loading = answer.buckets, answer.data_loading_async
        start, end = answer.start, answer.end
    else:
        buckets = {bucket.value: length for bucket, length in answer.buckets.items() if length}
        loading, start, end = answer.data_loading_async_ns, answer.start_ns, answer.end_ns
    return {
        "wall": (start, end, answer.running),
        "buckets": {name.replace("UNKNOWN", "OTHER"): buckets[name] for name in sorted(buckets)},
        "custom": {label: length for label, length in sorted(answer.custom.items()) if length},
        "data loading beside the training": loading,
        "last step": answer.last_step,
        "disruptions": answer.disruptions,
    }
