"""BigQuery: the tables that the questions need, how rows are loaded, and a table over the files of events. Texts only.

The questions themselves are in `sql/bigquery`, made of DuckDB's texts; `queries.question` returns them. BigQuery sums
rows, and never computes the ledger.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final

import pyarrow as pa
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_diagnostics_fleet.manifest import EventsManifest, RowsSnapshot
from ml_diagnostics_fleet.schemas import DIMENSIONS, TABLES

__all__ = ["RUNS", "events_files_text", "events_table_text", "load_jobs", "tables_text"]

RUNS: Final = "_runs"
"""A table of rows with this suffix has the rows of all runs, partitioned by their moment."""
_TYPES: Final = {
    pa.string(): "STRING",
    pa.int32(): "INT64",
    pa.int64(): "INT64",
    pa.bool_(): "BOOL",
    pa.date32(): "DATE",
}
_DIMENSIONS: Final = {"jobs": "job_dimensions", "prices": "prices"}


def tables_text() -> str:
    """Return the statements that create the tables and views of the questions, in the dataset of the connection."""
    parts = []
    for name, schema in TABLES.items():
        columns = ", ".join(schema.names)
        parts.append(
            f"CREATE TABLE IF NOT EXISTS {name}{RUNS} (\n{_columns(schema)}\n)\n"
            "PARTITION BY TIMESTAMP_TRUNC(_PARTITIONTIME, HOUR);\n"
        )
        parts.append(
            f"CREATE OR REPLACE VIEW {name} AS\nSELECT {columns}\nFROM {name}{RUNS}\n"
            f"WHERE _PARTITIONTIME = (SELECT MAX(_PARTITIONTIME) FROM jobs{RUNS});\n"
        )
    # A view needs the table that it names: all tables first.
    parts.sort(key=lambda part: "VIEW" in part)
    for name, table in _DIMENSIONS.items():
        parts.append(f"CREATE TABLE IF NOT EXISTS {table} (\n{_columns(DIMENSIONS[name])}\n);\n")
    parts.append(
        "CREATE OR REPLACE TABLE calendar AS\n"
        "SELECT day, UNIX_SECONDS(TIMESTAMP(day)) * 1000000000 AS day_ns, DATE_TRUNC(day, ISOWEEK) AS week\n"
        "FROM UNNEST(GENERATE_DATE_ARRAY(DATE '1970-01-01', DATE '2099-12-31')) AS day;\n"
    )
    return "\n".join(parts)


def load_jobs(mirror: str, snapshot: RowsSnapshot, project: str, dataset: str) -> list[dict[str, Any]]:
    """Return the load jobs of a run's rows: bodies for `jobs.insert` of BigQuery's API, one for each table.

    A job has an id of the table, the moment and the files: inserted again it is refused, and rows are not loaded twice.
    It replaces the partition of its hour, so rows of the same moment that were made again take the place of the old.
    Insert each after the one before it is done: the views show a run when its last table, `jobs`, is loaded.

    Args:
        mirror: The mirror, `gs://bucket/prefix`.
        snapshot: The rows.
        project: The project.
        dataset: The dataset that has the tables of `tables_text`.

    Raises:
        ConfigurationError: The mirror is not a bucket.
    """
    if not mirror.startswith("gs://"):
        raise ConfigurationError(f"BigQuery loads from gs:// only, got {mirror!r}")
    hour = time.strftime("%Y%m%d%H", time.gmtime(snapshot.as_of_ns // 10**9))
    jobs = []
    for table in sorted(TABLES, key=lambda name: name == "jobs"):
        files = [f"{mirror.rstrip('/')}/v1/{path}" for path in snapshot.files[table]]
        if not files:  # Of a fleet without jobs; BigQuery refuses a job that loads nothing.
            continue
        digest = hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]
        target = {"projectId": project, "datasetId": dataset, "tableId": f"{table}{RUNS}${hour}"}
        load = {
            "sourceUris": files,
            "sourceFormat": "PARQUET",
            "parquetOptions": {"enableListInference": True},
            "destinationTable": target,
            "createDisposition": "CREATE_NEVER",
            "writeDisposition": "WRITE_TRUNCATE",
        }
        reference = {"projectId": project, "jobId": f"goodput-fleet-{table}-{snapshot.as_of_ns}-{digest}"}
        jobs.append({"jobReference": reference, "configuration": {"load": load}})
    return jobs


def events_files_text(mirror: str, manifest: EventsManifest) -> str:
    """Return a list of the files of events, one a line: what the table of `events_table_text` reads."""
    return "".join(f"{mirror.rstrip('/')}/v1/{entry.path}\n" for entry in manifest.files)


def events_table_text(list_url: str) -> str:
    """Return the statement that creates a table over the files of events.

    It reads a list of files, and no pattern: files that no manifest names would be read, too.

    Args:
        list_url: The object with the text of `events_files_text`, `gs://...`.

    Raises:
        ConfigurationError: It is not the name of such an object.
    """
    if not list_url.startswith("gs://") or any(character in list_url for character in "*'\"\\\n"):
        raise ConfigurationError(f"expected the name of an object, gs://..., without a pattern, got {list_url!r}")
    return (
        "CREATE OR REPLACE EXTERNAL TABLE events\n"
        "OPTIONS (\n"
        "  format = 'PARQUET',\n"
        "  file_set_spec_type = 'NEW_LINE_DELIMITED_MANIFEST',\n"
        f"  uris = ['{list_url}']\n"
        ");\n"
    )


def _columns(schema: pa.Schema) -> str:
    return ",\n".join(f"  {field.name} {_type(field)}" for field in schema)


def _type(field: pa.Field) -> str:
    if pa.types.is_list(field.type):
        return f"ARRAY<{_TYPES[field.type.value_type]}>"
    return _TYPES[field.type] + ("" if field.nullable else " NOT NULL")
