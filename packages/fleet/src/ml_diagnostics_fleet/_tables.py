"""The tables of the questions in DuckDB: rows, dimensions, which others write, and the calendar."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from ml_diagnostics_common.command.errors import NotFoundError

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.dimensions import dimension_path, read_dimension
from ml_diagnostics_fleet.manifest import RowsSnapshot
from ml_diagnostics_fleet.rows_files import newest_rows, row_paths
from ml_diagnostics_fleet.schemas import DIMENSIONS, TABLES

__all__ = ["CALENDAR", "rows_at", "tables_text", "view_text"]

_DIMENSIONS: Final = {"jobs": "job_dimensions", "prices": "prices"}
_DUCKDB_TYPES: Final = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    pa.list_(pa.string()): "VARCHAR[]",
}
_COLUMNS: Final = {"labels": "CASE WHEN json_valid(labels) THEN labels ELSE '{}' END AS labels"}
"""JSON may have half of a character, and DuckDB has no text for it: one such label would end each question."""
CALENDAR: Final = (
    "CREATE TABLE calendar AS\n"
    "SELECT CAST(day AS DATE) AS day, CAST(epoch(day) AS BIGINT) * 1000000000 AS day_ns, "
    "CAST(date_trunc('week', day) AS DATE) AS week\n"
    "FROM range(DATE '1970-01-01', DATE '2100-01-01', INTERVAL 1 DAY) AS days(day)"
)
"""The statement that creates the days from 1970 to 2099 in UTC, when each starts, and the Monday of its week."""


def tables_text(mirror: str | os.PathLike[str], as_of_ns: int | None = None) -> str:
    """Return the statements that create the tables of the questions in DuckDB, for a mirror in a folder or a bucket.

    Args:
        mirror: The mirror.
        as_of_ns: The rows of the newest moment that is not after it; None for the newest.

    Raises:
        NotFoundError: There are no rows.
    """
    snapshot = rows_at(mirror, as_of_ns)
    statements = [view_text(table, row_paths(mirror, snapshot, table)) for table in TABLES]
    paths = FleetPaths(mirror)
    for name, table in _DIMENSIONS.items():
        statements.append(_empty_text(table, DIMENSIONS[name]))
        if read_dimension(mirror, name).num_rows:
            # The file has some of the columns, in any order, and maybe more.
            columns = "|".join(DIMENSIONS[name].names)
            file = _parquet([paths.full(dimension_path(name))])
            statements.append(f"INSERT INTO {table} BY NAME\nSELECT COLUMNS('^({columns})$')\nFROM {file}")
    statements.append(CALENDAR)
    return "".join(f"{statement};\n\n" for statement in statements).rstrip("\n") + "\n"


def view_text(table: str, files: list[str]) -> str:
    """Return the statement that creates a view of a table of rows, or an empty table.

    Args:
        table: Its name.
        files: Its files.
    """
    if not files:
        return _empty_text(table, TABLES[table])
    columns = ", ".join(_COLUMNS.get(name, f'"{name}"') for name in TABLES[table].names)
    return f"CREATE VIEW {table} AS\nSELECT {columns}\nFROM {_parquet(files)}"


def rows_at(mirror: str | os.PathLike[str], as_of_ns: int | None) -> RowsSnapshot:
    """Return the newest rows, or the newest that are not after a moment.

    Raises:
        NotFoundError: There are none.
    """
    snapshot = newest_rows(mirror, as_of_ns)
    if snapshot is None:
        when = "" if as_of_ns is None else " that are not after that moment"
        raise NotFoundError(f"{os.fspath(mirror)} has no rows{when}: `goodput fleet run` makes them")
    return snapshot


def _empty_text(table: str, schema: pa.Schema) -> str:
    columns = ", ".join(f"{field.name} {_DUCKDB_TYPES[field.type]}" for field in schema)
    return f"CREATE TABLE {table} ({columns})"


def _parquet(files: Iterable[str]) -> str:
    """Return the call of DuckDB that reads some files, without the columns that it would make of names of folders."""
    return f"read_parquet([{', '.join(map(_quoted, files))}], hive_partitioning = false)"


def _quoted(path: str) -> str:
    """Return a path as text of SQL, and not as a pattern: a folder may be named `fleet[1]`."""
    plain = re.sub(r"[*?\[]", r"[\g<0>]", path)
    doubled = plain.replace("'", "''")
    return f"'{doubled}'"
