"""The questions of a fleet as SQL: `sql/*.sql` is the source, in the dialect of DuckDB; `sql/bigquery` is made of it.

A question sums rows of the ledger, and knows no rule of it. All sums are integers: nanoseconds, chip-nanoseconds, and
costs in millionths of the currency times nanoseconds for an hour's price, as `DECIMAL(38, 0)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = ["DIALECTS", "GROUPS", "QUESTIONS", "composed", "facts_text", "question"]

QUESTIONS: Final = {
    "goodput": "time, chip-time, money and kept steps of groups of jobs, all and productive",
    "lost_by_cause": "time, chip-time and money that were lost, by group and cause",
    "trend": "time, chip-time and money by cause, in the last 7 days and the 7 days before",
    "worst_jobs": "time, chip-time and money of each job, the one that lost most money first",
    "saves": "what advice on saves needs of each job",
    "hosts": "the chip-time of each host, and the disruptions that it is blamed for",
    "quality": "jobs with gaps, without an end, chips, team or price, and those that failed",
    "versions": "the versions of the ledger's rules in the rows; more than one cannot be summed",
}
"""The names of the questions, and what each answers."""

DIALECTS: Final = ("duckdb", "bigquery")
GROUPS: Final = ("team", "owner", "project", "zone", "cluster", "accelerator", "week")
"""The groups that jobs can be in."""
_GROUP_COLUMNS = "group_columns"


def question(name: str, by: Sequence[str] = ("team",), dialect: str = "duckdb") -> str:
    """Return the text of a question.

    Args:
        name: One of `QUESTIONS`.
        by: Names of `GROUPS`, at least one, for the questions on groups.
        dialect: One of `DIALECTS`.

    Raises:
        ConfigurationError: There is no such question, group or dialect.
    """
    if name not in QUESTIONS:
        raise ConfigurationError(f"expected a question of {', '.join(QUESTIONS)}, got {name!r}")
    if dialect not in DIALECTS:
        raise ConfigurationError(f"expected a dialect of {', '.join(DIALECTS)}, got {dialect!r}")
    unknown = [group for group in by if group not in GROUPS]
    if unknown or not by or len(set(by)) < len(by):
        raise ConfigurationError(f"expected different groups of {', '.join(GROUPS)}, got {', '.join(by) or 'none'}")
    text = composed(name) if dialect == "duckdb" else _read(f"bigquery/{name}.sql")
    return text.replace(_GROUP_COLUMNS, ", ".join(by))


def facts_text(columns: str) -> str:
    """Return a text that selects columns of what all questions are about: each row with its group, chips and price."""
    return f"{_read('facts.sql').rstrip()}\nSELECT {columns} FROM facts"


@lru_cache
def composed(name: str) -> str:
    """Return the text of a question in DuckDB's dialect, with `group_columns` where its groups will be."""
    text = _read(f"{name}.sql")
    if "facts" not in text:
        return text
    facts = _read("facts.sql").rstrip()
    return f"{facts},\n{text[5:]}" if text.startswith("WITH ") else f"{facts}\n{text}"


@lru_cache
def _read(name: str) -> str:
    from importlib.resources import files

    return files("ml_diagnostics_fleet").joinpath("sql", *name.split("/")).read_text(encoding="utf-8")
