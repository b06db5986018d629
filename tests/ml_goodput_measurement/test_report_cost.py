"""`goodput report --cost --since`: money, in parts that sum to the whole, and a part of the time."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest
from ml_goodput_measurement import cli
from ml_goodput_measurement._cli.cost import bill_of, format_bill
from ml_goodput_measurement._cli.options import moment
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
    ["yesterday", "", "-5d", "2026-13-01", "0d", "2026-11-21T25:00:00Z", "2026-11-21T05:00:00+99:99"],
)
def test_what_is_not_a_moment_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["report", "run-7", f"--since={text}"])
    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
