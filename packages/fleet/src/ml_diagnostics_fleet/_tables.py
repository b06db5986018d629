"""The tables of the questions in DuckDB: rows, dimensions, which others write, and the calendar."""

from __future__ import annotations

import datetime
import os
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from ml_diagnostics_common.command.errors import NotFoundError

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.dimensions import read_dimension
from ml_diagnostics_fleet.manifest import RowsSnapshot
from ml_diagnostics_fleet.rows_files import newest_rows, row_paths
from ml_diagnostics_fleet.schemas import DIMENSIONS, TABLES

__all__ = ["calendar_table", "read_dimension", "rows_at", "tables_text", "view_text"]

_DAY_NS: Final = 86_400 * 10**9
_DAYS: Final = 47_482
"""The days from 1970 to 2099."""
_FIRST_MONDAY: Final = 4
"""1970-01-05, in days since 1970-01-01."""
_DIMENSIONS: Final = {"jobs": "job_dimensions", "prices": "prices"}
_DUCKDB_TYPES: Final = {pa.string(): "VARCHAR", pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN"}
_CALENDAR: Final = (
    "CREATE TABLE calendar AS\n"
    "SELECT CAST(day AS DATE) AS day, CAST(epoch(day) AS BIGINT) * 1000000000 AS day_ns, "
    "CAST(date_trunc('week', day) AS DATE) AS week\n"
    "FROM range(DATE '1970-01-01', DATE '2100-01-01', INTERVAL 1 DAY) AS days(day)"
)


@lru_cache(maxsize=1)
def calendar_table() -> Any:
    """Return the days from 1970 to 2099 in UTC, when each starts, and the Monday of its week."""
    days = range(_DAYS)
    first = datetime.date(1970, 1, 1).toordinal()
    return pa.table(
        {
            "day": pa.array([datetime.date.fromordinal(first + day) for day in days], pa.date32()),
            "day_ns": pa.array([day * _DAY_NS for day in days], pa.int64()),
            "week": pa.array(
                [datetime.date.fromordinal(first + day - (day - _FIRST_MONDAY) % 7) for day in days], pa.date32()
            ),
        }
    )


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
        file = paths.full(f"dimensions/{name}.parquet")
        if read_dimension(mirror, name).num_rows:
            statements.append(f"CREATE TABLE {table} AS\nSELECT *\nFROM read_parquet({_quoted(file)})")
        else:
            columns = ", ".join(f"{field.name} {_DUCKDB_TYPES[field.type]}" for field in DIMENSIONS[name])
            statements.append(f"CREATE TABLE {table} ({columns})")
    statements.append(_CALENDAR)
    return "".join(f"{statement};\n\n" for statement in statements).rstrip("\n") + "\n"


def view_text(table: str, files: list[str]) -> str:
    """Return the statement that creates a view of a table of rows.

    Args:
        table: Its name.
        files: Its files, at least one.
    """
    columns = ", ".join(f'"{name}"' for name in TABLES[table].names)
    names = ", ".join(map(_quoted, files))
    # Without the columns that DuckDB would make of the names of folders.
    return f"CREATE VIEW {table} AS\nSELECT {columns}\nFROM read_parquet([{names}], hive_partitioning = false)"


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


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
