"""Output formats: tables for people; JSON, YAML and CSV for programs. Parsers import it, so imports are lazy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["FORMATS", "add_format_option", "format_records", "format_table"]

FORMATS: Final = ("table", "json", "yaml", "csv")


def add_format_option(parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS) -> None:
    """Add the option `--format`."""
    parser.add_argument("--format", choices=formats, default=formats[0], help="output format (default: %(default)s)")


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with a line under its header; without rows, only those.

    Equals the style "simple" of tabulate, which previous releases used: columns are at least two wider than the header.
    """
    cells = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max([len(header) + 2, *(len(row[column]) for row in cells)]) for column, header in enumerate(headers)]
    lines = [headers, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def format_records(records: Sequence[Mapping[str, Any]], style: str, fields: Sequence[str]) -> str:
    """Format records for programs.

    Args:
        records: The records, each with all fields; None is null, or empty in CSV.
        style: json, yaml or csv.
        fields: The columns of CSV, in this order.
    """
    if style == "json":
        import json

        return json.dumps(list(records), indent=2)
    if style == "yaml":
        import yaml

        return yaml.safe_dump([dict(record) for record in records], sort_keys=False).rstrip("\n")
    import csv
    import io

    from ml_diagnostics_common.csv_cells import safe_cell

    lines = io.StringIO()
    writer = csv.DictWriter(lines, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows({field: safe_cell(record[field]) for field in fields} for record in records)
    return lines.getvalue().rstrip("\n")


def _one_line(cell: str) -> str:
    return cell if cell.isprintable() else "".join(letter if letter.isprintable() else " " for letter in cell)
