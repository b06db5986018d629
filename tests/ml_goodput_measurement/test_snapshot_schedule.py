"""When the helper process of a monitor uploads what, and what it does about sinks that fail or hang."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from ml_goodput_measurement._monitor.settings import Upload
from ml_goodput_measurement._monitor.sinks import Exporter, Sink
from ml_goodput_measurement._monitor.snapshot_schedule import SnapshotSchedule
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.snapshot import Cumulative, DeviatingStep, Deviation, RollingWindow, Snapshot

HOUR = 3600.0
WAIT = 20.0
"""Longer than anything here takes; nothing waits for so long but when a test fails."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Calculator:
    """The part of a calculator that a schedule needs; its job has a step a call."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, bool, tuple[int, ...], float | None]] = []
        self.asked_locally: list[bool] = []
        self.done: list[str] = []
        self.error: BaseException | None = None

    def snapshot(
        self,
        *,
        cumulative: bool = True,
        deviation: bool = False,
        window_seconds: Sequence[int] = (),
        configured_ideal_step_time: float | None = None,
        local_only: bool = False,
    ) -> Snapshot:
        self.asked.append((cumulative, deviation, tuple(window_seconds), configured_ideal_step_time))
        self.asked_locally.append(local_only)
        if self.error is not None:
            raise self.error
        step = len(self.asked)
        return Snapshot(
            "job",
            step,
            cumulative=Cumulative(1.0, 50.0, {}, {}, step, 2.0, 0, 1.0, None) if cumulative else None,
            deviation=Deviation(0.5, self._steps) if deviation else None,
            windows=tuple(RollingWindow(length, 50.0, {}, None) for length in window_seconds),
        )

    def _steps(self, moment_ns: int) -> Iterator[DeviatingStep]:
        return iter([DeviatingStep(step, step, 0.5) for step in range(3)])

    def save_state(self) -> None:
        self.done.append("saved")

    def sync_to_gcs(self) -> None:
        self.done.append("synced")


class Recording:
    """An exporter that stores its snapshots, and fails on demand."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.calls = 0
        self.error: BaseException | None = None
        self.ends: list[str] = []

    def __call__(self, snapshot: Snapshot) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.snapshots.append(snapshot)

    def flush(self, timeout_seconds: float) -> None:
        self.ends.append("flushed")

    def close(self) -> None:
        self.ends.append("closed")


class Bench:
    """A schedule with a manual clock."""

    def __init__(self, *sinks: tuple[Exporter, set[Upload]], sync: float | None = None) -> None:
        self.clock, self.calculator = Clock(), Calculator()
        self.sinks = [
            Sink(f"Sink {number}", lambda exporter=exporter: exporter, wants, clock=self.clock)  # type: ignore[misc]
            for number, (exporter, wants) in enumerate(sinks)
        ]
        self.schedule = SnapshotSchedule(
            cast("GoodputCalculator", self.calculator),
            self.sinks,
            interval_seconds=lambda upload: 10.0 if upload is Upload.DEVIATION else 30.0,
            configured_ideal_step_seconds=1.5,
            sync_interval_seconds=sync,
            clock=self.clock,
        )

    def set(self, *uploads: Upload, flush: bool = True, windows: Sequence[int] = (60, 120)) -> None:
        wanted = {upload: windows if upload is Upload.WINDOWS else () for upload in uploads}
        self.schedule.set_uploads(wanted, flush=flush, flush_seconds=WAIT)

    def run(self, seconds: float) -> None:
        """Pass time like the helper process."""
        end = self.clock.now + seconds
        while (wait := self.schedule.seconds_to_next()) is not None and self.clock.now + wait <= end:
            self.clock.now += wait
            self.schedule.tick()
            assert self.schedule.wait_for_sinks(WAIT)
        self.clock.now = end


EVERYTHING = set(Upload)


def test_each_upload_has_its_interval_and_shares_the_snapshot_of_a_tick_with_the_others() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.set(Upload.CUMULATIVE)
    bench.clock.now += 0.3  # One call after the other.
    bench.set(Upload.CUMULATIVE, Upload.DEVIATION, Upload.WINDOWS)
    assert bench.calculator.asked == []
    bench.run(60)
    alone = (False, True, (), 1.5)
    together = (True, True, (60, 120), 1.5)
    assert bench.calculator.asked == [alone, alone, together, alone, alone, together]
    assert len(exporter.snapshots) == 6


def test_nothing_is_due_while_nothing_is_on() -> None:
    bench = Bench((Recording(), EVERYTHING), sync=60)
    assert bench.schedule.seconds_to_next() is None
    bench.set(Upload.CUMULATIVE)
    assert bench.schedule.seconds_to_next() == 30
    bench.set()
    assert bench.schedule.seconds_to_next() is None


def test_what_was_missed_is_not_made_up_for() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.set(Upload.CUMULATIVE)
    bench.clock.now += HOUR + 1  # The machine was suspended.
    bench.schedule.tick()
    bench.schedule.tick()
    assert bench.schedule.wait_for_sinks(WAIT)
    assert len(exporter.snapshots) == 1
    assert bench.schedule.seconds_to_next() == 29


@pytest.mark.parametrize("jump_seconds", [-HOUR, HOUR])
def test_a_jump_of_the_wall_clock_changes_nothing(jump_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING), sync=600)
    bench.set(Upload.CUMULATIVE)
    now = time.time()
    for elapsed in range(0, int(HOUR), 60):
        moment = now + elapsed + (jump_seconds if elapsed > HOUR / 2 else 0)
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: int(moment * 1e9))
        bench.run(60)
    assert len(exporter.snapshots) == 120
    assert len(bench.calculator.done) == 6


def test_each_sink_is_given_what_it_wants_and_nothing_else() -> None:
    cumulative, windows = Recording(), Recording()
    bench = Bench((cumulative, {Upload.CUMULATIVE}), (windows, {Upload.WINDOWS}))
    bench.set(*Upload)
    bench.run(30)
    assert [(s.cumulative is not None, s.deviation, s.windows) for s in cumulative.snapshots] == [(True, None, ())]
    assert [s.cumulative for s in windows.snapshots] == [None]
    assert [window.window_seconds for window in windows.snapshots[0].windows] == [60, 120]


def test_other_windows_of_a_running_upload_are_taken_over() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.set(Upload.WINDOWS)
    bench.set(Upload.WINDOWS, windows=[7])
    bench.run(30)
    assert bench.calculator.asked == [(False, False, (7,), 1.5)]


def test_a_stop_uploads_once_more_what_is_stopped_and_only_that() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.set(*Upload)
    bench.set(Upload.CUMULATIVE, Upload.DEVIATION)
    assert bench.calculator.asked == [(False, False, (60, 120), 1.5)]
    bench.set(Upload.CUMULATIVE, flush=False)
    assert len(exporter.snapshots) == 1
    assert (exporter.ends, bench.calculator.done) == ([], [])


def test_the_last_point_does_not_wait_for_a_network() -> None:
    bench = Bench((Recording(), EVERYTHING))
    bench.set(Upload.CUMULATIVE)
    bench.run(30)
    bench.set()
    assert bench.calculator.asked_locally == [False, True]


def test_the_last_stop_leaves_all_in_order() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING), sync=HOUR)
    bench.set(Upload.CUMULATIVE)
    bench.set()
    assert [s.cumulative is not None for s in exporter.snapshots] == [True]
    assert exporter.ends == ["flushed", "closed"]
    assert bench.calculator.done == ["saved"]
    bench.schedule.sync()
    assert bench.calculator.done == ["saved", "synced"]


def test_a_stop_that_skips_the_flush_does_nothing_more() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING), sync=HOUR)
    bench.set(Upload.CUMULATIVE)
    bench.set(flush=False)
    assert (bench.calculator.asked, bench.calculator.done, exporter.calls) == ([], [], 0)


def test_the_saved_state_goes_to_the_bucket_at_its_interval() -> None:
    bench = Bench((Recording(), EVERYTHING), sync=600)
    bench.set(Upload.CUMULATIVE)
    bench.run(HOUR)
    assert bench.calculator.done == ["synced"] * 6


def test_a_sink_that_fails_for_an_hour_is_rarely_tried_logged_once_and_resumes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing, other = Recording(), Recording()
    bench = Bench((failing, EVERYTHING), (other, EVERYTHING))
    bench.set(Upload.DEVIATION)
    failing.error = OSError("no space left")
    bench.run(HOUR)
    assert len(other.snapshots) == 360
    assert 8 <= failing.calls <= 30
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["Sink 0 failed"]
    assert "no space left" in caplog.text
    failing.error = None
    bench.run(700)
    assert failing.snapshots
    failing.snapshots.clear()
    bench.run(100)
    assert len(failing.snapshots) == 10


def test_another_kind_of_failure_is_also_logged(caplog: pytest.LogCaptureFixture) -> None:
    failing = Recording()
    bench = Bench((failing, EVERYTHING))
    bench.set(Upload.DEVIATION)
    for error in (OSError("first"), SystemExit("second"), OSError("third")):
        failing.error = error
        bench.run(700)
    assert [kind for kind in ("first", "second", "third") if kind in caplog.text] == ["first", "second"]


def test_the_last_point_is_tried_also_shortly_after_a_failure() -> None:
    failing = Recording()
    bench = Bench((failing, EVERYTHING))
    bench.set(Upload.CUMULATIVE)
    failing.error = OSError()
    bench.run(30)
    failing.error = None
    bench.set()
    assert len(failing.snapshots) == 1


def test_an_exporter_that_cannot_be_made_is_made_later() -> None:
    attempts, exporter = [], Recording()

    def make() -> Exporter:
        attempts.append(1)
        if len(attempts) < 3:
            raise ImportError("not installed")
        return exporter

    clock, calculator = Clock(), Calculator()
    sink = Sink("Sink", make, EVERYTHING, clock=clock)
    for _ in range(3):
        sink.offer(calculator.snapshot())
        assert sink.wait(WAIT)
        clock.now += 100
    assert len(exporter.snapshots) == 1


def test_a_hanging_sink_is_waited_for_a_while_and_then_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    released, entered = threading.Event(), threading.Event()
    seen: list[Snapshot] = []

    def hang(snapshot: Snapshot) -> None:
        entered.set()
        released.wait(WAIT)
        seen.append(snapshot)

    other = Recording()
    bench = Bench((hang, EVERYTHING), (other, EVERYTHING))
    bench.set(Upload.CUMULATIVE)
    bench.clock.now += 30
    bench.schedule.tick()
    assert entered.wait(WAIT)
    assert bench.sinks[1].wait(WAIT)
    bench.clock.now += 30
    bench.schedule.tick()
    assert bench.calculator.asked == [(True, False, (), 1.5)]  # Its snapshot is still good.
    for _ in range(20):
        bench.clock.now += 30
        bench.schedule.tick()
        assert bench.sinks[1].wait(WAIT)
    assert len(bench.calculator.asked) > 10
    assert other.calls == len(bench.calculator.asked)
    assert sum("has not returned" in record.message for record in caplog.records) == 1
    released.set()
    assert bench.schedule.wait_for_sinks(WAIT)
    bench.run(30)
    assert len(seen) == 2


def test_a_hanging_sink_does_not_keep_the_last_point_from_the_others() -> None:
    released = threading.Event()

    def hang(_: Snapshot) -> None:
        released.wait(WAIT)

    other = Recording()
    bench = Bench((hang, EVERYTHING), (other, EVERYTHING))
    bench.set(Upload.CUMULATIVE)
    bench.clock.now += 30
    bench.schedule.tick()
    bench.schedule.set_uploads({}, flush=True, flush_seconds=0.5)
    assert bench.sinks[1].wait(WAIT)
    assert len(other.snapshots) == 2
    released.set()


class Held:
    """An exporter with a first call that does not return until it is released."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.kept = Recording()

    def __call__(self, snapshot: Snapshot) -> None:
        self.entered.set()
        assert self.released.wait(WAIT)
        self.kept(snapshot)

    def flush(self, timeout_seconds: float) -> None:
        self.kept.flush(timeout_seconds)

    def close(self) -> None:
        self.kept.close()


def held_bench(held: Held, *others: Exporter, sync: float | None = None) -> Bench:
    """One whose first sink is at work on the first snapshot."""
    bench = Bench((held, EVERYTHING), *((other, EVERYTHING) for other in others), sync=sync)
    bench.set(*Upload)
    bench.clock.now += 30
    bench.schedule.tick()
    assert held.entered.wait(WAIT)
    return bench


def test_last_points_wait_for_the_export_that_is_under_way() -> None:
    held = Held()
    bench = held_bench(held)
    for uploads in ([Upload.DEVIATION, Upload.WINDOWS], [Upload.WINDOWS], []):
        bench.schedule.set_uploads(dict.fromkeys(uploads, (60,)), flush=True, flush_seconds=0.01)
    held.released.set()
    assert bench.schedule.wait_for_sinks(WAIT)
    parts = [(s.cumulative is not None, s.deviation is not None, len(s.windows)) for s in held.kept.snapshots]
    assert parts == [(True, True, 2), (True, False, 0), (False, True, 0), (False, False, 1)]
    assert held.kept.ends == ["flushed", "closed"]


def test_what_is_not_last_does_not_wait_for_a_hanging_sink() -> None:
    held = Held()
    bench = held_bench(held)
    for _ in range(10):
        bench.clock.now += 70
        bench.schedule.tick()
    held.released.set()
    assert bench.schedule.wait_for_sinks(WAIT)
    assert len(held.kept.snapshots) == 1


def test_a_hanging_sink_keeps_neither_the_state_from_being_saved_nor_the_others_from_being_closed() -> None:
    held, other = Held(), Recording()
    bench = held_bench(held, other, sync=HOUR)
    bench.schedule.set_uploads({}, flush=True, flush_seconds=0.01)
    assert bench.calculator.done == ["saved"]
    bench.schedule.sync()
    assert bench.calculator.done == ["saved", "synced"]
    assert bench.sinks[1].wait(WAIT)
    assert other.ends == ["flushed", "closed"]
    assert held.kept.ends == []
    held.released.set()


def test_the_state_is_saved_while_there_is_time_left() -> None:
    held = Held()
    bench = held_bench(held)
    saved_after: list[bool] = []
    bench.calculator.save_state = lambda: saved_after.append(held.released.is_set()) or held.released.set()
    bench.schedule.set_uploads({}, flush=True, flush_seconds=1)
    assert saved_after == [False]
    assert bench.schedule.wait_for_sinks(WAIT)
    assert held.kept.ends == ["flushed", "closed"]


def test_steps_of_a_snapshot_that_is_not_the_newest_any_more_are_not_sent() -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.set(Upload.DEVIATION)
    bench.run(10)
    deviation = exporter.snapshots[0].deviation
    assert deviation is not None
    steps = deviation.steps_since(-1)
    assert next(steps).step == 0
    bench.run(10)
    with pytest.raises(RuntimeError, match="newer snapshot"):
        next(steps)


def test_a_job_without_records_yet_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.calculator.error = NoGoodputError("Nothing was recorded")
    bench.set(Upload.CUMULATIVE)
    bench.run(300)
    assert len(bench.calculator.asked) == 10
    assert [record.levelname for record in caplog.records] == ["INFO"]
    bench.calculator.error = None
    bench.run(30)
    assert len(exporter.snapshots) == 1


@pytest.mark.parametrize("error", [RuntimeError("broken"), MemoryError(), SystemExit(1)])
def test_a_query_that_fails_for_an_hour_is_rarely_tried_and_logged_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Recording()
    bench = Bench((exporter, EVERYTHING))
    bench.calculator.error = error
    bench.set(Upload.DEVIATION)
    bench.run(HOUR)
    assert 8 <= len(bench.calculator.asked) <= 30
    assert len(caplog.records) == 1
    bench.calculator.error = None
    bench.run(700)
    assert exporter.snapshots
