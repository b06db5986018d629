"""`goodput report --cost --since`: money, in parts that sum to the whole, and a part of the time."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement import cli
from ml_goodput_measurement._cli.cost import bill_of, format_bill
from ml_goodput_measurement._cli.options import moment
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.money import Price

from .sample_reports import killed_and_resumed, report_of
from .simulated import JOB, record

COST = ("--cost", "3.22/chip-hour", "--chips", "256")


@pytest.fixture
def job() -> float:
    """A job that ended now; returns when."""
    ended = float(int(time.time()))
    record(JOB, "run-7", ends_at=ended)
    return ended


def test_the_bill_is_above_the_tables_and_its_parts_sum_to_the_whole(
    job: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "run-7", *COST]) == 0
    output = capsys.readouterr().out
    (bill,) = (line for line in output.splitlines() if line.startswith("wall "))
    assert " h x 256 chips = " in bill
    assert " chip-hours = $" in bill
    assert bill.endswith(", of which")
    (parts,) = (line for line in output.splitlines() if line.endswith("(parts sum to the whole: yes)"))
    badput = int(bill.split("badput $")[1].split(",  ")[0].replace(", of which", "").replace(",", ""))
    amounts = [text.split("   ")[0] for text in parts.split("  $")[1:]]
    assert sum(int(amount.replace(",", "")) for amount in amounts) == badput
    assert "10 disruptions cost" in output


def test_amounts_of_json_are_integers_that_sum_exactly(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run-7", *COST, "--format", "json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert sum(part["micro"] for part in cost["parts"]) == cost["wall_micro"]
    assert cost["productive_micro"] + cost["badput_micro"] + cost["excluded_micro"] == cost["wall_micro"]
    assert (cost["chips"], cost["currency"], cost["micro_per_chip_hour"]) == (256, "$", 3_220_000)
    assert all(isinstance(part["micro"], int) for part in cost["parts"])


def test_rows_of_csv_have_their_amounts(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run-7", *COST, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert all(int(row["cost_micro"]) >= 0 for row in rows)
    assert rows[0]["bucket"] == "PRODUCTIVE"


def test_amounts_of_csv_sum_to_the_whole_also_if_types_of_custom_events_read_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line break is shown as a space, so both types have one name."""
    now = time.time()
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(now - 100)
    for step in range(5):
        recorder.record_step_start_time(step, now - 90 + 10 * step)
    for number, kind in enumerate(("big eval", "big\neval")):
        recorder.record_custom_badput_event_start_time(now - 30 + 10 * number, kind)
        recorder.record_custom_badput_event_end_time(now - 28 + 12 * number, kind)
    recorder.record_job_end_time(now)
    assert cli.main(["report", "run-7", *COST, "--format", "json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert cli.main(["report", "run-7", *COST, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows].count("custom: big eval") == 2
    assert sum(int(row["cost_micro"]) for row in rows) == cost["wall_micro"]
    assert cli.main(["compare", "run-7", "run-7", "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)["rows"]
    assert sum(row["now_percent"] for row in compared) == pytest.approx(100)


def test_lost_time_is_listed_from_the_largest_part_on(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run-7", *COST]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("(parts sum to the whole: yes)"))
    amounts = [int(text.split("   ")[0].replace(",", "")) for text in line.split("  $")[1:]]
    assert amounts == sorted(amounts, reverse=True)
    assert len(amounts) > 3


@pytest.mark.parametrize("price", ["0/chip-hour", "999999999.999999/chip-hour", "0.000001 EUR/chip-hour"])
@pytest.mark.parametrize("chips", ["1", "10000000"])
def test_parts_sum_to_the_whole_at_any_price(
    price: str, chips: str, job: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "run-7", "--cost", price, "--chips", chips]) == 0
    assert "(parts sum to the whole: yes)" in capsys.readouterr().out
    assert cli.main(["report", "run-7", "--cost", price, "--chips", chips, "--format", "json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert sum(part["micro"] for part in cost["parts"]) == cost["wall_micro"]


def test_chips_that_change_are_reported_and_the_newest_number_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    for number, chips in enumerate((128, 256)):
        monkeypatch.setenv("ML_DIAGNOSTICS_CHIPS", str(chips))
        payloads = [{"job_name": "run-7", "job_start_time": now - 200 + 100 * number}]
        payloads += [
            {"job_name": "run-7", "step_count": step, "step_start_time": now - 190 + 100 * number + 10 * step}
            for step in range(8)
        ]
        labels = {"job": "run-7", "process_index": "0", "chips": str(chips)}
        journal = Journal("goodput_run-7", root=diagnostics_directory(), labels=labels)
        for payload in payloads:
            journal.append(payload)
        journal.close()
    for arguments in (["report", "run-7"], ["report", "run-7", "--since", "150s"]):
        assert cli.main([*arguments, "--cost", "3.22/chip-hour"]) == 0
        output = capsys.readouterr()
        assert "x 256 chips" in output.out
        assert output.err == (
            "goodput: job 'run-7' also ran with 128 chips: all of its time is priced with 256, or with what --chips N "
            "gives\n"
        )
        assert cli.main([*arguments, "--cost", "3.22/chip-hour", "--chips", "192"]) == 0
        output = capsys.readouterr()
        assert "x 192 chips" in output.out
        assert output.err == ""


def test_excluded_time_is_billed_apart() -> None:
    report = report_of(killed_and_resumed(), excluded=[(20, 50)])
    bill = bill_of(report, Price(3_220_000), 256)
    lines = format_bill(bill, None)
    assert "excluded $" in lines[0]
    assert lines[-1].endswith("(parts sum to the whole: yes)")
    assert bill.wall_ns == report.wall_ns


def test_a_bill_is_wrapped_on_a_terminal() -> None:
    lines = format_bill(bill_of(report_of(killed_and_resumed()), Price(3_220_000), 256), 60)
    assert all(len(line) <= 60 for line in lines)
    assert len(lines) > 4


def test_the_number_of_chips_is_needed(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run-7", "--cost", "3.22/chip-hour"]) == 2
    assert "give it as --chips N" in capsys.readouterr().err


def test_an_invalid_price_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["report", "run-7", "--cost", "cheap"])
    assert exit_.value.code == 2
    assert "expected a price such as 3.22/chip-hour" in capsys.readouterr().err


def test_only_the_time_since_a_moment_is_reported(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(job - 7200))
    assert cli.main(["report", "run-7", "--since", since, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wall_seconds"] == pytest.approx(7200, abs=0.001)
    assert sum(part["seconds"] for part in found["buckets"].values()) == pytest.approx(7200, abs=0.001)
    assert cli.main(["report", "run-7", "--since", since, *COST]) == 0
    text = capsys.readouterr().out
    assert f"goodput since {since.replace('T', ' ')}" in text
    assert "wall 2.0 h x 256 chips = 512 chip-hours = $1,649" in text
    assert "(parts sum to the whole: yes)" in text


def test_since_before_the_start_is_the_whole_life(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run-7", "--format", "json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert cli.main(["report", "run-7", "--since", "2001-01-01", "--format", "json"]) == 0
    since = json.loads(capsys.readouterr().out)
    assert since["wall_seconds"] == whole["wall_seconds"]
    assert since["buckets"] == whole["buckets"]


def test_since_after_the_end_is_not_found(job: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run-7", "--since", "2100-01-01"]) == 3
    assert "ended before that" in capsys.readouterr().err


def test_since_in_the_future_of_a_job_that_runs_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    assert cli.main(["report", "run-7", "--since", "2100-01-01"]) == 2
    assert "--since is in the future: 2100-01-01 00:00:00Z" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--plot"], ["--exclude", "none.json"]])
def test_since_is_not_combined_with_what_needs_the_whole_life(
    more: list[str], job: float, tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("none.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write('[{"start_time_utc": "2001-01-01T00:00:00Z", "end_time_utc": "2001-01-02T00:00:00Z"}]')
    assert cli.main(["report", "run-7", "--since", "7d", *more]) == 2
    assert "cannot be combined" in capsys.readouterr().err


def test_moments_are_days_times_and_ages() -> None:
    assert moment("2026-11-21") == 1_795_219_200 * 10**9
    assert moment("2026-11-21T05:00:00Z") == (1_795_219_200 + 5 * 3600) * 10**9
    assert moment("2026-11-21T05:00:00.5+01:00") == (1_795_219_200 + 4 * 3600) * 10**9 + 5 * 10**8
    assert moment("2026-11-21 05:00:00.123456789") == (1_795_219_200 + 5 * 3600) * 10**9 + 123_456_789
    assert abs(moment("7d") - (time.time_ns() - 7 * 86_400 * 10**9)) < 10**10


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "",
        "-5d",
        "2026-13-01",
        "0d",
        "2026-11-21T25:00:00Z",
        "2026-11-21T05:00:00+99:99",
        "0001-01-01T00:00+23:59",
    ],
)
def test_what_is_not_a_moment_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["report", "run-7", f"--since={text}"])
    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
