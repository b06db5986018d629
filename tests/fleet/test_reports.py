"""The reports of a fleet: every cell of every question equals the same sum of integers in Python."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError
from ml_diagnostics_fleet.answers import Sums, money_of
from ml_diagnostics_fleet.job_rows import JobRows
from ml_diagnostics_fleet.overview import overview_of
from ml_diagnostics_fleet.rows_files import RowsWriter, write_dimensions
from ml_diagnostics_fleet.schemas import DIMENSIONS, TABLES
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_goodput_measurement.money import HOUR_NS, Price
from ml_goodput_measurement.partition import Bucket

from .fleets import NOW_NS, Job, fleets, rows_of

pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")

import itertools

from ml_diagnostics_fleet.reports import FleetReports, RulesError

DAY_NS = 86_400 * 10**9
FAR_NS = 2**62
NAMES = ("accelerator", "team", "zone", "owner", "project", "cluster")
Row = dict[str, Any]


def write_rows(mirror: Path | str, rows: JobRows, as_of_ns: int = NOW_NS) -> None:
    """Write the rows of a fleet, as an engine does."""
    writer = RowsWriter(mirror, as_of_ns, as_of_ns)
    writer.add(rows)
    writer.commit(events_version=1, events=1)


def dimension_row(job: Job, from_ns: int, to_ns: int, **values: Any) -> Row:
    nothing = dict.fromkeys(DIMENSIONS["jobs"].names)
    return {**nothing, "log": job.key.log, "job": job.key.job, "valid_from_ns": from_ns, "valid_to_ns": to_ns, **values}


def price_row(micro: int, from_ns: int = 0, to_ns: int = FAR_NS, currency: str = "USD", **values: Any) -> Row:
    known = {"accelerator": "tpu", "zone": "zone-a", "spot": False, **values}
    return {**known, "valid_from_ns": from_ns, "valid_to_ns": to_ns, "micro_per_chip_hour": micro, "currency": currency}


@st.composite
def dimensions(draw: st.DrawFn, jobs: Sequence[Job]) -> tuple[list[Row], list[Row]]:
    """Return rows for some of the jobs, some of which change on the way, and prices that change, too."""
    middle = NOW_NS - 15 * DAY_NS
    rows = []
    for job in jobs:
        borders = draw(st.sampled_from([[], [0, FAR_NS], [0, middle, FAR_NS], [middle, FAR_NS]]))
        for from_ns, to_ns in itertools.pairwise(borders):
            values = {
                "team": draw(st.sampled_from(["llm", "vision", "", None])),
                "owner": draw(st.sampled_from(["ana", "", None])),
                "project": draw(st.sampled_from(["search", None])),
                "cluster": draw(st.sampled_from(["c-1", None])),
                "zone": draw(st.sampled_from(["zone-a", "zone-b", None])),
                "accelerator": draw(st.sampled_from(["tpu", "gpu", None])),
                "chips": draw(st.sampled_from([None, 1, 256, 2**31 - 1])),
                "spot": draw(st.sampled_from([None, False, True])),
            }
            rows.append(dimension_row(job, from_ns, to_ns, **values))
    prices = [
        price_row(draw(st.integers(0, 10**8)), *times, accelerator=accelerator, zone=zone, spot=spot)
        for accelerator in ("tpu", "gpu")
        for zone in ("zone-a", "zone-b")
        for spot in (False, True)
        for times in draw(st.sampled_from([[], [(0, FAR_NS)], [(0, middle), (middle, FAR_NS)], [(middle, FAR_NS)]]))
    ]
    return rows, prices


@st.composite
def blamed(draw: st.DrawFn, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a disruption with a cause, or without one."""
    causes: list[tuple[str | None, ...]] = [(None, None, None), ("rule", None, "proven")]
    causes += [("rule", host, sure) for host in ("host-0", "elsewhere") for sure in ("proven", "likely", "possible")]
    return (*row[:-3], *draw(st.sampled_from(causes)))


def table(name: str, rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), DIMENSIONS[name])


def as_rows(rows: JobRows, name: str) -> list[Row]:
    found: list[Row] = rows.table(name).to_pylist()
    return found


class Expected:
    """The same sums, in Python."""

    def __init__(self, rows: JobRows, jobs: Sequence[Row], prices: Sequence[Row]) -> None:
        self._jobs, self._prices = jobs, prices
        self.attempts = {(row["log"], row["job"], row["attempt"]): row for row in as_rows(rows, "attempts")}
        self.labels = {(row["log"], row["job"]): json.loads(row["labels"]) for row in as_rows(rows, "jobs")}
        self.facts = [self._fact(row) for row in as_rows(rows, "ledger_rows")]
        self.starts = [
            self._fact({**row, "day": None, "bucket": "", "label": "", "ns": 0}) for row in self.attempts.values()
        ]

    def _fact(self, row: Row) -> Row:
        attempt = self.attempts[row["log"], row["job"], row["attempt"]]
        first = attempt["start_ns"] - attempt["start_ns"] % DAY_NS
        day_ns = first if row["day"] is None else (row["day"] - datetime.date(1970, 1, 1)).days * DAY_NS
        moment = max(day_ns, attempt["start_ns"])
        labels = self.labels[row["log"], row["job"]]
        known = self._at(self._jobs, moment, log=row["log"], job=row["job"])
        fact = {name: known.get(name) or labels.get(name) or "(none)" for name in NAMES}
        spot, chips = bool(known.get("spot")), known.get("chips")
        chips = attempt["chips"] if chips is None else chips
        price = self._at(self._prices, moment, accelerator=fact["accelerator"], zone=fact["zone"], spot=spot)
        micro = price.get("micro_per_chip_hour")
        day = datetime.date(1970, 1, 1) + datetime.timedelta(days=day_ns // DAY_NS)
        return {
            **{name: row[name] for name in ("log", "job", "bucket", "label", "ns")},
            **fact,
            "week": str(day - datetime.timedelta(days=day.weekday())),
            "day_ns": day_ns,
            "chips": chips,
            "chip_ns": 0 if chips is None else row["ns"] * chips,
            "cost": 0 if chips is None or micro is None else row["ns"] * chips * micro,
            "is_priced": micro is not None,
            "unpriced_chip_ns": row["ns"] * chips if chips is not None and micro is None else 0,
            "steps_kept": row.get("steps_kept", 0),
        }

    @staticmethod
    def _at(rows: Sequence[Row], moment: int, **key: Any) -> Row:
        found = [
            row
            for row in rows
            if all(row[name] == value for name, value in key.items())
            and row["valid_from_ns"] <= moment < row["valid_to_ns"]
        ]
        assert len(found) < 2
        return found[0] if found else {}

    def groups(self, by: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
        groups: dict[tuple[str, ...], list[Row]] = {}
        for fact in (*self.facts, *self.starts):
            groups.setdefault(tuple(fact[name] for name in by), []).append(fact)
        return dict(sorted(groups.items()))


def sums(facts: Sequence[Row]) -> Sums:
    return Sums(*(sum(fact[name] for fact in facts) for name in ("ns", "chip_ns", "cost")))


def counted(facts: Sequence[Row]) -> list[Row]:
    return [fact for fact in facts if fact["bucket"] != "EXCLUDED"]


def productive(facts: Sequence[Row]) -> list[Row]:
    return [fact for fact in facts if fact["bucket"] == "PRODUCTIVE"]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_cell_equals_the_sum_of_integers_in_python(data: st.DataObject, tmp_path_factory: Any) -> None:
    jobs = data.draw(fleets(most=6))
    rows = JobRows()
    for job in jobs:
        rows.extend(rows_of(job))
    rows.disruptions = [data.draw(blamed(row)) for row in rows.disruptions]
    known, prices = data.draw(dimensions(jobs))
    by = data.draw(st.sampled_from([("team",), ("zone", "week"), ("week",), NAMES]))
    mirror = tmp_path_factory.mktemp("fleet")
    write_rows(mirror, rows)
    write_dimensions(mirror, {"jobs": table("jobs", known), "prices": table("prices", prices)})
    expected = Expected(rows, known, prices)
    with FleetReports(mirror) as reports:
        assert_goodput(reports, expected, by)
        assert_causes(reports, expected, by)
        assert_trend(reports, expected, by)
        assert_jobs(reports, expected, rows)
        assert_saves(reports, expected, rows)
        assert_problems(reports, expected, rows)
        assert_hosts(reports, expected, rows)


def assert_goodput(reports: FleetReports, expected: Expected, by: Sequence[str]) -> None:
    groups = expected.groups(by)
    found = reports.goodput(by)
    assert [group.key for group in found] == list(groups)
    for group in found:
        facts = groups[group.key]
        assert group.all == sums(counted(facts))
        assert group.productive == sums(productive(facts))
        assert group.unpriced_chip_ns == sum(fact["unpriced_chip_ns"] for fact in counted(facts))
        assert group.steps_kept == sum(fact["steps_kept"] for fact in facts)
        assert group.jobs == len({(fact["log"], fact["job"]) for fact in facts})
        assert group.jobs_without_chips == len({(fact["log"], fact["job"]) for fact in facts if fact["chips"] is None})
        price = Fraction(sum(fact["cost"] for fact in counted(facts)), HOUR_NS * 10**6)
        assert money_of(group.all.cost) == price


def assert_causes(reports: FleetReports, expected: Expected, by: Sequence[str]) -> None:
    lost: dict[tuple[Any, ...], list[Row]] = {
        (key, fact["bucket"], fact["label"]): []
        for key, facts in expected.groups(by).items()
        for fact in facts
        if fact["bucket"] not in ("", "PRODUCTIVE", "EXCLUDED")
    }
    for key, facts in expected.groups(by).items():
        for fact in facts:
            if (key, fact["bucket"], fact["label"]) in lost:
                lost[key, fact["bucket"], fact["label"]].append(fact)
    found = {(one.key, one.bucket.value, one.label): one.lost for one in reports.causes(by)}
    assert found == {key: sums(facts) for key, facts in lost.items()}


def assert_trend(reports: FleetReports, expected: Expected, by: Sequence[str]) -> None:
    spent: dict[tuple[Any, ...], list[Row]] = {}
    for key, facts in expected.groups(by).items():
        for fact in facts:
            age = NOW_NS - fact["day_ns"]
            if fact["bucket"] not in ("", "EXCLUDED") and age <= 14 * DAY_NS:
                period = "now" if age <= 7 * DAY_NS else "before"
                spent.setdefault((key, period, fact["bucket"], fact["label"]), []).append(fact)
    found = {(one.key, one.period, one.bucket.value, one.label): one.spent for one in reports.trend(by)}
    assert found == {key: sums(facts) for key, facts in spent.items()}


def assert_jobs(reports: FleetReports, expected: Expected, rows: JobRows) -> None:
    groups = expected.groups(("log", "job"))
    known = {(row["log"], row["job"]): row for row in as_rows(rows, "jobs")}
    found = list(reports.jobs())
    assert sorted(job.key for job in found) == sorted(groups)
    assert [job.lost.cost for job in found] == sorted((job.lost.cost for job in found), reverse=True)
    for job in found:
        facts = groups[job.key]
        assert (job.all, job.productive) == (sums(counted(facts)), sums(productive(facts)))
        assert (job.attempts, job.disruptions) == (known[job.key]["attempts"], known[job.key]["disruptions"])
        chips = [fact["chips"] for fact in facts if fact["chips"] is not None]
        assert job.chips == (max(chips) if chips else None)


def assert_saves(reports: FleetReports, expected: Expected, rows: JobRows) -> None:
    groups = expected.groups(("log", "job"))
    attempts, disruptions = as_rows(rows, "attempts"), as_rows(rows, "disruptions")
    kept = {(row["log"], row["job"]): row for row in as_rows(rows, "jobs") if row["steps_kept"]}
    found = {one.key: one for one in reports.saves()}
    mine = {key: [row for row in attempts if (row["log"], row["job"]) == key] for key in kept}
    assert set(found) == {key for key, lives in mine.items() if any(row["first_step_ns"] is not None for row in lives)}
    for key, one in found.items():
        lives = [row for row in mine[key] if row["first_step_ns"] is not None]
        ends = {row["attempt"]: row["ended"] for row in mine[key]}
        cuts = [row for row in disruptions if (row["log"], row["job"]) == key]
        parts = ("infrastructure_ns", "init_ns", "restore_ns", "data_loading_ns", "startup_ns")
        assert one.saves == kept[key]["saves"]
        assert one.stepping_attempts == len(lives)
        assert one.uptime_ns == sum(row["end_ns"] - row["first_step_ns"] for row in lives)
        assert one.steps_made == sum(row["steps_kept"] + row["steps_lost"] for row in lives)
        assert one.disruptions == len(cuts)
        assert one.failures == sum(ends[row["attempt"]] != "job end recorded" for row in cuts)
        assert one.restart_ns == sum(row[part] for row in cuts for part in parts)
        facts = groups[key]
        assert (one.job_ns, one.chip_ns, one.cost) == sums(counted(facts))
        saving = Bucket.CHECKPOINT_SAVE.value
        assert one.save_ns == sum(fact["ns"] for fact in facts if fact["bucket"] == saving)


def assert_hosts(reports: FleetReports, expected: Expected, rows: JobRows) -> None:
    exposure: dict[tuple[str, str, str], Fraction] = {}
    hits: dict[tuple[str, str, str], int] = {}
    starts = dict(zip(expected.attempts, expected.starts, strict=True))
    for key, row in expected.attempts.items():
        chips = starts[key]["chips"] if starts[key]["chips"] is not None else len(row["hosts"])
        for host in row["hosts"]:
            name = starts[key]["accelerator"], starts[key]["zone"], host
            share = Fraction((row["end_ns"] - row["start_ns"]) * chips, len(row["hosts"]))
            exposure[name] = exposure.get(name, Fraction(0)) + share
    for row in as_rows(rows, "disruptions"):
        fact = starts[row["log"], row["job"], row["attempt"]]
        if row["cause_host"] is not None and row["confidence"] in ("likely", "proven"):
            name = fact["accelerator"], fact["zone"], row["cause_host"]
            hits[name] = hits.get(name, 0) + 1
    found = {(one.accelerator, one.zone, one.host): (one.chip_ns, one.blamed) for one in reports.hosts()}
    assert found == {name: (exposure.get(name, 0), hits.get(name, 0)) for name in {*exposure, *hits}}


def assert_problems(reports: FleetReports, expected: Expected, rows: JobRows) -> None:
    groups = expected.groups(("log", "job"))
    found = {one.key: one for one in reports.problems()}
    for row in as_rows(rows, "jobs"):
        key = row["log"], row["job"]
        facts = groups.get(key, [])
        flags = {
            "missing": row["missing"],
            "lost": row["lost"],
            "skipped": row["skipped"],
            "open_writers": 0 if row["running"] else row["open_writers"],
            "is_without_time": int(row["start_ns"] is None),
            "is_without_chips": int(any(fact["chips"] is None for fact in facts)),
            "is_without_team": int(any(fact["team"] == "(none)" for fact in facts)),
            "is_without_price": int(any(fact["chips"] is not None and not fact["is_priced"] for fact in facts)),
        }
        assert (key in found) == any(flags.values())
        if key in found:
            assert {name: getattr(found[key], name) for name in flags} == flags


def small_fleet(mirror: Path | str, **values: Any) -> None:
    """Write one job that was productive for an hour, and lost one."""
    log, job = "log", values.get("job", "job")
    labels = json.dumps({"team": values.get("team", "llm")})
    first = NOW_NS - 2 * HOUR_NS
    day = datetime.date(1970, 1, 1) + datetime.timedelta(days=first // DAY_NS)
    rules = values.get("rules", ["1", "1"])
    buckets = [Bucket.PRODUCTIVE.value, Bucket.WASTED_PROGRESS.value]
    ledger = [
        (log, job, 1, day, bucket, "", HOUR_NS, NOW_NS, rule) for bucket, rule in zip(buckets, rules, strict=True)
    ]
    jobs = [(log, job, first, NOW_NS, False, 9, 10, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, labels, NOW_NS, "1")]
    attempts = [(log, job, 1, first, NOW_NS, "failed", 0, 9, first, 10, 0, ["h"], values.get("chips", 4))]
    rows = JobRows(ledger, jobs, attempts, [])
    assert all(len(row) == len(TABLES[name]) for name in TABLES for row in getattr(rows, name))
    write_rows(mirror, rows)


def test_one_price_may_be_given_for_all_chips(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    with FleetReports(tmp_path, price=Price.parse("2.95 EUR/chip-hour")) as reports:
        (group,) = reports.goodput()
        assert reports.currency == "EUR"
        assert money_of(group.lost.cost) == Fraction("11.80")
        assert not group.unpriced_chip_ns


def test_without_prices_there_is_no_currency_and_no_amount(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    with FleetReports(tmp_path) as reports:
        (group,) = reports.goodput()
        assert reports.currency is None
        assert (group.all.cost, group.unpriced_chip_ns) == (0, 8 * HOUR_NS)


def test_a_fleet_without_chips_is_counted_in_job_hours(tmp_path: Path) -> None:
    small_fleet(tmp_path, chips=None)
    with FleetReports(tmp_path) as reports:
        view = overview_of(reports)
    assert view.unit.name == "job-hours"
    assert view.unit.share(view.productive, view.all) == Fraction(1, 2)
    assert view.groups[0].jobs_without_chips == 1


def test_two_versions_of_the_rules_are_not_summed(tmp_path: Path) -> None:
    small_fleet(tmp_path, rules=["1", "2"])
    with pytest.raises(RulesError, match="1 and 2"):
        FleetReports(tmp_path)


def test_prices_in_two_currencies_are_not_summed(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    prices = [price_row(1), price_row(2, zone="zone-b", currency="EUR")]
    write_dimensions(tmp_path, {"prices": table("prices", prices)})
    with pytest.raises(ConfigurationError, match="EUR and USD"):
        FleetReports(tmp_path)


@pytest.mark.parametrize("times", [((0, 10), (9, 20)), ((5, 4), (10, 20)), ((0, 10), (0, 10))])
def test_dimensions_that_would_count_twice_are_refused(times: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    small_fleet(tmp_path)
    write_dimensions(tmp_path, {"prices": table("prices", [price_row(1, *pair) for pair in times])})
    with pytest.raises(ConfigurationError, match=r"prices\.parquet has rows that hold at the same time"):
        FleetReports(tmp_path)


def test_a_dimension_without_a_needed_column_is_named(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    import pyarrow.parquet as pq

    (tmp_path / "v1" / "dimensions").mkdir()
    pq.write_table(pa.table({"log": ["a"]}), tmp_path / "v1" / "dimensions" / "jobs.parquet")
    with pytest.raises(ConfigurationError, match=r"dimensions/jobs\.parquet has no column job"):
        FleetReports(tmp_path)
    (tmp_path / "v1" / "dimensions" / "jobs.parquet").write_bytes(b"not Parquet")
    with pytest.raises(ConfigurationError, match="is not a Parquet file"):
        FleetReports(tmp_path)


def test_without_rows_the_command_that_makes_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="goodput fleet run"):
        FleetReports(tmp_path)
    small_fleet(tmp_path)
    with pytest.raises(NotFoundError, match="not after that moment"):
        FleetReports(tmp_path, NOW_NS - 1)


def test_errors_of_jobs_are_counted(tmp_path: Path) -> None:
    from ml_diagnostics_fleet.job_rows import error_rows
    from ml_diagnostics_fleet.schemas import JobKey

    write_rows(tmp_path, error_rows(JobKey("log", "job"), "broken", NOW_NS))
    with FleetReports(tmp_path) as reports:
        view = overview_of(reports)
    assert view.has_failed
    assert view.quality.examples == {"failed": ["job"]}
    assert view.groups == []


def test_the_texts_of_the_tables_work_in_duckdb_alone(tmp_path: Path) -> None:
    import duckdb
    from ml_diagnostics_fleet._tables import tables_text
    from ml_diagnostics_fleet.queries import QUESTIONS, question

    small_fleet(tmp_path)
    write_dimensions(tmp_path, {"prices": table("prices", [price_row(1)])})
    with duckdb.connect() as connection:
        connection.execute(tables_text(tmp_path))
        for name in QUESTIONS:
            connection.execute(question(name, ["zone", "week"])).fetchall()
        calendar = connection.execute("SELECT day, day_ns, week FROM calendar ORDER BY day").fetchall()
    days = [datetime.date(1970, 1, 1) + datetime.timedelta(days=number) for number in range(47_482)]
    weeks = [day - datetime.timedelta(days=day.weekday()) for day in days]
    assert calendar == [
        (day, number * DAY_NS, week) for number, (day, week) in enumerate(zip(days, weeks, strict=True))
    ]
    assert days[-1] == datetime.date(2099, 12, 31)


def test_a_report_reads_rows_alone(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    (tmp_path / "v1" / "events").mkdir()
    (tmp_path / "v1" / "events" / "damaged.parquet").write_bytes(b"nothing of this is read")
    with FleetReports(tmp_path) as reports:
        assert sum(group.jobs for group in reports.goodput()) == 1


def test_a_bucket_has_the_same_answers_as_a_folder(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    mirrors: list[Any] = [tmp_path, "gs://test-bucket/fleet"]
    answers = []
    for mirror in mirrors:
        small_fleet(mirror)
        write_dimensions(mirror, {"prices": table("prices", [price_row(1_000_000)])})
        with FleetReports(mirror) as reports:
            answers.append((reports.goodput(), reports.causes(), list(reports.jobs()), reports.hosts()))
    assert answers[0] == answers[1]
    assert answers[0][0]


def test_without_duckdb_the_version_of_python_that_it_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_fleet(tmp_path)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DiagnosticsError, match=r"Python 3\.11 or later"):
        FleetReports(tmp_path)


def test_without_prices_none_is_missing(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    with FleetReports(tmp_path) as reports:
        assert not overview_of(reports).quality.counts
    write_dimensions(tmp_path, {"prices": table("prices", [price_row(1)])})
    with FleetReports(tmp_path) as reports:
        assert overview_of(reports).quality.counts == {"no price": 1}
