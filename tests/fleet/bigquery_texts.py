"""The questions in BigQuery's dialect, made of DuckDB's by sqlglot, and what the two do not agree on as lints.

Run this file to write them:

    python -m tests.fleet.bigquery_texts
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import sqlglot
from ml_diagnostics_fleet.queries import QUESTIONS, composed
from sqlglot import exp

FOLDER = Path(__file__).parents[2] / "packages" / "fleet" / "src" / "ml_diagnostics_fleet" / "sql" / "bigquery"


def text_of(name: str) -> str:
    """Return a question in BigQuery's dialect, as sqlglot makes it."""
    (text,) = sqlglot.transpile(composed(name), read="duckdb", write="bigquery", pretty=True)
    return f"{text}\n"


def findings(text: str) -> Iterator[str]:
    """Yield what of a text in DuckDB's dialect would be something else in BigQuery, or not exact."""
    tree = sqlglot.parse_one(text, read="duckdb")
    names = Counter(table.alias for table in tree.find_all(exp.CTE))
    yield from (f"the name {name} of two parts: sqlglot makes one list of them" for name in names if names[name] > 1)
    for node in tree.walk():
        yield from _findings(node)


def _findings(node: exp.Expr) -> Iterator[str]:
    if isinstance(node, exp.Greatest | exp.Least):
        yield f"{node.sql()}: BigQuery returns NULL if an argument is NULL, DuckDB does not"
    elif isinstance(node, exp.Div | exp.IntDiv):
        yield f"{node.sql()}: a float of integers or of DECIMAL"
    elif isinstance(node, exp.DataType):
        if node.this in (exp.DataType.Type.INT128, exp.DataType.Type.UINT128):
            yield f"{node.sql()}: BigQuery has no HUGEINT"
        elif node.this is exp.DataType.Type.DECIMAL and [part.name for part in node.expressions] != ["38", "0"]:
            yield f"{node.sql()}: DuckDB's DECIMAL is (18, 3); write DECIMAL(38, 0)"
        elif node.this in (exp.DataType.Type.DOUBLE, exp.DataType.Type.FLOAT):
            yield f"{node.sql()}: no float"
    elif isinstance(node, exp.DateTrunc | exp.TimestampTrunc):
        yield f"{node.sql()}: weeks start on Sunday in BigQuery; take them from the calendar"
    elif isinstance(node, exp.Sum) and not _is_exact(node.this):
        yield f"{node.sql()}: a sum of INT64 overflows; sum CAST(... AS DECIMAL(38, 0))"
    elif (
        isinstance(node, exp.Unnest | exp.Explode)
        and node.find_ancestor(exp.Select, exp.Join, exp.From).key == "select"
    ):
        yield f"{node.sql()}: unnest belongs into FROM"
    elif isinstance(node, exp.Tuple) and isinstance(node.parent, exp.Distinct):
        yield f"{node.sql()}: BigQuery counts no distinct rows"
    elif isinstance(node, exp.Avg):
        yield f"{node.sql()}: no mean of shares or of integers"


def _is_exact(argument: exp.Expr) -> bool:
    """Return True for a cast to a type that cannot overflow, in each branch of a CASE."""
    if isinstance(argument, exp.Case):
        branches = [branch.args["true"] for branch in argument.args["ifs"]]
        branches += [argument.args["default"]] if argument.args.get("default") is not None else []
        return all(map(_is_exact, branches))
    return isinstance(argument, exp.Cast) and argument.to.sql() == "DECIMAL(38, 0)"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in QUESTIONS:
        (FOLDER / f"{name}.sql").write_text(text_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
