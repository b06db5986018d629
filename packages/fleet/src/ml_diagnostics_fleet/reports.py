"""Answers of a fleet's rows: DuckDB sums them, exactly, and reads nothing else. See `queries` for the texts.

    with FleetReports("gs://bucket/prefix") as reports:
        for group in reports.goodput(["team"]):
            print(group.key, group.productive.chip_ns, money_of(group.lost.cost))

Every time is an integer of nanoseconds, every chip-time of chip-nanoseconds, and every amount a fraction. DuckDB sees
ledger rows only, and holds at most the memory that it is given: the rest is on disk.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.texts import format_clock, one_line
from ml_goodput_measurement.partition import Bucket

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet._tables import CALENDAR, rows_at, view_text
from ml_diagnostics_fleet.answers import (
    CauseSums,
    GroupSums,
    HostSums,
    JobProblems,
    JobSums,
    PeriodSums,
    SaveSums,
    Sums,
)
from ml_diagnostics_fleet.dimensions import read_dimension
from ml_diagnostics_fleet.manifest import Gap, RowsSnapshot, latest_events
from ml_diagnostics_fleet.queries import facts_text, question
from ml_diagnostics_fleet.rows_files import row_paths
from ml_diagnostics_fleet.schemas import TABLES, JobKey

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from ml_goodput_measurement.money import Price

__all__ = ["FleetReports", "RulesError"]

_MEMORY_MB: Final = 512
_ROWS: Final = 2_000
"""Rows that are fetched at a time."""
_LONGEST_ERROR: Final = 400


class RulesError(DiagnosticsError):
    """Rows of two versions of the rules, or of a newer one, cannot be summed."""


class FleetReports:
    """The reports of a fleet at one moment; a context manager.

    Args:
        mirror: The mirror: `gs://bucket/prefix`, or a local folder.
        as_of_ns: The rows of the newest moment that is not after it, in ns since 1970; None for the newest.
        price: A price for all chips, instead of the table of prices.
        memory_mb: The memory that DuckDB may use, in MB.

    Attributes:
        snapshot: The rows that are summed.
        currency: The currency of all amounts; None if there are no prices.

    Raises:
        NotFoundError: There are no rows.
        ConfigurationError: A table of dimensions is not valid.
        RulesError: The rows are of two versions of the rules.
        DiagnosticsError: DuckDB is not installed, or cannot read the rows.
        ManifestError: The manifest is damaged, or of a newer version.
        StorageError: The mirror cannot be read.
    """

    def __init__(
        self,
        mirror: str | os.PathLike[str],
        as_of_ns: int | None = None,
        *,
        price: Price | None = None,
        memory_mb: int = _MEMORY_MB,
    ) -> None:
        duckdb = _duckdb()
        self._mirror = mirror
        self._error: type[Exception] = duckdb.Error
        self.snapshot: RowsSnapshot = rows_at(mirror, as_of_ns)
        self.currency: str | None = None
        self._stack = contextlib.ExitStack()
        with self._stack, self._readable_errors():
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ml-diagnostics-fleet-"))
            self._connection: DuckDBPyConnection = duckdb.connect(
                config={
                    "memory_limit": f"{memory_mb}MB",
                    "temp_directory": str(Path(folder) / "spilled"),
                    "autoinstall_known_extensions": "false",
                }
            )
            self._stack.callback(self._connection.close)
            for table in TABLES:
                self._connection.execute(view_text(table, _local_files(mirror, self.snapshot, table, Path(folder))))
            self._connection.execute(CALENDAR)
            self._add_table("job_dimensions", read_dimension(mirror, "jobs"))
            self._check_rules()
            self._check_times("job_dimensions", "log, job")
            self._add_prices(mirror, price)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> FleetReports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and delete what was on disk."""
        self._stack.close()

    def goodput(self, by: Sequence[str] = ("team",)) -> list[GroupSums]:
        """Return time, chip-time, money and steps of each group, in the order of the groups.

        Args:
            by: Names of `queries.GROUPS`.
        """
        return [
            GroupSums(
                key,
                row["jobs"],
                row["jobs_without_chips"],
                _sums(row),
                _sums(row, "productive_"),
                row["unpriced_chip_ns"],
                row["steps_kept"],
            )
            for key, row in self._groups("goodput", by)
        ]

    def causes(self, by: Sequence[str] = ("team",)) -> list[CauseSums]:
        """Return what each group lost to each cause.

        Args:
            by: Names of `queries.GROUPS`.
        """
        return [
            CauseSums(key, _bucket(row["bucket"]), row["label"], _sums(row))
            for key, row in self._groups("lost_by_cause", by)
        ]

    def trend(self, by: Sequence[str] = ("team",)) -> list[PeriodSums]:
        """Return time by group and bucket of the last 7 days (`now`) and of the 7 days before (`before`).

        Args:
            by: Names of `queries.GROUPS`.
        """
        return [
            PeriodSums(key, row["period"], _bucket(row["bucket"]), row["label"], _sums(row))
            for key, row in self._groups("trend", by)
        ]

    def jobs(self) -> Iterator[JobSums]:
        """Yield the sums of each job, the one that lost most money first, then most chip-time."""
        for row in self._rows("worst_jobs"):
            yield JobSums(
                JobKey(row["log"], row["job"]),
                row["team"],
                row["zone"],
                row["accelerator"],
                row["chips"],
                row["attempts"],
                row["disruptions"],
                _sums(row),
                _sums(row, "productive_"),
            )

    def saves(self) -> Iterator[SaveSums]:
        """Yield what advice on saves needs of each job that kept steps and saved."""
        for row in self._rows("saves"):
            key = JobKey(row.pop("log"), row.pop("job"))
            money = row.pop("chip_ns"), row.pop("cost")
            yield SaveSums(key, chip_ns=money[0], cost=money[1], **row)

    def hosts(self) -> list[HostSums]:
        """Return the exposure of each host, and how often it is blamed."""
        found: dict[tuple[str, str, str], HostSums] = {}
        for row in self._rows("hosts"):
            key = row["accelerator"], row["zone"], row["host"]
            one = found.setdefault(key, HostSums(*key))
            one.chip_ns += Fraction(row["chip_ns"], row["host_count"])
            one.blamed += row["blamed"]
        return [found[key] for key in sorted(found)]

    def problems(self) -> Iterator[JobProblems]:
        """Yield the jobs of which the data are not complete, and those that failed."""
        for row in self._rows("quality"):
            yield JobProblems(JobKey(row.pop("log"), row.pop("job")), **row)

    def gaps(self) -> list[Gap]:
        """Return the entries that are missing in the table of events now, by writer.

        Raises:
            ManifestError: The manifest is damaged, or of a newer version.
            StorageError: The mirror cannot be read.
        """
        return latest_events(self._mirror).gaps()

    def _groups(self, name: str, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
        for row in self._rows(name, by):
            yield tuple(str(row[group]) for group in by), row

    def _rows(self, name: str, by: Sequence[str] = ("team",)) -> Iterator[dict[str, Any]]:
        """Yield the rows of a question; numbers are integers."""
        with contextlib.closing(self._connection.cursor()) as cursor, self._readable_errors():
            result = cursor.execute(question(name, by))
            names = [column[0] for column in result.description or ()]
            while rows := result.fetchmany(_ROWS):
                for row in rows:
                    yield {
                        column: value if value is None or isinstance(value, str) or column == "week" else int(value)
                        for column, value in zip(names, row, strict=True)
                    }

    @contextlib.contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Translate errors of DuckDB, such as those of a damaged file, and of sums that do not fit into 38 digits.

        Raises:
            DiagnosticsError: DuckDB failed.
        """
        try:
            yield
        except self._error as error:
            raise DiagnosticsError(
                f"the rows as of {format_clock(self.snapshot.as_of_ns)} cannot be summed: "
                f"{one_line(str(error), _LONGEST_ERROR)}"
            ) from error

    def _add_table(self, name: str, table: pa.Table) -> None:
        self._connection.register("given", table)
        self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        self._connection.unregister("given")

    def _add_prices(self, mirror: str | os.PathLike[str], price: Price | None) -> None:
        prices = read_dimension(mirror, "prices")
        if price is None:
            currencies = sorted(set(prices["currency"].to_pylist()))
            if len({*map(_sign, currencies)}) > 1:
                raise ConfigurationError(
                    f"dimensions/prices.parquet has prices in {' and '.join(currencies)}: amounts cannot be summed"
                )
            self._add_table("prices", prices)
            self._check_times("prices", "accelerator, zone, spot")
            self.currency = _sign(currencies[0]) if currencies else None
            return
        self._add_table("prices", prices.slice(0, 0))
        columns = f"DISTINCT accelerator, zone, spot, 0, {2**62}, {price.micro_per_chip_hour}, ''"
        self._connection.execute(f"INSERT INTO prices {facts_text(columns)}")
        self.currency = price.currency

    def _check_rules(self) -> None:
        """Refuse rows of two versions of the rules.

        Raises:
            RulesError: There are such rows.
        """
        versions = [row["rules"] for row in self._rows("versions")]
        if len(versions) > 1:
            raise RulesError(
                f"the rows are of the rules {' and '.join(versions)}, which cannot be summed: `goodput fleet run` "
                "makes all of them again"
            )

    def _check_times(self, table: str, key: str) -> None:
        """Refuse dimensions of which two rows hold at one moment: sums would count twice.

        Raises:
            ConfigurationError: There are such rows.
        """
        found = self._connection.execute(
            f"SELECT {key} FROM (SELECT *, LAG(valid_to_ns) OVER (PARTITION BY {key} ORDER BY valid_from_ns, "
            f"valid_to_ns) AS before_ns FROM {table}) WHERE before_ns > valid_from_ns OR valid_to_ns < valid_from_ns "
            "LIMIT 1"
        ).fetchone()
        if found is not None:
            name = "jobs" if table == "job_dimensions" else table
            raise ConfigurationError(
                f"dimensions/{name}.parquet has rows that hold at the same time, or end before they start, for "
                f"{', '.join(str(value)[:100] for value in found)}"
            )


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise DiagnosticsError(
            "reports of a fleet need DuckDB 2, which needs Python 3.11 or later; install it with: "
            "pip install 'duckdb>=2'"
        ) from None
    return duckdb


def _local_files(mirror: str | os.PathLike[str], snapshot: RowsSnapshot, table: str, folder: Path) -> list[str]:
    """Return paths of a table's files on this machine; those of a bucket are copied first."""
    paths = FleetPaths(mirror)
    files = row_paths(mirror, snapshot, table)
    if not in_bucket(paths.mirror):
        return files
    copies = []
    for number, path in enumerate(files):
        copy = folder / f"{table}-{number}.parquet"
        copy.write_bytes(paths.storage.read(path))
        copies.append(str(copy))
    return copies


def _sums(row: dict[str, Any], prefix: str = "") -> Sums:
    return Sums(row[f"{prefix}job_ns"], row[f"{prefix}chip_ns"], row[f"{prefix}cost"])


def _bucket(name: str) -> Bucket:
    """Return a bucket by its name.

    Raises:
        RulesError: There is no such bucket.
    """
    try:
        return Bucket(name)
    except ValueError:
        raise RulesError(
            f"the rows have time of the kind {name[:100]!r}, which this version does not know: update "
            "ml-diagnostics-fleet, or run `goodput fleet run` with this version"
        ) from None


def _sign(currency: str) -> str:
    return "$" if currency == "USD" else currency
