"""Overlays: every moment belongs to the one of the highest precedence, as a slow search confirms."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger.intervals import PRECEDENCE, Overlay, Overlays, resolve
from ml_goodput_measurement.partition import Bucket

BUCKETS = [Bucket.ELASTIC_SCALE_UP, Bucket.CUSTOM, Bucket.CHECKPOINT_SAVE, Bucket.DATA_LOADING_SYNC]


def _overlay(first: int, length: int, bucket: Bucket, label: str) -> Overlay:
    return Overlay.of(first, first + length, bucket, label if bucket is Bucket.CUSTOM else "")


overlays = st.builds(
    _overlay, st.integers(0, 30), st.integers(1, 15), st.sampled_from(BUCKETS), st.sampled_from(["EVAL", "SDC"])
)


def winner_at(moment: int, candidates: list[Overlay]) -> Overlay | None:
    """Return the overlay with the highest bucket, then the earliest start, of those that cover a moment."""
    covering = [overlay for overlay in candidates if overlay.start_ns <= moment < overlay.end_ns]
    return min(covering, key=lambda overlay: (overlay.rank, overlay), default=None)


@settings(max_examples=500)
@given(st.lists(overlays, max_size=8), st.integers(0, 40), st.integers(1, 20))
def test_every_moment_goes_to_the_highest_bucket_that_claims_it(laid: list[Overlay], start: int, length: int) -> None:
    laid, end = sorted(laid), start + length
    pieces = resolve([overlay for overlay in laid if overlay.start_ns < end and overlay.end_ns > start], start, end)
    for before, after in pairwise(pieces):
        assert before.end_ns <= after.start_ns
        if before.end_ns == after.start_ns:
            assert (before.bucket, before.label) != (after.bucket, after.label)
    assert all(start <= piece.start_ns < piece.end_ns <= end for piece in pieces)
    for moment in range(start, end):
        expected = winner_at(moment, laid)
        found = winner_at(moment, pieces)
        assert (found and (found.bucket, found.label)) == (expected and (expected.bucket, expected.label))


@settings(max_examples=300)
@given(st.lists(overlays, max_size=20), st.data(), st.integers(0, 50), st.integers(1, 20))
def test_those_that_touch_a_stretch_are_found_after_any_adding_and_discarding(
    laid: list[Overlay], data: st.DataObject, start: int, length: int
) -> None:
    kept = Overlays()
    for overlay in laid:
        kept.add(overlay)
    expected = sorted(laid)
    if laid:
        for overlay in data.draw(st.lists(st.sampled_from(laid), max_size=8)):
            kept.discard(overlay)
            if overlay in expected:
                expected.remove(overlay)
    end = start + length
    touching = [overlay for overlay in expected if overlay.start_ns < end and overlay.end_ns > start]
    assert kept.between(start, end) == touching


def test_an_overlay_without_length_has_no_effect() -> None:
    kept = Overlays()
    kept.add(Overlay.of(5, 5, Bucket.CUSTOM))
    kept.add(Overlay.of(7, 5, Bucket.CUSTOM))
    assert kept.between(0, 100) == []


def test_precedence_is_that_of_the_contract() -> None:
    order = [
        Bucket.EXCLUDED,
        Bucket.WASTED_PROGRESS,
        Bucket.ELASTIC_SLICE_DOWN,
        Bucket.CUSTOM,
        Bucket.CHECKPOINT_RESTORE,
        Bucket.CHECKPOINT_SAVE,
        Bucket.TPU_INITIALIZATION,
        Bucket.TRAINING_PREP,
        Bucket.DATA_LOADING_SYNC,
        Bucket.PROGRAM_STARTUP,
        Bucket.PRODUCTIVE,
    ]
    assert sorted(order, key=PRECEDENCE.__getitem__) == order
