"""TensorBoard gets every point once, under the tags of the public package; its own reader reads them back."""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement._export.scalars import custom_event_tags
from ml_goodput_measurement._export.tensorboard import TensorBoardExporter
from ml_goodput_measurement.goodput_utils import BadputType
from ml_goodput_measurement.snapshot import DeviatingStep, Deviation, RollingWindow, Snapshot

from .loaded_modules import loaded_by
from .tensorboard_points import (
    NOW_NS,
    SECOND_NS,
    Point,
    accumulated,
    cumulative,
    deviating,
    deviation_points,
    files,
    points,
    steps_of,
    whole_life,
)


def exporter_to(folder: Path, job_name: str = "job", *, breakdown: bool = True) -> TensorBoardExporter:
    return TensorBoardExporter(folder, job_name, include_badput_breakdown=breakdown)


# --- What is written ------------------------------------------------------------------------------------


def test_tags_steps_and_values_are_those_of_the_public_package(tmp_path: Path) -> None:
    badput = {
        BadputType.TPU_INITIALIZATION: 4.0,
        BadputType.DATA_LOADING_ASYNC: 0.0,
        BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL_STEP": 2.0, "SDC CHECK": 1.5},
        BadputType.OTHER: 12.5,
    }
    exporter_to(tmp_path)(whole_life(step=7, goodput=80.0, badput=badput))  # type: ignore[arg-type]
    assert points(tmp_path / "goodput") == [
        Point("goodput/goodput", 7, 80.0),
        Point("badput/tpu_initialization", 7, 4.0),
        Point("badput/data_loading_async", 7, 0.0),
        Point("badput/custom_badput_events/eval_step", 7, 2.0),
        Point("badput/custom_badput_events/sdc_check", 7, 1.5),
        Point("badput/other", 7, 12.5),
    ]
    found = accumulated(tmp_path / "goodput")
    assert [found.SummaryMetadata(tag).display_name for tag in found.Tags()["scalars"]] == [
        "goodput",
        "tpu_initialization",
        "data_loading_async",
        "eval_step",
        "sdc check",
        "other",
    ]
    assert {event.wall_time for event in found.Scalars("goodput/goodput")} == {NOW_NS / SECOND_NS + 7}


def test_without_the_breakdown_there_is_goodput_only(tmp_path: Path) -> None:
    exporter_to(tmp_path, breakdown=False)(whole_life(step=7))
    assert points(tmp_path / "goodput") == [Point("goodput/goodput", 7, 80.0)]


def test_each_step_has_its_deviation_at_its_start_time(tmp_path: Path) -> None:
    exporter_to(tmp_path)(deviating(steps_of(range(100))))
    assert points(tmp_path / "goodput") == deviation_points(range(100))
    times = [event.wall_time for event in accumulated(tmp_path / "goodput").Scalars("step_deviation")]
    assert times == [NOW_NS / SECOND_NS + second for second in range(100)]


def test_rolling_windows_write_nothing(tmp_path: Path) -> None:
    exporter_to(tmp_path)(Snapshot("job", NOW_NS, windows=(RollingWindow(3600, 80.0, {}, None),)))
    assert not (tmp_path / "goodput").exists()


def test_a_process_writes_one_file(tmp_path: Path) -> None:
    exporter = exporter_to(tmp_path)
    for step in range(5):
        exporter(whole_life(step))
        exporter(deviating(steps_of(range(step))))
    assert len(files(tmp_path / "goodput")) == 1


def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "my run: näme 🦆 "
    exporter_to(folder)(whole_life(3))
    assert Point("goodput/goodput", 3, 80.0) in points(folder / "goodput")


def test_values_that_are_not_numbers_are_omitted(tmp_path: Path) -> None:
    badput = {BadputType.TRAINING_PREP: math.nan, BadputType.OTHER: math.inf, BadputType.DATA_LOADING_SYNC: 1e300}
    exporter = exporter_to(tmp_path)
    exporter(whole_life(3, goodput=math.nan, badput=badput))  # type: ignore[arg-type]
    assert not (tmp_path / "goodput").exists()
    unknown = DeviatingStep(1, NOW_NS + 1, math.nan)
    too_large = DeviatingStep(2**63, NOW_NS + 2, 1.0)
    exporter(deviating([DeviatingStep(0, NOW_NS, 0.25), unknown, too_large, DeviatingStep(3, NOW_NS + 3, 0.5)]))
    exporter(whole_life(2**63))
    assert points(tmp_path / "goodput") == [Point("step_deviation", 0, 0.25), Point("step_deviation", 3, 0.5)]


# --- Once -----------------------------------------------------------------------------------------------


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    exporter = exporter_to(tmp_path)
    exporter(whole_life(5, badput={BadputType.OTHER: 1.0, BadputType.TRAINING_PREP: 2.0}))
    size = files(tmp_path / "goodput")[0].stat().st_size
    exporter(whole_life(5, badput={BadputType.OTHER: 1.0, BadputType.TRAINING_PREP: 2.0}))
    assert files(tmp_path / "goodput")[0].stat().st_size == size
    exporter(whole_life(5, badput={BadputType.OTHER: 3.0, BadputType.TRAINING_PREP: 2.0}))
    exporter(whole_life(6, badput={BadputType.OTHER: 3.0, BadputType.TRAINING_PREP: 2.0}))
    assert points(tmp_path / "goodput") == [
        Point("goodput/goodput", 5, 80.0),
        Point("goodput/goodput", 6, 80.0),
        Point("badput/other", 5, 1.0),
        Point("badput/other", 5, 3.0),
        Point("badput/other", 6, 3.0),
        Point("badput/training_prep", 5, 2.0),
        Point("badput/training_prep", 6, 2.0),
    ]


def test_a_step_that_is_repeated_after_a_rollback_is_a_new_point(tmp_path: Path) -> None:
    exporter = exporter_to(tmp_path)
    exporter(deviating(steps_of(range(10))))
    again = [*steps_of(range(5)), *steps_of(range(5, 12), first_ns=NOW_NS + 100 * SECOND_NS)]
    exporter(deviating(again))
    exporter(deviating(again))
    assert points(tmp_path / "goodput") == deviation_points([*range(10), *range(5, 12)])


def test_a_long_history_is_caught_up_with_over_several_calls(tmp_path: Path) -> None:
    exporter, history = exporter_to(tmp_path), deviating(steps_of(range(25_000)))
    for written in (20_000, 25_000, 25_000):
        exporter(history)
        assert len(points(tmp_path / "goodput")) == written
    assert points(tmp_path / "goodput") == deviation_points(range(25_000))


def test_the_end_of_a_run_leaves_no_step_out(tmp_path: Path) -> None:
    exporter = exporter_to(tmp_path)
    exporter(deviating(steps_of(range(48_000))))
    exporter.flush(30.0)
    assert len(points(tmp_path / "goodput")) == 48_000
    exporter.flush(30.0)
    assert points(tmp_path / "goodput") == deviation_points(range(48_000))


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_restarted_process_writes_nothing_again(tmp_path: Path, ends_well: bool) -> None:
    history = steps_of(range(30))
    exporter = exporter_to(tmp_path)
    exporter(deviating(history[:20], with_cumulative=cumulative(19)))
    exporter.close() if ends_well else exporter._log._lock.release()  # The kernel does as much for a killed one.
    exporter = exporter_to(tmp_path)
    exporter(deviating(history[:20], with_cumulative=cumulative(19)))
    assert len(files(tmp_path / "goodput")) == 1
    exporter(deviating(history, with_cumulative=cumulative(29)))
    assert len(files(tmp_path / "goodput")) == 2  # TensorBoard reads them in this order.
    assert points(tmp_path / "goodput") == [
        Point("goodput/goodput", 19, 80.0),
        Point("goodput/goodput", 29, 80.0),
        Point("badput/other", 19, 12.5),
        Point("badput/other", 29, 12.5),
        *deviation_points(range(30)),
    ]


def test_after_it_was_closed_an_exporter_can_be_called_again(tmp_path: Path) -> None:
    exporter = exporter_to(tmp_path, breakdown=False)
    for step in (1, 2, 2, 3):
        exporter(whole_life(step))
        exporter.flush(1.0)
        exporter.close()
        exporter.close()
    assert points(tmp_path / "goodput") == [Point("goodput/goodput", step, 80.0) for step in (1, 2, 3)]


def test_a_last_point_waits_a_while_for_the_process_of_the_trainers_last_life_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = exporter_to(tmp_path, breakdown=False), exporter_to(tmp_path, breakdown=False)
    first(whole_life(1))
    second(whole_life(2))
    monkeypatch.setattr("ml_goodput_measurement._export.tensorboard.time.sleep", lambda _: first.close())
    second.flush(10.0)
    assert points(tmp_path / "goodput") == [Point("goodput/goodput", step, 80.0) for step in (1, 2)]


def test_a_last_point_does_not_wait_for_a_process_that_goes_on(tmp_path: Path) -> None:
    first, second = exporter_to(tmp_path, breakdown=False), exporter_to(tmp_path, breakdown=False)
    first(whole_life(1))
    second(whole_life(2))
    second.flush(0.1)
    assert points(tmp_path / "goodput") == [Point("goodput/goodput", 1, 80.0)]
    first.close()


def test_jobs_and_directories_do_not_share_what_was_written(tmp_path: Path) -> None:
    for job, folder in (("a", "x"), ("b", "y"), ("a", "z")):
        exporter_to(tmp_path / folder, job)(whole_life(3))
        assert Point("goodput/goodput", 3, 80.0) in points(tmp_path / folder / "goodput")


def test_a_directory_that_is_spelled_otherwise_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs", "./runs/", tmp_path / "runs", "x/../runs"):
        exporter = TensorBoardExporter(folder, "job", include_badput_breakdown=False)
        exporter(whole_life(3))
        exporter.close()
    assert points(tmp_path / "runs" / "goodput") == [Point("goodput/goodput", 3, 80.0)]


def test_of_two_monitors_one_stands_by_and_takes_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = exporter_to(tmp_path), exporter_to(tmp_path)
    first(whole_life(1))
    with caplog.at_level(logging.INFO, "ml_diagnostics"):
        second(whole_life(1))
        second(whole_life(2))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "stands by" in caplog.text
    assert str(tmp_path) in caplog.text
    first(whole_life(2))
    first.close()
    second(whole_life(2))
    second(whole_life(3))
    assert [point.step for point in points(tmp_path / "goodput") if point.tag == "goodput/goodput"] == [1, 2, 3]


@pytest.mark.parametrize("frees_lock_before", ["first stop", "second stop", "flush"])
def test_last_points_are_written_even_if_the_previous_process_ends_late(tmp_path: Path, frees_lock_before: str) -> None:
    """The uploads of a monitor are stopped one after the other, each with a snapshot that makes the last one stale."""
    first, second = exporter_to(tmp_path), exporter_to(tmp_path)
    first(deviating(steps_of(range(5)), with_cumulative=cumulative(4)))
    steps = deviating(steps_of(range(10)))

    def steps_since(start_ns: Any) -> Any:
        if is_stale:
            raise RuntimeError("it took so long that there is a newer snapshot")
        return steps.deviation.steps_since(start_ns)

    is_stale = False
    snapshots = {
        "first stop": whole_life(9),
        "second stop": dataclasses.replace(steps, deviation=Deviation(0.5, steps_since)),
    }
    for name, snapshot in snapshots.items():
        if frees_lock_before == name:
            first.close()
        second(snapshot)
    is_stale = True
    if frees_lock_before == "flush":
        first.close()
        second.flush(10.0)
    found = points(tmp_path / "goodput")
    assert [(point.step, point.value) for point in found if point.tag == "goodput/goodput"] == [(4, 80.0), (9, 80.0)]
    assert [point for point in found if point.tag == "step_deviation"] == deviation_points(range(10))
    [event] = [event for event in accumulated(tmp_path / "goodput").Scalars("goodput/goodput") if event.step == 9]
    assert event.wall_time * SECOND_NS == whole_life(9).time_ns


def test_a_point_that_was_missed_is_not_written_after_a_later_one(tmp_path: Path) -> None:
    first, second = exporter_to(tmp_path), exporter_to(tmp_path)
    first(whole_life(3))
    second(whole_life(3))
    first(whole_life(9))
    first.close()
    second(deviating(steps_of(range(10))))
    assert [point.step for point in points(tmp_path / "goodput") if point.tag == "goodput/goodput"] == [3, 9]


def test_state_is_private(tmp_path: Path) -> None:
    exporter_to(tmp_path)(whole_life(1))
    folder = diagnostics_directory() / "state" / "monitor"
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = list(folder.iterdir())
    assert sorted(path.suffix for path in kept) == [".json", ".lock"]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}


# --- Names of custom events -----------------------------------------------------------------------------


def test_custom_events_have_sane_and_distinct_tags(tmp_path: Path) -> None:
    odd = ["EVAL\nSTEP", "🦆", "🐍", "", "\ud800", "\u212a", "X" * 300, "X" * 301]
    names = ["EVAL STEP", "EVAL_STEP", "A/B", "Ü", "K", *odd]
    shares: dict[str, float] = {name: float(number) for number, name in enumerate(names)}
    exporter_to(tmp_path)(whole_life(3, badput={BadputType.CUSTOM_BADPUT_EVENTS: shares}))
    found = [point for point in points(tmp_path / "goodput") if point.tag != "goodput/goodput"]
    assert [point.value for point in found] == [*shares.values()]
    tags = [point.tag.removeprefix("badput/custom_badput_events/") for point in found]
    assert len(set(tags)) == len(names)
    assert all(len(tag) <= 110 and tag.isprintable() and " " not in tag for tag in tags)
    assert tags[1:5] == ["eval_step", "a/b", "ü", "k"]


def test_an_event_that_is_alone_has_the_tag_of_the_public_package() -> None:
    names = ["EVAL STEP", "A/B", "/LEAD//X/", "EMOJI😀\nNL", "PLAIN_1"]
    tags = ["eval_step", "a/b", "/lead//x/", "emoji__nl", "plain_1"]
    assert [custom_event_tags([name])[name] for name in names] == tags


def test_tags_do_not_depend_on_the_order_of_events() -> None:
    names = ["A B", "A_B", "A\tB", "Q" * 200, "Q" * 201]
    assert custom_event_tags(names) == custom_event_tags(reversed(names))


def test_an_event_that_is_named_like_the_tag_of_another_gets_its_own() -> None:
    first = custom_event_tags(["A B", "A\tB"])
    names = ["A B", "A\tB", *(tag.upper() for tag in first.values())]
    assert len(set(custom_event_tags(names).values())) == len(set(names))


# --- Construction ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["s3://bucket/x", "gs:/bucket/x", "gs://", "gs:///x", "a\0b"])
def test_a_directory_that_cannot_be_one_is_refused_at_once(directory: str) -> None:
    with pytest.raises(ConfigurationError):
        TensorBoardExporter(directory, "job", include_badput_breakdown=False)


def test_points_are_written_without_the_code_of_tensorflow_or_tensorboardx(tmp_path: Path) -> None:
    program = (
        "from ml_goodput_measurement._export.tensorboard import TensorBoardExporter;"
        "from ml_goodput_measurement.snapshot import DeviatingStep, Deviation, Snapshot;"
        f"exporter = TensorBoardExporter({str(tmp_path)!r}, 'job', include_badput_breakdown=True);"
        "exporter(Snapshot('job', 1, deviation=Deviation(0.5, lambda _: [DeviatingStep(3, 10**9, 0.5)])))"
    )
    assert not {"tensorboardX", "numpy", "google.protobuf"} & loaded_by(program)
    assert points(tmp_path / "goodput") == [Point("step_deviation", 3, 0.5)]


def test_making_an_exporter_imports_nothing_heavy_and_touches_no_disk(tmp_path: Path) -> None:
    program = (
        "from ml_goodput_measurement._export.tensorboard import TensorBoardExporter;"
        f"TensorBoardExporter({str(tmp_path / 'x')!r}, 'job', include_badput_breakdown=True)"
    )
    assert not {"tensorboardX", "numpy", "google.cloud", "torch"} & loaded_by(program)
    assert not (tmp_path / "x").exists()
