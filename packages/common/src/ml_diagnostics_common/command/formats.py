"""Output formats: tables for people; JSON, YAML and CSV for programs. Parsers import it, so imports are lazy."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from ml_diagnostics_common.texts import format_count, one_line

__all__ = [
    "FORMATS",
    "MOST_ROWS",
    "add_format_option",
    "csv_lines",
    "first_and_last",
    "format_data",
    "format_table",
    "shortened",
    "with_gap",
]

_Item = TypeVar("_Item")

FORMATS: Final = ("table", "json", "yaml", "csv")
MOST_ROWS: Final = 12
"""The most rows of attempts, processes and profiles on a page."""

_READABLE: Final = 16
"""The least width of a column that is cut."""
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The starts of formulas, also if the spreadsheet drops a control character or reads full-width ones."""
_PLAIN_YAML: Final = re.compile(r"(?!(?i:true|false|null|yes|no|on|off|y|n)\Z)[A-Za-z_][\w./-]*", re.ASCII)
"""Text that needs no quotes in any version of YAML."""


def add_format_option(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the option `--format`: a table by default, and formats that only this command has."""
    parser.add_argument(
        "--format", choices=(*FORMATS, *more), default=FORMATS[0], help="output format (default: %(default)s)"
    )


def format_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    align: str = "",
    *,
    width: int | None = None,
    cut: Sequence[str] = (),
    indent: str = "",
) -> list[str]:
    """Return the lines of a table with a line under its headers, the style "simple" of tabulate.

    Args:
        headers: The names of the columns; empty for a table without headers.
        rows: A text for each column.
        align: < or > for each column; empty if all are aligned to the left.
        width: The columns of the terminal; None if there is no limit.
        cut: Headers of columns that are cut to the width, and left out if that is not enough, least important first.
            Without them the table may be wider, so that paths and names can be copied.
        indent: The start of each line.
    """
    lines = [[one_line(cell) for cell in row] for row in rows]
    if headers:
        lines.insert(0, list(headers))
    columns = [list(column) for column in zip(*lines, strict=True)]
    sides = list(align or "<" * len(columns))
    if width is not None:
        columns, sides = _fitted(columns, sides, width - len(indent), cut)
    widths = [max(map(len, column)) for column in columns]
    if headers:
        for column, length in zip(columns, widths, strict=True):
            column.insert(1, "-" * length)
    padded = (
        [f"{cell:{side}{length}}" for cell in column]
        for column, side, length in zip(columns, sides, widths, strict=True)
    )
    return [f"{indent}{'  '.join(line)}".rstrip() for line in zip(*padded, strict=True)]


def first_and_last(items: Sequence[_Item]) -> Sequence[_Item]:
    """Return the items, or the first and the last few if they are too many for a page."""
    return items if len(items) <= MOST_ROWS else [*items[: MOST_ROWS // 2], *items[-MOST_ROWS // 2 :]]


def with_gap(table: list[str], count: int, noun: str) -> list[str]:
    """Insert into an indented table how many of `count` rows `first_and_last` left out, after the first rows."""
    if count > MOST_ROWS:
        more = format_count(count - MOST_ROWS, f"more {noun}")
        table.insert(2 + MOST_ROWS // 2, f"  ... {more}; --format json has all")  # 2: the headers and the line below.
    return table


def shortened(text: str, length: int, width: int | None) -> str:
    """Return a text as one line, cut to a length on a terminal.

    Args:
        text: The text.
        length: The most characters on a terminal.
        width: The columns of the terminal; None for a file or a pipe, where nothing is cut.
    """
    return one_line(text, None if width is None else length)


def _fitted(
    columns: list[list[str]], sides: list[str], width: int, cut: Sequence[str]
) -> tuple[list[list[str]], list[str]]:
    """Cut columns to a width, the least important first; leave them out if that is not enough."""
    for dropped in range(max(1, len(cut))):
        left = [number for number, column in enumerate(columns) if column[0] not in cut[:dropped]]
        widths = {columns[number][0]: max(map(len, columns[number])) for number in left}
        for header in cut[dropped:]:
            excess = sum(widths.values()) + 2 * (len(widths) - 1) - width
            if header in widths and excess > 0:
                widths[header] = max(min(widths[header], max(_READABLE, len(header))), widths[header] - excess)
        if sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
    cells = [[one_line(cell, widths[columns[number][0]]) for cell in columns[number]] for number in left]
    return cells, [sides[number] for number in left]


def format_data(document: Any, style: str, rows: Iterable[Mapping[str, Any]] = (), fields: Sequence[str] = ()) -> str:
    """Format data for programs, without a line break at the end.

    Args:
        document: All of the data, in the types of JSON.
        style: json, yaml or csv.
        rows: The rows of CSV; None is an empty cell.
        fields: The columns of CSV, in this order.

    Raises:
        ValueError: The style is another one.
    """
    if style == "csv":
        return "".join(csv_lines(fields, ([row[field] for field in fields] for row in rows))).rstrip("\n")
    if style == "yaml":
        return "\n".join(_yaml_lines(document))
    if style == "json":
        import json

        return json.dumps(document, indent=2)
    raise ValueError(f"expected the format json, yaml or csv, got {style!r}; a table is made by format_table")


def csv_lines(fields: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a CSV file. Text that a spreadsheet would run as a formula gets an apostrophe."""
    import csv
    import io

    for cells in itertools.chain([fields], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(map(_safe_cell, cells))
        yield line.getvalue()


def _safe_cell(cell: object) -> object:
    """Return text that a spreadsheet does not run: https://owasp.org/www-community/attacks/CSV_Injection."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA_STARTS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _yaml_lines(value: Any) -> Iterator[str]:
    """Yield the lines of a value in the types of JSON as YAML."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            lines = _yaml_lines(item)
            if isinstance(item, (Mapping, list, tuple)) and item:
                yield f"{_yaml_text(str(key))}:"
                yield from (f"  {line}" for line in lines)
            else:
                yield f"{_yaml_text(str(key))}: {next(lines)}"
    elif isinstance(value, (list, tuple)) and value:
        for item in value:
            first, *others = _yaml_lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
    else:
        yield _yaml_scalar(value)


def _yaml_scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        text = repr(value)
        if not math.isfinite(value):
            return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[text]
        return text if "." in text else text.replace("e", ".0e")  # YAML 1.1 reads 1e+16 as text.
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if isinstance(value, Mapping) else "[]"
    return _yaml_text(value) if isinstance(value, str) else str(value)


def _yaml_text(text: str) -> str:
    if _PLAIN_YAML.fullmatch(text):
        return text
    return '"' + "".join(map(_yaml_character, text)) + '"'


def _yaml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"
