"""Dimensions: the tables that are not made of events, `v1/dimensions/<table>.parquet`. Each is optional."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from ml_diagnostics_common.exceptions import ConfigurationError, ObjectNotFoundError, PreconditionFailedError
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_fleet._parquet import decoded, encoded
from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.job_rows import AttemptHosts, Cause, JobCauses
from ml_diagnostics_fleet.schemas import DIMENSIONS, JobKey

__all__ = ["as_dimension", "change_dimension", "dimension_path", "read_causes", "read_dimension"]

_TRIES: Final = 20
_LONGEST_REASON: Final = 200
_MOST: Final = {"chips": 2**31 - 1, "micro_per_chip_hour": 10**12}
"""Amounts of larger numbers would not fit into the 38 digits of a sum."""
_CURRENCY: Final = re.compile(r"[$€£¥]|[A-Z]{3}")


def dimension_path(name: str) -> str:
    """Return the path of a table of `DIMENSIONS`, relative to the layout's folder."""
    return f"dimensions/{name}.parquet"


def as_dimension(table: pa.Table, name: str, file: str) -> pa.Table:
    """Return a table with the columns of `DIMENSIONS`; those that may be null need not be there.

    Args:
        table: The table.
        name: `jobs`, `prices`, `causes` or `hosts`.
        file: Its name in errors.

    Raises:
        ConfigurationError: It lacks a column, or has one of another type, with nulls, or with values that would make
            sums wrong.
    """
    columns = []
    for field in DIMENSIONS[name]:
        count = table.column_names.count(field.name)
        if count > 1:
            raise ConfigurationError(f"{file} has {count} columns {field.name}")
        if count:
            columns.append(_cast(table[field.name], field, file))
        elif field.nullable:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            raise ConfigurationError(f"{file} has no column {field.name}")
    return pa.table(columns, schema=DIMENSIONS[name])


def read_dimension(mirror: str | os.PathLike[str], name: str) -> pa.Table:
    """Return a table of `DIMENSIONS`; empty if there is none.

    Args:
        mirror: The mirror.
        name: `jobs`, `prices`, `causes` or `hosts`.

    Raises:
        ConfigurationError: It is not a Parquet file with these columns.
        StorageError: It cannot be read.
    """
    return _read(FleetPaths(mirror), name)[0]


def change_dimension(
    mirror: str | os.PathLike[str], name: str, change: Callable[[pa.Table], pa.Table | None]
) -> pa.Table:
    """Change a table as it is when it is written: what another process has written meanwhile is not lost.

    Args:
        mirror: The mirror.
        name: `jobs`, `prices`, `causes` or `hosts`.
        change: Returns the new table, of the one that it is given; None to write nothing. It may be called repeatedly.

    Returns:
        The table that is stored now.

    Raises:
        ConfigurationError: It is not a Parquet file with these columns.
        StorageError: It cannot be read or written.
    """
    paths, file = FleetPaths(mirror), dimension_path(name)
    for number in range(_TRIES):
        table, generation = _read(paths, name)
        changed = change(table)
        if changed is None:
            return table
        try:
            paths.storage.write(paths.full(file), encoded(changed), if_generation=generation)
        except PreconditionFailedError:
            if number == _TRIES - 1:
                raise
            continue
        return changed
    raise AssertionError(name)  # The last try returns or raises.


def read_causes(mirror: str | os.PathLike[str]) -> dict[JobKey, dict[int, Cause]]:
    """Return the causes of disruptions by job and number; each is a `JobCauses`, which has the hosts of attempts, too.

    Raises:
        ConfigurationError: A table is not a Parquet file with the columns of `DIMENSIONS`.
        StorageError: It cannot be read.
    """
    causes: dict[JobKey, JobCauses] = {}
    for row in read_dimension(mirror, "causes").to_pylist():
        cause = Cause(row["cause"], row["cause_host"], row["confidence"], row["last_event_ns"])
        causes.setdefault(JobKey(row["log"], row["job"]), JobCauses())[row["number"]] = cause
    for batch in read_dimension(mirror, "hosts").to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            # Each worker holds those of all attempts: one object for each name takes a tenth of the memory.
            hosts = AttemptHosts(row["start_ns"], tuple(sys.intern(host) for host in row["hosts"] if host))
            causes.setdefault(JobKey(row["log"], row["job"]), JobCauses()).hosts[row["attempt"]] = hosts
    return dict(causes)


def _read(paths: FleetPaths, name: str) -> tuple[pa.Table, int]:
    """Return a table and its generation: 0 if it does not exist."""
    file = dimension_path(name)
    try:
        data, generation = paths.storage.read_with_generation(paths.full(file))
    except ObjectNotFoundError:
        return DIMENSIONS[name].empty_table(), 0
    try:
        table = decoded(data)
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{file} is not a Parquet file: {one_line(str(error), _LONGEST_REASON)}") from None
    return as_dimension(table, name, file), generation


def _cast(column: pa.ChunkedArray, field: pa.Field, file: str) -> pa.ChunkedArray:
    found = column.type
    # Arrow casts a time to the integer of its own unit, which need not be the nanosecond, and true to 1.
    if pa.types.is_temporal(found) or (pa.types.is_boolean(found) and found != field.type):
        raise ConfigurationError(f"{file}: expected column {field.name} of {field.type}, got {found}")
    try:
        values = column.cast(field.type)
    except pa.ArrowException as error:
        reason = one_line(str(error), _LONGEST_REASON)
        raise ConfigurationError(
            f"{file}: expected column {field.name} of {field.type}, got {found}: {reason}"
        ) from None
    if values.null_count and not field.nullable:
        raise ConfigurationError(f"{file}: column {field.name} must not have nulls")
    if field.name in _MOST:
        bounds = pc.min_max(values).as_py()
        low, high = bounds["min"], bounds["max"]
        if low is not None and not 0 <= low <= high <= _MOST[field.name]:
            raise ConfigurationError(
                f"{file}: expected 0 to {_MOST[field.name]:,} in column {field.name}, got {low:,} to {high:,}"
            )
    if field.name == "currency":
        wrong = next((text for text in pc.unique(values).to_pylist() if not _CURRENCY.fullmatch(text)), None)
        if wrong is not None:
            raise ConfigurationError(f"{file}: expected a currency such as USD or $, got {wrong[:40]!r}")
    return values
