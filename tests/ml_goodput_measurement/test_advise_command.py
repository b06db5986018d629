"""`goodput advise` and `goodput what-if`: as text, as data, and with bad input."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import time

import pytest
from ml_goodput_measurement import cli
from ml_goodput_measurement._cli.advice_text import Worth, format_advice, format_prediction
from ml_goodput_measurement.advice import JobHistory, advise, what_if
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.money import Price

from .histories import BASE, orbax_save
from .simulated import JOB, SHORT_JOB, history_of_run, record

NUMBER = r"[\d,.]+"


@pytest.fixture(scope="module")
def history() -> JobHistory:
    return history_of_run(JOB.run(noise_seed=1, is_recorded=True))


def advice_lines(history: JobHistory, *, verbose: bool = False, cost: bool = False) -> list[str]:
    worth = Worth(Price(3_220_000), 256) if cost else None
    return list(format_advice(history, advise(history), worth, is_verbose=verbose))


def test_the_advice_reads_as_documented(history: JobHistory) -> None:
    first, now, lever, background = advice_lines(history, cost=True)
    assert re.fullmatch(
        rf"Save every {NUMBER} to {NUMBER} s \(80 % range, from 10 failures in {NUMBER} h\); we would take {NUMBER} s"
        rf"\. Now: {NUMBER} s\.   method: Young 1974, Daly 2006; worst regret in the range {NUMBER} points",
        first,
    )
    assert re.fullmatch(
        rf"  Now costs {NUMBER} to {NUMBER} points more than the best interval would "
        rf"\(\${NUMBER} to \${NUMBER} a day\)\.",
        now,
    )
    assert re.fullmatch(
        rf"  The other lever: each 60 s less of detection and restart is worth {NUMBER} to {NUMBER} points "
        rf"\(\${NUMBER} to \${NUMBER} a day\): restarts take {NUMBER} s, 10 of them in {NUMBER} h\.",
        lever,
    )
    assert "background part takes is not recorded" in background


def test_a_known_background_part_is_stated(history: JobHistory) -> None:
    lines = advice_lines(dataclasses.replace(history, background_seconds=48.0))
    assert lines[-1] == "  Asynchronous saves: the background part takes 48 s, so never below that."


@pytest.mark.parametrize(("seconds", "end"), [(900.0, "."), (1100.0, "; now it is.")])
def test_an_interval_of_now_below_the_background_part_or_the_detection_is_stated(
    history: JobHistory, seconds: float, end: str
) -> None:
    lines = advice_lines(dataclasses.replace(history, background_seconds=seconds))
    assert lines[-1].endswith(f"so never below that{end}")
    advice = advise(history, detection_seconds=seconds)
    assert list(format_advice(history, advice, None, is_verbose=False))[-1].endswith(f"so never below that{end}")


def test_verbose_advice_has_the_inputs_and_each_method_with_its_range(history: JobHistory) -> None:
    text = "\n".join(advice_lines(history, verbose=True))
    for method in ("Young 1974", "Daly 2006", "availability-optimal, arXiv 2410.18124"):
        assert re.search(rf"  {re.escape(method)}: {NUMBER} to {NUMBER} s", text)
    assert "posterior Gamma(10 + 1/2, uptime)" in text


@pytest.mark.parametrize("failures", [1, 2])
def test_too_few_failures_give_a_range_and_no_recommendation(history: JobHistory, failures: int) -> None:
    lines = advice_lines(dataclasses.replace(history, failures=failures))
    noun = "failure" if failures == 1 else "failures"
    assert re.match(
        r"Too few failures to say more than: save every "
        rf"{NUMBER} to {NUMBER} s \(80 % range, from {failures} {noun} in",
        lines[0],
    )
    assert "we would take" not in lines[0]


def test_no_failure_gives_only_the_least_interval(history: JobHistory) -> None:
    lines = advice_lines(dataclasses.replace(history, failures=0), cost=True)
    assert re.match(
        rf"Too few failures to say more than: the best interval is at least {NUMBER} s \(90 % sure, from no failure in",
        lines[0],
    )
    assert not any("points" in line for line in lines)


def test_a_prediction_reads_as_documented(history: JobHistory) -> None:
    (line,) = format_prediction(history, what_if(history, interval_seconds=455.0))
    assert re.fullmatch(
        rf"{NUMBER} % -> {NUMBER} % \(80 % range {NUMBER} to {NUMBER} for these failures; {NUMBER} to {NUMBER} for "
        r"another run with as many\)",
        line,
    )


def test_commands_print_what_was_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    record(JOB, "run-7", ends_at=time.time() - 10)
    assert cli.main(["advise", "run-7"]) == 0
    assert capsys.readouterr().out.startswith("Save every ")
    assert cli.main(["what-if", "run-7", "--interval", "455s", "--restart", "200s", "--save", "5s"]) == 0
    assert " -> " in capsys.readouterr().out


def test_data_has_every_range(capsys: pytest.CaptureFixture[str]) -> None:
    record(JOB, "run-7", ends_at=time.time() - 10)
    assert cli.main(["advise", "run-7", "--format", "json", "--cost", "3.22/chip-hour", "--chips", "256"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["interval_seconds"][0] < found["recommended_seconds"] < found["interval_seconds"][1]
    assert found["money"]["now_a_day_micro"][1] > found["money"]["now_a_day_micro"][0] >= 0
    assert cli.main(["advise", "run-7", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["interval_low_seconds"]) < float(row["interval_high_seconds"])
    assert float(row["lever_low_points"]) < float(row["lever_high_points"])
    assert row["now_a_day_low_micro"] == row["currency"] == ""
    assert cli.main(["advise", "run-7", "--format", "csv", "--cost", "3.22/chip-hour", "--chips", "256"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert [int(row[f"now_a_day_{end}_micro"]) for end in ("low", "high")] == found["money"]["now_a_day_micro"]
    assert [int(row[f"lever_a_day_{end}_micro"]) for end in ("low", "high")] == found["money"]["lever_a_day_micro"]
    assert cli.main(["what-if", "run-7", "--interval", "455s", "--format", "json"]) == 0
    prediction = json.loads(capsys.readouterr().out)
    low, high = prediction["same_failures_percent"]
    assert low <= prediction["predicted_percent"] <= high
    assert cli.main(["what-if", "run-7", "--interval", "455s", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["same_failures_low_percent"]) == pytest.approx(low)


def test_a_job_without_failures_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    record(SHORT_JOB, "run-7", ends_at=time.time() - 10)
    assert cli.main(["advise", "run-7"]) == 0
    assert "Too few failures to say more than" in capsys.readouterr().out
    assert cli.main(["advise", "run-7", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["interval_seconds"][1] is None
    assert cli.main(["what-if", "run-7", "--interval", "10m"]) == 0
    assert "too few to say more than these ranges" in capsys.readouterr().out


def test_a_job_with_one_or_two_failures_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    job = dataclasses.replace(JOB, between=120_000.0)
    run = record(job, "run-7", ends_at=time.time() - 10)
    assert 0 < run.failures < 3
    assert cli.main(["advise", "run-7"]) == 0
    assert "Too few failures to say more than: save every " in capsys.readouterr().out
    assert cli.main(["advise", "run-7", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["recommended_seconds"] == row["worst_regret_points"] == ""
    assert float(row["interval_low_seconds"]) < float(row["interval_high_seconds"])


def test_the_background_part_is_found_where_a_save_waited(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(BASE)
    at = 10.0
    for step in range(40):
        recorder.record_step_start_time(step, BASE + at)
        at += 10
        if step % 10 == 9:
            # Each waits 8 s for the one before it, which blocked for 2 s, and began 110 s before.
            entry = orbax_save(step, at, at + 10, "gs://bucket/run")
            if step > 9:
                entry.update(wait_for_prev_duration_secs=8.0)
            recorder.record_payload(entry)
            at += 10
    recorder.record_job_end_time(BASE + at)
    recorder.flush()
    assert cli.main(["advise", "run-7", "--format", "json"]) == 0
    # From the end of a save's blocking part to the end of the next one's wait: 100 s of steps, and the wait.
    assert json.loads(capsys.readouterr().out)["background_seconds"] == pytest.approx(108.0)
    assert cli.main(["advise", "run-7", "--background", "48s"]) == 0
    assert "the background part takes 48 s" in capsys.readouterr().out


def test_a_job_without_saves_reports_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(BASE)
    for step in range(10):
        recorder.record_step_start_time(step, BASE + 10 * step)
    recorder.record_job_end_time(BASE + 100)
    assert cli.main(["advise", "run-7"]) == 2
    assert "no save was recorded for this job" in capsys.readouterr().err
    assert cli.main(["advise", "run-7", "--save", "5s"]) == 0
    assert "recorded no two saves" in capsys.readouterr().out


def test_a_job_without_steps_has_nothing_to_advise_from(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(BASE)
    recorder.record_job_end_time(BASE + 100)
    assert cli.main(["advise", "run-7"]) == 1
    assert "has not kept a step yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["what-if", "run-7", "--interval", "often"],
        ["what-if", "run-7", "--save=-1s"],
        ["advise", "run-7", "--detection", "0"],
    ],
)
def test_invalid_durations_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "is not a duration" in capsys.readouterr().err


def test_an_unknown_job_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "run-7"]) == 3
    assert cli.main(["what-if", "run-7", "--interval", "10m"]) == 3
    assert "Traceback" not in capsys.readouterr().err
