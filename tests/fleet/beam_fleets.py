"""Generated fleets in a mirror as several objects for the same entries, and the rows of a run over them."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.manifest import RowsSnapshot
from ml_diagnostics_fleet.rows_files import read_table
from ml_diagnostics_fleet.schemas import TABLES, JobKey

from .fleets import NOW_NS, Job, fleets, write_objects

KEYS = {"ledger_rows": 6, "jobs": 2, "attempts": 3, "disruptions": 3}
"""The number of columns that identify a row."""
_ALL_DAYS = 2**61


def generated_fleets(number: int, most: int) -> list[Job]:
    """Return the jobs of so many fleets, each with a log of its own fleet."""
    found: list[Job] = []

    @seed(20261122)
    @settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(fleets(most=most))
    def collect(members: list[Job]) -> None:
        index = len({job.key.log.partition(" ")[0] for job in found})
        found.extend(Job(JobKey(f"{index} {job.key.log}", job.key.job), job.writers) for job in members)

    collect()
    return found


def write_mirror(mirror: Path, members: list[Job]) -> None:
    """Write segments, all entries twice and 1 % of the objects late, and compact what was there before."""
    objects = [
        one for job in members for each, level in ((7, 0), (40, 1)) for one in job.segments(f"{mirror}", each, level)
    ]
    random.Random(1).shuffle(objects)
    late = len(objects) // 100 + 1
    write_objects(objects[late:])
    compact(mirror, now_ns=NOW_NS, through_ns=_ALL_DAYS, rolls_up=False)
    write_objects(objects[:late])
    compact(mirror, now_ns=NOW_NS, through_ns=_ALL_DAYS, rolls_up=False)


def rows_of_snapshot(mirror: Path | str, snapshot: RowsSnapshot | None) -> dict[str, list[dict[str, Any]]]:
    """Return all rows by table, in the order of their keys."""
    assert snapshot is not None
    tables = {name: read_table(mirror, snapshot, name) for name in TABLES}
    return {name: in_order(name, table) for name, table in tables.items()}


def in_order(name: str, table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table in the order of its keys."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: tuple(row.values())[: KEYS[name]])


def assert_same_rows(found: Mapping[str, list[dict[str, Any]]], expected: Mapping[str, list[dict[str, Any]]]) -> None:
    """Check that every row of every table is equal."""
    for name in TABLES:
        assert len(found[name]) == len(expected[name]), name
        for row, other in zip(found[name], expected[name], strict=True):
            assert row == other, name


def quiet() -> None:
    """Let only errors of Beam be logged."""
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
