"""BigQuery gets texts that are made of DuckDB's, and none of the constructs on which the two do not agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sqlglot
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_fleet.bigquery import events_files_text, events_table_text, load_jobs, tables_text
from ml_diagnostics_fleet.manifest import EventsEntry, EventsManifest, RowsSnapshot
from ml_diagnostics_fleet.queries import GROUPS, QUESTIONS, composed, question
from ml_diagnostics_fleet.schemas import TABLES

from .bigquery_texts import FOLDER, findings, text_of

AS_OF_NS = 1_795_305_600 * 10**9
SNAPSHOT = RowsSnapshot(AS_OF_NS, "1", 3, 10, 100, 0, {name: (f"rows/{name}/a.parquet",) for name in TABLES})


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_committed_text_is_the_one_that_is_made_now(name: str) -> None:
    committed = (FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    assert committed == text_of(name), "run: python -m tests.fleet.bigquery_texts"


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_no_construct_on_which_the_dialects_differ(name: str) -> None:
    assert list(findings(composed(name))) == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_text_is_read_back_as_the_same_tree(name: str) -> None:
    text = question(name, dialect="bigquery")
    tree = sqlglot.parse_one(text, read="bigquery")
    assert tree.sql("bigquery", pretty=True) + "\n" == text
    assert "INT128" not in text
    assert "FLOAT" not in text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT GREATEST(a, b) FROM t",
        "SELECT LEAST(a, b) FROM t",
        "SELECT a / b FROM t",
        "SELECT a // b FROM t",
        "SELECT AVG(a) FROM t",
        "SELECT CAST(a AS DECIMAL) FROM t",
        "SELECT CAST(a AS DECIMAL(18, 3)) FROM t",
        "SELECT CAST(a AS HUGEINT) FROM t",
        "SELECT CAST(a AS DOUBLE) FROM t",
        "SELECT date_trunc('week', d) FROM t",
        "SELECT SUM(a) FROM t",
        "SELECT SUM(CASE WHEN x THEN CAST(a AS DECIMAL(38, 0)) ELSE b END) FROM t",
        "SELECT UNNEST(hosts) FROM t",
        "SELECT COUNT(DISTINCT (a, b)) FROM t",
        "WITH a AS (WITH b AS (SELECT 1) SELECT * FROM b), b AS (SELECT 2) SELECT * FROM a, b",
    ],
)
def test_each_trap_is_found(text: str) -> None:
    assert list(findings(text))


def test_good_constructs_are_not_traps() -> None:
    text = (
        "SELECT SUM(CAST(a AS DECIMAL(38, 0))), COUNT(*) FILTER (WHERE b) FROM t CROSS JOIN UNNEST(t.hosts) AS u(host)"
    )
    assert list(findings(text)) == []


def test_groups_are_put_into_both_dialects() -> None:
    for dialect in ("duckdb", "bigquery"):
        text = question("goodput", ["zone", "week"], dialect)
        assert "group_columns" not in text
        assert "zone, week" in text


@pytest.mark.parametrize("by", [[], ["nobody"], ["team", "team"], ["team; DROP TABLE jobs"]])
def test_other_groups_are_refused(by: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=", ".join(GROUPS)):
        question("goodput", by)


def test_other_questions_and_dialects_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lost_by_cause"):
        question("../facts")
    with pytest.raises(ConfigurationError, match="duckdb, bigquery"):
        question("goodput", dialect="spark")


def test_every_table_of_rows_has_a_view_of_its_newest_run() -> None:
    text = tables_text()
    for name, schema in TABLES.items():
        assert f"CREATE TABLE IF NOT EXISTS {name}_runs (" in text
        assert f"CREATE OR REPLACE VIEW {name} AS\nSELECT {', '.join(schema.names)}\n" in text
    assert text.index("CREATE OR REPLACE VIEW ledger_rows") > text.index("CREATE TABLE IF NOT EXISTS jobs_runs")
    assert "  hosts ARRAY<STRING>,\n" in text
    assert "  ns INT64 NOT NULL,\n" in text
    assert "DATE_TRUNC(day, ISOWEEK) AS week" in text
    for statement in text.rstrip().removesuffix(";").split(";\n"):
        sqlglot.parse_one(statement, read="bigquery")


def test_a_load_job_is_named_by_its_table_moment_and_files() -> None:
    first, same = (load_jobs("gs://bucket/fleet/", SNAPSHOT, "project", "goodput") for _ in range(2))
    assert first == same
    assert len({job["jobReference"]["jobId"] for job in first}) == len(TABLES)
    load = first[0]["configuration"]["load"]
    assert load["sourceUris"] == ["gs://bucket/fleet/v1/rows/ledger_rows/a.parquet"]
    assert load["destinationTable"]["tableId"] == "ledger_rows_runs$2026112200"
    assert load["writeDisposition"] == "WRITE_TRUNCATE"
    assert load["parquetOptions"] == {"enableListInference": True}
    files = {name: (f"rows/{name}/other.parquet",) for name in TABLES}
    again = dataclasses.replace(SNAPSHOT, files=files)
    made_again = load_jobs("gs://bucket/fleet", again, "project", "goodput")
    assert made_again[0]["jobReference"] != first[0]["jobReference"]


def test_views_show_a_run_when_all_its_tables_are_loaded() -> None:
    tables = [job["configuration"]["load"]["destinationTable"]["tableId"] for job in load_all(SNAPSHOT)]
    assert tables[-1].startswith("jobs_runs$")
    assert len(tables) == len(TABLES)
    text = tables_text()
    assert text.count("WHERE _PARTITIONTIME = (SELECT MAX(_PARTITIONTIME) FROM jobs_runs)") == len(TABLES)


def test_a_table_without_files_is_not_loaded() -> None:
    empty = dataclasses.replace(SNAPSHOT, files={**SNAPSHOT.files, "disruptions": ()})
    assert [job["configuration"]["load"]["sourceUris"] for job in load_all(empty)].count([]) == 0
    assert len(load_all(empty)) == len(TABLES) - 1


def load_all(snapshot: RowsSnapshot) -> list[dict[str, Any]]:
    return load_jobs("gs://bucket/fleet", snapshot, "project", "goodput")


def test_bigquery_does_not_load_from_a_folder() -> None:
    with pytest.raises(ConfigurationError, match="gs://"):
        load_jobs("/fleet", SNAPSHOT, "project", "goodput")


def test_events_are_read_by_a_list_of_files_and_never_by_a_pattern() -> None:
    entry = EventsEntry("events/group=7f/a.parquet", "7f", 1, 1, 1, 0, 0)
    assert events_files_text("gs://b/p", EventsManifest(1, 0, (entry,))) == "gs://b/p/v1/events/group=7f/a.parquet\n"
    text = events_table_text("gs://b/p/files.txt")
    assert "file_set_spec_type = 'NEW_LINE_DELIMITED_MANIFEST'" in text
    assert "*" not in text
    for url in ("/a", "gs://b/*", "gs://b/a' OR '"):
        with pytest.raises(ConfigurationError, match="without a pattern"):
            events_table_text(url)
