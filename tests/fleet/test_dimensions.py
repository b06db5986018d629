"""Tables of jobs and prices that others write: every useful type is read, and what would make sums wrong is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_fleet.overview import overview_of
from ml_diagnostics_fleet.schemas import DIMENSIONS

pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")

from ml_diagnostics_fleet.reports import FleetReports

from .test_reports import FAR_NS, small_fleet

JOB: dict[str, Any] = {"log": "log", "job": "job", "valid_from_ns": 0, "valid_to_ns": FAR_NS}
PRICE: dict[str, Any] = {
    "accelerator": "(none)", "zone": "(none)", "spot": False, "valid_from_ns": 0, "valid_to_ns": FAR_NS,
    "micro_per_chip_hour": 3_220_000, "currency": "USD",
}  # fmt: skip


def write(mirror: Path, name: str, columns: dict[str, Any]) -> None:
    """Write a dimension, as another program does."""
    folder = mirror / "v1" / "dimensions"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {column: value if isinstance(value, pa.Array) else pa.array([value]) for column, value in columns.items()}
    pq.write_table(pa.table(arrays), folder / f"{name}.parquet")


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        ("jobs", "chips", -1, "0 to 2,147,483,647 in column chips, got -1 to -1"),
        ("jobs", "chips", 2**31, "expected column chips of int32"),
        ("jobs", "chips", 3.5, "expected column chips of int32, got double"),
        ("jobs", "chips", True, "expected column chips of int32, got bool"),
        ("jobs", "chips", "many", "expected column chips of int32, got string"),
        (
            "jobs",
            "valid_from_ns",
            pa.array([0], pa.timestamp("us")),
            r"expected column valid_from_ns of int64, got tim",
        ),
        ("jobs", "job", pa.array([None], pa.string()), "column job must not have nulls"),
        ("jobs", "team", pa.array([["a"]]), r"expected column team of string, got list"),
        ("prices", "micro_per_chip_hour", -1, "0 to 1,000,000,000,000 in column micro_per_chip_hour"),
        ("prices", "micro_per_chip_hour", 10**12 + 1, "0 to 1,000,000,000,000 in column micro_per_chip_hour"),
        ("prices", "currency", "", "a currency such as USD"),
        ("prices", "currency", "US\nD", "a currency such as USD"),
        ("prices", "spot", pa.array([None], pa.bool_()), "column spot must not have nulls"),
    ],
)
def test_a_value_that_would_make_sums_wrong_is_refused(
    name: str, column: str, value: Any, message: str, tmp_path: Path
) -> None:
    small_fleet(tmp_path)
    write(tmp_path, name, {**(JOB if name == "jobs" else PRICE), column: value})
    with pytest.raises(ConfigurationError, match=rf"dimensions/{name}\.parquet: .*{message}"):
        FleetReports(tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    write(tmp_path, "jobs", JOB)
    arrays = [pa.array([value]) for value in (*JOB.values(), "llm", "vision")]
    table = pa.Table.from_arrays(arrays, names=[*JOB, "team", "team"])
    pq.write_table(table, tmp_path / "v1" / "dimensions" / "jobs.parquet")
    with pytest.raises(ConfigurationError, match="has 2 columns team"):
        FleetReports(tmp_path)


@pytest.mark.parametrize(
    ("team", "chips"),
    [
        (pa.array(["vision"]).dictionary_encode(), pa.array([8], pa.int8())),
        (pa.array(["vision"], pa.large_string()), pa.array([8.0])),
        (pa.array(["vision"]), pa.array([8], pa.uint64())),
    ],
)
def test_types_with_the_same_values_are_read(team: Any, chips: Any, tmp_path: Path) -> None:
    small_fleet(tmp_path)
    write(tmp_path, "jobs", {**JOB, "team": team, "chips": chips, "more": 1.5})
    with FleetReports(tmp_path) as reports:
        (job,) = reports.jobs()
    assert (job.team, job.chips) == ("vision", 8)


@pytest.mark.parametrize("known", ["", None])
def test_an_empty_name_is_no_name(known: str | None, tmp_path: Path) -> None:
    small_fleet(tmp_path, team="")
    write(tmp_path, "jobs", {**JOB, "team": pa.array([known], pa.string())})
    with FleetReports(tmp_path) as reports:
        view = overview_of(reports)
    assert [group.key for group in view.groups] == [("(none)",)]
    assert view.quality.counts["no team"] == 1


def test_no_chips_at_all_are_a_number_of_chips(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    write(tmp_path, "jobs", {**JOB, "chips": 0})
    with FleetReports(tmp_path) as reports:
        view = overview_of(reports)
    assert view.all.chip_ns == 0
    assert "no chips" not in view.quality.counts


def test_the_sign_and_the_code_of_the_dollar_are_one_currency(tmp_path: Path) -> None:
    small_fleet(tmp_path)
    rows = [PRICE, {**PRICE, "spot": True, "currency": "$"}]
    write(tmp_path, "prices", {name: pa.array([row[name] for row in rows]) for name in PRICE})
    with FleetReports(tmp_path) as reports:
        assert reports.currency == "$"


def test_a_table_of_jobs_needs_only_its_keys_also_in_duckdb_alone(tmp_path: Path) -> None:
    import duckdb
    from ml_diagnostics_fleet._tables import tables_text
    from ml_diagnostics_fleet.queries import QUESTIONS, question

    small_fleet(tmp_path)
    write(tmp_path, "jobs", {**JOB, "team": "vision"})
    with duckdb.connect() as connection:
        connection.execute(tables_text(tmp_path))
        for name in QUESTIONS:
            connection.execute(question(name)).fetchall()
        assert connection.execute(question("goodput")).fetchone()[0] == "vision"
        described = connection.execute("DESCRIBE job_dimensions").fetchall()
    assert [row[0] for row in described] == DIMENSIONS["jobs"].names
