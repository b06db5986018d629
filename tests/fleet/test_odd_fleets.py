"""Reports of odd fleets: attacks by names, sums beyond 64 bits, damaged files, many groups, the end of a year."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_fleet._amounts import amounts_alike, percents
from ml_diagnostics_fleet.answers import CauseSums, JobSums, Sums
from ml_diagnostics_fleet.job_rows import JobRows, job_rows
from ml_diagnostics_fleet.overview import FleetOverview, Unit, overview_of, worst_jobs
from ml_diagnostics_fleet.rows_files import newest_rows, row_paths
from ml_diagnostics_fleet.schemas import JobKey
from ml_diagnostics_fleet.synthetic import SyntheticFleet
from ml_goodput_measurement.money import HOUR_NS, Price
from ml_goodput_measurement.partition import Bucket

pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")

from ml_diagnostics_fleet._cli.text import format_overview
from ml_diagnostics_fleet._drawings import bars
from ml_diagnostics_fleet._notes import host_notes, quality_notes
from ml_diagnostics_fleet.page import page_of
from ml_diagnostics_fleet.reports import FleetReports, RulesError

from .fleets import NOW_NS
from .test_reports import DAY_NS, small_fleet, write_rows

NAMES = [
    '<img src=x onerror="alert(1)">',
    "'; DROP TABLE jobs; --",
    '"',
    "two\nlines",
    "back\u202ewards\u2066",
    "nul\x00 and \x1b[31mred",
    "x" * 1_000,
    "\U0001f600 名前 \u0301",
    "$.team",
]


def fleet_of(jobs: int, days: Sequence[int], chips: int | None = 4, **labels: str) -> JobRows:
    """Return jobs with an hour of each bucket a day; days are since 1970."""
    rows = JobRows()
    for number in range(jobs):
        key = "log", f"job-{number:05}"
        texts = json.dumps({name: value.format(number) for name, value in labels.items()})
        first, last = days[0] * DAY_NS, (days[-1] + 1) * DAY_NS
        rows.jobs.append((*key, first, last, False, 9, 10, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, texts, NOW_NS, "1"))
        rows.attempts.append((*key, 1, first, last, "failed", 0, 9, first, 10, 0, ["h"], chips))
        for day in days:
            date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
            for bucket in (Bucket.PRODUCTIVE, Bucket.WASTED_PROGRESS, Bucket.INFRASTRUCTURE_RECOVERY):
                rows.ledger_rows.append((*key, 1, date, bucket.value, "", HOUR_NS, NOW_NS, "1"))
    return rows


def view_of(mirror: Path, *by: str, **options: Any) -> FleetOverview:
    with FleetReports(mirror, **options) as reports:
        return overview_of(reports, by or ("team",))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_group_whatever_it_contains(name: str, tmp_path: Path) -> None:
    small_fleet(tmp_path, team=name, job=name)
    view = view_of(tmp_path)
    assert [group.key for group in view.groups] == [(name,)]
    assert [job.key.job for job in view.by_money] == [name]
    shown = format_overview(view, None), bars(view)
    for text in shown:
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
    page = page_of(view)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", page)
    assert "<img" not in shown[1] + page
    assert max(map(len, re.findall(r">([^<]*)</(?:span|td)>", page))) < 200


def test_a_label_that_no_text_can_be_is_no_error(tmp_path: Path) -> None:
    rows = fleet_of(1, [20_000])
    for labels in ('{"team": "\\ud800"}', '{"team": null}', '{"team": 5}', "{}"):
        position = len(rows.jobs[0]) - 3
        rows.jobs[0] = (*rows.jobs[0][:position], labels, *rows.jobs[0][position + 1 :])
        write_rows(tmp_path, rows)
        assert sum(group.jobs for group in view_of(tmp_path).groups) == 1


def test_rows_have_labels_that_are_text_for_any_engine() -> None:
    job = SyntheticFleet(seed=1, jobs=20, events=2_000).job(0)
    table = job.table()
    labels = pa.array(['{"team": "\\ud800 llm", "\\udfff": "a"}'] * table.num_rows).dictionary_encode()
    table = table.set_column(table.schema.get_field_index("labels"), "labels", labels)
    (row,) = job_rows(job.key, table.to_batches(), NOW_NS).jobs
    assert row[-3] == '{"?": "a", "team": "? llm"}'


def test_names_in_notes_are_one_line_and_short(tmp_path: Path) -> None:
    from ml_diagnostics_fleet.answers import HostSums
    from ml_diagnostics_fleet.lemons import find_lemons

    small_fleet(tmp_path, chips=None, job="a\nb" + "x" * 1_000)
    (note,) = quality_notes(view_of(tmp_path).quality)
    assert "\n" not in note
    assert len(note) < 200
    fleet = [HostSums("tpu", "zone", f"host-{number}", Fraction(1000 * HOUR_NS), 1) for number in range(50)]
    fleet += [
        HostSums("tpu", "zone", f"lemon\n{number}" + "y" * 1_000, Fraction(1000 * HOUR_NS), 90) for number in range(9)
    ]
    first = next(host_notes(find_lemons(fleet)))
    assert first.startswith("9 hosts fail too often: lemon ")
    assert first.endswith(" expected), ...")
    assert "\n" not in first


def test_sums_beyond_64_bits_are_exact(tmp_path: Path) -> None:
    write_rows(tmp_path, fleet_of(500, [20_000], chips=2**31 - 1))
    view = view_of(tmp_path, price=Price.parse("1000000/chip-hour"))
    assert view.all.chip_ns == 500 * 3 * HOUR_NS * (2**31 - 1) > 2**63
    assert view.all.cost == view.all.chip_ns * 10**12
    assert sum(lost.cost for _, lost in view.lost_to()) == 2 * view.productive.cost


def test_sums_that_do_not_fit_are_a_clear_error(tmp_path: Path) -> None:
    write_rows(tmp_path, fleet_of(1, [20_000], chips=2**40))
    with pytest.raises(DiagnosticsError, match=r"cannot be summed: .*([Oo]verflow|out of range)"):
        view_of(tmp_path, price=Price(10**18))


@pytest.mark.parametrize("damage", ["cut", "other", "gone"])
def test_a_damaged_file_of_rows_is_a_clear_error(damage: str, tmp_path: Path) -> None:
    small_fleet(tmp_path)
    snapshot = newest_rows(tmp_path)
    assert snapshot is not None
    path = Path(row_paths(tmp_path, snapshot, "attempts")[0])
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-30] if damage == "cut" else b"PAR1 nothing PAR1")
    with pytest.raises(DiagnosticsError, match=r"as of .* cannot be summed: "):
        view_of(tmp_path)


@pytest.mark.parametrize("name", ["fleet[1]", "it's", "a*b?", "50 % of it", "x=1", "{a}"])
def test_a_folder_is_read_by_its_name_and_not_as_a_pattern(name: str, tmp_path: Path) -> None:
    import duckdb
    from ml_diagnostics_fleet._tables import tables_text

    small_fleet(tmp_path / name)
    small_fleet(tmp_path / "fleet1", team="other")
    small_fleet(tmp_path / "axbx", team="other")
    assert [group.key for group in view_of(tmp_path / name).groups] == [("llm",)]
    with duckdb.connect() as connection:
        connection.execute(tables_text(tmp_path / name))
        assert connection.execute("SELECT COUNT(*) FROM jobs").fetchone() == (1,)


def test_a_fleet_without_jobs_has_a_report(tmp_path: Path) -> None:
    write_rows(tmp_path, JobRows())
    view = view_of(tmp_path)
    assert [*view.groups, *view.by_money, *view.weeks] == []
    assert format_overview(view, 80).startswith("0 jobs: - goodput")


def test_weeks_start_on_monday_also_at_the_end_of_a_year(tmp_path: Path) -> None:
    new_year = (datetime.date(2027, 1, 1) - datetime.date(1970, 1, 1)).days
    write_rows(tmp_path, fleet_of(2, range(new_year - 5, new_year + 5)))
    view = view_of(tmp_path, "week")
    days = {group.key[0]: group.all.job_ns // (2 * 3 * HOUR_NS) for group in view.groups}
    # 2026 has a week 53, from 2026-12-28 to 2027-01-03.
    assert days == {"2026-12-21": 1, "2026-12-28": 7, "2027-01-04": 2}
    assert [group.key for group in view.weeks] == [group.key for group in view.groups]


def test_steps_of_an_attempt_are_not_priced_by_week(tmp_path: Path) -> None:
    write_rows(tmp_path, fleet_of(1, range(20_000, 20_015)))
    assert "per 1,000 steps" in format_overview(view_of(tmp_path), None)
    assert ">per 1,000 steps<" in page_of(view_of(tmp_path))
    weeks = view_of(tmp_path, "week")
    assert "per 1,000 steps" not in format_overview(weeks, None)
    assert ">per 1,000 steps<" not in page_of(weeks)


class Counted(list[CauseSums]):
    """A list that counts how often it is read from its start."""

    reads = 0

    def __iter__(self) -> Iterator[CauseSums]:
        self.reads += 1
        return super().__iter__()


def test_thousands_of_groups_are_not_compared_with_all_causes_each(tmp_path: Path) -> None:
    write_rows(tmp_path, fleet_of(200, [20_000], team="team-{}"))
    view = view_of(tmp_path)
    causes = Counted(view.causes)
    text = format_overview(dataclasses.replace(view, causes=causes), None)
    assert len(text.splitlines()) > 200
    assert causes.reads < 10


def test_the_worst_jobs_are_the_first_of_a_sorted_list() -> None:
    jobs = [
        JobSums(
            JobKey("log", f"{number}"), "team", "zone", "tpu", 1, 1, 0,
            Sums(hours * HOUR_NS, hours * HOUR_NS, 10 * hours), Sums(0, 0, (number * 7919) % 10 * hours),
        )
        for number in range(500)
        for hours in [number % 3]
    ]  # fmt: skip
    by_money, by_share = worst_jobs(jobs, Unit(has_chips=True), 400)
    assert by_money == sorted(jobs, key=lambda job: (job.lost.cost, job.lost.chip_ns), reverse=True)[:400]
    assert len(by_share) == sum(job.all.job_ns > 0 for job in jobs)


def test_shares_that_are_shown_sum_to_the_whole(tmp_path: Path) -> None:
    assert percents([Fraction(1, 3)] * 3) == ["33.4 %", "33.3 %", "33.3 %"]
    assert percents([]) == []
    write_rows(tmp_path, fleet_of(1, [20_000]))
    assert re.findall(r"  (\d+\.\d) %  ", format_overview(view_of(tmp_path), None).partition("Lost to")[2])[:2] == [
        "33.4",
        "33.3",
    ]


def test_an_amount_of_the_worst_jobs_does_not_depend_on_how_many_are_listed() -> None:
    costs = [int(Fraction(amount) * HOUR_NS * 10**6) for amount in ("148.40", "126.50", "98.95")]
    assert amounts_alike(costs, "$") == ["$148", "$127", "$99"]
    assert amounts_alike(costs[:2], "$") == ["$148", "$127"]
    assert amounts_alike(costs[2:], "$") == ["$98.95"]
    assert amounts_alike([], "$") == []


def test_a_long_trend_has_gaps_where_no_job_ran(tmp_path: Path) -> None:
    from ml_diagnostics_fleet._drawings import trend

    write_rows(tmp_path, fleet_of(1, [20_000, 20_007, 20_042]))
    xs = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', trend(view_of(tmp_path)))]
    assert (xs[2] - xs[1]) == pytest.approx(5 * (xs[1] - xs[0]), rel=0.01)


@pytest.mark.parametrize("days", [range(0, 420, 7), [0, 7, 14, 21, 28, 700], [0], [0, 7]])
def test_names_of_weeks_do_not_overlap(days: Sequence[int], tmp_path: Path) -> None:
    from ml_diagnostics_fleet._drawings import trend

    write_rows(tmp_path, fleet_of(1, [20_000 + day for day in days]))
    drawn = trend(view_of(tmp_path))
    names = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="axis (\w+)[\w ]*">\d{4}-', drawn)
    shift = {"start": 0.0, "middle": -0.5, "end": -1.0}
    ends = [(float(x) + 70 * shift[anchor], float(x) + 70 * (1 + shift[anchor])) for x, anchor in names]
    assert ends
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ends))


def test_rows_with_a_bucket_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    rows = fleet_of(1, [20_000])
    rows.ledger_rows.append((*rows.ledger_rows[0][:4], "NEWER", "", 5, NOW_NS, "1"))
    write_rows(tmp_path, rows)
    with pytest.raises(RulesError, match="'NEWER', which this version does not know"):
        view_of(tmp_path)
