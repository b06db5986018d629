"""A report shows all of the time by bucket, what each disruption cost, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ml_goodput_measurement._cli.buckets import BUCKET_NAMES
from ml_goodput_measurement._cli.report import (
    as_dict,
    format_ns,
    format_text,
    rows,
    rows_as_dicts,
)
from ml_goodput_measurement.partition import AttemptEnd, Bucket, Inference, JobReport

from .histories import History
from .sample_reports import killed_and_resumed, report_of, without_time

SECOND = 10**9


@pytest.fixture
def report() -> JobReport:
    return report_of(killed_and_resumed())


def table(text: str) -> dict[str, tuple[float, float]]:
    """(seconds, percent) by row, as a reader of the page sees them."""
    lines = re.findall(r"^  (\S.*?) +([\d,]+\.\d{3}) +([\d.]+)(?: |$)", text, re.MULTILINE)
    return {name: (float(seconds.replace(",", "")), float(percent)) for name, seconds, percent in lines}


def test_the_page_names_what_was_inferred_and_how_sure_that_is(report: JobReport) -> None:
    steps = Inference(Bucket.PRODUCTIVE, "", "calls of train_step", "medium")
    evaluation = Inference(Bucket.CUSTOM, "EVALUATION", "calls of eval_step between steps", "low")
    save = Inference(Bucket.CHECKPOINT_SAVE, "", "Orbax's events", "high")
    inferred = dataclasses.replace(report, inferred=(steps, save, evaluation))
    assert """\

  inferred            certainty  from
  ------------------  ---------  --------------------------------
  steps               medium     calls of train_step
  checkpoint save     high       Orbax's events
  custom: evaluation  low        calls of eval_step between steps

""" in format_text(inferred)
    assert rows(inferred) == rows(report)
    assert as_dict(inferred)["inferred"][0] == {
        "name": "steps",
        "bucket": "PRODUCTIVE",
        "certainty": "medium",
        "from": "calls of train_step",
    }


def test_a_job_that_records_only_what_is_inferred_has_ended_when_its_process_has(report: JobReport) -> None:
    last = dataclasses.replace(report.attempts[-1], ended=AttemptEnd.EXITED)
    exited = dataclasses.replace(report, attempts=[*report.attempts[:-1], last])
    assert as_dict(exited)["state"] == "ended: the process exited without recording the job's end"
    steps = Inference(Bucket.PRODUCTIVE, "", "calls of train_step", "medium")
    assert as_dict(dataclasses.replace(exited, inferred=(steps,)))["state"] == "ended"


def test_the_page_of_a_job_that_was_killed_and_resumed(report: JobReport) -> None:
    assert (
        format_text(report)
        == """\
job: 50.00 % goodput

  wall time    3 min 20 s, from 2023-11-14 22:13:20Z to 2023-11-14 22:16:40Z (ended)
  last step    9, 10 steps kept
  ideal step   10.0 s

  bucket                   seconds  percent    duration
  -----------------------  -------  -------  ----------
  productive               100.000    50.00  1 min 40 s
  wasted progress           40.000    20.00      40.0 s
  infrastructure recovery   17.000     8.50      17.0 s
  device initialization      6.000     3.00      6.00 s
  training preparation       9.000     4.50      9.00 s
  data loading               4.000     2.00      4.00 s
  checkpoint restore         3.000     1.50      3.00 s
  checkpoint save            1.000     0.50      1.00 s
  custom: evaluation         5.000     2.50      5.00 s
  unknown                   15.000     7.50      15.0 s
  -----------------------  -------  -------  ----------
  total                    200.000   100.00  3 min 20 s

  estimated: 20.0 s of steps whose end was not recorded

1 disruption cost 1 min 8 s

  disruption       cost  infrastructure    init  restore  data loading  recompute  steps lost
  ----------  ---------  --------------  ------  -------  ------------  ---------  ----------
           1  1 min 8 s          17.0 s  6.00 s   3.00 s        2.00 s     40.0 s           4

  1: attempt 1 had its last event at 2023-11-14 22:15:03Z with step 9 in flight; \
resumed at 2023-11-14 22:15:30Z from step 6

  attempt  started                   lasted   steps  kept  lost  outcome
  -------  --------------------  ----------  ------  ----  ----  --------------------------------
        1  2023-11-14 22:13:20Z  1 min 43 s  0 to 9     6     4  exited without recording its end
        2  2023-11-14 22:15:30Z  1 min 10 s  6 to 9     4     0  job end recorded

  attempt                           1           2
  -----------------------  ----------  ----------
  productive                1 min 0 s      40.0 s
  wasted progress              40.0 s           -
  infrastructure recovery      17.0 s           -
  device initialization        3.00 s      3.00 s
  training preparation         6.00 s      3.00 s
  data loading                 2.00 s      2.00 s
  checkpoint restore                -      3.00 s
  checkpoint save              1.00 s           -
  custom: evaluation                -      5.00 s
  unknown                      1.00 s      14.0 s
  -----------------------  ----------  ----------
  in all                   2 min 10 s  1 min 10 s"""
    )


def test_the_rows_sum_to_the_wall_time(report: JobReport) -> None:
    assert sum(ns for _, _, ns in rows(report)) == report.wall_ns
    shown = table(format_text(report))
    total = shown.pop("total")
    assert sum(seconds for seconds, _ in shown.values()) == pytest.approx(total[0])
    assert sum(percent for _, percent in shown.values()) == pytest.approx(100.0, abs=0.05)


def test_every_bucket_has_a_name_of_its_own() -> None:
    assert set(BUCKET_NAMES) == set(Bucket)
    assert len(set(BUCKET_NAMES.values())) == len(Bucket)


def test_what_took_no_time_is_not_on_the_page() -> None:
    text = format_text(report_of(History().start(0).steps(range(5), at=0).end(50)))
    assert set(table(text)) == {"productive", "total"}
    for noise in ("disruption", "excluded", "attempt", "Note", "beside", "elastic"):
        assert noise not in text


def test_each_type_of_custom_event_has_its_row() -> None:
    history = History().start(0).steps(range(3), at=0).custom(2, 3, "Eval").custom(12, 14, "sync").end(30)
    shown = table(format_text(report_of(history)))
    assert (shown["custom: eval"][0], shown["custom: sync"][0]) == (1.0, 2.0)


def test_nothing_is_cut_in_a_pipe_or_for_programs(report: JobReport) -> None:
    label = "evaluation_of_the_validation_split_with_a_very_long_name"
    timed = report_of(killed_and_resumed().custom(192, 194, label))
    error = f"ValueError: {'x' * 200} the end"
    attempts = [dataclasses.replace(attempt, ended=AttemptEnd.FAILED, exception=error) for attempt in timed.attempts]
    failed = dataclasses.replace(timed, attempts=tuple(attempts), running=False)
    page = format_text(failed)
    assert page.count(f"custom: {label} ") == 2
    assert page.count(error) == 2 * len(attempts)
    assert f"custom: {label}" in [row["name"] for row in rows_as_dicts(failed)]
    on_terminal = format_text(failed, width=100)
    assert label not in on_terminal
    assert "the end" not in on_terminal


def test_a_running_job_is_marked_with_the_time_of_its_step_so_far() -> None:
    text = format_text(report_of(History().start(0).steps(range(3), at=0), now=24))
    assert "(still running)" in text
    assert table(text)["step in flight"] == (4.0, 16.67)


def test_a_disruption_without_a_step_since_does_not_name_one() -> None:
    text = format_text(report_of(History().start(0).steps(range(3), at=0).start(100), now=120))
    assert re.search(r"resumed at 2023-11-14 22:15:00Z, no step since$", text, re.MULTILINE)


def test_a_step_with_a_recorded_end_was_not_in_flight() -> None:
    history = History().start(0).steps(range(3), at=0).step_end(2, 29).start(100).steps(range(3, 5), at=100)
    assert "attempt 1 had its last event at 2023-11-14 22:13:49Z after step 2; " in format_text(report_of(history))


def test_an_attempt_with_a_recorded_end_is_not_called_lost() -> None:
    history = History().start(0).steps(range(3), at=0).end(30).start(100).steps(range(3, 5), at=100)
    text = format_text(report_of(history.end(120)))
    assert "attempt 1 ended at 2023-11-14 22:13:50Z after step 2; resumed at 2023-11-14 22:15:00Z from step 3" in text
    assert "last heard of" not in text


def test_the_last_checkpoint_of_a_running_job_is_reported_without_a_promise() -> None:
    history = History().start(0).steps(range(3), at=0).save(1, 21, 22)
    assert "  checkpoint   of step 1, the last that was started or saved\n" in format_text(report_of(history, now=25))
    assert "checkpoint   " not in format_text(report_of(history.end(30)))


def test_failed_attempts_are_counted_with_their_disruption() -> None:
    history = History().start(0).steps(range(3), at=0).start(100).start(150).start(200).steps(range(3, 5), at=200)
    text = format_text(report_of(history.end(220)))
    assert "from step 3, after 2 failed attempts" in text
    assert re.findall(r"^\d+ disruptions?\b", text, re.MULTILINE) == ["1 disruption"]


def crash_loop(attempts: int) -> JobReport:
    """Two steps an attempt, of which the next one repeats the second; an evaluation with a long name in each."""
    history = History("a job")
    for number in range(attempts):
        at = 5_000 * number
        history.start(at).init(at, at + 3_599).steps([number, number + 1], at=at + 3_600, each=700)
        history.custom(at + 3_700, at + 3_800, "an evaluation of the whole of the data, twice")
    return report_of(history.end(5_000 * attempts))


def test_of_many_attempts_and_disruptions_the_first_and_the_last_are_shown() -> None:
    text = format_text(crash_loop(40), width=129)
    lines = text.splitlines()
    assert "39 disruptions cost " in text
    assert "  ... 27 more disruptions; --format json has all" in lines
    assert "  ... 28 more attempts; --format json has all" in lines
    started = [line.split()[0] for line in lines if re.match(r" +\d+ +2023-", line)]
    assert started == [*map(str, range(1, 7)), *map(str, range(35, 41))]
    blocks = [line.split()[1:] for line in lines if re.match(r"  attempt +\d", line)]
    assert blocks == [started[:6], started[6:]]
    assert len(lines) < 100
    assert max(map(len, lines)) < 130


def test_a_dozen_attempts_are_shown_in_full() -> None:
    text = format_text(crash_loop(12))
    assert " more " not in text
    blocks = re.findall(r"^  attempt +(\d.*)$", text, re.MULTILINE)
    assert [block.split() for block in blocks] == [[*map(str, range(1, 7))], [*map(str, range(7, 13))]]


def test_the_table_of_attempts_has_every_bucket_of_each(report: JobReport) -> None:
    block = format_text(report).partition("  attempt                ")[2]
    for bucket, name, _ in rows(report):
        if bucket is not Bucket.CUSTOM:
            cells = re.search(rf"^  {name}  +(.*)$", block, re.MULTILINE)
            assert cells is not None
            spent = [attempt.buckets.get(bucket, 0) for attempt in report.attempts]
            assert re.split(" {2,}", cells[1]) == [format_ns(ns) if ns else "-" for ns in spent]


def test_excluded_time_is_reported_and_not_part_of_the_percentages() -> None:
    text = format_text(report_of(killed_and_resumed(), excluded=[(20, 70)]))  # in steps that were kept
    assert text.startswith("job: 33.33 % goodput\n")  # 50 of 150 s
    assert "  excluded     50.0 s of it; the percentages are of the rest\n" in text
    shown = table(text)
    assert shown["productive"] == (50.0, 33.33)
    assert shown.pop("total") == (150.0, 100.0)
    assert sum(percent for _, percent in shown.values()) == pytest.approx(100.0, abs=0.05)
    assert re.search(r"^  total .*\n  excluded +50\.000 +- +50\.0 s$", text, re.MULTILINE)


def test_json_has_no_percentage_of_what_is_excluded() -> None:
    document = as_dict(report_of(killed_and_resumed(), excluded=[(20, 70)]))
    assert document["excluded_seconds"] == 50.0
    assert document["buckets"]["EXCLUDED"] == {"seconds": 50.0, "percent": None}
    assert document["buckets"]["PRODUCTIVE"] == {"seconds": 50.0, "percent": pytest.approx(document["goodput_percent"])}
    assert sum(share["percent"] or 0 for share in document["buckets"].values()) == pytest.approx(100.0)


def test_the_table_of_attempts_shows_the_excluded_time_of_each() -> None:
    text = format_text(report_of(killed_and_resumed(), excluded=[(20, 70), (190, 195)]))
    assert re.findall(r"^  excluded .*$", text, re.MULTILINE)[-1].split() == ["excluded", "50.0", "s", "5.00", "s"]


def test_a_job_that_is_excluded_as_a_whole_has_a_report() -> None:
    report = report_of(History().start(0).steps(range(3), at=0).end(30), excluded=[(-5, 40)])
    assert format_text(report).startswith("job: 0.00 % goodput\n")
    assert as_dict(report)["buckets"]["PRODUCTIVE"] == {"seconds": 0.0, "percent": None}


def test_data_loading_beside_the_steps_is_not_part_of_the_sum() -> None:
    history = History().start(0).load(0, 1).load(12, 15).steps(range(3), at=1).end(31)
    text = format_text(report_of(history))
    assert "in parallel to steps, not in the sum: 3.00 s of data loading" in text
    assert table(text)["data loading"][0] == 1.0


def test_a_name_cannot_break_the_page_or_the_terminal() -> None:
    text = format_text(report_of(killed_and_resumed("run\n\x1b[31m" + "x" * 10_000)), width=80)
    assert text.startswith("run  [31mxxx")
    assert max(map(len, text.splitlines())) < 130


def test_notes_are_shown(report: JobReport) -> None:
    text = format_text(dataclasses.replace(report, notes=("a second recorder was seen", "3 entries were lost")))
    assert text.endswith("\n\nNote: a second recorder was seen\nNote: 3 entries were lost")


def test_a_job_without_any_time_has_a_report() -> None:
    report = without_time()
    assert "0.00 % goodput" in format_text(report)
    assert as_dict(report)["goodput_percent"] == 0.0


def test_json_has_the_same_values_with_every_bucket(report: JobReport) -> None:
    document = as_dict(report)
    assert set(document["buckets"]) == {bucket.value for bucket in Bucket}
    assert document["buckets"]["PRODUCTIVE"] == {"seconds": 100.0, "percent": 50.0}
    assert document["custom_events"] == {"EVALUATION": {"seconds": 5.0, "percent": 2.5}}
    assert sum(share["seconds"] for share in document["buckets"].values()) == document["wall_seconds"] == 200.0
    assert (document["start"], document["end"]) == ("2023-11-14T22:13:20.000000000Z", "2023-11-14T22:16:40.000000000Z")
    assert document["disruptions"] == [
        {
            "number": 1,
            "attempt": 1,
            "last_event": "2023-11-14T22:15:03.000000000Z",
            "step_in_flight": 9,
            "resumed": "2023-11-14T22:15:30.000000000Z",
            "resumed_step": 6,
            "failed_attempts": 0,
            "steps_lost": 4,
            "cost_seconds": 68.0,
            "infrastructure_seconds": 17.0,
            "init_seconds": 6.0,
            "restore_seconds": 3.0,
            "data_loading_seconds": 2.0,
            "startup_seconds": 0.0,
            "recompute_seconds": 40.0,
        }
    ]
    assert [attempt["ended"] for attempt in document["attempts"]] == [
        "exited without recording its end",
        "job end recorded",
    ]
    assert document["attempts"][1]["bucket_seconds"]["PRODUCTIVE"] == 40.0
    assert [attempt["custom_seconds"] for attempt in document["attempts"]] == [{}, {"EVALUATION": 5.0}]


def test_json_leaves_out_no_field_of_a_report_but_its_timeline(report: JobReport) -> None:
    names = {field.name for field in dataclasses.fields(JobReport)} - {"timeline"}
    stems = {re.sub("_ns$", "", name) for name in names} - {"custom"}
    document = " ".join(as_dict(report))
    assert all(stem in document for stem in stems)


def test_every_key_of_the_json_is_documented(report: JobReport) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command.md").read_text()
    document = as_dict(report)
    keys = {*document, *document["disruptions"][0], *document["attempts"][0], *document["buckets"]["PRODUCTIVE"]}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
