"""Cells of a CSV file that a spreadsheet does not run as formulas."""

from __future__ import annotations

__all__ = ["safe_cell"]

_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Of formulas, also where the spreadsheet drops a control character or reads full-width ones."""


def safe_cell(cell: object) -> object:
    """Return a cell for `csv.writer`: text that a spreadsheet would run gets an apostrophe; numbers stay.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    if not isinstance(cell, str) or not cell.startswith(_STARTS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
