"""Numbers in the cells of the results, and the JSON file that holds them beside the page."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import Row, Table, machine

FORMAT = 1
ROOT = Path(__file__).parent.parent
_SCALES = {
    "ns": (1e-9, "s"),
    "µs": (1e-6, "s"),
    "ms": (1e-3, "s"),
    "s": (1.0, "s"),
    "KiB": (2.0**-10, "MiB"),
    "MiB": (1.0, "MiB"),
    "GiB": (2.0**10, "MiB"),
    "/s": (1.0, "/s"),
    "%": (1.0, "%"),
    "times": (1.0, "times"),
}
_NUMBER = r"(?P<number>\d[\d,]*(?:\.\d+)?)(?:\s?(?P<unit>/s|%|(?:ns|µs|ms|s|KiB|MiB|GiB|times)\b))?"
_PART = re.compile(rf"(?P<before>[a-z ]*){_NUMBER}(?P<after>[^:]*)")
_ANYWHERE = re.compile(rf"(?<![\w.+-]){_NUMBER}")
_IN_PARENTHESES = re.compile(r" ?\([^()]*\)")


@dataclass(frozen=True)
class Measurement:
    """One number of a row.

    Attributes:
        label: Which of the row's numbers it is, for example `p99`; empty for the only one.
        value: In seconds, MiB, per second, percent, times, or a bare count.
        unit: `s`, `MiB`, `/s`, `%`, `times`, or empty for a count.
        step: The value of the last digit that was written: smaller differences are rounding.
        better: `lower`, `higher`, or empty if neither the unit nor the target decides.
        compared_with: The first number of the same unit that the row compares it with, in the same run.
    """

    label: str
    value: float
    unit: str
    step: float
    better: str
    compared_with: float | None = None


def measurements_of(row: Row) -> list[Measurement]:
    """Return the numbers of a row's own cell."""
    found: dict[str, Measurement] = {}
    for part in _IN_PARENTHESES.sub("", row.ours).partition(";")[0].split(", "):
        match = _PART.match(part)
        if match is None:
            continue
        value, unit, step = _quantity(match)
        after = match["after"].partition(" against ")[0].partition(" of ")[0]
        label = f"{match['before'].strip()} {after.strip()}".strip() or (unit if found else "")
        found.setdefault(label, Measurement(label, value, unit, step, _better(unit, row.target), _reference(row, unit)))
    if "on" in found and "off" in found:  # by turns in one run: what counts is how much longer a step takes
        on, off = found["on"], found.pop("off")
        found["on"] = Measurement(on.label, on.value, on.unit, on.step, on.better, off.value)
    return list(found.values())


def document(tables: Sequence[Table], *, quick: bool) -> dict[str, Any]:
    """Return the contents of a run's JSON file."""
    return {
        "format": FORMAT,
        "quick": quick,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "tables": [
            {
                "title": table.title,
                "note": table.note,
                "machine": machine(),
                "rows": [
                    {**asdict(row), "figures": [asdict(each) for each in measurements_of(row)]} for row in table.rows
                ],
            }
            for table in tables
        ],
    }


def write(path: Path, tables: Sequence[Table], *, quick: bool) -> None:
    """Replace the JSON file of a run by one with all tables that have been measured so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(tables, quick=quick), ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def read(text: str, name: str) -> dict[str, Any]:
    """Return the contents of a run's JSON file.

    Raises:
        ValueError: The text is not a run in this format.
    """
    try:
        run = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: expected the JSON file of a benchmark run: {error}") from None
    if not isinstance(run, Mapping) or run.get("format") != FORMAT:
        raise ValueError(f"{name}: expected the JSON file of a benchmark run in format {FORMAT}; measure again")
    return dict(run)


def _quantity(match: re.Match[str]) -> tuple[float, str, float]:
    digits = match["number"].replace(",", "")
    scale, unit = _SCALES.get(match["unit"] or "", (1.0, ""))
    return float(digits) * scale, unit, scale * 10.0 ** -len(digits.partition(".")[2])


def _better(unit: str, target: str) -> str:
    if unit in ("s", "MiB"):
        return "lower"
    if unit == "/s" or ">=" in target:
        return "higher"
    return "lower" if "<" in target else ""


def _reference(row: Row, unit: str) -> float | None:
    for match in _ANYWHERE.finditer(_IN_PARENTHESES.sub("", row.compared_with)):
        value, found, _ = _quantity(match)
        if match["unit"] and found == unit:
            return value
    return None


def _commit() -> str | None:
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()
